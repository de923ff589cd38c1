"""Looking through a Keras file before Keras does: which classes its configuration names, and where its HDF5 parts lead.

Keras builds whatever classes a configuration names. Its own safe mode refuses code in the file, for the newer of the two forms; here the
classes are Keras's own layers and what these are made of, and none that hold code or read further files.
"""

import io
import json
import re

import h5py

from sweep.formats import _files

ARCHIVE = ("config.json", "metadata.json")
_MODULES = re.compile(
    r"keras|builtins|keras(\.src)?\.(layers|models|activations|initializers|regularizers|constraints|dtype_policies|ops|random)(\.\w+)*"
)
_REFUSED = (
    "Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "IntegerLookup", "StringLookup", "TextVectorization",
    "__lambda__", "__typespec__",
)


def check(path):
    """Raise ValueError that names the file where it is damaged, holds no network, or asks for more than layers of Keras."""
    if _files.start(path, 2) == b"PK":
        members = _files.read_members(path, lambda name: name == "config.json" or name.endswith(".h5"))
        for name in sorted(members):
            if name.endswith(".h5"):
                _check_hdf5(path, io.BytesIO(members[name]))
        configuration = members.get("config.json")
    else:
        configuration = _check_hdf5(path, str(path))
    if configuration is None:
        raise ValueError("{} holds weights and no network".format(path))
    try:
        parsed = json.loads(configuration.decode() if isinstance(configuration, bytes) else configuration)
    except ValueError as error:
        raise _files.damaged(path, error) from error
    if isinstance(parsed, dict):
        parsed.pop("compile_config", None)  # of a training, which is not loaded
    _check_classes(path, parsed)


def _check_classes(path, value):
    queue = [value]
    while queue:
        value = queue.pop()
        if isinstance(value, list):
            queue.extend(value)
        elif isinstance(value, dict):
            name, module = value.get("class_name"), value.get("module")
            if any("." in str(each) for each in (name, value.get("config") if name == "function" else None) if each):
                raise ValueError("{} asks for {}, which is no class's or function's own name".format(path, name))
            if name in _REFUSED or value.get("function_type") == "lambda":
                raise ValueError("{} has {}, which may hold code or read files".format(path, name or "a lambda"))
            if name is not None and module is not None and not _MODULES.fullmatch(str(module)):
                raise ValueError("{} asks for {} of {}; a model is made of layers of Keras here".format(path, name, module))
            queue.extend(value.values())


def _check_hdf5(path, source):
    """The configuration in an HDF5 file, None where there is none. Raises ValueError where a part of it is elsewhere or is too large."""
    try:
        with h5py.File(source, "r") as file:
            total, queue = 0, [file]
            while queue:
                group = queue.pop()
                for name in group:
                    if isinstance(group.get(name, getlink=True), (h5py.ExternalLink, h5py.SoftLink)):
                        raise ValueError("{}: {} leads elsewhere by a link".format(path, name))
                    item = group[name]
                    if isinstance(item, h5py.Group):
                        queue.append(item)
                        continue
                    if item.external or item.is_virtual:
                        raise ValueError("{}: the values of {} are in another file".format(path, name))
                    total += item.nbytes
            _files.check_bytes(path, total)
            return file.attrs.get("model_config")
    except (OSError, RuntimeError, KeyError) as error:
        raise _files.damaged(path, error) from error
