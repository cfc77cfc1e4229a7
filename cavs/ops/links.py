"""Operators along links between structures: rows of one at vertices of another, and the reverse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cavs.data.features import link_parts
from cavs.errors import TraceError, user_line
from cavs.ir import (
    FLOAT,
    GRAPH,
    ONE,
    BatchRule,
    Domain,
    Link,
    Node,
    TensorType,
    apply,
    as_node,
    defop,
    need_floats,
)


def _linked(end: str, start: str) -> Callable[..., TensorType]:
    """Return the ``infer`` of operators from one structure of a link to the other."""

    def infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
        found, link = types[0].domain, attrs["link"]
        if found != Domain("vertex", None, getattr(link, start)):
            raise ValueError(f"needs a value of every vertex of {getattr(link, start)!r}")
        need_floats(types)
        return TensorType(FLOAT, types[0].shape, Domain("vertex", None, getattr(link, end)))

    return infer


def _forward(x: Node, link: Link) -> Node:
    link = Link(*link)  # without the features of a symbolic batch
    return apply("take_linked" if link.single else "sum_linked", x, link=link)


def _backward(name: str, x: Node, link: Link) -> Node:
    return apply(name, x, link=Link(*link))


# The row of the vertex that each vertex of the target of a link reads, zeros where there is none;
# the sum over the vertices that it reads; and the reverse, the sum over the vertices that read one.
_ALONG: dict[str, Any] = {
    "rule": BatchRule.GRAPH,
    "view": True,
    "any_kind": True,
    "linear_in": (0,),
}
for _name in ("take_linked", "sum_linked"):
    defop(
        _name,
        infer=_linked("target", "source"),
        vjp=lambda n, d: (apply("sum_readers", d, link=n.attr("link")),),
        **_ALONG,
    )
defop(
    "sum_readers",
    infer=_linked("source", "target"),
    vjp=lambda n, d: (_forward(d, n.attr("link")),),
    **_ALONG,
)
# The maximum over the vertices that read one; it shifts a softmax, and has no gradient.
defop(
    "max_readers",
    infer=_linked("source", "target"),
    rule=BatchRule.GRAPH,
    reduction="max",
    any_kind=True,
)


def _pairs_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    link = attrs["domain"].link
    if types[0].domain != Domain("vertex", None, link.source):
        raise ValueError(f"needs a value of every vertex of {link.source!r}")
    need_floats(types)
    return TensorType(FLOAT, types[0].shape, attrs["domain"])


def _source_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    found = types[0].domain
    if found.base != "pair" or found.kind is not None or found.link is None:
        raise ValueError("needs a value of every pair of a link")
    return TensorType(FLOAT, types[0].shape, Domain("vertex", None, found.link.source))


# The row of each vertex that a vertex reads along a link, in cells that run over its target; and
# the reverse, the sum over the pairs that read a row.
defop(
    "take_pairs",
    infer=_pairs_infer,
    vjp=lambda n, d: (apply("sum_pairs", d),),
    **_ALONG,
)
defop(
    "sum_pairs",
    infer=_source_infer,
    vjp=lambda n, d: (apply("take_pairs", d, domain=n.inputs[0].type.domain),),
    **_ALONG,
)


def _need_link(name: str, link: Any) -> None:
    if not isinstance(link, Link):
        raise TraceError(
            f"[{name}] needs a link, not {link!r:.80}",
            where=user_line(),
            hint=f"ops.{name}(values, batch.link(name)); rows of a table are "
            "ops.lookup(table, index)",
        )


def _along(name: str, values: Any, link: Link, end: str) -> Node:
    """Return ``values`` as a node; TraceError unless they are rows of one end of a link."""
    _need_link(name, link)
    x, structure = as_node(values), getattr(link, end)
    if x.type.domain != Domain("vertex", None, structure):
        raise TraceError(
            f"[{name}] along link {link.name!r} from {link.target!r} to {link.source!r} needs a "
            f"value of every vertex of {structure!r}: {x.type}",
            where=user_line(),
            hint=f"pass what a cell on batch.graphs[{structure!r}] returns, or a feature of it",
        )
    return x


def _needs_single(name: str, link: Link) -> TraceError:
    return TraceError(
        f"[{name}] needs a link to one vertex each, but link {link.name!r} leads to lists",
        where=user_line(),
        hint="ops.sum_linked and ops.mean_linked fold the rows of a list",
    )


def take(values: Any, link: Link) -> Node:
    """Return the row of ``values`` that each vertex of the link's first structure reads.

    values: rows of the vertices of its second structure; zeros where a vertex reads none. link:
    ``batch.link(name)``, to one vertex each. The gradient of a row is the sum over its readers.
    TraceError for other values, and for a link to lists.
    """
    x = _along("take", values, link, "source")
    if not link.single:
        raise _needs_single("take", link)
    return _forward(x, link)


def sum_linked(values: Any, link: Link, weight: Any = None) -> Node:
    """Return the sum over the rows of ``values`` that each vertex of the first structure reads.

    values, link: as for `take`, but the link may lead to lists. weight: a number for each pair, by
    which its row is multiplied, such as a feature of a link to lists, or a number for each vertex
    of the first structure. TraceError for other values.
    """
    x = _along("sum_linked", values, link, "source")
    if weight is None:
        return _forward(x, link)
    w, domain = as_node(weight), Link(*link).pairs
    if w.shape or w.type.domain not in (domain, domain.at("vertex"), GRAPH, ONE):
        raise TraceError(
            f"[sum_linked] weights along link {link.name!r} are one number for each pair, not "
            f"{w.type}",
            where=user_line(),
            hint=f"batch.link({link.name!r})[name] is a feature of its pairs; ops.reshape(x, ()) "
            "makes a number of a row with one element",
        )
    for _ in x.shape:
        w = apply("keep_axis", w)
    return (apply("take_pairs", x, domain=domain) * w).sum()


def mean_linked(values: Any, link: Link) -> Node:
    """Return the mean over the rows of ``values`` that each vertex of the first structure reads.

    It is zero where a vertex reads none. values, link: as for `sum_linked`.
    """
    x = _along("mean_linked", values, link, "source")
    one = apply("broadcast", 1.0, shape=(), domain=x.type.domain)
    count = apply("maximum", _forward(one, link), 1.0)
    for _ in x.shape:
        count = apply("keep_axis", count)
    return _forward(x, link) / count


def sum_readers(values: Any, link: Link) -> Node:
    """Return for each vertex of the link's second structure the sum over the vertices that read it.

    values: rows of the vertices of its first structure. The reverse of `sum_linked`. TraceError for
    other values.
    """
    return _backward("sum_readers", _along("sum_readers", values, link, "target"), link)


def softmax_readers(values: Any, link: Link) -> Node:
    """Return the softmax over the vertices that read the same vertex along a link.

    values: rows of the vertices of the link's first structure, of which each reads one vertex: its
    elements sum to one over the readers of a vertex. TraceError for other values, and for a link to
    lists.
    """
    x = _along("softmax_readers", values, link, "target")
    if not link.single:
        raise _needs_single("softmax_readers", link)
    most = apply("stop_gradient", _backward("max_readers", x, link))
    weight = apply("exp", x - _forward(most, link))
    return weight / _forward(_backward("sum_readers", weight, link), link)


@dataclass(frozen=True)
class LinkValues:
    """Values of the vertices that a cell may read along a link, by name; see `linked`."""

    link: Link
    values: Mapping[str, Node]


def linked(link: Link, **values: Any) -> LinkValues:
    """Return values for a cell over the link's first structure, which reads them with ``v.link``.

    values: rows of the vertices of the link's second structure, by name: in
    ``cell(batch.graphs["target"], source=ops.linked(batch.link("attention"), h=h))`` vertices read
    ``v.link("source").h``, with one row for each vertex that they are linked to. Values of the
    pairs of a link to lists, such as ``weight=batch.link("attention")["weight"]``, are read
    alike. TraceError for other values.
    """
    _need_link("linked", link)
    plain = Link(*link)
    found = {name: as_node(x) for name, x in values.items()}
    for name, x in found.items():
        if x.type.domain == plain.pairs:
            continue
        if plain.single and _is_feature_of(x, plain):
            raise TraceError(
                f"[linked] {name} is a feature of link {plain.name!r}, which leads to one vertex "
                f"each: it has a row for every vertex of {plain.target!r}",
                where=user_line(),
                hint=f"pass it by itself, {name}=batch.link({plain.name!r})[...], and read "
                f"v.pull({name!r})",
            )
        _along("linked", x, plain, "source")
    return LinkValues(plain, found)


def _is_feature_of(x: Node, link: Link) -> bool:
    """True for a feature of ``link``."""
    return x.op.name == "feature" and link_parts(x.attr("name"))[:2] == (link.target, link.name)
