"""That the documentation names every row of the tables it describes."""

from pathlib import Path

import pytest

from sweep import attacks, components, corruptions, toolchain

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("page", "names"), [
    ("docs/robustness.md", [*attacks.ROWS, *corruptions.ROWS]),
    ("README.md", [*attacks.ROWS]),
    ("README.md", [name for kind in ("frameworks", "runtimes") for name in toolchain.offers(kind) if name != "fake" and "@" not in name]),
    ("README.md", [name for kind in ("datasets", "architectures", "devices") for name in components.names(kind) if name != "synthetic"]),
])
def test_every_row_is_named(page, names):
    text = (ROOT / page).read_text()
    assert [name for name in names if f"`{name}" not in text] == []
