"""What a session tells of its programs: memory, times, what was on a device when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cavs import _cuda, _engine
from cavs.config import require
from cavs.cuda.engine import SHARED, CudaEngine
from cavs.runtime.variant import Variant

Span = tuple[str, int, float, float]  # name, lane, begin, end


class Inspected:
    """The part of a session that switches clocks, and other ways to run, on and off."""

    _variants: dict[Any, Variant]
    _latest: dict[bool, Variant]
    _cuda: CudaEngine | None
    _profiling: bool
    _serial: bool

    @property
    def optional_features(self) -> tuple[str, ...]:
        """What schedules are made for; empty before the first batch."""
        for variant in self._variants.values():
            if variant.traced is not None:
                return variant.optional
        return ()

    def latest(self, training: bool = True) -> Variant | None:
        """The way in which the model is compiled that a batch was last prepared for."""
        return self._latest.get(training)

    def set_profiling(self, on: bool) -> None:
        """Times every stage and instruction of later runs; see report()."""
        self._profiling = on
        for variant in self._variants.values():
            if variant.executor is not None:
                variant.executor.set_profiling(on)

    def set_serial(self, on: bool) -> None:
        """One vertex at a time on one thread: the engine's own oracle, on the CPU alone."""
        require(self._cuda is None, "on", on, "a session on the CPU")
        self._serial = on
        for variant in self._variants.values():
            if isinstance(variant.executor, _engine.Executor):
                variant.executor.set_serial(on)

    def set_tracing(self, on: bool) -> None:
        """Notes when the stages of later runs stand on a device, or stops; see trace()."""
        require(self._cuda is not None, "on", on, "a session on a device")
        for variant in self._variants.values():
            if isinstance(variant.executor, _cuda.Executor):
                variant.executor.set_tracing(on)

    def trace(self, training: bool = True) -> list[Span]:
        """What was on a device when, of the programs that had run when tracing began.

        (name, lane, begin, end), in seconds of ``time.perf_counter``. Lanes 0 and 1 run the stages,
        2 is for what goes up, -1 is the host. Steps are not waited for as they are in profiling.
        """
        variant = self._latest.get(training)
        executor = None if variant is None else variant.executor
        return executor.trace() if isinstance(executor, _cuda.Executor) else []


def report_of(variant: Variant | None, variants: Iterable[Variant]) -> dict[str, Any]:
    """The report of one of a session's ``variants``; empty before it has run.

    On a device with what the others hold there.
    """
    if variant is None or variant.executor is None:
        return {}
    found = variant.executor.report()
    if "memory" in found:
        others = [v.executor.report() for v in variants if v.executor and v is not variant]
        found["memory"]["programs"] = sum(
            size for of in others for part, size in of["memory"].items() if part not in SHARED
        )
    return found
