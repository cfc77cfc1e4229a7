"""Values of the vertices of one type, and of all types together.

A vertex function of a type computes with rows of the vertices of that type alone: its domain is
``vertex.TYPE``. ``merge_types`` joins the values of several types; `cavs.passes.specialise`
replaces it by the value of the one type that a kind of vertices has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cavs.ir import FLOAT, BatchRule, Domain, Node, TensorType, apply, defop, need_floats


def _merge_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    need_floats(types)
    domain: Domain = attrs["domain"]
    for name, t in zip(attrs["types"], types, strict=True):
        if t.domain not in (domain, domain.of_kind(name)) or t.shape != attrs["shape"]:
            raise ValueError(f"a value of every {t.domain} for the type {name!r} of {domain}")
    return TensorType(FLOAT, attrs["shape"], domain)


# The value whose rows at each type of vertices are those of one input; zeros at other types.
# attrs: types, one name for each input; shape, domain.
defop(
    "merge_types",
    infer=_merge_infer,
    vjp=lambda n, d: [of_type(d, name) for name in n.attr("types")],
    rule=BatchRule.GRAPH,
    view=True,
    jointly_linear=True,
)


def merge_types(values: Mapping[str, Node], shape: tuple[int, ...], domain: Domain) -> Node:
    """Return the value that is ``values[t]`` at the vertices of each type t, zeros at others."""
    names = tuple(values)
    return apply("merge_types", *values.values(), types=names, shape=shape, domain=domain)


def of_type(x: Node, name: str) -> Node:
    """Return the rows of ``x`` at vertices of a type, or at their edges."""
    domain = x.type.domain.of_kind(name)
    return x if x.type.domain == domain else apply("broadcast", x, shape=x.shape, domain=domain)


def at_all_types(x: Node) -> Node:
    """Return ``x``, a value of one type of vertices, with zeros at the other types.

    A row that is repeated for each edge is repeated after that, as passes on cotangents expect.
    """
    name = x.type.domain.vertex_type
    if name is None:
        return x
    whole = x.type.domain.of_kind(None)
    if _repeats_vertices(x):
        return apply("broadcast", at_all_types(x.inputs[0]), shape=x.shape, domain=whole)
    return merge_types({name: x}, x.shape, whole)


def add_types(x: Node, y: Node) -> Node:
    """Return ``x + y``; one merged value where both are of different types of vertices."""
    if x.op.name == y.op.name == "merge_types":
        of_x, of_y = x.attr("types"), y.attr("types")
        if set(of_x).isdisjoint(of_y):
            values = dict(zip((*of_x, *of_y), (*x.inputs, *y.inputs), strict=True))
            return merge_types(values, x.shape, x.type.domain)
    if _repeats_vertices(x) and _repeats_vertices(y) and x.inputs[0].type == y.inputs[0].type:
        total = add_types(x.inputs[0], y.inputs[0])
        if total.op.name == "merge_types":
            return apply("broadcast", total, shape=x.shape, domain=x.type.domain)
    return x + y


def _repeats_vertices(x: Node) -> bool:
    """True if an edge has the row of its vertex."""
    repeats = x.op.name == "broadcast" and x.type.domain.base == "edge"
    return repeats and x.inputs[0].type.domain.base == "vertex" and x.inputs[0].shape == x.shape
