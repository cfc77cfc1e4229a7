"""Word vectors: files of GloVe and of word2vec, as text and in binary."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cavs.config import require, require_count
from cavs.data.source import as_path, cure_of, data_error, opened, shown, write_file
from cavs.data.vocabulary import Vocabulary, check_vocabulary
from cavs.errors import ConfigError, DataError

Format = Literal["glove", "word2vec", "word2vec-binary"]
FORMATS = ("glove", "word2vec", "word2vec-binary")
_CUT = "the file may be cut off: fetch it again"
_LONGEST = 1 << 16  # bytes of a token
_BLOCK = 1 << 20  # bytes that are read at once


@dataclass(frozen=True, eq=False, repr=False)
class WordVectors:
    """The vectors of the tokens of a vocabulary: an initialiser of an `nn.Embedding`.

    ``values``: float32[tokens, width], zeros where the file has no vector; ``found``: True for
    each token that has one. As an initialiser, rows without a vector are drawn as those of a new
    embedding.
    """

    vocabulary: Vocabulary
    values: NDArray[np.float32]
    found: NDArray[np.bool_]

    @property
    def width(self) -> int:
        """Length of a vector."""
        return int(self.values.shape[1])

    @property
    def coverage(self) -> float:
        """Share of the tokens, ``<unk>`` left out, that have a vector; 0 of none."""
        return float(self.found[1:].mean()) if len(self.found) > 1 else 0.0

    @property
    def missing(self) -> list[str]:
        """The tokens without a vector, ``<unk>`` left out."""
        found = self.found.tolist()
        return [token for i, token in enumerate(self.vocabulary) if i and not found[i]]

    def __repr__(self) -> str:
        known, all_tokens = int(self.found[1:].sum()), len(self.found) - 1
        return f"WordVectors({known} of {all_tokens} tokens, width {self.width})"

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise `ConfigError` unless an embedding of this shape can start from the vectors."""
        if tuple(shape) != self.values.shape:
            rows, width = self.values.shape
            raise ConfigError(
                f"an embedding of shape {list(shape)} cannot start from vectors of width {width} "
                f"for {rows} tokens",
                hint=f"nn.Embedding({rows}, {width}, init=vectors), or a file of another width",
            )

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the first values of an embedding of this shape."""
        self.check_shape(shape)
        drawn = rng.uniform(-0.05, 0.05, shape)
        drawn[self.found] = self.values[self.found]
        return drawn


def read_vectors(
    path: str | os.PathLike[str],
    vocabulary: Vocabulary,
    *,
    width: int | None = None,
    format: Format | None = None,
    fallback: Callable[[str], str] | None = None,
) -> WordVectors:
    """Read the vectors of the tokens of a vocabulary; the rest of the file takes no memory.

    ``format``: ``"glove"`` (text), ``"word2vec"`` (text under a line with number and width) or
    ``"word2vec-binary"``; found in the file if left out. ``width``: the width that is expected.
    ``fallback``, such as ``str.lower``: the file is asked for ``fallback(token)`` where it lacks a
    token. Where a token occurs twice in a file, the first vector counts.

    DataError with the line, or the number of the vector, for a file that is missing, of another
    width or cut off, for rows of different widths, and for values that are no finite numbers.
    """
    check_vocabulary("vocabulary", vocabulary)
    require(format is None or format in FORMATS, "format", format, f"one of {FORMATS}")
    if width is not None:
        require_count("width", width)
    path = as_path(path)
    wanted, instead = _wanted(vocabulary, fallback)
    values: NDArray[np.float32] | None = None
    exact = np.zeros(len(vocabulary), np.bool_)
    found = np.zeros(len(vocabulary), np.bool_)
    with opened(path) as file:
        rows = _rows(file, path, format, width)
        for where, token, read in rows:
            own, others = wanted.get(token), instead.get(token, ())
            if own is None and not others and values is not None:
                continue
            vector = read()
            if not np.isfinite(vector).all():
                raise DataError(
                    f"{where}: a value of {_text(token)} is not a finite number",
                    hint="take another file, or leave that row out",
                )
            if values is None:
                values = np.zeros((len(vocabulary), len(vector)), np.float32)
            if own is not None and not exact[own]:
                values[own], exact[own], found[own] = vector, True, True
            for row in others:
                if not found[row]:
                    values[row], found[row] = vector, True
    assert values is not None  # a file without a row is refused
    return WordVectors(vocabulary, values, found)


def write_vectors(
    path: str | os.PathLike[str],
    vocabulary: Vocabulary,
    values: ArrayLike,
    *,
    format: Format = "word2vec",
) -> None:
    """Write one vector for each token of a vocabulary, as float32; `read_vectors` reads them back.

    ``values``: numbers [tokens, width], such as ``embedding.weight.value``. DataError for tokens
    with blanks and values that are not finite.
    """
    check_vocabulary("vocabulary", vocabulary)
    require(format in FORMATS, "format", format, f"one of {FORMATS}")
    table = np.asarray(values, np.float32)
    holds = table.ndim == 2 and len(table) == len(vocabulary) and table.shape[1] > 0
    shape = f"numbers of shape [{len(vocabulary)}, width]"
    require(holds, "values", f"an array of shape {list(table.shape)}", shape)
    if not np.isfinite(table).all():
        row = int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
        raise DataError(f"the vector of row {row} has values that are not finite numbers")
    tokens = [_token_bytes(token) for token in vocabulary]

    def parts() -> Iterator[bytes]:
        if format != "glove":
            yield f"{table.shape[0]} {table.shape[1]}\n".encode()
        for token, row in zip(tokens, table, strict=True):
            if format == "word2vec-binary":
                yield b"%s %s\n" % (token, row.astype("<f4").tobytes())
            else:
                yield b"%s %s\n" % (token, " ".join(map(str, row)).encode())

    write_file(path, parts())


def _wanted(
    vocabulary: Vocabulary, fallback: Callable[[str], str] | None
) -> tuple[dict[bytes, int], dict[bytes, list[int]]]:
    """Return the row of each token as a file has it, and the rows that use one as a fallback."""
    wanted: dict[bytes, int] = {}
    instead: dict[bytes, list[int]] = {}
    for row, token in enumerate(vocabulary):
        with suppress(UnicodeEncodeError):  # half of a surrogate pair is in no file
            wanted[token.encode()] = row
            if row and fallback is not None:
                instead.setdefault(fallback(token).encode(), []).append(row)
    return wanted, instead


Row = tuple[str, bytes, Callable[[], NDArray[np.float32]]]


def _rows(file: BinaryIO, path: Path, format: Format | None, width: int | None) -> Iterator[Row]:
    """Yield where a vector is, its token and a function that reads it."""
    first = file.readline(_LONGEST)
    fields = first.split()
    if not fields or cure_of(first):
        found = "bytes that are no vectors" if fields else "no vector"
        hint = cure_of(first) or "fetch it again"
        raise data_error(path, 1, found, "a file of GloVe or word2vec", hint)
    header = len(fields) == 2 and all(field.isdigit() for field in fields)
    if format is None:
        format = "glove" if not header else "word2vec-binary" if _is_binary(file) else "word2vec"
    if format == "glove":
        file.seek(0)
        yield from _text_rows(file, path, width, None, 1)
        return
    if not header:
        raise data_error(
            path,
            1,
            shown(first.decode(errors="replace")),
            "the number of vectors and their width",
            'format="glove" reads vectors without that line',
        )
    count, size = int(fields[0]), int(fields[1])
    if size < 1 or count < 1:
        raise data_error(path, 1, f"{count} vectors of width {size}", "at least one of each")
    if width is not None and size != width:
        raise _other_width(path, 1, size, width)
    if format == "word2vec":
        yield from _text_rows(file, path, size, count, 2)
    else:
        yield from _binary_rows(file, path, size, count)


def _is_binary(file: BinaryIO) -> bool:
    """True unless a token and numbers as text follow in the file."""
    begin = file.tell()
    line = file.readline(_BLOCK)
    file.seek(begin)
    try:
        return not [float(value) for value in line.split()[1:]]
    except ValueError:
        return True


def _text_rows(
    file: BinaryIO, path: Path, width: int | None, count: int | None, first: int
) -> Iterator[Row]:
    number, line = first - 1, b"\n"
    for number, line in enumerate(file, first):
        if count is not None and number - first >= count:
            if line.strip():
                raise data_error(
                    path, number, f"more than the {count} vectors of line 1", "the end of the file"
                )
            continue
        fields = len(line.split())
        if width is None:
            width = max(fields - 1, 1)
        parts = line.rsplit(None, width)
        if len(parts) <= width or (fields > width + 1 and _has_number(parts[0])):
            needed = f"a token and {width} values"
            if fields < 2:
                raise data_error(path, number, f"a row {_text(line)}", needed)
            if not line.endswith(b"\n"):
                found = f"the file ends after {fields - 1} values of a row"
                raise data_error(path, number, found, needed, _CUT)
            raise _other_width(path, number, fields - 1, width)

        def read(parts: list[bytes] = parts, number: int = number) -> NDArray[np.float32]:
            try:
                with np.errstate(over="ignore"):  # an infinite value is refused
                    return np.array([float(value) for value in parts[1:]]).astype(np.float32)
            except ValueError as error:
                raise data_error(path, number, str(error), "numbers after the token") from None

        yield f"{path}:{number}", parts[0].strip(), read
    if count is not None and number - first + 1 < count:
        rows = number - first + 1
        raise data_error(path, number, f"{rows} vectors", f"the {count} of line 1", _CUT)
    if not line.endswith(b"\n"):
        hint = f"{_CUT}, or end it with a line end if it is whole"
        raise data_error(path, number, "the file ends inside a line", "a line end", hint)


def _binary_rows(file: BinaryIO, path: Path, width: int, count: int) -> Iterator[Row]:
    size, block, begin = 4 * width, b"", 0
    for number in range(1, count + 1):
        where = f"{path}: vector {number} of {count}"
        while (end := block.find(b" ", begin)) < 0 or len(block) - end - 1 < size:
            more = file.read(max(_BLOCK, size))
            if not more:
                raise DataError(f"{where}: the file ends inside it", hint=_CUT)
            block, begin = block[begin:] + more, 0
            if b" " not in block[:_LONGEST]:
                raise DataError(
                    f"{where}: no blank after its token; expected {width} values after one",
                    hint="the file is damaged, or no binary file of word2vec",
                )
        token, values = block[begin:end].lstrip(b"\n"), block[end + 1 : end + 1 + size]
        begin = end + 1 + size
        yield where, token, lambda values=values: np.frombuffer(values, "<f4")  # type: ignore[misc]
    if (block[begin:] + file.read(_BLOCK)).strip():
        raise DataError(
            f"{path}: more bytes than those of {count} vectors of width {width}",
            hint="its first line says how many there are: the file is damaged",
        )


def _other_width(path: Path, number: int, found: int, width: int) -> DataError:
    hint = "take the file of that width, or change the width of the embedding"
    return data_error(path, number, f"vectors of width {found}", f"width {width}", hint)


def _has_number(token: bytes) -> bool:
    """True if a part of a token with blanks, but the first, is a number."""
    for part in token.split()[1:]:
        with suppress(ValueError):
            float(part)
            return True
    return False


def _text(token: bytes) -> str:
    return shown(token.decode(errors="replace"))


def _token_bytes(token: str) -> bytes:
    try:
        encoded = token.encode()
    except UnicodeEncodeError:
        encoded = b""
    if not encoded or len(encoded.split()) != 1 or len(encoded) != len(encoded.strip()):
        raise DataError(
            f"token {shown(token)} cannot be written to a file of vectors",
            hint="tokens there have no blanks",
        )
    return encoded
