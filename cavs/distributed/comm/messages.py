"""Arrays of operations: checks, parts for ranks, and labels, by which ranks notice a mix-up."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from cavs.distributed.comm.mailbox import Array
from cavs.errors import CommunicationError, ConfigError

Message = tuple[Array, int]  # an array and the rank it goes to or comes from
_BFLOAT16 = "bfloat16"  # that of ml_dtypes, which NumPy knows by name alone
_BITS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = (*_BITS, "float16", "float32", "float64", _BFLOAT16)
_CODES = {np.dtype(name): i for i, name in enumerate(DTYPES) if name != _BFLOAT16}


class Code(Enum):
    """The operation that a message belongs to, in words; sums by different algorithms differ."""

    SEND = "send"
    TREE = "all-reduce up a tree"
    RING = "all-reduce around a ring"
    COMMON = "all-reduce in common memory"
    REDUCE = "reduce"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"
    BROADCAST = "broadcast"
    BARRIER = "barrier"
    SHARE = "share"
    SPLIT = "split"
    MAILBOX = "mailbox"
    MIN = "min all-reduce"
    MAX = "max all-reduce"
    MEAN = "mean all-reduce"


REDUCTIONS = {"min": Code.MIN, "max": Code.MAX, "mean": Code.MEAN}  # a sum: by its algorithm
# All pairs of an operation and a dtype that messages have: tags of Open MPI suffice for 170.
_OF_BYTES = (Code.COMMON, Code.BARRIER, Code.SPLIT, Code.MAILBOX)
LABELS = [(code, dtype) for code in Code for dtype in (("uint8",) if code in _OF_BYTES else DTYPES)]
_NUMBERS = {label: number for number, label in enumerate(LABELS)}


def as_row(array: Array) -> Array:
    """Return the elements as one row, the same memory; ConfigError if they cannot be sent."""
    dtype_code(array)
    if not array.flags.c_contiguous:
        raise not_contiguous(array.shape, array.strides)
    return array.reshape(-1)


def dtype_code(array: Array) -> int:
    """Return the number of its dtype; ConfigError if it is no array, or cannot be sent."""
    if not isinstance(array, np.ndarray):
        raise ConfigError(
            f"a {type(array).__name__} is no NumPy array",
            hint="pass an array, in which operations leave what they make",
        )
    code = _CODES.get(array.dtype)
    if code is None and array.dtype.name == _BFLOAT16:
        code = DTYPES.index(_BFLOAT16)
    if code is not None:
        return code
    raise ConfigError(
        f"an array of {array.dtype} cannot be sent",
        hint=f"cast it to one of {', '.join(DTYPES)}, in the byte order of this machine",
    )


def label_of(operation: Code, array: Array) -> int:
    """Return the label of a message of `array`: its operation and dtype."""
    return _NUMBERS[operation, DTYPES[dtype_code(array)]]


class Mismatch(NamedTuple):
    """A message of `nbytes` from rank `source` where `expected`, labelled `wanted`, are due."""

    source: int
    nbytes: int
    label: int
    expected: int
    wanted: int
    more: bool = False  # True if further bytes follow it

    def error(self, names: Sequence[int], rank: int, operation: str) -> CommunicationError:
        """Return the error of `rank`, which waits in `operation`. names: of ranks in the world."""
        theirs, mine = f"{'more than ' * self.more}{self.nbytes} bytes", str(self.expected)
        (code, dtype), (own_code, own_dtype) = LABELS[self.label], LABELS[self.wanted]
        if dtype != own_dtype:
            theirs, mine = f"{theirs} of {dtype}", f"{mine} of {own_dtype}"
        if code != own_code:
            theirs += f" in {code.value}"
        return CommunicationError(
            f"rank {names[self.source]} sent {theirs}, rank {names[rank]} expects {mine} in "
            f"{operation}",
            hint="all ranks call the same operations in the same order, with arrays of one size "
            "and dtype",
        )


# ---- parts and checks ---------------------------------------------------------------------------


def offsets(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the begin and the end of each part."""
    ends = np.cumsum(counts).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def even_counts(total: int, parts: int) -> list[int]:
    """Return `total` in `parts` counts that differ by at most one, larger ones first."""
    whole, rest = divmod(total, parts)
    return [whole + (i < rest) for i in range(parts)]


def check_rank(rank: int, size: int, own: int | None = None) -> None:
    """Raise ConfigError if no rank of `size` has this number, or only this rank, `own`, has it."""
    if not 0 <= rank < size:
        raise ConfigError(f"there is no rank {rank}", hint=f"ranks are 0 to {size - 1}")
    if rank == own:
        raise ConfigError(f"rank {rank} is this one", hint="it has the array already")


def cuts(counts: Sequence[int], elements: int, size: int) -> list[tuple[int, int]]:
    """Return `offsets`; ConfigError if they do not cut so many elements for all ranks."""
    if len(counts) != size or sum(counts) != elements or min(counts) < 0:
        raise ConfigError(f"counts {list(counts)} do not cut {elements} elements for {size} ranks")
    return offsets(counts)


def check_parts(parts: Sequence[Any], size: int) -> None:
    """Raise ConfigError if there is not one part for each rank."""
    if len(parts) != size:
        raise ConfigError(f"{len(parts)} parts for {size} ranks", hint="one for each")


def not_contiguous(shape: Sequence[int], strides: Sequence[int]) -> ConfigError:
    """Return the error of an array that is not C-contiguous."""
    return ConfigError(
        f"an array of shape {tuple(shape)} and strides {tuple(strides)} is not C-contiguous",
        hint="pass np.ascontiguousarray(array), or that of the library that made it",
    )
