"""Samplers: which graphs of a data set an epoch has, and in which order."""

from __future__ import annotations

import zlib
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cavs.config import require, require_count, require_flag
from cavs.errors import ConfigError

Ids = NDArray[np.int64]


class Sampler(Protocol):
    """Draws the graphs of an epoch.

    A sampler may have an attribute ``fingerprint``, a JSON value that a checkpoint stores: a run
    resumes only with an equal one.
    """

    def __len__(self) -> int:
        """Number of graphs of an epoch."""
        ...

    def __call__(self, rng: np.random.Generator) -> ArrayLike:
        """Return the indices of the graphs of an epoch, in order.

        rng: Generator of the epoch, from ``(seed, epoch)`` of the loader. Nothing else may decide
        the indices, so that a resumed run and other ranks draw the same.
        """
        ...


class WeightedSampler:
    """Draws each graph with a probability in proportion to its weight.

    Args:
        weights: A number of at least 0 for each graph.
        count: Number of graphs of an epoch; by default as many as there are.
        replacement: If False, no graph comes twice in an epoch.
    """

    def __init__(
        self, weights: ArrayLike, count: int | None = None, *, replacement: bool = True
    ) -> None:
        require_flag("replacement", replacement)
        found = np.array(weights, np.float64)
        holds = found.ndim == 1 and np.isfinite(found).all() and (found >= 0).all()
        need = "a list of finite numbers of at least 0, not all of them 0"
        require(bool(holds) and bool(found.any()), "weights", weights, need)
        found.flags.writeable = False
        self.weights, self.replacement = found, replacement
        self.count = len(found) if count is None else count
        require_count("count", self.count)
        above = int(np.count_nonzero(found))
        if not replacement and self.count > above:
            raise ConfigError(
                f"{self.count} graphs without replacement, but {above} have a weight above 0",
                hint="pass a smaller count, or replacement=True",
            )
        digest = zlib.crc32(found.tobytes())
        self.fingerprint = {"weights": digest, "count": self.count, "replacement": replacement}

    def __len__(self) -> int:
        return self.count

    def __call__(self, rng: np.random.Generator) -> Ids:
        """Return the indices of an epoch."""
        if self.replacement:
            ends = np.cumsum(self.weights)
            drawn = np.searchsorted(ends, rng.random(self.count) * ends[-1], "right")
            # Rounding may reach the end of the last graph that has a weight.
            found: Ids = np.minimum(drawn, np.flatnonzero(self.weights)[-1])
            return found
        # The smallest of exponential times whose rates are the weights (Efraimidis and Spirakis).
        with np.errstate(divide="ignore", invalid="ignore"):
            times = rng.exponential(size=len(self.weights)) / self.weights
        return np.argsort(times, kind="stable")[: self.count].astype(np.int64)


def check_sampler(sampler: Any, count: int, *, shuffle: bool) -> None:
    """Raise `ConfigError` unless `sampler` can draw from `count` graphs."""
    need = "an object with len() and (rng) -> indices, such as cavs.train.WeightedSampler(weights)"
    holds = callable(sampler) and hasattr(sampler, "__len__") and not isinstance(sampler, type)
    require(holds, "sampler", sampler, need)
    require_count("the length of the sampler", len(sampler))
    if shuffle:
        raise ConfigError(
            "shuffle=True with a sampler, which draws the order itself", hint="pass shuffle=False"
        )
    if isinstance(sampler, WeightedSampler) and len(sampler.weights) != count:
        raise ConfigError(
            f"the sampler has {len(sampler.weights)} weights for {count} graphs",
            hint="give every graph a weight",
        )


def fingerprint(sampler: Any) -> list[Any]:
    """Return the class and fingerprint of a sampler, as JSON values."""
    return [type(sampler).__qualname__, getattr(sampler, "fingerprint", None)]


def draw(sampler: Sampler, rng: np.random.Generator, count: int) -> Ids:
    """Return the indices that a sampler draws; `ConfigError` unless they are of `count` graphs."""
    found = np.asarray(sampler(rng))
    whole = found.ndim == 1 and (found.dtype.kind in "iu" or len(found) == 0)
    if not whole or len(found) != len(sampler):
        raise ConfigError(
            f"the sampler drew an array of {found.dtype} of shape {list(found.shape)}; expected "
            f"{len(sampler)} integers",
            hint="return the indices of the graphs of an epoch, as many as len(sampler)",
        )
    if len(found) and not (found.min() >= 0 and found.max() < count):
        wrong = int(found.min()) if found.min() < 0 else int(found.max())
        raise ConfigError(
            f"the sampler drew graph {wrong} of {count}", hint=f"indices are 0 to {count - 1}"
        )
    return found.astype(np.int64)
