"""Which of the options that a model was served with decides whether it is right."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sweep.probing.found import RIGHT, WRONG


def blame(results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By id of each probe that is wrong in some results and right in others, what tells them apart, in words.

    A result is what one cell found: {"options": {name: value}, "records": the content of its `probes.json`}; `options` has whatever differs
    between the cells, be it an option of the runtime, its version or the framework's.
    """
    verdicts: dict[str, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: {RIGHT: [], WRONG: []})
    for result in results:
        for record in result["records"]:
            if record["verdict"] in (RIGHT, WRONG):
                verdicts[record["id"]][record["verdict"]].append(result["options"])
    return {probe: _told(each[WRONG], each[RIGHT]) for probe, each in verdicts.items() if each[WRONG] and each[RIGHT]}


def _told(wrong: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]]) -> str:
    """The options whose values under which it is wrong are none of those under which it is right."""
    deciding = []
    for name in sorted({name for options in (*wrong, *right) for name in options}):
        bad = {str(options.get(name)) for options in wrong}
        good = {str(options.get(name)) for options in right}
        if not bad & good:
            deciding.append(f"wrong with {name}={' or '.join(sorted(bad))}, right with {name}={' or '.join(sorted(good))}")
    return "; ".join(deciding) or "no option alone decides"
