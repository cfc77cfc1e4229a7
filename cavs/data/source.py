"""Text files as lines, with errors that name file and line."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

from cavs.errors import DataError

_MARKS = {
    b"\x1f\x8b": "it is compressed: gunzip it first",
    b"PK\x03\x04": "it is an archive: unzip it first",
    b"BZh": "it is compressed: bunzip2 it first",
    b"\xfd7zXZ": "it is compressed: unxz it first",
    codecs.BOM_UTF16_LE: "convert the file: iconv -f utf-16 -t utf-8",
    codecs.BOM_UTF16_BE: "convert the file: iconv -f utf-16 -t utf-8",
}


def data_error(path: Path | str, line: int, found: str, needed: str, hint: str = "") -> DataError:
    """A DataError at ``path:line``: what stands there and what should, and how to mend it."""
    return DataError(f"{path}:{line}: {found}; expected {needed}", hint=hint)


def shown(text: str, limit: int = 60) -> str:
    """Text of a file as an error quotes it: escaped and cut."""
    return repr(text if len(text) <= limit else text[:limit] + "...")


def as_path(path: str | os.PathLike[str]) -> Path:
    """A path that a caller gives; DataError for what is none."""
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        raise DataError(f"{path!r:.80} is no path", hint="give the name of a file, as a text")
    return Path(path)


def read_bytes(path: Path) -> bytes:
    """What is in a file; DataError if it is missing or unreadable."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror or error}",
            hint="check the path, and that the file may be read",
        ) from None


def decode(raw: bytes, path: Path | str) -> str:
    """UTF-8 as text, without a mark of byte order; DataError with the line of what is not UTF-8."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise data_error(
            path,
            line,
            f"byte 0x{raw[error.start]:02x} is not UTF-8 ({error.reason})",
            "UTF-8 text",
            _cure(raw),
        ) from None


def _cure(raw: bytes) -> str:
    """What makes text of bytes that are none, told by how they begin."""
    for mark, cure in _MARKS.items():
        if raw.startswith(mark):
            return cure
    return "convert the file: iconv -f latin1 -t utf-8, with the encoding that it has"


def read_lines(path: Path) -> list[str]:
    r"""The lines of a UTF-8 file without their ends (``\n`` or ``\r\n``); at least one.

    A last line without an end counts; the emptiness after the last end does not. DataError for
    a file that is missing, unreadable, empty, or not UTF-8.
    """
    raw = read_bytes(path)
    if not raw.strip():
        raise data_error(path, 1, "the file is empty", "at least one line of text", "fetch it anew")
    text = decode(raw, path)
    # str.splitlines would also cut at characters that treebanks have inside tokens.
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
