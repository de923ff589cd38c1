"""The readers on synthetic counters; none has been tried on hardware."""

import sys
from types import SimpleNamespace

import pytest

from sweep import energy


def zone(root, folder, name, used, limit=1_000_000_000):
    (root / folder).mkdir(exist_ok=True)
    (root / folder / "name").write_text(name + "\n")
    (root / folder / "energy_uj").write_text(f"{used}\n")
    (root / folder / "max_energy_range_uj").write_text(f"{limit}\n")


@pytest.fixture
def powercap(tmp_path):
    (tmp_path / "intel-rapl").mkdir()  # the control type has no counter
    zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 1_000_000)
    zone(tmp_path, "intel-rapl:0:1", "dram", 2_000_000)
    zone(tmp_path, "intel-rapl:1", "psys", 9_000_000)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 5_000_000)
    return tmp_path


def test_packages_and_memory_are_counted_once(powercap):
    reader = energy.reader(powercap=powercap)
    before = reader.read()
    zone(powercap, "intel-rapl:0", "package-0", 8_000_000)  # 3 J
    zone(powercap, "intel-rapl:0:0", "core", 3_500_000)
    zone(powercap, "intel-rapl:0:1", "dram", 2_250_000)  # 0.25 J
    zone(powercap, "intel-rapl:1", "psys", 19_000_000)
    zone(powercap, "intel-rapl-mmio:0", "package-0", 8_000_000)
    assert reader.joules(before, reader.read()) == 3.25


def test_a_counter_that_wrapped(powercap):
    zone(powercap, "intel-rapl:0", "package-0", 999_000_000)
    reader = energy.reader(powercap=powercap)
    before = reader.read()
    zone(powercap, "intel-rapl:0", "package-0", 500_000)  # 1 J up to the wrap, half a joule after it
    assert reader.joules(before, reader.read()) == 1.5


def test_no_counter_is_a_reason_and_no_number(tmp_path):
    missing = energy.reader(powercap=tmp_path / "powercap")
    assert isinstance(missing, energy.NotAvailable)
    assert "no RAPL" in missing.reason
    assert missing.probed == [str(tmp_path / "powercap")]
    assert energy.reader(powercap=tmp_path).reason.startswith("no RAPL zone of a package")


def test_a_counter_that_may_not_be_read_is_a_reason(powercap):
    (powercap / "intel-rapl:0" / "energy_uj").unlink()
    unreadable = energy.reader(powercap=powercap)
    assert unreadable.reason.startswith("RAPL can't be read")
    assert str(powercap / "intel-rapl:0") in unreadable.probed


class FakeError(Exception):
    pass


def nvml(monkeypatch, counter):
    library = SimpleNamespace(
        NVMLError=FakeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=counter,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)


def test_a_gpu_counts_millijoules(monkeypatch):
    counts = iter([1_000, 1_500, 4_000])
    nvml(monkeypatch, lambda _handle: next(counts))
    reader = energy.reader(gpu=0)
    assert reader.joules(reader.read(), reader.read()) == 2.5


def test_a_gpu_without_a_counter_is_a_reason(monkeypatch):
    def unsupported(_handle):
        raise FakeError("Not Supported")

    nvml(monkeypatch, unsupported)
    assert energy.reader(gpu=3) == energy.NotAvailable("NVML: Not Supported", ["nvmlDeviceGetTotalEnergyConsumption of GPU 3"])


def test_no_nvml_is_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert energy.reader(gpu=0).reason.startswith("no NVML")
