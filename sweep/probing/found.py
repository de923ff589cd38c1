"""What became of a probe, in words that its record, its stage and a report share."""

from collections.abc import Mapping
from typing import Any

RIGHT, WRONG, UNDECIDED, UNSUPPORTED, CRASHED, TIMED_OUT = VERDICTS = ("right", "wrong", "undecided", "unsupported", "crashed", "timed_out")
FAULTY = (WRONG, CRASHED, TIMED_OUT)


def fault_of(record: Mapping[str, Any]) -> str | None:
    """What a probe has in common with others that fail for the same reason, None where it does not fail."""
    if record["verdict"] not in FAULTY:
        return None
    return "-".join([*filter(None, [record["parameters"].get("function")]), record["fault"]])
