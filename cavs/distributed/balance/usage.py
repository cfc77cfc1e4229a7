"""The shares of CPU and memory that are in use where a rank runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from cavs.cuda.device import Device
from cavs.cuda.memory import CupyMemory

# Shares of CPU and memory, each from 0 to 1.
Usage = Callable[[], tuple[float, float]]
_PROC = Path("/proc")


class HostUsage:
    """Usage of a Linux host by all its programs; zeros on other systems.

    CPU: the share of the time of all cores since this thread's last call that was not idle.
    """

    def __init__(self, proc: Path = _PROC) -> None:
        self.proc = proc
        self._before = threading.local()  # ranks may be threads

    def __call__(self) -> tuple[float, float]:
        """Return the shares in use now."""
        try:
            with (self.proc / "stat").open() as stat:
                line = stat.readline()
            memory = (self.proc / "meminfo").read_text()
        except OSError:
            return 0.0, 0.0
        return self._cpu(line), _memory(memory)

    def _cpu(self, line: str) -> float:
        # user nice system idle iowait irq softirq steal; guests are counted in user.
        ticks = [int(word) for word in line.split()[1:9]]
        total, idle = sum(ticks), sum(ticks[3:5])
        before = getattr(self._before, "ticks", (0, 0))
        self._before.ticks = total, idle
        passed = total - before[0]
        if passed <= 0:  # two calls within a tick
            return float(getattr(self._before, "share", 0.0))
        self._before.share = min(max(1 - (idle - before[1]) / passed, 0.0), 1.0)
        return float(self._before.share)


def _memory(text: str) -> float:
    rows = (line.partition(":") for line in text.splitlines())
    sizes = {name: int(rest.split()[0]) for name, _, rest in rows}
    total = sizes.get("MemTotal", 0)
    available = sizes.get("MemAvailable", total)  # kernels before 3.14 do not say
    return min(max(1 - available / total, 0.0), 1.0) if total else 0.0


host_usage = HostUsage()


def gpu_usage(memory: CupyMemory) -> Usage:
    """Return the usage of the host's CPU and of the memory of a GPU, without that which a pool
    keeps for later.
    """

    def usage() -> tuple[float, float]:
        free, total = memory.free_and_total()
        return host_usage()[0], 1 - min(free + memory.kept(), total) / total

    return usage


def usage_on(device: Device | None) -> Usage:
    """Return the usage of the memory of `device`, or of its host; DeviceError if unknown."""
    if device is None:
        return host_usage
    own = device.memory
    return gpu_usage(own if isinstance(own, CupyMemory) else CupyMemory(device.ordinal))
