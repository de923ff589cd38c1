"""What a toolchain offers: facts, version and lock of every framework and runtime that its interpreter can import."""

import hashlib
import importlib.metadata
import re
import sys

from sweep import components

VARIANTS = ("", "-cpu", "-gpu")
"""A package may be installed under the name of a build for other processors."""

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


def run(kinds, packages):
    """By kind and name: {"facts", "version", "lock", "convert_lock"}, or {"missing": why} where its packages do not import here; and
    under "packages", by distribution, the same without facts.

    `lock` covers what a component runs with, `convert_lock` also what it exports or converts with.
    """
    found = {kind: {name: _component(kind, name) for name in components.names(kind)} for kind in kinds}
    return dict(found, packages={name: _package(name) for name in packages})


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


def _installed(name):
    for variant in VARIANTS:
        try:
            return importlib.metadata.distribution(name + variant)
        except importlib.metadata.PackageNotFoundError:
            pass
    return None


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
        queue.extend(_REQUIREMENT.match(line).group(1) for line in found.requires or [] if "extra ==" not in line)
    text = "\n".join([sys.version.split()[0]] + ["{}=={}".format(*item) for item in sorted(versions.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()
