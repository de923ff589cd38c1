"""The framework itself as the runtime, or what runs a user's own file: what a conversion is compared with."""

import shutil
from pathlib import Path

from sweep import components
from sweep.runtimes import _requests

FACTS = {
    "distribution": None,
    "converters": [],
    "options": {},
    "accepts": {"native": "native"},
    "format": "native",
    "quantizations": {"float32": {}},
    "calibrated": [],
    "batch_dependent": [],
    "layer_outputs": False,
    "float64": True,
    "processors": ["cpu", "gpu"],
}


class Session:
    """A model with the module that runs it: of a framework, or of a format."""

    def __init__(self, name, threads, framework, model):
        self.name = name
        self.threads = threads
        self.framework = framework
        self.model = model


def convert(source, source_format, folder, quantization, calibration, settings):
    """A copy under the same name: nothing is converted."""
    _requests.check(FACTS, source_format, quantization, calibration, settings)
    source, target = Path(source), Path(folder) / Path(source).name
    if source.is_dir():
        shutil.copytree(str(source), str(target))
    else:
        shutil.copyfile(str(source), str(target))
    return source.name


def open(path, threads, details):
    """The model in details["framework"], which is configured for `threads` threads first, before anything else in this process; a user's
    own, which has no list of layers, in its format's module.

    Raises ValueError that names the file where the framework can't read it.
    """
    if details["layers"] is None:
        own = components.load("formats", details["format"])
        return Session(details["format"], threads, own, own.open(str(path), threads))
    framework = components.load("frameworks", details["framework"])
    framework.configure(threads)
    try:
        model = framework.load(Path(path), details["layers"])
    except Exception as error:  # each framework has its own
        raise ValueError("{}: {}".format(path, " ".join(str(error).split()))) from error
    return Session(details["framework"], threads, framework, model)


def predict(session, images, batch_size=256):
    """Logits float32 (N, classes)."""
    return session.framework.predict(session.model, images, batch_size)


def describe(session):
    """The framework or format, and the threads it was configured for."""
    return {"framework": session.name, "threads": session.threads}
