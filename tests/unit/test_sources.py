"""Which files a result depends on, and what of them counts."""

import pytest

from sweep import sources


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Writes modules of a package `sweep` that stands in for the real one."""
    monkeypatch.setattr(sources, "ROOT", tmp_path)

    def write(**modules):
        for name, text in modules.items():
            path = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        sources._read.cache_clear()
        sources.digest.cache_clear()

    write(stage="from sweep import near\nimport sweep.far.deep\n", near="X = 1\n", far__deep="from sweep.near import X\n", apart="Y = 1\n")
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "far" / "__init__.py").write_text("")
    yield write
    sources._read.cache_clear()
    sources.digest.cache_clear()


STAGE = ("sweep.stage",)


def test_what_a_module_names_counts_also_at_second_hand(tree):
    before = sources.digest(STAGE)
    tree(apart="Y = 2\n")
    assert sources.digest(STAGE) == before
    tree(near="X = 2\n")
    other = sources.digest(STAGE)
    assert other != before
    tree(far__deep="from sweep.near import X\nZ = 3\n")
    assert sources.digest(STAGE) not in (before, other)


def test_imports_inside_functions_count(tree):
    tree(stage="def run():\n    from sweep import apart\n    return apart\n")
    before = sources.digest(STAGE)
    tree(apart="Y = 2\n")
    assert sources.digest(STAGE) != before


def test_imports_for_annotations_alone_do_not_count(tree):
    tree(stage="from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from sweep import apart\n")
    before = sources.digest(STAGE)
    assert sources.imports("sweep.stage") == {"typing", "typing.TYPE_CHECKING"}
    tree(apart="Y = 2\n")
    assert sources.digest(STAGE) == before
    tree(stage="from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from sweep import near\n")
    assert sources.digest(STAGE) == before


def test_comments_docstrings_and_layout_do_not_count(tree):
    tree(near='"""Words."""\n\n\ndef f(a,\n      b):\n    """More words."""\n    return a  # why\n')
    before = sources.digest(STAGE)
    tree(near="# another comment\ndef f(a, b):\n    return (a)\n")
    assert sources.digest(STAGE) == before
    tree(near="def f(a, b):\n    return b\n")
    assert sources.digest(STAGE) != before


def test_a_string_that_is_no_docstring_counts(tree):
    tree(near="X = 'a'\n")
    before = sources.digest(STAGE)
    tree(near="X = 'b'\n")
    assert sources.digest(STAGE) != before


def test_a_program_in_another_language_beside_a_module_counts(tree, tmp_path):
    before = sources.digest(STAGE)
    (tmp_path / "near.js").write_text("run();\n")
    tree()
    with_program = sources.digest(STAGE)
    (tmp_path / "near.js").write_text("run(2);\n")
    tree()
    assert len({before, with_program, sources.digest(STAGE)}) == 3


def test_the_same_content_elsewhere_is_another_module(tree):
    tree(near="X = 1\n", apart="X = 1\n")
    assert sources.digest(("sweep.near",)) != sources.digest(("sweep.apart",))
    assert sources.digest(("sweep.near", "sweep.apart")) == sources.digest(("sweep.apart", "sweep.near"))


def test_imports_are_told_of_any_package(tree):
    tree(stage="import numpy.linalg as n\nfrom sweep import near\nfrom json import dumps\n")
    assert sources.imports("sweep.stage") == {"numpy.linalg", "sweep", "sweep.near", "json", "json.dumps"}


def test_a_stage_of_the_real_program_reads_its_neighbours():
    assert {"sweep.inputs", "sweep.layers", "sweep.stages.models"} <= sources.imports("sweep.stages.train")
