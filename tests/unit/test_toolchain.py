"""Toolchain files, and which toolchain a value of an axis comes from."""

import pytest

from sweep import components, toolchain
from sweep.errors import ConfigError, StageFailed
from sweep.toolchain import Offer

FILE = """
python = "3.8"
installer = ["pip==24.0"]
packages = ["old==1.0"]
[frameworks]
"one@1" = "first"
two = "second"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of toolchain files that is the only one."""
    monkeypatch.setattr(toolchain, "PACKAGE_PARENT", tmp_path / "nowhere")
    monkeypatch.setenv("SWEEP_TOOLCHAINS", str(tmp_path))
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(components, "names", lambda kind: ["first", "one", "second", "third"] if kind == "frameworks" else [])
    toolchain.definitions.cache_clear()
    yield tmp_path
    toolchain.definitions.cache_clear()


def write(folder, text=FILE, lock="old==1.0\n# a comment\nnumpy==1.2 # another\n", name="legacy"):
    (folder / f"{name}.toml").write_text(text)
    (folder / f"{name}.lock").write_text(lock)


def test_a_definition_is_its_two_files(folder):
    write(folder)
    (definition,) = toolchain.definitions().values()
    assert (definition.name, definition.python, definition.pins) == ("legacy", "3.8", ["old==1.0", "numpy==1.2"])
    assert definition.frameworks == {"one@1": "first", "two": "second"}
    assert definition.interpreter() == folder / "cache" / "toolchains" / f"legacy-{definition.lock}" / "bin" / "python"


@pytest.mark.parametrize(("before", "after", "same"), [
    ('"3.8"', '"3.9"', False), ('"pip==24.0"', '"pip==23.0"', False), ('two = "second"', 'three = "second"', True),
])
def test_the_lock_is_what_decides_the_environment(folder, before, after, same):
    write(folder)
    (first,) = toolchain.definitions().values()
    write(folder, FILE.replace(before, after))
    toolchain.definitions.cache_clear()
    (second,) = toolchain.definitions().values()
    assert (first.lock == second.lock) == same


def test_what_npm_installs_has_a_lock_of_its_own(folder):
    write(folder)
    without = toolchain.definitions()["legacy"].lock
    locks = []
    for content in ('{"packages": {}}', '{"packages": {"a": {}}}'):
        (folder / "legacy.package-lock.json").write_text(content)
        write(folder, 'npm = "legacy.package-lock.json"' + FILE)
        toolchain.definitions.cache_clear()
        assert toolchain.definitions()["legacy"].npm == content
        locks.append(toolchain.definitions()["legacy"].lock)
    assert len({without, *locks}) == 3


def test_a_lock_of_npm_that_is_not_there_is_told(folder):
    write(folder, 'npm = "nowhere.json"' + FILE)
    with pytest.raises(ConfigError, match=r"legacy.toml: .*nowhere.json"):
        toolchain.definitions()


def test_two_that_offer_the_same_are_refused(folder):
    write(folder)
    write(folder, name="other")
    with pytest.raises(ConfigError, match=r"other.toml: frameworks: 'one@1' is offered by the toolchain 'legacy' too"):
        toolchain.definitions()


def test_a_module_that_is_not_there_is_told(folder):
    write(folder, FILE.replace('"first"', '"frist"'))
    with pytest.raises(ConfigError, match="frameworks: there is no 'frist' in sweep/frameworks"):
        toolchain.definitions()


@pytest.mark.parametrize(("text", "message"), [
    (FILE.replace("python", "pyhton"), "legacy.toml: python: Field required"),
    (FILE.replace('"3.8"', '"2.7"'), "legacy.toml: python: String should match pattern"),
    (FILE + "[typo]\n", "legacy.toml: typo: Extra inputs are not permitted"),
    ("python = ", "legacy.toml: Invalid value"),
])
def test_a_wrong_file_names_the_key(folder, text, message):
    write(folder, text)
    with pytest.raises(ConfigError, match=message):
        toolchain.definitions()


def test_a_missing_lock_is_told(folder):
    (folder / "legacy.toml").write_text(FILE)
    with pytest.raises(ConfigError, match=r"legacy.toml.*legacy.lock"):
        toolchain.definitions()


def test_where_values_come_from(folder):
    """`first` is offered under another name, `second` under its own by a toolchain; the default one has what is left."""
    write(folder)
    assert toolchain.offers("frameworks") == {
        "one": Offer("default", "one"), "one@1": Offer("legacy", "first"), "third": Offer("default", "third"), "two": Offer("legacy", "second"),
    }
    assert toolchain.offer("frameworks", "one@1") == Offer("legacy", "first")
    assert toolchain.offer("frameworks", "one@2.3") == Offer("default", "one", "2.3")
    assert toolchain.offer("frameworks", "two@2.3") is None  # no toolchain has that version
    assert toolchain.offer("frameworks", "one@") is None


@pytest.mark.parametrize(("installed", "wanted", "is_it"), [
    ("2.21.0", "2.21.0", True), ("2.21.0", "2.21", True), ("2.21.0", "2", True), ("2.21.0", "2.2", False), ("2.2", "2.2.0", False),
])
def test_versions_are_compared_part_by_part(installed, wanted, is_it):
    assert toolchain.is_version(installed, wanted) is is_it


def test_what_is_not_installed_says_how_to_install_it(folder):
    write(folder)
    with pytest.raises(StageFailed, match="toolchain legacy is not installed: python -m sweep.toolchains install legacy") as raised:
        toolchain.named("legacy")
    assert raised.value.failure_class == "env_unavailable"
    with pytest.raises(StageFailed, match="there is no such file here as other.toml"):
        toolchain.named("other")


def test_its_workers_import_this_package_and_nothing_beside_it(folder):
    write(folder, FILE + '[environment]\nONE_MORE = "yes"\n')
    (definition,) = toolchain.definitions().values()
    environment = toolchain.of(definition).environment()
    assert environment["ONE_MORE"] == "yes"
    path = toolchain.Path(environment["PYTHONPATH"])
    assert [entry.name for entry in path.iterdir()] == ["sweep"]
    assert (path / "sweep").resolve() == toolchain.Path(toolchain.__file__).parent


def test_the_shipped_files_are_right():
    toolchain.definitions.cache_clear()
    for definition in toolchain.definitions().values():
        asked = {package.partition("==")[0].lower().replace("_", "-") for package in definition.packages}
        pinned = {pin.partition("==")[0].lower().replace("_", "-") for pin in definition.pins}
        assert asked <= pinned, definition.name
        assert all("==" in pin for pin in definition.pins), definition.name
        assert set(definition.frameworks.values()) <= set(components.names("frameworks"))
