"""Parameters and the modules that hold them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Real
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cavs.config import is_whole, require, require_flag, require_seed
from cavs.errors import ConfigError, DTypeError, NumericsError, ShapeError, user_line
from cavs.ir import Node, Operand, apply
from cavs.ir.refusals import lacks, no_attribute

_NAMED = ("xavier", "zeros", "ones", "normal", "uniform")

Initializer = str | float | npt.ArrayLike | Callable[[np.random.Generator, tuple[int, ...]], Any]


def _draw(init: Initializer, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    if not isinstance(init, str):
        drawn = init(rng, shape) if callable(init) else init
        return np.full(shape, drawn, np.float64) if isinstance(drawn, Real) else drawn
    fan_in = shape[0] if len(shape) > 1 else 1
    fan_out = shape[-1]
    if init == "zeros":
        return np.zeros(shape)
    if init == "ones":
        return np.ones(shape)
    if init == "xavier":  # Glorot and Bengio 2010
        limit = math.sqrt(6.0 / (fan_in + fan_out))
        return rng.uniform(-limit, limit, shape)
    if init == "normal":
        return rng.normal(0.0, 0.01, shape)
    return rng.uniform(-0.05, 0.05, shape)  # "uniform": the constructor knows the names


def _float_type(dtype: Any) -> np.dtype[Any]:
    """Return a dtype that sessions compute in; ConfigError for others, which would lose values."""
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:  # not a type
        found = np.dtype(object)
    fits = found in (np.float32, np.float64)
    require(fits, "dtype", dtype, "np.float32 or np.float64")
    return found


class Copy(Protocol):
    """A copy of parameters on a device."""

    def download(self) -> bool:
        """Bring the host's arrays up to date; return True if they were behind."""
        ...

    def used(self) -> bool:
        """True if it may still change them."""
        ...


class Parameter(Operand):
    """A trained array.

    shape: sizes of its axes. init: "xavier" (default of matrices), "zeros" (default of vectors),
    "ones", "normal" (0.01), "uniform" (0.05), a number, an array of that shape, or a function
    (generator, shape) -> array. sparse: a table of which only rows that a batch looks up have a
    gradient and are updated, if only ops.lookup reads it; without it every row decays and has
    momentum in every step.
    """

    _noun = "a parameter"
    _because = ""
    _elsewhere = "; outside a model, .value is its array"

    def __init__(
        self,
        shape: int | Sequence[int],
        *sizes: object,
        init: Initializer | None = None,
        trainable: bool = True,
        sparse: bool = False,
    ) -> None:
        if sizes:
            given = ", ".join(f"{x!r:.20}" for x in (shape, *sizes))
            raise ShapeError(
                f"Parameter({given}) has {len(sizes) + 1} arguments before the named ones",
                where=user_line(),
                hint="the sizes of all axes are one tuple, and the rest is given by name: "
                "cavs.Parameter((4, 4), init=0.5)",
            )
        axes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        if not axes or any(not is_whole(s) or s < 1 for s in axes):
            raise ShapeError(
                f"a parameter of shape {list(axes)}",
                where=user_line(),
                hint="give at least one axis, every size a whole number of at least 1",
            )
        self.shape = tuple(int(s) for s in axes)
        self.init: Initializer = (
            ("xavier" if len(self.shape) > 1 else "zeros") if init is None else init
        )
        self.where = user_line()
        if isinstance(self.init, str) and self.init not in _NAMED:
            raise ConfigError(
                f"unknown initialiser {self.init!r}",
                where=self.where,
                hint=f"use {', '.join(map(repr, _NAMED))}, a number, an array or a function of "
                "(generator, shape)",
            )
        for name, value in (("trainable", trainable), ("sparse", sparse)):
            require_flag(name, value)
        if sparse and len(self.shape) != 2:
            raise ShapeError(
                f"a sparse parameter of shape {list(self.shape)}",
                where=self.where,
                hint="sparse=True is for tables of two axes, whose rows ops.lookup reads: "
                "cavs.Parameter((num_rows, width), sparse=True)",
            )
        self.trainable, self.sparse = bool(trainable), bool(sparse)
        self._name = ""
        self._provisional = False  # drawn because it was read, and not traced yet
        if not isinstance(self.init, str) and not callable(self.init):
            self._check(self.init, self.where)
        self._value: npt.NDArray[Any] | None = None
        self.copies: list[Copy] = []  # on devices; one of them may be newer than the value
        self.version = 0  # number of writes to the value, and of reads that may write it

    def __getattr__(self, name: str) -> Any:
        if lacks(self, name):
            raise no_attribute(self, name, user_line())
        return object.__getattribute__(self, name)  # raises its AttributeError again

    def initialize(self, seed: int, dtype: npt.DTypeLike = np.float32) -> None:
        """Draw the value from ``seed`` and the parameter's name, independent of other parameters.

        ConfigError unless the seed is a whole number of 64 bits, 0 or more, and the dtype float32
        or float64.
        """
        require_seed(seed)
        dtype = _float_type(dtype)
        drawn = self._drawn(seed)
        if self._value is None or self._value.dtype != dtype:
            self._value = np.array(drawn, dtype=dtype, order="C")  # a copy: the engine writes it
        else:
            self.current()[...] = drawn  # sessions hold this array
        self._provisional = False
        self.written()

    def _drawn(self, seed: int) -> npt.NDArray[Any]:
        rng = np.random.default_rng((seed, zlib.crc32(self.name.encode())))
        return self._check(_draw(self.init, rng, self.shape), self.where)

    @property
    def name(self) -> str:
        """Dotted name in the model; empty before there is one.

        A value that was drawn under another name because it was read is drawn again, into the same
        array, so that reading a value does not change it; unless it was written or traced.
        """
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        again = self._provisional and name != self._name and self._unwritten()
        self._name = name
        if again:
            self.initialize(0, self.current().dtype)
            self._provisional = True

    def _unwritten(self) -> bool:
        """True if the value is still the one that ``current`` drew."""
        value = self.current()
        return bool((value == self._drawn(0).astype(value.dtype)).all())

    def _check(self, given: Any, where: str) -> npt.NDArray[Any]:
        """Return an array, or one number, that the parameter can hold: of its shape, finite."""
        what = f"parameter {self.name!r}" if self.name else f"the parameter created at {self.where}"
        try:
            array = np.asarray(given)
        except ValueError as error:
            raise ShapeError(
                f"{what} has shape {list(self.shape)}, the value given rows of unequal length: "
                f"{error}",
                where=where,
                hint="give a number, or an array of the parameter's own shape",
            ) from None
        if array.dtype.kind not in "biuf":
            raise DTypeError(
                f"{what} holds floats, not {array.dtype}",
                where=where,
                hint="give an array of real numbers, or a function of (generator, shape)",
            )
        if array.ndim and array.shape != self.shape:
            raise ShapeError(
                f"{what} has shape {list(self.shape)}, the value given {list(array.shape)}",
                where=where,
                hint="give a number, or an array of the parameter's own shape",
            )
        if not np.isfinite(array).all():
            found = array[~np.isfinite(array)].flat[0]
            raise NumericsError(
                f"{what}, of shape {list(self.shape)}, is given {found}",
                where=where,
                hint="look where the value is computed: np.isfinite(value) is False there",
            )
        return array

    def written(self) -> None:
        """Tell sessions that the value has changed: they read it again before they next run."""
        self.version += 1

    def current(self) -> npt.NDArray[Any]:
        """Return `value` for reading only; sessions need not read it again."""
        for copy in self.copies:
            copy.download()
        if self._value is None:
            self.initialize(0)
            self._provisional = True
        assert self._value is not None
        return self._value

    def convert(self, dtype: npt.DTypeLike) -> None:
        """Change the dtype of the value, which becomes another array; sessions follow.

        ConfigError unless it is float32 or float64.
        """
        self._value = np.ascontiguousarray(self.current(), dtype=_float_type(dtype))
        self.written()

    @property
    def value(self) -> npt.NDArray[Any]:
        """The array itself, C-contiguous; the engine writes it in place.

        Reading it waits for a device that trains the model. The array may be written: sessions read
        it again before they next run. Code that keeps the array and writes it later calls
        `written`.
        """
        self.written()
        return self.current()

    @value.setter
    def value(self, array: npt.ArrayLike) -> None:
        """Copy into the array; ShapeError, DTypeError or NumericsError if values do not fit."""
        new = self._check(array, user_line())
        self.value[...] = new
        self._provisional = False

    def keep_copy(self, copy: Copy) -> None:
        """Follow ``copy`` from now on; copies that are no longer used are read a last time."""
        for old in self.copies:
            if not old.used():
                old.download()
        self.copies = [*(old for old in self.copies if old.used()), copy]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without copies on devices, with the current value."""
        value, self._provisional = self.current(), False
        return {**vars(self), "_value": value, "copies": []}

    def as_node(self) -> Node:
        """Return the parameter as a value of the trace."""
        self._provisional = False  # in use: another name no longer changes it
        return apply("parameter", parameter=self)

    def __repr__(self) -> str:
        return f"Parameter({self.name or '?'}, {list(self.shape)})"


def _members(entries: Iterable[tuple[Any, Any]], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in entries:
        name = f"{prefix}{key}"
        if isinstance(value, (Parameter, Module)):
            yield name, value
        elif isinstance(value, (list, tuple)):
            yield from _members(enumerate(value), f"{name}.")
        elif isinstance(value, dict):
            yield from _members(value.items(), f"{name}.")


def _parameters_of(module: Module, prefix: str, seen: set[int]) -> Iterator[tuple[str, Parameter]]:
    for name, value in module.children():
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Parameter):
            yield prefix + name, value
        else:
            yield from _parameters_of(value, f"{prefix}{name}.", seen)


class Module:
    """Holds parameters and other modules in its attributes (also in lists and dicts)."""

    def children(self) -> Iterator[tuple[str, Parameter | Module]]:
        """Iterate over named parameters and modules of this object, in the order they were set."""
        return _members(vars(self).items(), "")

    def parameters(self) -> dict[str, Parameter]:
        """Return all parameters by dotted name; one shared by two modules keeps its first name."""
        found = self._found()
        for name, parameter in found.items():
            parameter.name = parameter.name or name  # until a model gives it its full name
        return found

    def _found(self) -> dict[str, Parameter]:
        return dict(_parameters_of(self, "", set()))

    def initialize(self, seed: int = 0, dtype: npt.DTypeLike = np.float32) -> None:
        """Draw every parameter from ``seed``; each depends on its own name only.

        ConfigError unless the seed is a whole number of 64 bits, 0 or more, and the dtype float32
        or float64.
        """
        for parameter in self.parameters().values():
            parameter.initialize(seed, dtype)

    def __repr__(self) -> str:
        """Return class and size: ``LSTM(3 parameters, 1,234 numbers)``."""
        shapes = [p.shape for p in self._found().values()]
        return (
            f"{type(self).__name__}({len(shapes)} parameters, "
            f"{sum(map(math.prod, shapes)):,} numbers)"
        )
