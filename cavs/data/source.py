"""Text and lines of files and arguments, with errors that name file and line."""

from __future__ import annotations

import codecs
import errno
import io
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

from cavs.data.whole_file import replace_whole
from cavs.errors import DataError

T = TypeVar("T")
BYTE_ORDER_MARK = "\ufeff"
_CURES = {
    b"\x1f\x8b": "it is compressed: gunzip it first",
    b"PK\x03\x04": "it is an archive: unzip it first",
    b"BZh": "it is compressed: bunzip2 it first",
    b"\xfd7zXZ": "it is compressed: unxz it first",
    codecs.BOM_UTF16_LE: "convert the file: iconv -f utf-16 -t utf-8",
    codecs.BOM_UTF16_BE: "convert the file: iconv -f utf-16 -t utf-8",
}

_ENCODED = "convert the file: iconv -f latin1 -t utf-8, with the encoding that it has"


def data_error(path: Path | str, line: int, found: str, needed: str, hint: str = "") -> DataError:
    """Return a DataError at ``path:line`` with what was found, what was expected and the cure."""
    return DataError(f"{path}:{line}: {found}; expected {needed}", hint=hint)


def shown(text: str, limit: int = 60) -> str:
    """Return text of a file as an error quotes it: escaped and cut."""
    return repr(text if len(text) <= limit else text[:limit] + "...")


def as_path(path: str | os.PathLike[str]) -> Path:
    """Return the path that a caller passed; DataError for anything else."""
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        raise DataError(f"{path!r:.80} is no path", hint="give the name of a file, as a text")
    return Path(path)


def as_text(text: str, where: str, needed: str, hint: str = "") -> str:
    """Return a text that a caller passed, without a byte-order mark; DataError for anything else.

    ``where`` and ``needed`` are for the error: how it names the text, and what the text holds.
    """
    if not isinstance(text, str):
        if isinstance(text, bytes | bytearray):
            hint = "decode bytes first: data.decode()"
        raise DataError(f"{where}: {text!r:.80} is no text; expected {needed}", hint=hint)
    return text.removeprefix(BYTE_ORDER_MARK)


def as_items(items: Iterable[T], item_type: type[T], needed: str, hint: str) -> list[T]:
    """Return a list of what a caller passed; DataError unless each item is an ``item_type``."""
    if isinstance(items, str | bytes | bytearray) or not isinstance(items, Iterable):
        raise DataError(f"{items!r:.80} is no list; expected {needed}", hint=hint)
    found = list(items)
    for number, item in enumerate(found):
        if not isinstance(item, item_type):
            raise DataError(f"item {number} is {item!r:.80}; expected {needed}", hint=hint)
    return found


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; DataError if it is missing, unreadable or a device."""
    with opened(path) as file:
        return file.read()


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Yield a file open for reading; DataError if it is missing, unreadable or a device."""
    try:
        with path.open("rb") as file:
            refuse_device(file)
            yield file
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror or error}",
            hint="check the path, and that the file may be read",
        ) from None


def refuse_device(file: IO[Any]) -> None:
    """Raise OSError for a device but a terminal: it may be endless, such as /dev/zero."""
    try:
        mode = os.fstat(file.fileno()).st_mode
    except io.UnsupportedOperation:
        return  # the stream lies in memory
    if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not file.isatty()):
        raise OSError(errno.EINVAL, "it is a device, not a file")


def decode(raw: bytes, path: Path | str) -> str:
    """Return UTF-8 as text, without a byte-order mark; DataError with the line of invalid UTF-8."""
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
            cure_of(raw) or _ENCODED,
        ) from None


def cure_of(raw: bytes) -> str:
    """Return how to get text from bytes, according to the first of them; empty if unknown."""
    return next((cure for mark, cure in _CURES.items() if raw.startswith(mark)), "")


def read_text_file(path: Path) -> str:
    """Return the text of a UTF-8 file. DataError if it is missing, unreadable, empty, not UTF-8."""
    raw = read_bytes(path)
    if not raw.strip():
        raise data_error(
            path, 1, "the file is empty", "at least one line of text", "fetch it again"
        )
    return decode(raw, path)


def split_lines(text: str) -> list[str]:
    r"""Return the lines of a text without their ends (``\n`` or ``\r\n``); at least one.

    A last line without an end counts; the emptiness after the last end does not.
    """
    # str.splitlines would also cut at characters that treebanks have inside tokens.
    lines = text.split("\n")
    if len(lines) > 1 and lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, as ``split_lines``; DataError as ``read_text_file``."""
    return split_lines(read_text_file(path))


def write_file(path: str | os.PathLike[str], parts: Iterable[bytes | memoryview]) -> None:
    """Write a file; a reader sees the old content or the new, never a part. DataError if it fails.

    Nothing is written if an error comes while the parts are computed.
    """
    target = as_path(path)
    try:
        replace_whole(target, parts)
    except OSError as error:
        raise DataError(
            f"{target}: cannot be written: {error.strerror or error}",
            hint="choose a folder and file that you may write to",
        ) from None


def write_text_file(path: str | os.PathLike[str], texts: Iterable[str]) -> None:
    """Write texts one after the other as UTF-8, like `write_file`."""

    def encoded() -> Iterator[bytes]:
        for text in texts:
            try:
                yield text.encode()
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{path}: half of a surrogate pair in {shown(text)} cannot be written as UTF-8",
                    hint="decode the text that it comes from by errors='replace'",
                ) from error

    write_file(path, encoded())
