"""`facts_of`: the facts of a run in a few words."""

from __future__ import annotations

from cavs.inspect.report.run_log import RunLog, number
from cavs.inspect.report.scale import short


def title_of(log: RunLog) -> str:
    """Return the title of a report: the name of the folder of the run."""
    path = log.path.absolute()
    return path.parent.name if path.name == "log.jsonl" and path.parent.name else path.name


def time_text(seconds: float) -> str:
    """Return ``4.2 s``, ``1:05 min`` or ``2:03:04 h``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} h"


def facts_of(log: RunLog) -> dict[str, str]:
    """Return the facts that the log knows, by name."""
    facts = {
        "model": log.options.get("model"),
        "state": _state(log),
        "steps": f"{log.steps:.0f}",
        "epochs": _epochs(log),
        "best": _best(log),
        "training time": time_text(log.seconds),
        "ranks": _setting(log, "ranks"),
        "batch size": _setting(log, "batch_size"),
        "optimizer": log.start.get("optimizer"),
        "strategy": log.builder,
        "skipped": f"{log.skipped} partial lines" if log.skipped else None,
    }
    return {name: str(fact) for name, fact in facts.items() if fact}


def _state(log: RunLog) -> str:
    if log.ending is None:
        return "running, or ended without a record"
    event = log.ending["event"]
    if event == "interrupt":
        return "interrupted"
    if event != "end":
        return f"failed: {log.ending.get('error')}"
    if log.ending.get("stopped_early"):
        return "stopped early, after epochs without improvement"
    return "stopped by a policy" if log.ending.get("status") == "stopped" else "finished"


def _epochs(log: RunLog) -> str:
    done = max((epoch.get("epoch", 0.0) for epoch in log.epochs), default=0.0)
    planned = number(log.start.get("epochs"))
    return f"{short(done)} of {short(planned)}" if planned is not None else short(done)


def _best(log: RunLog) -> str | None:
    if log.best is None:
        return None
    monitor = str(log.start.get("monitor", ""))
    names = (f"dev_{monitor}", f"train_{monitor}")
    value = next((log.best[name] for name in names if name in log.best), None)
    shown = f"{monitor.replace('_', ' ')} {short(value)} in " if value is not None else ""
    return f"{shown}epoch {short(log.best.get('epoch', 0.0))}"


def _setting(log: RunLog, name: str) -> str | None:
    series = log.settings.get(name)
    if series is None or not series.values:
        return None
    low, high = min(series.values), max(series.values)
    return short(low) if low == high else f"{short(low)} to {short(high)}"
