"""The kernel's figures in a child process whose memory is known, and files that lack them."""

import json
import mmap
import subprocess
import sys

import pytest

from sweep import memory

MIB = 1 << 20
CHILD = """
import json, mmap
from sweep import memory

def touch(mib):
    pages = mmap.mmap(-1, mib << 20)
    for at in range(0, len(pages), 4096):
        pages[at] = 1
    return pages

spike = touch(64)
spike.close()
before = memory.peak_bytes()
held = touch(16)
base = memory.resident_bytes()
after = memory.reset_peak()
spike = touch(32)
spike.close()
print(json.dumps({"before": before, "base": base, "after": after, "peak": memory.peak_bytes(), "pss": memory.pss_bytes()}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the figures are Linux's")
def test_the_peak_is_that_since_the_reset():
    parent = mmap.mmap(-1, 128 * MIB)  # a child must not be charged with its parent's peak
    parent.write(bytes(128 * MIB))
    run = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    parent.close()
    seen = json.loads(run.stdout)
    assert seen["before"] - seen["base"] == pytest.approx(48 * MIB, abs=2 * MIB)  # 64 at the peak, 16 held now
    assert seen["after"] == pytest.approx(seen["base"], abs=2 * MIB)
    assert seen["peak"] - seen["base"] == pytest.approx(32 * MIB, abs=2 * MIB)
    assert 16 * MIB < seen["pss"] <= seen["base"] + 2 * MIB


@pytest.fixture
def proc(tmp_path):
    """A /proc that knows this process and process 7."""
    for pid, peak in (("self", 300), ("7", 200)):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "status").write_text(f"Name:\tx\nVmHWM:\t  {peak} kB\nVmRSS:\t  100 kB\n")
        (tmp_path / pid / "smaps_rollup").write_text("0-1 ---p 0 0 0 [rollup]\nRss: 100 kB\nPss: 60 kB\nPss_Anon: 50 kB\n")
    (tmp_path / "self" / "clear_refs").write_text("")
    return tmp_path


def test_figures_are_bytes_of_the_process_asked_for(proc):
    assert memory.peak_bytes(proc=proc) == 300 * 1024
    assert memory.peak_bytes(7, proc=proc) == 200 * 1024
    assert memory.resident_bytes(7, proc=proc) == 100 * 1024
    assert memory.pss_bytes(7, proc=proc) == 60 * 1024


def test_the_reset_is_what_the_kernel_documents(proc):
    (proc / "self" / "status").write_text("VmHWM:\t 101 kB\nVmRSS:\t 100 kB\n")
    assert memory.reset_peak(proc=proc) == 101 * 1024
    assert (proc / "self" / "clear_refs").read_text() == "5"


def test_a_kernel_that_ignores_the_reset_is_found_out(proc):
    (proc / "self" / "status").write_text("VmHWM:\t 90000 kB\nVmRSS:\t 100 kB\n")
    with pytest.raises(memory.NotMeasurable, match="stayed 92057600 bytes above"):
        memory.reset_peak(proc=proc)


def test_what_the_kernel_lacks_is_not_measurable(proc):
    (proc / "7" / "status").write_text("Name:\tx\n")
    (proc / "7" / "smaps_rollup").unlink()
    with pytest.raises(memory.NotMeasurable, match="has no VmHWM"):
        memory.peak_bytes(7, proc=proc)
    with pytest.raises(memory.NotMeasurable, match="smaps_rollup"):
        memory.pss_bytes(7, proc=proc)
    with pytest.raises(memory.NotMeasurable, match="can't be reset"):
        memory.reset_peak(proc=proc / "nothing")
