"""Vertex functions: gather, scatter, pull, push (Cavs, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from cavs.config import is_whole
from cavs.errors import DTypeError, FeatureError, ShapeError, TraceError, line_of, user_line
from cavs.frontend.batch import SymbolicGraph
from cavs.frontend.initial_state import (
    initial_rows,
    require_structure,
    split_initial,
    with_initial_state,
)
from cavs.frontend.input_names import check_inputs
from cavs.frontend.links import names_of_links, pairs_of, split_links
from cavs.frontend.parameter import Module
from cavs.frontend.top_down import turned
from cavs.frontend.typed import (
    CellInputs,
    at_type,
    check_rows,
    functions_of,
    merged_pushes,
    merged_states,
    name_of,
    split_inputs,
)
from cavs.frontend.values import Gathered, Pushed, Values, check_names
from cavs.ir import (
    FLOAT,
    TO_FLOATS,
    Domain,
    Node,
    Slot,
    Structure,
    apply,
    as_node,
    count_children,
    next_serial,
    toposort,
)
from cavs.ir.trace import current_trace
from cavs.ops.links import LinkValues

_NUMBERED = 1 << 16  # children that the engine can number


class State:
    """Names and shapes of the values that a vertex scatters: ``State(c=150, h=150)``."""

    def __init__(self, /, *sizes: object, **shapes: int | tuple[int, ...]) -> None:
        if sizes or not shapes:
            raise TraceError("a state has values by name", where=user_line(), hint="State(h=128)")
        check_names(shapes, Gathered, "a state")
        self.shapes: dict[str, tuple[int, ...]] = {
            k: tuple(s) if isinstance(s, tuple | list) else (s,) for k, s in shapes.items()
        }
        for name, shape in self.shapes.items():
            if not all(is_whole(s) and s >= 1 for s in shape):
                raise ShapeError(
                    f"a state {name!r} of shape {list(shape)}",
                    where=user_line(),
                    hint=f"every size is a whole number of at least 1: State({name}=128)",
                )


class Vertex:
    """The symbolic vertex that a vertex function is called with."""

    def __init__(
        self,
        function: VertexFunction,
        slots: dict[str, Slot],
        pulled: Mapping[str, Node],
        structure: Structure,
        linked: Mapping[str, LinkValues],
        vertex_type: str | None = None,
    ) -> None:
        self._function, self._slots, self._pulled = function, slots, pulled
        self._structure, self._linked, self._type = structure, linked, vertex_type
        # Nodes that the function does not compute.
        self._outside = list(pulled.values())
        self._outside += [x for of in linked.values() for x in of.values.values()]
        self._read: dict[str, None] = {}  # names of inputs that were read, in order
        self._arity = 0  # number of children that gather(k) has read
        self._scattered: dict[str, Node] = {}
        self._pushed: dict[str, Node] | Node | None = None

    def gather(self, k: int | None = None) -> Gathered:
        """Return states of the children: one row per child, or the ``k``-th (zeros if absent)."""
        domain = self._structure.edge.of_type(self._type)
        edge = {n: apply("gather", slot=s, domain=domain) for n, s in self._slots.items()}
        if k is None:
            return Gathered(edge)
        if not is_whole(k) or not 0 <= k < _NUMBERED:
            long = is_whole(k) and int(k).bit_length() > 64  # Python may refuse to print it
            raise TraceError(
                f"gather({f'a number of {int(k).bit_length()} bits' if long else f'{k!r:.60}'}) is "
                f"not the number of a child, 0 to {_NUMBERED - 1}",
                where=user_line(),
                hint="children count from 0: v.gather(0).h; v.gather().h is that of every child",
            )
        k = int(k)
        self._arity = max(self._arity, k + 1)
        nth = {n: apply("nth_child", x, k=k) for n, x in edge.items()}
        return Gathered(nth)

    @property
    def num_children(self) -> Node:
        """Number of children of the vertex, as a float."""
        return at_type(count_children(self._structure.vertex), self._type)

    @property
    def type(self) -> str | None:
        """The type of the vertices that the function is traced for; None for all vertices."""
        return self._type

    def scatter(self, /, *values: Any, **states: Any) -> None:
        """Write the state, which parents gather: every declared value by name, once."""
        where = user_line()
        if values:
            raise TraceError(
                "scatter takes states by name",
                where=where,
                hint=f"v.scatter({', '.join(f'{n}=...' for n in self._function.state.shapes)})",
            )
        if self._scattered:
            raise TraceError(
                "scatter is called twice", where=where, hint="scatter all states at once"
            )
        declared = self._function.state.shapes
        if set(states) != set(declared):
            raise TraceError(
                f"scatter({', '.join(states)}) does not fit State({', '.join(declared)})",
                where=where,
                hint="scatter every declared value, and no other",
            )
        for name, value in states.items():
            node = as_node(value)
            if node.type.dtype != FLOAT:
                raise DTypeError(
                    f"scatter({name}=...) needs floats, not {node.type}",
                    where=where,
                    hint=TO_FLOATS,
                )
            if node.type.domain.related:
                raise TraceError(
                    f"scatter({name}=...) needs a value of the vertex, not {node.type}",
                    where=where,
                    hint="reduce over the children first: .sum(), .mean(), .max()",
                )
            if node.shape != declared[name]:
                raise ShapeError(
                    f"[scatter] {name} has shape {list(node.shape)}, "
                    f"its state {list(declared[name])}",
                    where=where,
                    hint=f"scatter a value of that shape, or declare State({name}="
                    f"{node.shape[0] if len(node.shape) == 1 else node.shape})",
                )
            self._scattered[name] = self._at_vertex(node)

    def pull(self, name: str) -> Node:
        """Return an input of this vertex, by its keyword in ``cell(batch.graph, x=...)``."""
        self._check_name("pull", name)
        if name not in self._pulled:
            raise FeatureError(
                f"pull({name!r}): the call passes {', '.join(self._pulled) or 'nothing'}",
                where=user_line(),
                hint=f"call the vertex function with {name}=..., such as {name}=batch[{name!r}]",
            )
        self._read[name] = None
        value = self._pulled[name]
        if value.type.domain.base == "edge":
            raise FeatureError(
                f"pull({name!r}) is a value of every edge, not of the vertex: {value.type}",
                where=user_line(),
                hint=f"read it with v.edge({name!r}): one row per child",
            )
        return self._from_outside(value)

    def edge(self, name: str) -> Node:
        """Return a feature of the edges to the children: one row per child."""
        self._check_name("edge", name)
        if name not in self._pulled:
            raise FeatureError(
                f"edge({name!r}): the call passes {', '.join(self._pulled) or 'nothing'}",
                where=user_line(),
                hint=f"call the vertex function with {name}=batch[{name!r}], an edge feature",
            )
        self._read[name] = None
        value = self._pulled[name]
        if value.type.domain.base != "edge":
            raise FeatureError(
                f"edge({name!r}) is a value of every {value.type.domain}: {value.type}",
                where=user_line(),
                hint=f"read it with v.pull({name!r})",
            )
        return self._from_outside(value)

    def _from_outside(self, value: Node) -> Node:
        found = at_type(value, self._type)
        self._outside.append(found)
        return found

    def link(self, name: str) -> Gathered:
        """Return values of the vertices that this one is linked to: one row for each of them.

        name: the keyword of the call, ``cell(graph, source=ops.linked(batch.link("to"), h=h))``.
        """
        found = pairs_of(name, self._linked, self._type)
        self._read[name] = None
        return found

    def _check_name(self, method: str, name: object) -> None:
        if not isinstance(name, str):
            found = f"{name!r:.60}"
            raise FeatureError(
                f"{method}({found}): an input has a name, which is a text; "
                f"the call passes {', '.join(self._pulled) or 'nothing'}",
                where=user_line(),
                hint=f"v.{method}({next(iter(self._pulled), 'x')!r}) reads what the call passes by "
                "that name; v.gather(k) reads the state of the k-th child",
            )

    def push(self, /, value: Any = None, *more: object, **values: Any) -> None:
        """Write one output, or several by name, to the outside of the graph.

        Values of the vertex have one row per vertex there, values of its edges one row per edge:
        sorted by parent, and for one parent in the order of its children, as edge features are.
        """
        if self._pushed is not None:
            raise TraceError("push is called twice", where=user_line(), hint="push(a=..., b=...)")
        if more or (value is None) == (not values):
            raise TraceError(
                "push takes one value, or several by name",
                where=user_line(),
                hint="v.push(h) or v.push(h=h, c=c)",
            )
        check_names(values, Pushed, "a pushed value")
        for v in values.values() if value is None else (value,):
            if as_node(v).type.domain.base not in ("vertex", "edge", "one"):
                raise TraceError(
                    f"push needs a value of the vertex or its edges, not {as_node(v).type}",
                    where=user_line(),
                    hint="a value of a graph is outside of the cell already",
                )
        self._pushed = (
            self._pushable(value)
            if value is not None
            else {k: self._pushable(v) for k, v in values.items()}
        )

    def _at_vertex(self, node: Node) -> Node:
        require_structure("a value of the cell", node, self._structure.of)
        return node.at(self._structure.vertex)

    def _pushable(self, value: Any) -> Node:
        node = as_node(value)
        require_structure("a pushed value", node, self._structure.of)
        if node.type.dtype != FLOAT and node.type.domain.base != "one":
            return node  # an index, which is outside already
        return apply("push", node if node.type.domain.base == "edge" else self._at_vertex(node))


class VertexFunction(Module):
    """A cell, declared once and run at every vertex of every input graph.

    Subclasses set ``self.state = State(...)`` and parameters in ``__init__`` and define
    ``vertex(self, v)``, which is traced once and never runs per vertex. A call
    ``f(batch.graph, x=values)`` returns the pushed values, one row per vertex; on
    ``batch.graph.reversed()`` it runs from the roots down, with parents in place of children. Calls
    with the same inputs are computed once, unless they apply dropout, which each call draws.
    """

    state: State

    def vertex(self, v: Vertex) -> None:
        """Define the function F of one vertex, with the methods of `Vertex`."""
        raise TraceError(
            f"{type(self).__name__} has no vertex()",
            where=user_line(),
            hint="define vertex(self, v): v.gather(), v.scatter(h=...), v.push(h)",
        )

    def __call__(
        self,
        graph: SymbolicGraph,
        /,
        *values: Any,
        initial: Mapping[str, Any] | Values | Any = None,
        **inputs: Any,
    ) -> Any:
        """Trace the cell over ``batch.graph``; ``pull`` and ``edge`` return the inputs.

        initial: states by name, such as ``{"h": batch["h0"]}`` or final states, which a vertex
        without children gathers as those of one child; states left out are zeros. One row
        per graph or vertex, or the same for all, as a `Parameter`. On ``batch.graph.reversed()``
        vertices without parents read them. Anything but states by name is an input of that name.

        Raises TraceError for names and rows that are no states, ShapeError and DTypeError for
        values of another shape or dtype, and FeatureError for an input that the cell never reads.
        """
        if values:
            current_trace()  # raises outside of a trace
            raise TraceError(
                f"{type(self).__name__} takes its inputs by name",
                where=user_line(),
                hint="write cell(batch.graph, x=...), where vertex() calls v.pull('x')",
            )
        return self._over(graph, *split_initial(initial, inputs))[0]

    def states(
        self,
        graph: SymbolicGraph,
        /,
        *,
        initial: Mapping[str, Any] | Values | Any = None,
        **inputs: Any,
    ) -> Pushed:
        """Return all states by name, one row per vertex, where a call returns what is pushed.

        A call with the same inputs shares the computation, as ``h`` and ``states.c`` of one LSTM.
        """
        found = self._over(graph, *split_initial(initial, inputs))[1]
        return Pushed({name: apply("push", x) for name, x in found.items()})

    def with_final(
        self,
        graph: SymbolicGraph,
        /,
        *,
        initial: Mapping[str, Any] | Values | Any = None,
        **inputs: Any,
    ) -> tuple[Any, Pushed]:
        """Return what a call returns, and the states with which the cell ends, a row per graph.

        Final states are sums over the roots: for a tree the state of its root, for a chain of its
        last vertex. Top-down they are sums over the leaves, for a chain the state of its first
        vertex. Another cell may begin from them: ``initial=final``.
        """
        pushed, states = self._over(graph, *split_initial(initial, inputs))
        members = "leaves" if graph.top_down else "roots"
        final = {
            n: apply("sum_members", apply("push", x), members=members) for n, x in states.items()
        }
        return pushed, Pushed(final)

    def _over(
        self,
        graph: SymbolicGraph,
        initial: Mapping[str, Any] | None,
        inputs: Mapping[str, Any],
        offered: Collection[str] = (),
    ) -> tuple[Any, dict[str, Node]]:
        """Return the pushed values and the states; offered: inputs that the cell need not read."""
        trace = current_trace()
        if not isinstance(graph, SymbolicGraph):
            raise TraceError(
                f"a vertex function is called with batch.graph, not {type(graph).__name__}",
                where=user_line(),
                hint="write cell(batch.graph, x=...)",
            )
        if not isinstance(getattr(self, "state", None), State):
            raise TraceError(
                f"{type(self).__name__} has no state",
                where=user_line(),
                hint="set self.state = cavs.State(h=...) in __init__",
            )
        linked, others = split_links(inputs, graph.structure)
        functions = functions_of(self, VertexFunction)
        given = split_inputs(type(self).__name__, others, [t for t in functions if t])
        at = Domain("vertex", None, graph.structure)
        rows = initial_rows(type(self).__name__, initial, self.state.shapes, at)
        named = [*given.named(), *((f"initial {k}", x) for k, x in rows.items())]
        named += names_of_links(linked)
        key = (self, graph, tuple(sorted((k, x.serial) for k, x in named)))
        if key in trace.memo:
            found: tuple[Any, dict[str, Node]] = trace.memo[key][1]
            return found
        drawn = trace.streams
        found = self._trace(functions, given, linked, rows, graph, offered)
        if trace.streams == drawn:  # each call with dropout draws its own
            trace.memo[key] = named, found  # keeps the inputs of the key alive
        return found

    def _trace(
        self,
        functions: Mapping[str | None, Callable[[Vertex], None]],
        given: CellInputs,
        linked: dict[str, LinkValues],
        initial: dict[str, Node],
        graph: SymbolicGraph,
        offered: Collection[str],
    ) -> tuple[Any, dict[str, Node]]:
        name = type(self).__name__
        for key, x in given.named():
            if x.type.domain.base not in ("vertex", "edge", "one", "graph") or (
                x.type.dtype != FLOAT and len(x.shape) > 1
            ):
                raise FeatureError(
                    f"{key} cannot be pulled: {x.type}",
                    where=user_line(),
                    hint="pass it along its link: source=ops.linked(link, name=value)"
                    if x.type.domain.base == "pair"
                    else "look integers up in an nn.Embedding first, or give floats",
                )
            require_structure(key, x, graph.structure)
        top_down = graph.top_down
        lines = {t: line_of(f) or user_line() for t, f in functions.items()}
        where = next(iter(lines.values()))
        structure = Structure(name, where=where, top_down=top_down, of=graph.structure)
        slots = {n: Slot(n, structure, s) for n, s in self.state.shapes.items()}
        before = next_serial()
        vertices = {t: Vertex(self, slots, given.of(t), structure, linked, t) for t in functions}
        inner: dict[tuple[str, str | None, str], Node] = {}
        pushes: dict[str, Node] = {}
        nodes: dict[str | None, list[Node]] = {}
        for t, v in vertices.items():
            functions[t](v)
            whose = name_of(name, t, functions[t])
            if not v._scattered:
                raise TraceError(
                    f"{whose} never calls scatter", where=lines[t], hint="v.scatter(h=h)"
                )
            pushed = v._pushed if isinstance(v._pushed, dict) else {"": v._pushed}
            named = {k: x for k, x in pushed.items() if x is not None}
            nodes[t] = toposort([*v._scattered.values(), *named.values()])
            pushes |= named
            # The states are values like those that are pushed.
            inner |= {
                ("pushed", t, k): x.inputs[0] if x.op.name == "push" else x
                for k, x in named.items()
            }
            inner |= {("state", t, n): x for n, x in v._scattered.items()}
            check_rows(nodes[t], before, whose)
        if not pushes:
            whole = [name_of(name, t, f) for t, f in functions.items()]
            raise TraceError(
                f"{' or '.join(whole)} never calls push",
                where=where,
                hint="v.push(h)",
            )
        # A gathered state counts as read only if an output depends on it.
        read = {n.attr("slot") for of in nodes.values() for n in of if n.op.name == "gather"}
        unread = sorted(n for n, slot in slots.items() if slot not in read)
        if unread:
            raise TraceError(
                f"{name} never reads its state {', '.join(unread)}: nothing that it scatters or "
                "pushes depends on it",
                where=where,
                hint="gather it and compute with it, or drop it from State and scatter",
            )
        given.check_read(self, VertexFunction, functions, vertices, offered)
        names = {name_of(name, t, f): f for t, f in functions.items()}
        read_links = dict.fromkeys(k for v in vertices.values() for k in v._read)
        check_inputs(self, VertexFunction, names, list(linked), read_links)
        structure.of_types = {t: None for t in functions if t is not None}
        for t, v in vertices.items() if not top_down else ():
            most = _arity(v, nodes[t])
            if t is None:
                structure.arity = most
            else:
                structure.of_types[t] = most
        outside = [x for v in vertices.values() for x in v._outside]
        if initial:
            starts = {slots[n]: x for n, x in initial.items()}
            inner = with_initial_state(inner, starts, outside)
        states = merged_states(inner, slots, functions)
        filled = {slot: states[n] for n, slot in slots.items()}
        if top_down:
            found, filled = turned(structure, filled, inner.values(), outside)
            inner = dict(zip(inner, found, strict=True))
            states = merged_states(inner, slots, functions)
        named = merged_pushes(name, inner, pushes)
        current_trace().slots.update(filled)
        unnamed = "" in pushes
        return (named[""] if unnamed else Pushed(named)), states


def _arity(v: Vertex, nodes: Iterable[Node]) -> int | None:
    """Return the number of children that a traced function reads; None for any number.

    That is so if a value of gather() or of all edges is used, not if v.gather() is merely called.
    """
    every = any(
        x.op.name == "gather" or (x.type.domain.base == "edge" and n.type.domain.base != "edge")
        for n in nodes
        if n.op.name != "nth_child"
        for x in n.inputs
    )
    return None if every else v._arity
