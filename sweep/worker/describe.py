"""What a toolchain offers: facts, version and lock of the frameworks and runtimes that its interpreter can import."""

import hashlib
import re
import sys

try:
    from importlib import metadata
except ImportError:  # before Python 3.8
    metadata = None  # type: ignore[assignment]

from sweep import components

VARIANTS = ("", "-cpu", "-gpu")
"""A package may be installed under the name of a build for other processors."""

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


def run(modules, packages):
    """Of `modules`, lists of names by kind, by kind and name: {"facts", "version", "lock", "convert_lock"}, or {"missing": why} where its
    packages do not import here; and under "packages", by distribution, the same without facts.

    `lock` covers what a component runs with, `convert_lock` also what it exports or converts with.
    """
    found = {kind: {name: _component(kind, name) for name in names} for kind, names in modules.items()}
    return dict(found, packages={name: _package(name) for name in packages})


def version(name):
    """The version of an installed distribution, None where there is none."""
    found = _installed(name)
    return found and found.version


def _package(name):
    installed = _installed(name)
    if installed is None:
        return {"missing": "not installed: " + name}
    return {"facts": {}, "version": installed.version, "lock": lock([name]), "convert_lock": ""}


def _component(kind, name):
    try:
        facts = components.load(kind, name).FACTS
        own = [facts["distribution"]] if facts["distribution"] else []
        found = {name: _installed(name) for name in own + facts["converters"]}
        missing = sorted(name for name in found if found[name] is None)
        if missing:
            return {"missing": "not installed: " + ", ".join(missing)}
    except Exception as error:  # a broken package must not hide the healthy ones
        return {"missing": "{}: {}".format(type(error).__name__, " ".join(str(error).split())[:300])}
    version = found[own[0]].version if own else ""
    return {"facts": facts, "version": version, "lock": lock(own), "convert_lock": lock(own + facts["converters"])}


class _Installed:
    """A distribution's version and the names of what it requires."""

    def __init__(self, version, requires):
        self.version = version
        self.requires = requires


def _installed(name):
    for variant in VARIANTS:
        found = _by_metadata(name + variant) if metadata else _by_setuptools(name + variant)
        if found:
            return found
    return None


def _by_metadata(name):
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    required = [_REQUIREMENT.match(line).group(1) for line in found.requires or [] if "extra ==" not in line]
    return _Installed(found.version, required)


def _by_setuptools(name):
    import pkg_resources

    try:
        found = pkg_resources.get_distribution(name)
    except pkg_resources.DistributionNotFound:
        return None
    return _Installed(found.version, [requirement.project_name for requirement in found.requires()])


def lock(distributions):
    """Digest of the interpreter's version and of these distributions with all they require, as installed.

    A package that none of them requires can come and go without making finished work stale.
    """
    versions, queue = {}, list(distributions)
    while queue:
        name = _normal(queue.pop())
        if name in versions:
            continue
        found = _installed(name)
        if found is None:
            continue  # required for an extra or another platform
        versions[name] = found.version
        queue.extend(found.requires)
    text = "\n".join([sys.version.split()[0]] + ["{}=={}".format(*item) for item in sorted(versions.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()
