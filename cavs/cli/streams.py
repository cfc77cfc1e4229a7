"""Standard streams that are closed, full or broken."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO


class OutputError(Exception):
    """The standard output takes nothing."""


class _Output(io.FileIO):
    def write(self, data: Any, /) -> int:
        """Raises what no error of another file is."""
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error.strerror) from error


class _Unfailing(io.FileIO):
    def write(self, data: Any, /) -> int:
        """Drops what cannot be written."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def prepare() -> None:
    """Before a command: closed streams become empty ones, and a broken stderr ends nothing.

    Closed descriptors are opened anew, in order, lest a checkpoint becomes the standard error; so
    they are for programs that a command starts.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    # Others, such as those of a test, are not ours to replace.
    if sys.stdout is sys.__stdout__:
        sys.stdout = _over(_Output, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _over(_Unfailing, sys.stderr)


def _over(raw: type[io.FileIO], stream: Any) -> TextIO:
    """As `stream`, with `raw` below."""
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw(stream.fileno(), "w", closefd=False)),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering or stream.write_through,
    )


def give_up(error: OutputError) -> None:
    """Say that the standard output is broken, and let it end in nothing, also at exit."""
    if not isinstance(error.__cause__, BrokenPipeError):  # its reader has gone, and needs no word
        print(f"cavs: cannot write to the standard output: {error}", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(text: str) -> None:
    """Print a line about work that is done and saved: a broken output does not undo it."""
    try:
        print(text, flush=True)
    except OutputError as error:
        give_up(error)
