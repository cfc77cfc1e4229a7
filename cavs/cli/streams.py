"""Standard streams that are closed, full, broken, or that cannot encode all text."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO


class OutputError(Exception):
    """The standard output cannot be written."""


class _Output(io.FileIO):
    def write(self, data: Any, /) -> int:
        """Raise `OutputError`, which no other file raises."""
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error.strerror) from error


class _Unfailing(io.FileIO):
    def write(self, data: Any, /) -> int:
        """Drop data that cannot be written."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def prepare() -> None:
    r"""Replace closed streams by empty ones, and let errors of stderr pass.

    Characters that the encoding of a stream lacks, as in names of files, are written as ``\xfc``.
    Closed descriptors are opened in order, so that no checkpoint takes the number of the standard
    error, also in programs that a command starts.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    # Streams that a test has replaced are left.
    if sys.stdout is sys.__stdout__:
        sys.stdout = _over(_Output, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _over(_Unfailing, sys.stderr)


def _over(raw: type[io.FileIO], stream: Any) -> TextIO:
    """Return a text stream like `stream` that writes through `raw`."""
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw(stream.fileno(), "w", closefd=False)),
        stream.encoding,
        "backslashreplace",
        line_buffering=stream.line_buffering or stream.write_through,
    )


def give_up(error: OutputError) -> None:
    """Report that the standard output is broken, and drop further output, also at exit."""
    if not isinstance(error.__cause__, BrokenPipeError):  # a reader that has ended needs no message
        print(f"cavs: cannot write to the standard output: {error}", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(text: str) -> None:
    """Print a line about saved work; a broken output is no failure then."""
    try:
        print(text, flush=True)
    except OutputError as error:
        give_up(error)
