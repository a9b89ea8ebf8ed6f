# ruff: noqa: N802 - the names are NVML's
"""CPU, memory and GPUs, from trees of files and a driver made up for the tests; and from this very process."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from servescope.errors import UsageError
from servescope.instruments.resources import Gpu, ResourceMeter, Resources
from servescope.instruments.testing import FakeClock

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
NONE = SimpleNamespace(nvmlInit=lambda: 1 / 0)


class Machine:
    """A tree of /proc and /sys/fs/cgroup, and a meter that reads it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FakeClock()
        self.write("proc/self/statm", "9000 700 100 1 0 500 0")
        self.use_process(0.0)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def use_process(self, seconds: float) -> None:
        user = int(seconds * TICKS) - 5 if seconds else 0
        system = 5 if seconds else 0
        self.write("proc/self/stat", f"7 (a (nasty) name) S 1 7 7 0 -1 0 0 0 0 0 {user} {system} 9 9 20 0 4 0 1 1 1")

    def use_cgroup_v2(self, group: str, seconds: float) -> None:
        self.write(f"sys/{group}/cpu.stat", f"usage_usec {int(seconds * 1e6)}\nuser_usec 1\nsystem_usec 2\n")
        self.write(f"sys/{group}/memory.current", "5000\n")
        self.write(f"sys/{group}/memory.stat", "anon 100\nfile 50\ninactive_file 1000\n")

    def use_cgroup_v1(self, cpu: str, memory: str, seconds: float) -> None:
        self.write(f"sys/cpuacct/{cpu}/cpuacct.usage", f"{int(seconds * 1e9)}\n")
        self.write(f"sys/memory/{memory}/memory.usage_in_bytes", "8000\n")
        self.write(f"sys/memory/{memory}/memory.stat", "cache 9\ntotal_inactive_file 3000\n")

    def meter(self, **options: Any) -> ResourceMeter:
        return ResourceMeter(
            proc=self.root / "proc", cgroups=self.root / "sys", clock=self.clock, **({"nvml": NONE} | options)
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_a_cgroup_the_process_is_measured(machine: Machine) -> None:
    """Cores since the reading before, resident memory; a command's name may hold anything."""
    meter = machine.meter()
    machine.use_process(3.0)
    machine.clock.advance(2.0)
    assert meter.read() == Resources(1.5, 700 * PAGE)
    machine.use_process(3.5)
    machine.clock.advance(5.0)
    assert meter.read() == Resources(0.1, 700 * PAGE)


def test_a_cgroup_of_version_2_is_the_containers(machine: Machine) -> None:
    """Its memory is the working set, without the cache the kernel would give back first."""
    machine.write("proc/self/cgroup", "0::/kubepods/pod1\n")
    machine.use_cgroup_v2("kubepods/pod1", 10.0)
    meter = machine.meter()
    machine.use_cgroup_v2("kubepods/pod1", 16.0)
    machine.clock.advance(4.0)
    assert meter.read() == Resources(1.5, 4000)


def test_within_a_container_the_mounts_top_is_its_cgroup(machine: Machine) -> None:
    """The path is the host's, and only the container's own group is mounted."""
    machine.write("proc/self/cgroup", "0::/host/path/of/pod1\n")
    machine.use_cgroup_v2("", 0.0)
    assert machine.meter().read().memory_bytes == 4000


def test_the_whole_machines_cgroup_is_not_this_process(machine: Machine) -> None:
    """The top of version 2 has the machine's CPU, and no memory; that of version 1 has a release agent."""
    machine.write("proc/self/cgroup", "0::/\n")
    machine.write("sys/cpu.stat", "usage_usec 999999999\n")
    assert machine.meter().read().memory_bytes == 700 * PAGE
    machine.write("proc/self/cgroup", "3:cpuacct,cpu:/\n2:memory:/\n")
    machine.use_cgroup_v1("", "", 5.0)
    machine.write("sys/cpuacct/release_agent", "")
    assert machine.meter().read().memory_bytes == 700 * PAGE


def test_a_cgroup_of_version_1_is_the_containers(machine: Machine) -> None:
    """CPU in nanoseconds, the working set in bytes; each controller has its own path."""
    machine.write("proc/self/cgroup", "5:memory:/docker/m\n4:cpu,cpuacct:/docker/c\n1:name=systemd:/\n")
    machine.use_cgroup_v1("docker/c", "docker/m", 1.0)
    meter = machine.meter()
    machine.use_cgroup_v1("docker/c", "docker/m", 9.0)
    machine.clock.advance(4.0)
    assert meter.read() == Resources(2.0, 5000)


def test_a_scope_can_be_chosen(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    """The process although there is a cgroup; a missing cgroup is logged, and the process measured."""
    machine.write("proc/self/cgroup", "0::/pod\n")
    machine.use_cgroup_v2("pod", 1.0)
    assert machine.meter(scope="process").read().memory_bytes == 700 * PAGE
    assert machine.meter(scope="cgroup").read().memory_bytes == 4000
    container = machine.meter(scope="auto").scope
    assert container not in ("", "process")
    assert machine.meter(scope="cgroup").scope == container
    assert machine.meter(scope="process").scope == "process"
    machine.write("proc/self/cgroup", "0::/\n")
    assert machine.meter(scope="cgroup").read().memory_bytes == 700 * PAGE
    assert machine.meter(scope="cgroup").scope == "process"
    assert "has CPU and memory of this process" in caplog.text
    with pytest.raises(UsageError, match="unknown scope 'pod', supported: auto, cgroup, process"):
        machine.meter(scope="pod")


def test_devices_are_listed_in_a_text() -> None:
    """A list or a number is refused, rather than read as no device."""
    for wrong in ([0, 1], 0):
        with pytest.raises(UsageError, match=r"visible_gpus is .*0.*, expected a text of indexes or UUIDs"):
            ResourceMeter(visible_gpus=wrong)  # type: ignore[arg-type]


def test_what_is_unknown_is_absent(tmp_path: Path) -> None:
    """A system without /proc has no resources, and no error."""
    clock = FakeClock()
    meter = ResourceMeter(proc=tmp_path, cgroups=tmp_path, nvml=NONE, clock=clock)
    clock.advance(5.0)
    assert meter.read() == Resources(None, None, ())


def test_files_that_hold_something_else_are_unknown(machine: Machine) -> None:
    """Garbage is not a number."""
    meter = machine.meter()
    machine.write("proc/self/stat", "garbage")
    machine.write("proc/self/statm", "a b c")
    machine.clock.advance(5.0)
    assert meter.read() == Resources(None, None, ())


def test_cpu_is_unknown_within_the_first_second_and_kept_for_one(machine: Machine) -> None:
    """Less than a second says nothing; two scrapers at once see the same."""
    meter = machine.meter()
    machine.clock.advance(0.5)
    assert meter.read() == Resources(None, 700 * PAGE)
    machine.use_process(1.0)
    machine.clock.advance(0.5)
    assert meter.read().cpu_cores == 1.0
    machine.use_process(50.0)
    machine.clock.advance(0.5)
    assert meter.read().cpu_cores == 1.0


def test_a_counter_that_went_back_is_unknown(machine: Machine) -> None:
    """Moved to another cgroup, say: absent once, then right again."""
    machine.use_process(50.0)
    meter = machine.meter()
    machine.use_process(1.0)
    machine.clock.advance(1.0)
    assert meter.read().cpu_cores is None
    machine.use_process(3.0)
    machine.clock.advance(1.0)
    assert meter.read().cpu_cores == 2.0


def cpu_seconds() -> float:
    """CPU seconds of this process so far, as the kernel counts them."""
    times = os.times()
    return times.user + times.system


def test_this_process_is_measured_for_real() -> None:
    """Busy for a while, it uses about a core, and some memory."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("this system has no /proc")
    clock = FakeClock(0.0)
    meter = ResourceMeter(scope="process", nvml=NONE, clock=clock)
    before = cpu_seconds()
    while cpu_seconds() - before < 0.2:
        pass
    clock.advance(1.0)
    resources = meter.read()
    assert resources.cpu_cores == pytest.approx(cpu_seconds() - before, abs=0.05)
    assert resources.memory_bytes is not None
    assert resources.memory_bytes > 1_000_000


class NvmlError(Exception):
    """What NVML raises."""


class Nvml:
    """Two devices, of which the second is cut into slices 0 and 2; a third that fell off the bus."""

    NVMLError = NvmlError
    slices = (("mig-0", None, "mig-2"),)

    def __init__(self, devices: int = 2) -> None:
        self.devices = devices

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return self.devices

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu-{index}"

    def nvmlDeviceGetUUID(self, handle: str) -> str | bytes:
        uuid = handle.upper().replace("GPU-", "GPU-aaaa-").replace("MIG-", "MIG-bbbb-")
        return uuid.encode() if handle.endswith("0") else uuid

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle == "gpu-0":
            raise NvmlError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 3

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, number: int) -> str:
        if number == 1:
            raise NvmlError("Not Found")
        return f"mig-{number}"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle != "gpu-0":
            raise NvmlError("Not Supported")
        return SimpleNamespace(gpu=37, memory=12)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(total=100, free=1, used={"gpu-0": 10, "gpu-1": 20, "mig-0": 5, "mig-2": 6}[handle])


def test_gpus_are_read_by_device(machine: Machine) -> None:
    """Busy share and bytes; a device cut into slices reports no utilization, and its slices are not added."""
    meter = machine.meter(nvml=Nvml(), visible_gpus=None)
    assert meter.read().gpus == (Gpu("0", 0.37, 10), Gpu("1", None, 20))


@pytest.mark.parametrize(
    ("visible", "indexes"),
    [
        ("1", ["1"]),
        ("1,0", ["1", "0"]),
        ("GPU-aaaa-0", ["0"]),
        ("MIG-bbbb-2", ["1:2"]),
        ("0,MIG-bbbb-0", ["0", "1:0"]),
        ("", []),
        ("-1", []),
        ("0,NoDevFiles,1", ["0"]),
    ],
)
def test_only_visible_gpus_are_read(machine: Machine, visible: str, indexes: list[str]) -> None:
    """As CUDA_VISIBLE_DEVICES is read: by index or UUID, up to the first that is no device."""
    assert [gpu.index for gpu in machine.meter(nvml=Nvml(), visible_gpus=visible).read().gpus] == indexes


def test_cuda_visible_devices_is_the_default(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process reports the devices it was given."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.index for gpu in machine.meter(nvml=Nvml()).read().gpus] == ["1"]


def test_a_device_that_fails_costs_only_itself(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are still read."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    meter = machine.meter(nvml=Nvml(devices=3))
    assert [gpu.index for gpu in meter.read().gpus] == ["0", "1"]


def test_a_missing_driver_or_extra_is_no_error(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPUs, and the rest is measured."""
    assert machine.meter(nvml=NONE).read().gpus == ()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    meter = machine.meter(nvml=None)
    assert meter.read() == Resources(None, 700 * PAGE, ())
