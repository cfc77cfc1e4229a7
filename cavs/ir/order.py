"""Topological order of nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol, Self, TypeVar


class _HasInputs(Protocol):
    @property
    def inputs(self) -> tuple[Self, ...]: ...


N = TypeVar("N", bound=_HasInputs)


def toposort(roots: Iterable[N], stops: Collection[N] = ()) -> list[N]:
    """Return the nodes reachable from ``roots``, not through ``stops``, inputs before users.

    Without recursion.
    """
    order: list[N] = []
    seen: set[N] = set()
    stopped = set(stops)
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        node, left = root, iter(() if root in stopped else root.inputs)
        stack: list[tuple[N, Iterator[N]]] = []  # users of `node`, innermost last
        while True:
            for x in left:
                if x in seen:
                    continue
                seen.add(x)
                if x.inputs and x not in stopped:
                    stack.append((node, left))
                    node, left = x, iter(x.inputs)
                    break
                order.append(x)
            else:
                order.append(node)
                if not stack:
                    break
                node, left = stack.pop()
    return order
