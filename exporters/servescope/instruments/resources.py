"""CPU, memory and GPUs in use by this process's replica; what is unknown is absent.

    engine = EngineInstruments(identity, resources=ResourceMeter())

CPU and memory are those of the container, which is its cgroup (version 1 or 2) unless that is the whole machine's;
else those of the process alone. GPUs are read through NVML when the extra `gpu` is installed and a driver is there.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from servescope.errors import UsageError, how_to_install
from servescope.instruments.values import finite, whole

_logger = logging.getLogger("servescope")

__all__ = ["ResourceMeter"]

_MOST_BYTES = 2**63
_MOST_CORES = 1e6

LEAST_SECONDS = 1.0
"""A reading younger than this is reused: CPU use over less is meaningless, and NVML takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device: `index` as NVML counts, `0`, or `0:1` for a MIG slice; None where the driver has no reading."""

    index: str
    busy_ratio: float | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Resources:
    """What is in use: CPU cores since the previous reading, memory in bytes, GPUs; None where unknown."""

    cpu_cores: float | None = None
    memory_bytes: int | None = None
    gpus: tuple[Gpu, ...] = ()


def checked(resources: Resources) -> Resources:
    """The same, of types and in ranges that a page can hold. Raises Refused, or what a value of another type causes."""

    def amount(name: str, value: float | None, most: float) -> float | None:
        return None if value is None else finite(name, value, most)

    def size(value: int | None) -> int | None:
        return None if value is None else whole("memory_bytes", value, _MOST_BYTES)

    gpus = [
        Gpu(str.encode(gpu.index).decode(), amount("busy_ratio", gpu.busy_ratio, 1.0), size(gpu.memory_bytes))
        for gpu in resources.gpus
    ]
    return Resources(amount("cpu_cores", resources.cpu_cores, _MOST_CORES), size(resources.memory_bytes), tuple(gpus))


class ResourceMeter:
    """Reads the resources of this process or its container.

    `scope` is `cgroup`, `process`, or `auto`: the cgroup when it is known and not the whole machine's, else the
    process. `nvml` is the NVML module to use; by default pynvml when it is installed. `visible_gpus` lists devices
    by index or UUID, as CUDA_VISIBLE_DEVICES does, which is the default; every device when that is not set. `proc`
    and `cgroups` are where the kernel's file systems are mounted. The attribute `scope` is the one that is used.

    Any thread may read. Only the constructor raises: UsageError for a wrong scope or list of devices.
    """

    def __init__(
        self,
        *,
        scope: str = "auto",
        nvml: Any = None,
        visible_gpus: str | None = None,
        proc: str | Path = "/proc",
        cgroups: str | Path = "/sys/fs/cgroup",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if scope not in _SCOPES:
            raise UsageError(f"unknown scope {scope!r}, supported: {', '.join(_SCOPES)}")
        if visible_gpus is not None and not isinstance(visible_gpus, str):
            raise UsageError(f"visible_gpus is {visible_gpus!r}, expected a text of indexes or UUIDs such as '0,1'")
        self._given = scope, nvml, visible_gpus, Path(proc), Path(cgroups)
        self._clock = clock
        self._find()

    @property
    def scope(self) -> str:
        """What CPU and memory are those of: `process`, or a cgroup by a text that all processes in it share."""
        return self._usage.scope()

    def _find(self) -> None:
        scope, nvml, visible_gpus, proc, cgroups = self._given
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._usage = _find_usage(scope, proc, cgroups)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible_gpus is None else visible_gpus
        self._gpus = _find_gpus(nvml, visible)
        self._cpu_seconds = self._usage.cpu_seconds()
        self._counted_at = self._clock()
        self._last: Resources | None = None

    def read(self) -> Resources:
        """The resources in use; the previous reading when that was less than a second ago."""
        if self._process != os.getpid():
            # The lock may be held by a thread of the parent's, and NVML does not outlive a fork.
            self._find()
        with self._lock:
            elapsed = self._clock() - self._counted_at
            if self._last is None or elapsed >= LEAST_SECONDS:
                cores = self._count_cores(elapsed) if elapsed >= LEAST_SECONDS else None
                resources = Resources(cores, self._usage.memory_bytes(), tuple(self._read_gpus()))
                # Within the first second there is no CPU use to keep.
                self._last = None if elapsed < LEAST_SECONDS else resources
                return resources
            return self._last

    def _count_cores(self, elapsed: float) -> float | None:
        before, now = self._cpu_seconds, self._usage.cpu_seconds()
        self._cpu_seconds = now
        self._counted_at += elapsed
        if before is None or now is None or now < before:
            return None
        return (now - before) / elapsed

    def _read_gpus(self) -> Iterator[Gpu]:
        for device in self._gpus:
            try:
                yield device.read()
            except Exception as error:
                _logger.debug("GPU %s cannot be read: %r", device.index, error)


# --- CPU and memory ---------------------------------------------------------------------------------------------------


_Given = ParamSpec("_Given")
_Value = TypeVar("_Value")


def _none_if_unknown(read: Callable[_Given, _Value]) -> Callable[_Given, _Value | None]:
    """Have a reading be None when the kernel has no such file, or another format."""

    @functools.wraps(read)
    def read_if_known(*args: _Given.args, **kwargs: _Given.kwargs) -> _Value | None:
        try:
            return read(*args, **kwargs)
        except (OSError, ValueError, KeyError, IndexError):
            return None

    return read_if_known


class _Usage(Protocol):
    def scope(self) -> str: ...

    def cpu_seconds(self) -> float | None: ...

    def memory_bytes(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class _ProcessUsage:
    directory: Path

    def scope(self) -> str:
        return "process"

    @_none_if_unknown
    def cpu_seconds(self) -> float:
        # The command's name, in parentheses, may hold anything; user and system time are the 12th and 13th after it.
        fields = _text(self.directory / "stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @_none_if_unknown
    def memory_bytes(self) -> int:
        return int(_text(self.directory / "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class _CgroupV2Usage:
    directory: Path

    def scope(self) -> str:
        return str(self.directory)

    @_none_if_unknown
    def cpu_seconds(self) -> float:
        return _field(self.directory / "cpu.stat", "usage_usec") * 1e-6

    @_none_if_unknown
    def memory_bytes(self) -> int:
        # As kubelet counts a working set: without the file cache that the kernel would give back first.
        return _without_cache(
            int(_text(self.directory / "memory.current")), self.directory / "memory.stat", "inactive_file"
        )


@dataclass(frozen=True, slots=True)
class _CgroupV1Usage:
    cpu: Path
    memory: Path

    def scope(self) -> str:
        return f"{self.cpu}:{self.memory}"

    @_none_if_unknown
    def cpu_seconds(self) -> float:
        return int(_text(self.cpu / "cpuacct.usage")) * 1e-9

    @_none_if_unknown
    def memory_bytes(self) -> int:
        used = int(_text(self.memory / "memory.usage_in_bytes"))
        return _without_cache(used, self.memory / "memory.stat", "total_inactive_file")


_SCOPES = ("auto", "cgroup", "process")


def _find_usage(scope: str, proc: Path, cgroups: Path) -> _Usage:
    """The first cgroup of this process with both CPU and memory; the process when there is none."""
    process = _ProcessUsage(proc / "self")
    if scope == "process":
        return process
    candidates: list[_Usage] = list(_cgroups_of_this_process(proc, cgroups))
    for usage in candidates:
        if usage.cpu_seconds() is not None and usage.memory_bytes() is not None:
            return usage
    if scope == "cgroup":
        _logger.warning(
            "no cgroup under %s has CPU and memory of this process; they are read from the process", cgroups
        )
    return process


def _cgroups_of_this_process(proc: Path, cgroups: Path) -> Iterator[_Usage]:
    paths: dict[str, str] = {}
    for line in (_none_if_unknown(_text)(proc / "self" / "cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths.update(dict.fromkeys(controllers.split(","), path.strip("/")))
    # Within a container the path may be the host's, while its own cgroup is what is mounted: then the mount's top.
    if "" in paths:
        # The machine's own cgroup has no memory in version 2, so that it is never mistaken for a container's.
        yield _CgroupV2Usage(cgroups / paths[""])
        yield _CgroupV2Usage(cgroups)
    if "cpuacct" in paths and "memory" in paths:
        for cpu, memory in ((paths["cpuacct"], paths["memory"]), ("", "")):
            usage = _CgroupV1Usage(cgroups / "cpuacct" / cpu, cgroups / "memory" / memory)
            # Only the machine's own cgroup has a release agent.
            if not any((directory / "release_agent").exists() for directory in (usage.cpu, usage.memory)):
                yield usage


def _without_cache(used: int, stat: Path, name: str) -> int:
    cache = _none_if_unknown(_field)(stat, name) or 0
    return max(used - cache, 0)


def _field(path: Path, name: str) -> int:
    """The value in a file of `name value` lines."""
    fields = dict(line.split(maxsplit=1) for line in _text(path).splitlines() if line)
    return int(fields[name])


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


# --- GPUs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Device:
    nvml: Any
    handle: Any
    index: str
    uuid: str

    def read(self) -> Gpu:
        # A device in MIG mode, and a slice, report no utilization.
        busy = self._ask(lambda: self.nvml.nvmlDeviceGetUtilizationRates(self.handle).gpu)
        used = self._ask(lambda: self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used)
        return Gpu(self.index, None if busy is None else busy / 100, used)

    def _ask(self, question: Callable[[], int]) -> int | None:
        try:
            return question()
        except self.nvml.NVMLError:
            return None


def _find_gpus(nvml: Any, visible: str | None) -> tuple[_Device, ...]:
    """The devices this process may use; none when NVML, a driver or a device is missing, which is logged."""
    try:
        nvml = importlib.import_module("pynvml") if nvml is None else nvml
        nvml.nvmlInit()
        return tuple(_visible_devices(list(_devices(nvml)), visible))
    except ImportError:
        _logger.debug("extra 'gpu' is not installed, GPUs are not observed: %s", how_to_install("gpu"))
    except Exception as error:
        _logger.debug("NVML cannot be used, GPUs are not observed: %r", error)
    return ()


def _devices(nvml: Any) -> Iterator[_Device]:
    """Every device in the order of NVML; a device in MIG mode is followed by its slices."""
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        yield _Device(nvml, handle, str(index), _uuid(nvml, handle))
        for number, slice_handle in _mig_slices(nvml, handle):
            yield _Device(nvml, slice_handle, f"{index}:{number}", _uuid(nvml, slice_handle))


def _mig_slices(nvml: Any, handle: Any) -> Iterator[tuple[int, Any]]:
    try:
        if not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:  # the device has no MIG
        return
    for number in range(count):
        try:
            yield number, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError:  # no slice was made at this number
            continue


def _uuid(nvml: Any, handle: Any) -> str:
    uuid = nvml.nvmlDeviceGetUUID(handle)
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def _visible_devices(devices: list[_Device], visible: str | None) -> Iterator[_Device]:
    """The devices that the list names, as CUDA reads it: by index or UUID prefix, up to the first that is neither.

    Slices that are not named are left out, or their device's memory would count twice.
    """
    if visible is None:
        yield from (device for device in devices if ":" not in device.index)
        return
    for name in (part.strip() for part in visible.split(",")):
        named = [
            device
            for device in devices
            if device.index == name or (name[:4] in _UUIDS and device.uuid.startswith(name))
        ]
        if not named:
            return
        yield named[0]


_UUIDS = ("GPU-", "MIG-")
