"""What a session tells of its programs: memory, times, what was on a device when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cavs import _cuda
from cavs.cuda.engine import SHARED
from cavs.runtime.variant import Variant

Span = tuple[str, int, float, float]  # name, lane, begin, end


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


def set_tracing(variants: Iterable[Variant], on: bool) -> None:
    """Starts or stops the notes that `trace_of` reads."""
    for variant in variants:
        if isinstance(variant.executor, _cuda.Executor):
            variant.executor.set_tracing(on)


def trace_of(variant: Variant | None) -> list[Span]:
    """What was on the device when; empty without one."""
    executor = None if variant is None else variant.executor
    return executor.trace() if isinstance(executor, _cuda.Executor) else []
