"""Results of a gate as JUnit XML, which continuous integration shows: a suite for each conversion, a case for each limit."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from sweep.budget import Check


def write(path: Path, suites: Sequence[tuple[str, Mapping[str, Any], Sequence[Check], str]]) -> None:
    """Write suites of a name, all figures, checks, and what kept the conversion from giving any ("" for nothing)."""
    root = ElementTree.Element("testsuites", name="gate")
    totals = {"tests": 0, "failures": 0, "errors": 0}
    for name, figures, checks, failure in suites:
        failed = sum(not check.holds for check in checks)
        counts = {"tests": len(checks) + bool(failure), "failures": failed, "errors": int(bool(failure))}
        totals = {kind: totals[kind] + count for kind, count in counts.items()}
        suite = ElementTree.SubElement(root, "testsuite", {"name": name, **_texts(counts)})
        for check in checks:
            case = ElementTree.SubElement(suite, "testcase", classname=name, name=check.name)
            if not check.holds:
                ElementTree.SubElement(case, "failure", message=check.said)
        if failure:
            case = ElementTree.SubElement(suite, "testcase", classname=name, name="runs")
            ElementTree.SubElement(case, "error", message=failure)
        ElementTree.SubElement(suite, "system-out").text = json.dumps(dict(figures), indent=1, sort_keys=True)
    root.attrib.update(_texts(totals))
    ElementTree.indent(root)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _texts(counts: Mapping[str, int]) -> dict[str, str]:
    return {kind: str(count) for kind, count in counts.items()}
