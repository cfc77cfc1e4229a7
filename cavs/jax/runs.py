"""The runs of a session for a function of JAX, on the host."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from cavs.frontend.model import Model
from cavs.runtime.forward_run import ForwardRun, Gradients
from cavs.runtime.interface import Array, BatchLike
from cavs.runtime.session import Session

_NUMBERS = 2**31  # numbers of runs are int32

_Shapes = dict[str, tuple[int, ...]]


class Runs:
    """A session, whose parameters are written before each run, and its outstanding forward runs.

    keep: the most of them. The oldest is dropped for a further one; its backward run, if it comes,
    runs forward again, as does one that comes twice. Threads take turns.
    """

    def __init__(self, model: Model, dtype: np.dtype[Any], keep: int) -> None:
        self.dtype = dtype
        self.session = Session(model, dtype=dtype)
        self._keep, self._lock = keep, threading.RLock()
        self._outstanding: OrderedDict[int, ForwardRun] = OrderedDict()
        self._calls = 0
        self._latest = 0  # the number of the run whose parameters the session has
        self._shapes: WeakKeyDictionary[Any, dict[tuple[Any, ...], _Shapes]] = WeakKeyDictionary()

    def _write(self, values: Sequence[Array]) -> None:
        """Write parameters without a version of their own, so that backward runs may follow."""
        for parameter, value in zip(self.session.parameters.values(), values, strict=True):
            np.copyto(parameter.current(), value)
        self.session.pack_again()

    def _run(
        self, batch: BatchLike, values: Sequence[Array], inputs: bool, dropout: bool, seed: int
    ) -> tuple[ForwardRun, int]:
        self._latest = 0
        self._write(values)
        found = self.session.forward(batch, inputs=inputs, dropout=dropout, seed=seed)
        self._calls = self._calls % (_NUMBERS - 1) + 1
        self._latest = self._calls
        return found, self._calls

    def shapes(
        self, batch: BatchLike, given: BatchLike, inputs: Sequence[tuple[int, ...]]
    ) -> _Shapes:
        """Return the shapes of the outputs by name, of ``given``: the batch with some inputs."""
        with self._lock:
            known = self._shapes.setdefault(batch, {})
            if tuple(inputs) not in known:
                outputs = self.session.forward(given).outputs
                known[tuple(inputs)] = {name: rows.shape for name, rows in outputs.items()}
            return known[tuple(inputs)]

    def infer(
        self, batch: BatchLike, values: Sequence[Array], dropout: bool, seed: int
    ) -> dict[str, Array]:
        """Return the outputs; without dropout those of the program for inference."""
        with self._lock:
            if dropout:
                return self._run(batch, values, False, dropout, seed)[0].outputs
            self._latest = 0
            self._write(values)
            return {n: np.asarray(x) for n, x in self.session.predict(batch, seed=seed).items()}

    def forward(
        self, batch: BatchLike, values: Sequence[Array], inputs: bool, dropout: bool, seed: int
    ) -> tuple[Mapping[str, Array], int]:
        """Return the outputs, and a number that names the run for `backward`."""
        with self._lock:
            found, number = self._run(batch, values, inputs, dropout, seed)
            while len(self._outstanding) >= self._keep:
                self._outstanding.popitem(last=False)
            self._outstanding[number] = found
            return found.outputs, number

    def backward(
        self,
        number: int,
        cotangents: Mapping[str, Array],
        batch: BatchLike,
        values: Sequence[Array],
        inputs: bool,
        dropout: bool,
        seed: int,
    ) -> Gradients:
        """Return the gradients of the run by this number; the rest is as it was in `forward`."""
        with self._lock:
            found = self._outstanding.pop(number, None)
            if found is None:
                found, _ = self._run(batch, values, inputs, dropout, seed)
            elif self._latest != number:
                self._latest = 0
                self._write(values)
                self._latest = number
            return found.backward(cotangents)
