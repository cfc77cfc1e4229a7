"""Whole shares of a batch, and the weights that make unequal shares count alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cavs.errors import ConfigError


def whole_shares(
    total: int, weights: Sequence[float], most: Sequence[int] | None = None
) -> list[int]:
    """Return `total` samples cut in proportion to `weights`, in whole numbers that add up to it.

    Every share is at least 1, and at most `most`. Rounding is by largest remainder; equal ones go
    to the first. Raises `ConfigError` if there are no such shares.
    """
    wanted = np.asarray(weights, np.float64)
    limits = np.full(len(wanted), total) if most is None else np.asarray(most)
    if not len(wanted) or not (np.isfinite(wanted).all() and (wanted > 0).all()):
        raise ConfigError(f"shares by weights {list(weights)}", hint="give positive numbers")
    if total < len(wanted) or limits.min() < 1 or limits.sum() < total:
        raise ConfigError(
            f"{total} samples for {len(wanted)} ranks that take 1 to {limits.tolist()}",
            hint="every rank needs one: use a larger batch or fewer ranks, or raise the limits",
        )
    exact = _within(total, wanted, limits.astype(np.float64))
    shares = np.floor(exact + 1e-9)
    order = np.argsort(-(exact - shares), kind="stable")
    missing = round(total - shares.sum())
    for i in [i for i in order if shares[i] < limits[i]][:missing]:
        shares[i] += 1
    return [int(share) for share in shares]


def _within(
    total: int, weights: NDArray[np.float64], limits: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return shares in proportion, except that those outside of [1, limit] are set to its ends."""
    fixed = np.full(len(weights), np.nan)
    while True:
        free = np.isnan(fixed)
        if not free.any():
            return fixed
        rest = total - fixed[~free].sum()
        shares = rest * weights / weights[free].sum()
        low, high = free & (shares < 1), free & (shares > limits)
        if not low.any() and not high.any():
            return np.where(free, shares, fixed)
        # Those on the heavier side are fixed first: fixing them can bring the others back.
        if (shares - limits)[high].sum() >= (1 - shares)[low].sum():
            fixed[high] = limits[high]
        else:
            fixed[low] = 1.0


def gradient_weights(counts: Sequence[int]) -> list[float]:
    """Return factors of each rank's mean gradient over its `counts` samples, so that the sum over
    ranks is the mean gradient of the whole batch (Chen et al. 2020, section 3.4).
    """
    total = sum(counts)
    if total < 1 or min(counts) < 0:
        raise ConfigError(f"batches of {list(counts)} samples", hint="give at least one sample")
    return [count / total for count in counts]
