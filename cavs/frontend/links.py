"""Links that cells read along: the inputs of a call that ``ops.linked`` returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cavs.errors import FeatureError, TraceError, user_line
from cavs.frontend.typed import at_type
from cavs.frontend.values import Gathered
from cavs.ir import Node, apply
from cavs.ops.links import LinkValues


def split_links(
    inputs: Mapping[str, Any], structure: str
) -> tuple[dict[str, LinkValues], dict[str, Any]]:
    """Return the links among the inputs of a cell, and its other inputs.

    structure: the one that the cell runs over. TraceError for a link that leads from another.
    """
    found = {k: x for k, x in inputs.items() if isinstance(x, LinkValues)}
    for name, x in found.items():
        if x.link.target != structure:
            raise TraceError(
                f"{name} is linked from structure {x.link.target!r}, but the cell runs over "
                f"{structure!r}",
                where=user_line(),
                hint=f"a cell over batch.graphs[{x.link.target!r}] reads along this link",
            )
    return found, {k: x for k, x in inputs.items() if k not in found}


def names_of_links(links: Mapping[str, LinkValues]) -> list[tuple[str, Node]]:
    """Return all values that links bring, by the names of the input, the link and the value."""
    of = links.items()
    return [(f"{k}.{x.link.name}.{n}", y) for k, x in of for n, y in x.values.items()]


def pairs_of(name: str, links: Mapping[str, LinkValues], vertex_type: str | None) -> Gathered:
    """Return the values of input ``name``, one row for each linked vertex; FeatureError if none.

    They are rows of linked vertices, and values of the pairs themselves. vertex_type: of the
    vertices that read them, None for all.
    """
    if name not in links:
        raise FeatureError(
            f"link({name!r:.60}): the call passes {', '.join(links) or 'no link'}",
            where=user_line(),
            hint="call the vertex function with name=ops.linked(batch.link(...), h=values)",
        )
    found = links[name]
    domain = found.link.pairs
    pairs = {
        n: x if x.type.domain == domain else apply("take_pairs", x, domain=domain)
        for n, x in found.values.items()
    }
    return Gathered({n: at_type(x, vertex_type) for n, x in pairs.items()})
