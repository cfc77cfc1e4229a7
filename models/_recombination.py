"""Sequential recombination of the particles of a jet into a binary tree, by the kt algorithm."""

from __future__ import annotations

import numpy as np

from cavs.errors import DataError

FEATURES = 4  # numbers of a vertex, which `relative` returns
# Functions raise DataError for results that are not finite, so NumPy need not warn of them.
REFUSED = np.errstate(divide="ignore", invalid="ignore", over="ignore")


def directions(momenta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return transverse momentum, rapidity and angle of energies and momenta [..., 4]."""
    energy, px, py, pz = np.moveaxis(momenta, -1, 0)
    return np.hypot(px, py), 0.5 * np.log((energy + pz) / (energy - pz)), np.arctan2(py, px)


@REFUSED
def recombine(particles: np.ndarray, name: str = "jet") -> tuple[list[list[int]], np.ndarray]:
    """Return the tree of n particles [n, 3]: children, energies and momenta [2 n - 1, 4].

    Particles have transverse momentum, rapidity and angle, and no mass. The next pair that is
    joined has the least min(p_i, p_j)^2 d_ij^2, with d the distance in rapidity and angle. The
    particles come first, the root last; the part with the larger p is the first child. DataError
    with the `name` of the jet where a distance is not finite.
    """
    count, (p0, y0, phi0) = len(particles), particles.T
    rows = [p0 * np.cosh(y0), p0 * np.cos(phi0), p0 * np.sin(phi0), p0 * np.sinh(y0)]
    momenta = np.concatenate([np.stack(rows, axis=1), np.zeros((count - 1, 4))])
    p, y, phi = (np.zeros(2 * count - 1) for _ in range(3))
    distance = np.full((2 * count - 1,) * 2, np.inf)
    children, remaining = [list[int]() for _ in range(count)], list[int]()
    for new in range(2 * count - 1):
        if new >= count:
            i, j = divmod(int(distance[:new, :new].argmin()), new)
            if not np.isfinite(distance[i, j]):
                raise _not_finite(name, "distance of two parts")
            children.append([i, j] if p[i] > p[j] else [j, i])
            momenta[new] = momenta[i] + momenta[j]
            distance[[i, j]] = distance[:, [i, j]] = np.inf
            remaining = [k for k in remaining if k not in (i, j)]
        p[new], y[new], phi[new] = directions(momenta[new])
        turn = abs(phi[remaining] - phi[new])
        squared = (y[remaining] - y[new]) ** 2 + np.minimum(turn, 2 * np.pi - turn) ** 2
        distance[new, remaining] = np.minimum(p[remaining], p[new]) ** 2 * squared
        remaining.append(new)
    return children, momenta


@REFUSED
def relative(momenta: np.ndarray, name: str = "jet") -> np.ndarray:
    """Return features [n, 4] of energies and momenta, the last of which is the whole jet.

    They are logarithms of transverse momentum and mass, and the distances in rapidity and angle
    from the axis of the jet. DataError with the `name` of the jet where one is not finite.
    """
    p, y, phi = directions(momenta)
    energy, _, _, pz = momenta.T
    mass = np.sqrt(np.maximum(energy**2 - p**2 - pz**2, 0.0))
    turn = (phi - phi[-1] + np.pi) % (2 * np.pi) - np.pi
    found = np.stack([np.log(p / p[-1]) / 4, np.log1p(mass) / 4, y - y[-1], turn], axis=1)
    if not np.isfinite(found).all():
        raise _not_finite(name, "feature of a momentum")
    return found


def _not_finite(name: str, value: str) -> DataError:
    hint = "transverse momenta may cancel, or a rapidity is beyond the precision of its momentum"
    return DataError(f"{name}: a {value} is not finite", hint=hint)
