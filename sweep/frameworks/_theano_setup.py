"""What Theano must be told before it is imported: where it compiles, and with which BLAS.

Theano reads THEANO_FLAGS once, at its import; flags that are already in the environment win over these.
"""

import glob
import hashlib
import os
import sys

import numpy as np

# While the first import in an environment compiles Theano's own parts, its own lock holds (`_theano_lock` comes later): others look in
# steps of 1 to 2 s, and take it over from a process that died on this host at once, from another one after the time-out.
_WAIT_SECONDS = 1
_TIMEOUT_SECONDS = 60


def set_flags():
    """Put the flags into the environment. Raises RuntimeError where Theano is imported already."""
    if "theano" in sys.modules:
        raise RuntimeError("theano was imported before its flags were set")
    flags = {
        "device": "cpu",
        "base_compiledir": _compile_folder(),
        "compile.wait": _WAIT_SECONDS,
        "compile.timeout": _TIMEOUT_SECONDS,
        "blas.ldflags": _blas(),
    }
    chosen = ",".join("{}={}".format(name, value) for name, value in flags.items() if value is not None)
    os.environ["THEANO_FLAGS"] = ",".join(part for part in (chosen, os.environ.get("THEANO_FLAGS")) if part)


def _compile_folder():
    """One per environment, since what is compiled belongs to its NumPy: inside it, or in the user's cache where it can't be written."""
    if os.access(sys.prefix, os.W_OK):
        return os.path.join(sys.prefix, "theano")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "sweep", "theano-" + hashlib.sha256(sys.prefix.encode()).hexdigest()[:12])


def _blas():
    """The OpenBLAS that NumPy's wheel brings and has loaded; None, which leaves the choice to Theano, where there is none."""
    found = glob.glob(os.path.join(os.path.dirname(np.__file__) + ".libs", "libopenblas*.so"))
    if len(found) != 1:
        return None
    folder, file = os.path.split(found[0])
    return "-L{} -l{}".format(folder, file[len("lib"):-len(".so")])
