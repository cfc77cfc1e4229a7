"""Switch profiling, tracing and serial runs, and report what the engine counted."""

from __future__ import annotations

from typing import Any

from cavs import _cuda, _engine
from cavs.config import require
from cavs.cuda.engine import SHARED
from cavs.runtime.interface import Executor
from cavs.runtime.variant import Variant, Variants

Span = tuple[str, int, float, float]  # name, lane, begin, end


class Profiler:
    """Switches of all executors of a session, of later ones too."""

    def __init__(self, on_device: bool, variants: Variants) -> None:
        self._on_device, self._variants = on_device, variants
        self._profiling = self._serial = False

    def configure(self, executor: Executor) -> None:
        """Set a new executor to the way in which the others run."""
        if isinstance(executor, _engine.Executor):
            executor.set_serial(self._serial)
        executor.set_profiling(self._profiling)

    def set_profiling(self, on: bool) -> None:
        """Time every stage and instruction of later runs, or stop."""
        self._profiling = on
        for executor in self._variants.executors():
            executor.set_profiling(on)

    def set_serial(self, on: bool) -> None:
        """Run one vertex at a time on one thread, or stop; ConfigError on a device."""
        require(not self._on_device, "on", on, "a session on the CPU")
        self._serial = on
        for executor in self._variants.executors():
            if isinstance(executor, _engine.Executor):
                executor.set_serial(on)

    def set_tracing(self, on: bool) -> None:
        """Record a timeline of later runs, or stop; ConfigError on the CPU."""
        require(self._on_device, "on", on, "a session on a device")
        for executor in self._variants.executors():
            if isinstance(executor, _cuda.Executor):
                executor.set_tracing(on)

    def timeline(self, variant: Variant | None) -> list[Span]:
        """Return the recorded timeline; empty on the CPU."""
        executor = None if variant is None or variant.build is None else variant.build.executor
        return executor.trace() if isinstance(executor, _cuda.Executor) else []

    def report(self, variant: Variant | None) -> dict[str, Any]:
        """Return what the engine counted of ``variant``; empty before it is built.

        On a device, ``memory`` includes what the other programs of the session hold there.
        """
        if variant is None or variant.build is None:
            return {}
        executor = variant.build.executor
        found = executor.report()
        if "memory" in found:
            others = [x.report() for x in self._variants.executors() if x is not executor]
            found["memory"]["programs"] = sum(
                size for of in others for part, size in of["memory"].items() if part not in SHARED
            )
        return found
