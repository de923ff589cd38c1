"""Components are found by listing a folder: a module's name is the component's name, and its file is its registration."""

import importlib
import pkgutil


def names(kind):
    """The names of every component of a kind (`frameworks`, `runtimes`, ...), sorted, without importing one."""
    package = importlib.import_module("sweep." + kind)
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


def load(kind, name):
    """The module of a component. Raises KeyError for a name that no file has, ImportError where its packages are missing."""
    if name not in names(kind):
        raise KeyError("no {} named {!r}; there are {}".format(kind, name, ", ".join(names(kind))))
    return importlib.import_module("sweep.{}.{}".format(kind, name))
