"""Energy, where a counter measures it, and else the reason why not. Never an estimate.

`reader` gives something with `read()`, the counters now, and `joules(before, after)`. The readers have been tried on synthetic
counters only, never on hardware.
"""

import os
from collections import namedtuple

POWERCAP = "/sys/class/powercap"

NotAvailable = namedtuple("NotAvailable", "reason probed")
NotAvailable.__doc__ = "Why energy isn't measured here, and the list of what was looked at."


class Rapl:
    """The processors' own counters of energy: the packages and the memory, each in microjoules, that wrap around.

    Everything that runs on the host is in them, so nothing else may run. One wrap can be told, two can't: a reading interval must be
    shorter than the counter's range (tens of minutes at full load).
    """

    def __init__(self, folders):
        self._folders = folders
        self._ranges = {folder: _integer(folder, "max_energy_range_uj") for folder in folders}
        self.read()

    def read(self):
        """Counters by zone. Raises OSError where one can't be read."""
        return {folder: _integer(folder, "energy_uj") for folder in self._folders}

    def joules(self, before, after):
        """Energy between two readings."""
        used = 0
        for folder, start in before.items():
            used += after[folder] - start
            if after[folder] < start:
                used += self._ranges[folder]
        return used / 1e6


class Nvml:
    """The counter of one NVIDIA GPU, in millijoules since its driver was loaded (Volta and later)."""

    def __init__(self, pynvml, index):
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self._counter = pynvml.nvmlDeviceGetTotalEnergyConsumption
        self.read()

    def read(self):
        """The counter."""
        return self._counter(self._handle)

    def joules(self, before, after):
        """Energy between two readings."""
        return (after - before) / 1e3


def reader(gpu=None, powercap=POWERCAP):
    """What measures the energy of the host's processors, or of one GPU by its index; NotAvailable where nothing does."""
    return _rapl(powercap) if gpu is None else _nvml(gpu)


def _rapl(powercap):
    try:
        # one way to each counter: intel-rapl-mmio shows the same packages again
        zones = [os.path.join(powercap, name) for name in sorted(os.listdir(powercap)) if name.startswith("intel-rapl:")]
    except OSError as error:
        return NotAvailable("no RAPL: {}".format(error), [str(powercap)])
    try:
        # the zones of cores are parts of a package's, psys contains everything; a package's memory is apart from it
        counted = [zone for zone in zones if _name(zone).startswith(("package", "dram"))]
        return Rapl(counted) if counted else NotAvailable("no RAPL zone of a package in {}".format(powercap), zones or [str(powercap)])
    except (OSError, ValueError) as error:
        return NotAvailable("RAPL can't be read: {}".format(error), zones)


def _nvml(index):
    try:
        import pynvml
    except ImportError as error:
        return NotAvailable("no NVML: {}".format(error), ["pynvml"])
    try:
        return Nvml(pynvml, index)
    except pynvml.NVMLError as error:
        return NotAvailable("NVML: {}".format(error), ["nvmlDeviceGetTotalEnergyConsumption of GPU {}".format(index)])


def _name(zone):
    with open(os.path.join(zone, "name")) as file:
        return file.read().strip()


def _integer(folder, file_name):
    with open(os.path.join(folder, file_name)) as file:
        return int(file.read())
