"""Trees of skewed depths, 5 to 60: a spine with ever larger bushes; most are small."""

import numpy as np

import cavs


def tree(rng, depth):
    """A binary tree of about depth² / 4 vertices."""
    children, top = [[]], 0
    for i in range(depth - 1):
        side = []
        for _ in range(1 + i // 4):
            side.append(len(children))
            children.append([])
        while len(side) > 1:
            side.append(len(children))
            children.append([side.pop(0), side.pop(0)])
        children.append([top, side[0]])
        top = len(children) - 1
    count = len(children)
    features = {
        "token": rng.integers(0, 100, count).astype(np.int32),
        "label": rng.integers(0, 2, count).astype(np.int32),
    }
    return cavs.Graph.from_children(children, features=features)


def trees(count, seed=0):
    """Depths of a Pareto distribution, cut at 60."""
    rng = np.random.default_rng(seed)
    return [tree(rng, int(min(60, 5 + 5 * rng.pareto(1.2)))) for _ in range(count)]
