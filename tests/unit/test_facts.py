"""What components state of themselves: asked of a real worker once, kept, and asked again where something has changed."""

import sys

import pytest

from sweep import components, facts, toolchain
from sweep.errors import ConfigError
from sweep.toolchain import Offer, Toolchain
from sweep.worker import describe

OFFERS = {
    "frameworks": {"fake": Offer("default", "fake"), "fake@0.1": Offer("old", "fake")},
    "runtimes": {"fake": Offer("default", "fake"), "native": Offer("default", "native")},
}
NOTHING = {"frameworks": [], "runtimes": []}


@pytest.fixture(autouse=True)
def few_components(monkeypatch):
    """The fake framework in two toolchains, and the runtimes that import nothing: the others take seconds."""
    monkeypatch.setattr(toolchain, "offers", OFFERS.__getitem__)
    monkeypatch.setattr(facts, "ASK_LIMITS", facts.Limits(3.0, 1 << 34))


@pytest.fixture
def asked(monkeypatch):
    """Which toolchains were asked."""
    calls = []
    ask = facts._ask
    monkeypatch.setattr(facts, "_ask", lambda chosen, *rest: (calls.append(chosen.name), ask(chosen, *rest))[1])
    return calls


@pytest.fixture
def installed(monkeypatch):
    """The toolchains by name; may be changed."""
    found = {"default": Toolchain("default", (sys.executable,), "lock 1"), "old": Toolchain("old", (sys.executable,), "lock of old")}
    monkeypatch.setattr(toolchain, "named", found.__getitem__)
    return found


def test_facts_versions_and_locks(installed, tmp_path):
    import numpy

    found = facts.gather(tmp_path, NOTHING)
    fake = found.frameworks["fake"]
    assert (fake.version, fake.missing, fake.module, fake.toolchain) == (numpy.__version__, "", "fake", "default")
    assert fake.facts["exports"] == ["native", "fake"]
    assert found.runtimes["native"].facts["accepts"] == {"native": "native"}
    assert (found.runtimes["native"].version, len(found.runtimes["fake"].lock)) == ("", 16)
    assert found.broken_toolchains() == []
    assert "fake@0.1" not in found.frameworks


def test_they_are_asked_once_for_each_toolchain(installed, asked, tmp_path):
    first = facts.gather(tmp_path, NOTHING)
    assert facts.gather(tmp_path, NOTHING) == first
    assert asked == ["default"]
    installed["default"] = Toolchain("default", (sys.executable,), "lock 2")
    assert facts.gather(tmp_path, NOTHING) == first
    assert asked == ["default", "default"]


def test_a_wanted_one_comes_from_its_own_toolchain(installed, asked, tmp_path):
    found = facts.gather(tmp_path, {"frameworks": ["fake@0.1"]})
    old = found.frameworks["fake@0.1"]
    assert (old.name, old.module, old.toolchain, old.missing) == ("fake@0.1", "fake", "old", "")
    assert sorted(asked) == ["default", "old"]


@pytest.mark.parametrize(("code", "reason"), [
    ("import os; os.abort()", "toolchain old: a worker of toolchain old exited with status -6"),
    ("from sweep.worker import describe, serve; describe.run = None; serve.main(SOCKET)", "toolchain old: TypeError: 'NoneType' object is not callable"),
    ("import time; from sweep.worker import describe, serve; describe.run = lambda **_: time.sleep(60); serve.main(SOCKET)", "toolchain old: took over 3 s"),
])
def test_a_broken_toolchain_is_one_line_and_the_others_go_on(installed, asked, tmp_path, code, reason):
    script = tmp_path / "broken.py"
    script.write_text(f"import sys\nSOCKET = sys.argv[3]\n{code}\n")
    installed["old"] = Toolchain("old", (sys.executable, str(script)), "lock")
    for _ in range(2):
        found = facts.gather(tmp_path, {"frameworks": ["fake@0.1"]})
        assert found.broken_toolchains() == [reason]
        assert (found.frameworks["fake@0.1"].facts, found.frameworks["fake@0.1"].missing) == ({}, reason)
        assert found.frameworks["fake"].missing == ""
    assert sorted(asked) == ["default", "old", "old"]  # what was no answer is not kept
    installed["old"] = Toolchain("old", (sys.executable,), "lock")
    assert facts.gather(tmp_path, {"frameworks": ["fake@0.1"]}).frameworks["fake@0.1"].missing == ""


def test_a_default_interpreter_that_does_not_come_up_makes_all_its_components_missing(installed, tmp_path):
    installed["default"] = Toolchain("default", ("/no/such/python",), "lock")
    found = facts.gather(tmp_path, NOTHING)
    assert "[Errno 2] No such file or directory: '/no/such/python'" in found.frameworks["fake"].missing
    assert found.attacks.missing == found.runtimes["native"].missing == found.frameworks["fake"].missing


def test_a_version_that_is_not_there_names_those_that_are(installed, tmp_path, monkeypatch):
    import numpy

    monkeypatch.setattr(toolchain, "offer", lambda kind, value: Offer("default", "fake", value.partition("@")[2]))
    short = ".".join(numpy.__version__.split(".")[:2])
    assert facts.gather(tmp_path, {"frameworks": [f"fake@{short}"]}).frameworks[f"fake@{short}"].version == numpy.__version__
    with pytest.raises(ConfigError, match=f"grid.framework: there is no 'fake@0.2' here; did you mean 'fake@0.1'|fake@{numpy.__version__}"):
        facts.gather(tmp_path, {"frameworks": ["fake@0.2"]})


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

    def distribution(name):
        if describe._normal(name) not in found:
            raise describe.metadata.PackageNotFoundError(name)
        return found[describe._normal(name)]

    monkeypatch.setattr(describe.metadata, "distribution", distribution)
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
