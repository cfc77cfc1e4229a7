"""`RunLog`: the numbers and events in the JSON-lines log of a training."""

from __future__ import annotations

import json
import math
import os
import stat
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeGuard

from cavs.data.source import as_path, shown
from cavs.errors import DataError

_FIRST = '{"event": "'  # every record begins with it, and so does a partial one
_MAX_STEP = 1e15
_MAX_LINE = 1 << 22
_NO_NUMBERS = ("epoch", "step", "seconds", "ranks")  # "ranks" is a setting
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_ENDINGS = ("end", "interrupt", "error", "numerics")
_EVENTS = ("start", "step", "epoch", "change", "checkpoint", *_ENDINGS)
_ADVICE = "pass the --out of cavs train, or the file that was log= of Trainer.fit"


@dataclass
class Series:
    """A number that a log repeats: its values, each with step, seconds of training, and fit.

    fits: Number of the call of `fit` that wrote the value. Values may be infinite or NaN.
    """

    steps: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    fits: array[int] = field(default_factory=lambda: array("L"))

    def append(self, step: float, seconds: float, value: float, fit: int) -> None:
        """Append a value."""
        self.steps.append(step)
        self.seconds.append(seconds)
        self.values.append(value)
        self.fits.append(fit)

    def cut(self, step: float) -> None:
        """Remove the last values, up to those of steps after `step`."""
        count = len(self.steps)
        while count > 0 and self.steps[count - 1] > step:
            count -= 1
        for column in (self.steps, self.seconds, self.values, self.fits):
            del column[count:]


@dataclass(frozen=True)
class Mark:
    """A moment of a training: a change, a checkpoint, an interruption, or a resumption.

    event: ``"change"``, ``"checkpoint"``, ``"interrupt"``, ``"error"`` or ``"resume"``.
    """

    event: str
    step: float
    seconds: float
    text: str


@dataclass
class RunLog:
    """Contents of a log.

    Attributes:
        path: The file.
        options: Last record of the options of ``cavs train``; empty without one.
        start: Last record of the start of a `fit`; empty without one.
        ending: Last record of an end, an interruption or an error that no `fit` follows, or None.
        builder: Builder of the strategy, or "".
        numbers: Series of the records of steps, by name.
        epoch_numbers: Series of the records of epochs, by name.
        settings: Series of the number of ranks, the batch size, and other numbers that change.
        epochs: Numbers of every epoch.
        best: Those of the best epoch.
        marks: Changes, checkpoints, interruptions and resumptions, in order.
        steps: Number of updates at the last record.
        seconds: Duration of all fits together.
        skipped: Number of partial lines.
    """

    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)
    ending: Mapping[str, Any] | None = None
    builder: str = ""
    numbers: dict[str, Series] = field(default_factory=dict)
    epoch_numbers: dict[str, Series] = field(default_factory=dict)
    settings: dict[str, Series] = field(default_factory=dict)
    epochs: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, float] | None = None
    marks: list[Mark] = field(default_factory=list)
    steps: float = 0.0
    seconds: float = 0.0
    skipped: int = 0
    _fits: int = 0
    _began: float | None = None  # time at which the running fit began
    _before: float = 0.0  # seconds of the fits before it

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a record; unknown ones are ignored."""
        event, step = record["event"], number(record.get("step"))
        if event == "options":
            self.options = record
        elif event == "strategy":
            self.builder = str(record.get("builder") or "")
        if event not in _EVENTS or step is None or not 0 <= step <= _MAX_STEP:
            return
        if event == "start":
            self._begin(record, step)
        self._tick(record.get("time"))
        if event == "start":
            loader = record.get("loader")
            self._set("ranks", step, record.get("ranks"))
            self._set("batch_size", step, loader.get("batch_size") if _is_dict(loader) else None)
        elif event in ("step", "epoch"):
            self._add_numbers(event, step, record)
        elif event == "change":
            name, value = str(record.get("setting")), record.get("value")
            self._set(name, step, value)
            self._mark("change", step, f"{name.replace('_', ' ')} {value!s:.60}")
        elif event == "checkpoint":
            self._mark("checkpoint", step, "checkpoint")
        elif event == "interrupt":
            self._mark("interrupt", step, "interrupted")
        elif event in ("error", "numerics"):
            self._mark("error", step, str(record.get("error")).partition("\n")[0])
        elif record.get("status") == "stopped":
            self._mark("change", step, "stopped by a policy")
        if event in _ENDINGS:
            self.ending = record
        if event not in ("error", "numerics"):  # they have the number of the step that failed
            self.steps = step

    def series(self) -> Iterator[Series]:
        """Yield all series."""
        for group in (self.numbers, self.epoch_numbers, self.settings):
            yield from group.values()

    def _begin(self, record: Mapping[str, Any], step: float) -> None:
        """Begin a fit after `step` updates; later steps of earlier fits are lost."""
        if self._fits:
            if self.ending is None:
                self._mark("interrupt", self.steps, "ended without a record")
            lost = self.steps - step
            self._before, self._began = self.seconds, None
            self._tick(record.get("time"))
            for series in self.series():
                series.cut(step)
            self.epochs = [epoch for epoch in self.epochs if epoch["step"] <= step]
            if self.best is not None and self.best["step"] > step:
                self.best = next((e for e in reversed(self.epochs) if e.get("best")), None)
            kept = ("interrupt", "error", "resume")
            self.marks = [m for m in self.marks if m.event in kept or m.step <= step]
            repeated = f", {lost:.0f} steps back" if lost > 0 else ""
            self._mark("resume", step, f"resumed after step {step:.0f}{repeated}")
        self._fits += 1
        self.start, self.ending = record, None

    def _tick(self, time: object) -> None:
        """Advance the clock to the time of a record; pauses between fits do not count."""
        try:
            now = datetime.fromisoformat(str(time)).timestamp()
        except (ValueError, OverflowError, OSError):
            return
        if self._began is None:
            self._began = now
        self.seconds = max(self.seconds, self._before + now - self._began)

    def _mark(self, event: str, step: float, text: str) -> None:
        self.marks.append(Mark(event, step, self.seconds, text))

    def _set(self, name: str, step: float, value: object) -> None:
        found = number(value)
        if found is not None:
            self.settings.setdefault(name, Series()).append(step, self.seconds, found, 0)

    def _add_numbers(self, event: str, step: float, record: Mapping[str, Any]) -> None:
        found = {name: x for name, value in record.items() if (x := number(value)) is not None}
        target = self.numbers if event == "step" else self.epoch_numbers
        for name, value in found.items():
            if name not in _NO_NUMBERS:
                target.setdefault(name, Series()).append(step, self.seconds, value, self._fits)
        if event == "step" and "ranks" in found:
            self._set("ranks", step, found["ranks"])
        if event == "step" and found.get("seconds", 0) > 0 and "batch_size" in found:
            speed = found["batch_size"] / found["seconds"]
            series = self.numbers.setdefault("graphs_per_second", Series())
            series.append(step, self.seconds, speed, self._fits)
        if event == "epoch":
            self.epochs.append(found)
            if record.get("best") is True:
                found["best"] = 1.0
                self.best = found


def number(value: object) -> float | None:
    """Return a number of a record, where infinity and NaN are texts; None for anything else."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def log_path(run: str | os.PathLike[str]) -> Path:
    """Return the log of a run: that of a folder of ``cavs train``, or the file itself."""
    path = as_path(run)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            mode = (path := path / "log.jsonl").stat().st_mode
    except FileNotFoundError:
        missing = "there is no log.jsonl in it" if path.name == "log.jsonl" else "no such file"
        raise DataError(f"{run}: {missing}", hint=_ADVICE) from None
    except OSError as error:
        raise DataError(f"{run}: cannot be read: {error.strerror or error}") from None
    if not stat.S_ISREG(mode):
        raise DataError(f"{path} is no regular file, which a log is", hint=_ADVICE)
    return path


def read_log(run: str | os.PathLike[str]) -> RunLog:
    """Read the log of a run. Raises `DataError` if it is missing, empty or no log.

    Lines that a killed run or a full disk left partial are skipped.
    """
    log = RunLog(log_path(run))
    records = 0
    for line_number, line in enumerate(_lines(log.path), 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if _is_dict(record) and isinstance(record.get("event"), str):
            log.add(record)
            records += 1
        elif line.startswith(_FIRST) or _FIRST.startswith(line):
            log.skipped += bool(line)
        else:
            raise DataError(
                f"{log.path}:{line_number}: {shown(line)} is no record of a log; expected a JSON "
                'object with an "event"',
                hint=_ADVICE,
            )
    if not any(x.values for x in (*log.numbers.values(), *log.epoch_numbers.values())):
        found = (
            f"has {records} records, but no values of steps or epochs" if records else "is empty"
        )
        raise DataError(
            f"{log.path} {found}: there is nothing to draw",
            hint="wait for the end of the first epoch, or train with policies or monitors, which "
            "log every step",
        )
    return log


def _lines(path: Path) -> Iterator[str]:
    """Return the lines of a file without the zero bytes that a power failure leaves."""
    try:
        with path.open("rb") as file:
            while line := file.readline(_MAX_LINE):
                yield line.decode("utf-8", "replace").strip("\0 \r\n\t")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
