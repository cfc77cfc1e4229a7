"""The safetensors file format: an 8-byte length, a JSON header, raw little-endian arrays.

Writing is atomic: the path names the complete new file or the old one. Reading checks every length
and offset before it makes an array.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.data.whole_file import replace_whole
from cavs.errors import CheckpointError

Array = NDArray[Any]
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}
_PART = 1 << 24  # bytes read at once where a file has no known size
_MAX_HEADER = 100_000_000  # the limit of the format's reference reader
# A metadata key of cavs: checksums of the arrays, and of the header with zeros for its own. Files
# of other programs have none, older files only that of the arrays.
_CHECKSUM = "crc32"
_ZEROS = "0" * 8


def write(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str]
) -> None:
    """Write `tensors` and `metadata` to `path` in one atomic step.

    Creates missing folders. Raises `CheckpointError` (old file untouched) if the folder
    cannot be written, the disk is full, or a dtype has no name in the format.
    """
    arrays = {name: _little_endian(name, array) for name, array in tensors.items()}
    header = _header(arrays, metadata)
    try:
        replace_whole(path, [header, *map(_raw, arrays.values())], folders=True)
    except (OSError, TypeError, ValueError) as error:  # no path, or a zero byte in it
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {getattr(error, 'strerror', None) or error}",
            hint=_cure(error) + "; a checkpoint written there before is untouched",
        ) from error


def _cure(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space or choose another disk"
    return "choose a folder and file that you may write to"


def _little_endian(name: str, array: Array) -> Array:
    array = np.asarray(array)
    dtype = array.dtype.newbyteorder("<")
    if dtype not in _NAMES:
        raise CheckpointError(
            f"tensor {name!r} has dtype {array.dtype}, which safetensors cannot hold",
            hint=f"use one of {', '.join(str(d) for d in _NAMES)}",
        )
    # ascontiguousarray would turn a scalar into a vector.
    return np.asarray(array, dtype=dtype, order="C")


def _header(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    checksum, offset = 0, 0
    entries: dict[str, Any] = {}
    for name, array in arrays.items():
        if name == "__metadata__":
            raise CheckpointError("a tensor may not be called '__metadata__'")
        end = offset + array.nbytes
        entries[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        checksum = zlib.crc32(_raw(array), checksum)
        offset = end
    entries["__metadata__"] = {**metadata, _CHECKSUM: f"{checksum:08x} {_ZEROS}"}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)  # arrays start at a multiple of eight bytes
    if len(text) > _MAX_HEADER:
        raise CheckpointError(f"the header has {len(text)} bytes, more than {_MAX_HEADER}")
    text = text.replace(_entry(checksum, _ZEROS), _entry(checksum, f"{zlib.crc32(text):08x}"))
    return len(text).to_bytes(8, "little") + text


def _entry(of_arrays: int, of_header: str) -> bytes:
    """Return the checksums as in the header; unique there, since quotes in texts are escaped."""
    return f'"{_CHECKSUM}":"{of_arrays:08x} {of_header}"'.encode()


def _raw(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """Return tensors (read-only views of one buffer on little-endian hosts) and metadata.

    Raises `CheckpointError` for a file that is missing, truncated, corrupt or of another format.
    """
    header, content = _read_file(path, arrays=True)
    entries = _parse_header(path, header)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _damaged(path, "its __metadata__ is not a map of strings")
    data = memoryview(content)
    tensors, end = _tensors(path, entries, data)
    if end != len(data):
        raise _damaged(path, f"it has {len(data)} bytes of arrays, but its header says {end}")
    stored = metadata.pop(_CHECKSUM, None)
    if stored is not None:
        _check_sums(path, header[8:], zlib.crc32(data), *stored.partition(" ")[::2])
    return tensors, metadata


def _check_sums(path: object, header: bytes, found: int, arrays: str, own: str) -> None:
    """Check the checksums in the file: of its arrays, and its own, which may be empty."""
    if arrays != f"{found:08x}":
        raise _damaged(path, f"its checksum is {found:08x}, not {arrays}")
    computed = zlib.crc32(header.replace(_entry(found, own), _entry(found, _ZEROS)))
    if own and own != f"{computed:08x}":
        raise _damaged(path, f"the checksum of its header is {computed:08x}, not {own}")


def read_header(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the shapes of the tensors in `path` and its metadata, without reading arrays.

    Raises `CheckpointError` for a file that cannot be read, or is of another format.
    """
    entries = _parse_header(path, _read_file(path, arrays=False)[0])
    metadata = entries.pop("__metadata__", {})
    return {k: e.get("shape") for k, e in entries.items() if isinstance(e, dict)}, metadata


def _read_file(path: str | os.PathLike[str], *, arrays: bool) -> tuple[bytes, bytes]:
    """Return the length and the header, and the bytes of all arrays if `arrays`.

    A file that is not a regular one may be endless: it is read as far as its header states.
    """
    try:
        with Path(path).open("rb") as file:
            header = file.read(8)
            length = int.from_bytes(header, "little")
            header += file.read(length) if length <= _MAX_HEADER else b""
            if not arrays:
                return header, b""
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return header, file.read()
            parts, left = [], 1 + max(map(_end, _parse_header(path, header).values()), default=0)
            while left > 0 and (part := file.read(min(left, _PART))):
                parts.append(part)
                left -= len(part)
            return header, b"".join(parts)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise CheckpointError(
            f"cannot read the checkpoint {path}: {getattr(error, 'strerror', None) or error}",
            hint="check the path",
        ) from error


def _end(entry: object) -> int:
    """Return where an array ends; 0 for metadata, and for an entry that `_tensors` refuses."""
    offsets = _counts(entry.get("data_offsets")) if isinstance(entry, dict) else None
    return offsets[-1] if offsets else 0


def _damaged(path: object, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a whole safetensors file: {what}",
        hint="it was cut off, changed, or is of another format; take an older checkpoint",
    )


def _parse_header(path: object, content: bytes) -> dict[str, Any]:
    if len(content) < 8:
        raise _damaged(path, f"it has {len(content)} bytes, fewer than 8")
    length = int.from_bytes(content[:8], "little")
    if length > _MAX_HEADER:
        raise _damaged(path, f"its first 8 bytes give a header of {length} bytes")
    if length > len(content) - 8:
        raise _damaged(path, f"its header has {length} bytes, the file {len(content)}")
    text = content[8 : 8 + length]
    if not text.startswith(b"{"):
        raise _damaged(path, f"its header starts with {text[:1]!r}, not b'{{'")
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is not JSON ({error})") from error
    if not isinstance(entries, dict):  # pragma: no cover - a text that starts with { is a dict
        raise _damaged(path, "its header is not a JSON object")
    return entries


def _counts(value: object) -> list[int] | None:
    """Return `value` if it is a list of integers >= 0, else None."""
    if isinstance(value, list) and all(type(v) is int and v >= 0 for v in value):
        return value
    return None


def _tensors(
    path: object, entries: dict[str, Any], data: memoryview
) -> tuple[dict[str, Array], int]:
    tensors: dict[str, Array] = {}
    ranges: list[tuple[int, int]] = []
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            raise _damaged(path, f"the entry of tensor {name!r} is {entry!r}")
        code = entry.get("dtype")
        shape, offsets = _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
        if not isinstance(code, str) or code not in _DTYPES:
            raise CheckpointError(
                f"{path}: tensor {name!r} has dtype {code!r}, not one of {', '.join(_DTYPES)}"
            )
        if shape is None or offsets is None or len(offsets) != 2:
            raise _damaged(path, f"the entry of tensor {name!r} is {entry!r}")
        dtype, (begin, end) = np.dtype(_DTYPES[code]), offsets
        if end - begin != math.prod(shape) * dtype.itemsize:
            raise _damaged(
                path, f"tensor {name!r} of shape {shape} and {code} has {end - begin} bytes"
            )
        if end > len(data):
            raise _damaged(path, f"tensor {name!r} ends at byte {end} of {len(data)}")
        array = np.frombuffer(data[begin:end], dtype=dtype).reshape(shape)
        tensors[name] = array.astype(dtype.newbyteorder("="), copy=False)
        ranges.append((begin, end))
    position = 0
    for begin, end in sorted(ranges):
        if begin != position:
            raise _damaged(path, f"its arrays leave a hole or overlap at byte {begin}")
        position = end
    return tensors, position
