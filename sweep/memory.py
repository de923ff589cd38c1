"""Memory of a process as Linux itself counts it.

A measurement: a fresh process, the runtime imported, `reset_peak` for the baseline, the work, `peak_bytes`. `ru_maxrss` isn't used: a
child inherits its parent's peak.
"""

import os

RESET_PEAK = "5"  # for clear_refs: the high-water mark becomes the present resident size
SLACK_BYTES = 4 << 20  # what a process may grow by itself between a reset and the look at it


class NotMeasurable(Exception):
    """This kernel doesn't offer the figure; the message says which file was asked and what it answered."""


def reset_peak(proc="/proc"):
    """Let the high-water mark of this process start anew from its present resident size, and return it, in bytes.

    Raises NotMeasurable, also where the kernel takes the request and ignores it.
    """
    path = os.path.join(proc, "self", "clear_refs")
    try:
        with open(path, "w") as file:
            file.write(RESET_PEAK)
    except OSError as error:
        raise NotMeasurable("the peak can't be reset: {}".format(error)) from error
    peak, resident = peak_bytes(proc=proc), resident_bytes(proc=proc)
    if peak > resident + SLACK_BYTES:
        raise NotMeasurable("{} was written, and the peak stayed {} bytes above the present size".format(path, peak - resident))
    return peak


def peak_bytes(pid="self", proc="/proc"):
    """The largest resident size since the start or the last reset (VmHWM). Raises NotMeasurable."""
    return _kilobytes(proc, pid, "status", "VmHWM") * 1024


def resident_bytes(pid="self", proc="/proc"):
    """The present resident size (VmRSS), pages shared with other processes included. Raises NotMeasurable."""
    return _kilobytes(proc, pid, "status", "VmRSS") * 1024


def pss_bytes(pid="self", proc="/proc"):
    """The present resident size with each shared page divided among those who share it (Pss). Raises NotMeasurable."""
    return _kilobytes(proc, pid, "smaps_rollup", "Pss") * 1024


def _kilobytes(proc, pid, file_name, field):
    path = os.path.join(proc, str(pid), file_name)
    try:
        with open(path) as file:
            for line in file:
                name, _, value = line.partition(":")
                if name == field:
                    return int(value.split()[0])
    except OSError as error:
        raise NotMeasurable(str(error)) from error
    raise NotMeasurable("{} has no {}".format(path, field))
