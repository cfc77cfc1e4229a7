"""`write_report`: reads the log of a run and writes its report."""

from __future__ import annotations

import os
from pathlib import Path

from cavs.config import require
from cavs.data.source import as_path
from cavs.errors import ConfigError
from cavs.inspect.report.charts import OVER
from cavs.inspect.report.page import page
from cavs.inspect.report.picture import write_picture
from cavs.inspect.report.run_log import log_path, read_log

SUFFIXES = (".html", ".htm", ".png")


def write_report(
    run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, over: str = "steps"
) -> Path:
    """Draw the log of a training; return the file of the report.

    Args:
        run: A folder of ``cavs train``, or the file that was ``log=`` of `Trainer.fit`.
        out: ``FILE.html`` for a page that loads nothing, or ``FILE.png`` for a picture, which needs
            the extra ``report``. By default ``report.html`` next to the log.
        over: ``"steps"`` or ``"time"``: the axis of a picture, and the first one of a page.

    Raises `DataError` if the log is missing, empty or no log, `ConfigError` for an `out` that
    cannot be written.
    """
    require(over in OVER, "over", over, " or ".join(map(repr, OVER)))
    source = log_path(run)
    target = source.with_name("report.html") if out is None else as_path(out)
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"a report cannot be written to {target}: the suffix of its name is {suffix!r}",
            hint=f"pass a name that ends in {', '.join(SUFFIXES)}",
        )
    try:
        if target.exists() and target.samefile(source):
            raise ConfigError(f"{target} is the log itself", hint="pass another name")
        log = read_log(source)
        if suffix == ".png":
            write_picture(log, over, target)
        else:
            target.write_text(page(log, over), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write the report {target}: {error.strerror or error}",
            hint="choose a folder and file that you may write to",
        ) from None
    return target
