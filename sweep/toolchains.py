"""The command: `python -m sweep.toolchains list | install NAME... | check [NAME...]`.

`list` shows every toolchain with its state, versions and size. `install` creates some (or `all`) from their locks, and checks them.
`check` proves those that are installed by a forward pass of each framework, and by importing each runtime. Exit status 0: all is well;
1: a toolchain does not work or can't be installed, each with a line; 2: bad input.
"""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from sweep import installation, toolchain
from sweep.errors import ConfigError, SweepError, nearest
from sweep.installation import ToolchainError
from sweep.interrupts import terminated_as_interrupt
from sweep.toolchain import DEFAULT, Definition

ALL = "all"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 200)
    try:
        with terminated_as_interrupt():
            if options.verb == "list":
                _list(console)
                return 0
            return _each(options.verb, options.names, console)
    except SweepError as error:
        print(f"toolchains: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; an installation that was not finished is made anew by the next one.", file=sys.stderr)
        return 130


def _list(console: Console) -> None:
    table = Table("toolchain", "Python", "offers", "versions", "size", "state", box=None, pad_edge=False)
    for definition in toolchain.definitions().values():
        word, record = installation.state(definition)
        versions = ", ".join(f"{_value(definition, module)} {found['version']}" for module, found in record.get("checked", {}).items())
        size = f"{record['bytes'] / 1e6:,.0f} MB" if record else ""
        exports = [f"{module} as {target}" for module, targets in definition.exports.items() for target in targets]
        offered = ", ".join([*definition.frameworks, *definition.runtimes, *exports])
        table.add_row(definition.name, record.get("python", definition.python), offered, versions, size, word)
    console.print(table)
    console.print(f"{DEFAULT}: this interpreter, with everything else", soft_wrap=True)


def _each(verb: str, names: Sequence[str], console: Console) -> int:
    """Go on with the others where one fails."""
    failed = 0
    for name in _chosen(verb, names):
        try:
            _one(verb, name, console)
        except ToolchainError as error:
            failed += 1
            print(f"toolchains: {error}", file=sys.stderr)
    return 1 if failed else 0


def _one(verb: str, name: str, console: Console) -> None:
    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    if name == DEFAULT:
        own = [offer.module for offer in toolchain.offers("frameworks").values() if offer.toolchain == DEFAULT]
        _tell(console, name, installation.forward_passes(toolchain.default(), own))
        return
    definition = toolchain.definitions()[name]
    checked = installation.install(definition, say)["checked"] if verb == "install" else _checked(definition)
    _tell(console, name, {_value(definition, module): found for module, found in checked.items()})


def _checked(definition: Definition) -> dict[str, dict[str, object]]:
    word, _record = installation.state(definition)
    if word != "ready":
        raise ToolchainError(f"toolchain {definition.name}: {word}; python -m sweep.toolchains install {definition.name}")
    return installation.check(definition)


def _value(definition: Definition, module: str) -> str:
    """What a module is called on the axis, without a version; one that only exports has its own name."""
    offered = [*definition.frameworks.items(), *definition.runtimes.items()]
    return toolchain.base(next((value for value, offers in offered if offers == module), module))


def _tell(console: Console, name: str, checked: dict[str, dict[str, object]]) -> None:
    for module, found in checked.items():
        proof = "is there"
        if "difference" in found:
            proof = f"works; logits are off by {found['difference']:.1e}, {found['tolerance']:.1e} is rounding"
        console.print(f"{name}: {module} {found['version']} {proof}", soft_wrap=True)


def _chosen(verb: str, names: Sequence[str]) -> list[str]:
    """Raises ConfigError for a name that is none."""
    known = list(toolchain.definitions())
    for name in names:
        if name not in (*known, ALL, *([DEFAULT] if verb == "check" else [])):
            raise ConfigError(f"there is no toolchain {name!r}{nearest(name, known)}")
    if ALL in names:
        return known
    if names:
        return list(dict.fromkeys(names))
    ready = [name for name, definition in toolchain.definitions().items() if installation.state(definition).word == "ready"]
    return [DEFAULT, *ready]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sweep.toolchains", description="The locked environments of frameworks and runtimes.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="every toolchain, its versions, size and state")
    install = verbs.add_parser("install", help="create some from their locks, and check them")
    install.add_argument("names", nargs="+", metavar="NAME", help=f"a toolchain, or {ALL}")
    check = verbs.add_parser("check", help="a forward pass of each framework; without a name, of all that are installed")
    check.add_argument("names", nargs="*", metavar="NAME", help=f"a toolchain, {DEFAULT} or {ALL}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
