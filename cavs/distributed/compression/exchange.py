"""How a compressor asks for communication without doing any.

``Compressor.reduce`` is a generator: it yields what its rank wants to exchange, is sent the answer,
and returns the result. So a compressor is a pure function of a gradient and a state, runs on any
communicator, and can be tested with all ranks in one thread (`lockstep`). Checkpoints hold the
state as arrays (`flatten`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cavs.distributed.comm.interfaces import Array, Operations
from cavs.errors import ConfigError

State = dict[str, Any]  # arrays and whole numbers, by name
Shape = tuple[int, ...]
_ALIKE = ("step", "right")  # a counter, and the factor of PowerSGD that begins the next step


@dataclass(frozen=True)
class Exchange:
    """One request of a rank, and the answer that its generator is sent.

    all_reduce: one array; the elementwise sum over the ranks. all_gather: one array; every rank's,
    by rank. all_to_all: one array for every rank; the arrays of all ranks for this one, by rank.
    """

    collective: str
    arrays: tuple[Array, ...]

    @property
    def array(self) -> Array:
        """The only array of an all-reduce or all-gather."""
        return self.arrays[0]


@dataclass(frozen=True)
class Round:
    """The size of one exchange: bytes of a rank's whole payload, for itself and the others."""

    collective: str
    nbytes: float


@dataclass(frozen=True)
class Reduced:
    """total: the sum over ranks, as all of them see it. sent: what this rank added to it.

    The `sent` of all ranks add up to `total`, but for rounding. state: for the next step.
    """

    total: Array
    sent: Array
    state: State


Reduction = Generator[Exchange, Any, Reduced]


class Compressor(ABC):
    """How the sum of the ranks' gradients is formed with fewer bytes.

    Compressors are immutable; their memory is a state that `start` creates and `reduce` replaces.
    """

    name: ClassVar[str]

    def start(self, shape: Shape, dtype: Any, *, seed: int = 0) -> State:
        """Return the state before the first step of a parameter; `seed` is equal on all ranks."""
        return {}

    @abstractmethod
    def reduce(self, gradient: Array, state: State, rank: int, ranks: int) -> Reduction:
        """Sum `gradient` over `ranks` ranks; read the arguments, write none of them."""

    @abstractmethod
    def rounds(self, shape: Shape, itemsize: int, ranks: int, step: int) -> tuple[Round, ...]:
        """Return the exchanges of `reduce` at `step` (from 0), in order, in bytes."""

    def averaged(self, ranks: int) -> Compressor:
        """Return the same compressor where the total of `ranks` is then divided by `ranks`."""
        return self

    def __str__(self) -> str:
        return self.name


def run(compressor: Compressor, gradient: Array, state: State, c: Operations[Array]) -> Reduced:
    """Run `Compressor.reduce` on a communicator."""
    reduction = compressor.reduce(gradient, state, c.rank, c.size)
    answer: Any = None
    while True:
        try:
            request = reduction.send(answer)
        except StopIteration as stop:
            result: Reduced = stop.value
            return result
        if request.collective == "all_reduce":
            answer = np.array(request.array, order="C")
            c.all_reduce(answer)
        elif request.collective == "all_gather":
            answer = c.all_gather(np.ascontiguousarray(request.array))
        else:
            answer = c.all_to_all([np.ascontiguousarray(a) for a in request.arrays])


def lockstep(
    compressor: Compressor, gradients: Sequence[Array], states: Sequence[State]
) -> tuple[list[Reduced], list[list[Exchange]]]:
    """Run `Compressor.reduce` on as many ranks as there are gradients, in this thread.

    Returns the results by rank and the exchanges, a list for each round.
    """
    ranks = len(gradients)
    reductions = [
        compressor.reduce(gradient, state, rank, ranks)
        for rank, (gradient, state) in enumerate(zip(gradients, states, strict=True))
    ]
    results: list[Reduced] = []
    rounds: list[list[Exchange]] = []
    answers: list[Any] = [None] * ranks
    while True:
        requests: list[Exchange] = []
        for reduction, answer in zip(reductions, answers, strict=True):
            try:
                requests.append(reduction.send(answer))
            except StopIteration as stop:
                results.append(stop.value)
        if len(results) == ranks:
            return results, rounds
        if len(requests) != ranks or len({r.collective for r in requests}) > 1:
            raise ConfigError(f"{compressor}: ranks ask for different exchanges")
        rounds.append(requests)
        answers = [_answer(requests, rank) for rank in range(ranks)]


def _answer(requests: Sequence[Exchange], rank: int) -> Any:
    if requests[0].collective == "all_reduce":
        return sum((request.array for request in requests[1:]), requests[0].array.copy())
    if requests[0].collective == "all_gather":
        return [request.array.copy() for request in requests]
    return [request.arrays[rank].copy() for request in requests]


def flatten(state: State) -> dict[str, Array]:
    """Return every array and whole number of a state, by name."""
    return {k: np.asarray(v, np.int64) if isinstance(v, int) else v for k, v in state.items()}


def unflatten(like: State, arrays: Mapping[str, Array]) -> State:
    """Return a state of the form of `like` with the content of `arrays`, as `flatten` gives it."""
    return {
        name: int(arrays[name])
        if isinstance(value, int)
        else arrays[name].astype(value.dtype).reshape(value.shape)
        for name, value in like.items()
    }


def weighed(state: State, by: float) -> State:
    """Return a state whose gradients count `by` times as much; counters stay as they are."""
    return {k: v if isinstance(v, int) else v * v.dtype.type(by) for k, v in state.items()}


def share_of(every: Array, rank: int, ranks: int, *, average: bool, alike: bool = False) -> Any:
    """Return the share of `rank` of `ranks` in arrays that other ranks kept, `every` by rank.

    As many ranks as before: its own. Otherwise, where all have it alike (see `is_alike`), the same,
    or else an equal share of what they held back: gradients weigh 1 / ranks if they are averaged,
    so that is the mean, and their sum over the new ranks if they are added.
    """
    if len(every) == ranks:
        return every[rank].copy()
    if alike:
        return every[0].copy()
    share = every.mean(axis=0)
    return share if average else share * (len(every) / ranks)


def is_alike(name: str) -> bool:
    """True if `name`, as in checkpoints, is of state that is equal on all ranks."""
    return name.rpartition(".")[2] in _ALIKE
