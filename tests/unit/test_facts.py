"""What components state of themselves: asked of a real worker once, kept, and asked again where something has changed."""

import sys

import pytest

from sweep import components, facts, toolchains
from sweep.toolchains import Toolchain
from sweep.worker import describe


@pytest.fixture(autouse=True)
def two_components(monkeypatch):
    """The fake framework and the runtimes that import nothing: the others take seconds."""
    monkeypatch.setattr(components, "names", lambda kind: ["fake"] if kind == "frameworks" else ["fake", "native"])


@pytest.fixture
def asked(monkeypatch):
    """How often a toolchain was asked."""
    calls = []
    ask = facts._ask
    monkeypatch.setattr(facts, "_ask", lambda toolchain: (calls.append(toolchain.name), ask(toolchain))[1])
    return calls


@pytest.fixture
def narrow(monkeypatch, tmp_path):
    """A toolchain whose worker knows these components alone."""
    script = tmp_path / "narrow.py"
    script.write_text(
        "import sys\nfrom sweep import components\nfrom sweep.worker import serve\n"
        "components.names = lambda kind: ['fake'] if kind == 'frameworks' else ['fake', 'native']\nserve.main(sys.argv[3])\n"
    )
    monkeypatch.setattr(toolchains, "default", lambda: Toolchain("narrow", (sys.executable, str(script)), "lock 1"))


def test_facts_versions_and_locks(narrow, tmp_path):
    import numpy

    found = facts.gather(tmp_path)
    fake = found.frameworks["fake"]
    assert (fake.version, fake.missing) == (numpy.__version__, "")
    assert fake.facts["exports"] == ["native", "fake"]
    assert found.runtimes["native"].facts["accepts"] == {"native": "native"}
    assert (found.runtimes["native"].version, len(found.runtimes["fake"].lock)) == ("", 16)


def test_they_are_asked_once_for_each_toolchain(narrow, asked, tmp_path, monkeypatch):
    first = facts.gather(tmp_path)
    assert facts.gather(tmp_path) == first
    assert asked == ["narrow"]
    changed = toolchains.default()
    monkeypatch.setattr(toolchains, "default", lambda: Toolchain("changed", changed.command, "lock 2"))
    assert facts.gather(tmp_path) == first
    assert asked == ["narrow", "changed"]


@pytest.mark.parametrize(("command", "reason"), [
    (("/no/such/python",), "can't be started: [Errno 2] No such file or directory: '/no/such/python'"),
    ((sys.executable, "-c", "import os; os.abort()"), "exited with status -6"),
])
def test_a_toolchain_that_does_not_come_up_makes_its_components_missing_and_is_asked_again(asked, tmp_path, monkeypatch, command, reason):
    monkeypatch.setattr(toolchains, "default", lambda: Toolchain("broken", command, "lock"))
    for _ in range(2):
        found = facts.gather(tmp_path)
        assert found.frameworks["fake"].missing == f"toolchain broken: a worker of toolchain broken {reason}"
        assert (found.runtimes["native"].facts, found.runtimes["native"].missing != "") == ({}, True)
    assert asked == ["broken", "broken"]


class Installed:
    """A package as `importlib.metadata` tells of it."""

    def __init__(self, version, *requires):
        self.version, self.requires = version, list(requires)


@pytest.fixture
def packages(monkeypatch):
    """What is installed, by normalised name; may be changed."""
    found = {
        "runtime-one": Installed("1.0", "Shared_Base>=1", "extra-thing; extra == 'all'", "windows-only; sys_platform == 'win32'"),
        "shared-base": Installed("2.0"), "extra-thing": Installed("3.0"), "apart": Installed("4.0"),
    }
    monkeypatch.setattr(describe, "_installed", lambda name: found.get(describe._normal(name)))
    return found


@pytest.mark.parametrize(("name", "changes"), [("runtime-one", True), ("shared-base", True), ("extra-thing", False), ("apart", False)])
def test_a_lock_changes_with_what_a_component_rests_on_and_nothing_else(packages, name, changes):
    before = describe.lock(["runtime.one"])
    packages[name].version = "9"
    assert (describe.lock(["runtime.one"]) != before) == changes


def test_why_a_component_is_missing(packages, monkeypatch):
    module = type("module", (), {"FACTS": {"distribution": "runtime-one", "converters": ["nowhere", "apart"]}})
    monkeypatch.setattr(components, "load", lambda kind, name: module)
    assert describe._component("runtimes", "any") == {"missing": "not installed: nowhere"}
    module.FACTS["converters"] = ["apart"]
    assert describe._component("runtimes", "any")["version"] == "1.0"

    def broken(_kind, _name):
        raise ImportError("libmissing.so.1:\n cannot open")

    monkeypatch.setattr(components, "load", broken)
    assert describe._component("runtimes", "any") == {"missing": "ImportError: libmissing.so.1: cannot open"}


def test_what_converts_has_a_lock_of_its_own(packages, monkeypatch):
    module = type("module", (), {"FACTS": {"distribution": "runtime-one", "converters": ["apart"]}})
    monkeypatch.setattr(components, "load", lambda kind, name: module)
    before = describe._component("runtimes", "any")
    packages["apart"].version = "9"
    after = describe._component("runtimes", "any")
    assert (before["lock"], before["version"]) == (after["lock"], after["version"])
    assert before["convert_lock"] != after["convert_lock"]


def test_a_build_for_another_processor_is_the_package():
    assert describe._installed("numpy").version
    assert describe._installed("no-such-package-anywhere") is None
