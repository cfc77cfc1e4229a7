"""The matrix products a workload needs, and nothing else: what bounds every program from below.

Only what no program can leave out: leaves never meet U, inner vertices never meet W, a level or
step is one product, a parameter gradient is one product over the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from benchmarks.samples import Sample, Tree
from benchmarks.workloads import Workload


@dataclass(frozen=True)
class Product:
    """[m, k] @ weight [k, n], or, as a parameter gradient, [m, k]^T @ [m, n]."""

    m: int
    k: int
    n: int
    gradient: bool = False

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n


def _forward_and_back(
    rows: SequenceOf[int], k: int, n: int, training: bool, input_gradient: bool = True
) -> list[Product]:
    """A product by [k, n] for each of `rows`, and what its gradients take."""
    rows = [m for m in rows if m]
    products = [Product(m, k, n) for m in rows]
    if training and rows:
        if input_gradient:
            products += [Product(m, n, k) for m in reversed(rows)]
        products.append(Product(sum(rows), k, n, gradient=True))
    return products


def products_of(workload: Workload, samples: SequenceOf[Sample], training: bool) -> list[Product]:
    """The products of one batch."""
    s, kind = workload.sizes, workload.case.workload
    h, e = s.hidden, s.embedding
    total = sum(len(sample) for sample in samples)
    if kind in ("tree-lstm", "tree-fc"):
        height = np.concatenate([x.height for x in samples if isinstance(x, Tree)])
        leaves, *levels = np.bincount(height).tolist()
        if kind == "tree-fc":
            roots = len(samples)
            recurrent = _forward_and_back(levels, 2 * h, h, training)
            return recurrent + _forward_and_back([roots], h, s.classes, training)
        products = _forward_and_back([leaves], e, 3 * h, training)
        products += _forward_and_back(levels, 2 * h, 5 * h, training)
        return products + _forward_and_back([total], h, s.classes, training)
    lengths = np.array([len(sample) for sample in samples])
    steps = [int((lengths > t).sum()) for t in range(1, int(lengths.max()))]
    products = _forward_and_back([total], e, 4 * h, training)
    products += _forward_and_back(steps, h, 4 * h, training)
    return products + _forward_and_back([total], h, s.classes, training)
