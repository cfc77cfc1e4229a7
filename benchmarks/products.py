"""The matrix products a workload needs, and nothing else: what bounds every program from below.

Only what no program can leave out: leaves never meet U, inner vertices never meet W, a level or
step is one product, a parameter gradient is one product over the whole batch, and equal vertices of
a batch (token, label in training, and children) are computed once. Without training cavs goes below
this floor where it multiplies at the children.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

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
    """Return a product by [k, n] for each of `rows`, and the products of its gradients."""
    rows = [m for m in rows if m]
    products = [Product(m, k, n) for m in rows]
    if training and rows:
        if input_gradient:
            products += [Product(m, n, k) for m in reversed(rows)]
        products.append(Product(sum(rows), k, n, gradient=True))
    return products


def distinct_levels(samples: SequenceOf[Sample], training: bool) -> list[int]:
    """Return the number of distinct vertices of the batch at each level: height or time step."""
    number: dict[tuple[int, ...], int] = {}
    levels: list[int] = []
    for sample in samples:
        label = sample.label.tolist() if training else [0] * len(sample)
        token, seen = sample.token.tolist(), []
        for v in range(len(sample)):
            if isinstance(sample, Tree):
                below = sample.left[v], sample.right[v]
                children = [seen[c] for c in below if c >= 0]
                level = int(sample.height[v])
            else:
                children, level = seen[-1:], v
            key = (token[v], label[v], *children)
            if key not in number:
                levels += [0] * (level + 1 - len(levels))
                levels[level] += 1
            seen.append(number.setdefault(key, len(number)))
    return levels


def products_of(workload: Workload, samples: SequenceOf[Sample], training: bool) -> list[Product]:
    """Return the products of one batch."""
    s, kind = workload.sizes, workload.case.workload
    h, e = s.hidden, s.embedding
    first, *levels = distinct_levels(samples, training)
    total = first + sum(levels)
    if kind == "tree-fc":
        roots = len(samples)
        recurrent = _forward_and_back(levels, 2 * h, h, training)
        return recurrent + _forward_and_back([roots], h, s.classes, training)
    if kind == "tree-lstm":
        products = _forward_and_back([first], e, 3 * h, training)
        products += _forward_and_back(levels, 2 * h, 5 * h, training)
    else:
        products = _forward_and_back([total], e, 4 * h, training)
        products += _forward_and_back(levels, h, 4 * h, training)
    return products + _forward_and_back([total], h, s.classes, training)
