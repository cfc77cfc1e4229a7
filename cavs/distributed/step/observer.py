"""Gradients of a step as monitors see them: norms and copies, taken before the exchanges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.sync import Exchange, Piece, Scope
from cavs.train.monitors import Gradient, Monitor

Array = NDArray[Any]
_CHUNK = 1 << 13  # elements; float32 sums of so many are exact enough, and one thread makes them


def square(values: Array) -> float:
    """Return the sum of the squares; float32 only within chunks."""
    flat = np.ravel(values)
    parts = (flat[i : i + _CHUNK] for i in range(0, flat.size, _CHUNK))
    return sum(float(np.dot(part, part)) for part in parts)


class Observer:
    """Takes this rank's gradients on the way through a step.

    monitors: those that observe the step. norms: True if one reads `square`, the squared norm of
    this rank's gradients so far.
    """

    def __init__(self, monitors: Sequence[Monitor], parameters: Mapping[str, Any]) -> None:
        self._monitors = [m for m in monitors if m.wants]
        self.norms = any(m.reads_norms for m in monitors)
        self._copies = any("local" in m.wants for m in monitors)
        self._parameters = parameters
        self._shapes = [p.shape for p in parameters.values()]
        self._local: dict[int, Gradient] = {}
        self.square = 0.0

    @property
    def takes(self) -> bool:
        """True if a monitor reads this rank's gradients."""
        return self.norms or self._copies

    def take(self, exchange: Exchange, gradients: Any) -> None:
        """Take the gradients of an exchange, which has not begun."""
        for parameter, part, rows, values in exchange.local(gradients):
            if self.norms and exchange.reduces:
                self.square += square(values)
            if not self._copies:
                continue
            if rows is not None:
                self._local[parameter] = rows.copy(), values.copy()
                continue
            if parameter not in self._local:
                self._local[parameter] = np.zeros(self._shapes[parameter], values.dtype)
            whole = self._local[parameter]
            assert isinstance(whole, np.ndarray)
            if part is None:
                whole[...] = values.reshape(whole.shape)
            else:
                part.view(whole.reshape(-1))[...] = values

    def show(self, pieces: Iterable[Piece], over: float) -> None:
        """Call `Monitor.observe` for every parameter. over: pieces are sums over so many ranks."""
        if not self._monitors:
            return
        by_parameter: dict[int, list[Piece]] = {}
        if any("reduced" in m.wants for m in self._monitors):
            for piece in (p for p in pieces if p.scope is Scope.SUM):
                by_parameter.setdefault(piece.parameter, []).append(piece)
        for number, name in enumerate(self._parameters):
            own = by_parameter.get(number, [])
            local, reduced = self._local.get(number), self._mean(number, own, over)
            for monitor in self._monitors:
                wants = monitor.wants
                a = local if "local" in wants else None
                b = reduced if "reduced" in wants else None
                if a is not None or b is not None:
                    monitor.observe(name, a, b)

    def _mean(self, number: int, pieces: Sequence[Piece], over: float) -> Gradient | None:
        """Return the mean gradient from all of its pieces; None if some are not here."""
        if len(pieces) == 1 and pieces[0].rows is not None:
            # An owner has the rows of its shard alone.
            return None if pieces[0].owned else (pieces[0].rows, pieces[0].values / over)
        shape = self._shapes[number]
        if not pieces or sum(piece.values.size for piece in pieces) != np.prod(shape, dtype=int):
            return None
        flat = np.empty(np.prod(shape, dtype=int), pieces[0].values.dtype)
        for piece in pieces:
            piece.put(flat)
        flat /= over
        return flat.reshape(shape)
