"""Models: vertex functions and layers, with a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

from cavs.errors import ConfigError, DTypeError, ShapeError, TraceError, line_of, user_line
from cavs.frontend.batch import Schema, SymbolicBatch
from cavs.frontend.parameter import Module, Parameter
from cavs.frontend.values import Pushed, listed
from cavs.ir import FLOAT, Graph, Node, Structures, apply
from cavs.ir.trace import is_tracing, tracing
from cavs.ops.loss import mean_terms


class Model(Module):
    """Subclasses define ``forward(batch)`` (a value, or several by name) and ``loss(batch)``.

    Both are traced once on a symbolic batch; ``loss`` returns one number for the batch, or a pair
    of it and a dict of further values by name, which steps return too: see docs/states.md.
    """

    # Features of edges, and of types of vertices, that its batches had: dtype, row shape and type
    # ("" of edges) by name. Sessions write it.
    _feature_types: Mapping[str, tuple[str, tuple[int, ...], str]] = MappingProxyType({})

    def parameters(self) -> dict[str, Parameter]:
        """Return all parameters by dotted name, which is their name from now on."""
        found = self._found()
        for name, parameter in found.items():
            parameter.name = name  # it may have another name in another model
        return found

    def __call__(self, *batches: object) -> NoReturn:
        """TraceError: a session runs a model, and another model calls its ``forward``."""
        raise TraceError(
            f"{type(self).__name__} is traced, not called",
            where=user_line(),
            hint="inside of another model, call its .forward(batch)"
            if is_tracing()
            else "cavs.Session(model).predict(batch) runs it, cavs.Trainer trains it",
        )

    def forward(self, batch: SymbolicBatch) -> Any:
        """Return the predictions: one value, or a dict of values by name."""
        raise NotImplementedError

    def loss(self, batch: SymbolicBatch) -> Any:
        """Return the number that training minimises, or a pair of it and values by name."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """Name the parameters of a copied or pickled model: each is drawn from its own name."""
        self.parameters()
        return vars(self)


#: Begins the names of outputs that ``Model.loss`` returns besides the loss.
AUX = "aux:"
_RESERVED = ("loss", "weight")
_PREFIXES = ("grad:", "input:", AUX)  # the beginnings of other outputs of a graph


class _Holder(Protocol):
    def parameters(self) -> Mapping[str, Any]: ...


def require_same_parameters(model: _Holder, parameters: Mapping[str, object]) -> None:
    """ConfigError unless ``parameters`` are those that the model has now, by their names."""
    held = model.parameters()
    for name in dict.fromkeys([*held, *parameters]):
        if held.get(name) is not parameters.get(name):
            how = "lost" if name not in held else "got" if name not in parameters else "replaced"
            raise ConfigError(
                f"{type(model).__name__} has {how} the parameter {name!r} since its session or "
                "trainer was created, which trains the earlier ones",
                where=held[name].where if name in held else "",
                hint="make a new Session or Trainer when layers of a model change",
            )


def _number(x: Node) -> Node:
    return x if not x.shape else apply("reshape", x, shape=())


def trace_model(
    model: Model,
    schema: Schema,
    *,
    training: bool,
    with_loss: bool = True,
    predictions: bool | None = None,
    edges: bool = True,
    structures: Structures | None = None,
) -> Graph:
    """Trace ``model`` to a Graph with outputs "loss" and the predictions.

    predictions: with those of ``Model.forward``; None: outside training. Outside training there is
    also "weight" if the loss is a mean: its number of terms. edges: True if the data has any, for
    error messages. structures: of the samples, if they have several.

    Raises the errors of the user's own code with its line, see cavs.errors.
    """
    model.parameters()  # names them
    name = type(model).__name__
    with tracing(training) as trace:
        batch = SymbolicBatch(schema, edges, structures or Structures())
        outputs: dict[str, Node] = {}
        if with_loss:
            if type(model).loss is Model.loss:
                raise TraceError(
                    f"{name} has no loss", hint=f"define {name}.loss(self, batch), or only predict"
                )
            loss, aux = _loss_and_aux(model.loss(batch))
            where = line_of(type(model).loss)
            if not isinstance(loss, Node):
                raise TraceError(
                    f"{name}.loss returned {type(loss).__name__}, not a traced value",
                    where=where,
                    hint="return the result of operators on batch, such as "
                    "ops.cross_entropy(...), or a pair of it and a dict of values by name",
                )
            if loss.type.domain.base != "one" or loss.type.width != 1:
                raise ShapeError(
                    f"{name}.loss returned {loss.type}, not one number",
                    where=loss.where or where,
                    hint="reduce the numbers of it by .sum() or .mean()"
                    if loss.type.domain.base == "one"
                    else "reduce over rows by ops.mean_rows(...) or ops.sum_rows(...)",
                )
            outputs["loss"] = _number(loss)
            _check_outputs(aux, f"{name}.loss", type(model).loss)
            outputs |= {f"{AUX}{key}": node for key, node in aux.items()}
            terms = None if training else mean_terms(loss)
            if terms is not None:
                outputs["weight"] = _number(terms)
        if not outputs and type(model).forward is Model.forward:
            raise TraceError(
                f"{name} has no forward: there is nothing to predict",
                where=line_of(type(model)),
                hint="define forward(self, batch)",
            )
        predicts = not training if predictions is None else predictions
        if predicts and type(model).forward is not Model.forward:
            value = model.forward(batch)
            values = value if isinstance(value, dict) else {"output": value}
            _check_outputs(values, f"{name}.forward", type(model).forward)
            outputs |= values
        graph = Graph(outputs, dict(trace.slots))
    _check_held(model, graph)
    return graph


def _loss_and_aux(value: Any) -> tuple[Any, dict[Any, Any]]:
    """Return the loss, and the values by name that ``Model.loss`` returned with it."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
        return value
    return value, {}


def _check_outputs(values: Mapping[Any, Any], method: str, function: Callable[..., Any]) -> None:
    """Raise TraceError or DTypeError unless ``values`` are traced floats with names."""
    where = line_of(function)
    for key, node in values.items():
        if not isinstance(node, Node):
            raise TraceError(
                f"{method} returned {type(node).__name__} for {key!r}",
                where=where,
                hint=f"return {listed(node)}, or one of them"
                if isinstance(node, Pushed)
                else "return one traced value, or a dict of them by name"
                if method.endswith("forward")
                else "return traced values, as in loss, {'h': final.h}",
            )
        if node.type.dtype != FLOAT:
            raise DTypeError(
                f"{method} returned {node.type} for {key!r}, not floats",
                where=where,
                hint="read integers from the batch itself: batch['token']",
            )
        if (of := node.type.domain.vertex_type) is not None:
            raise TraceError(
                f"{method} returned {node.type} for {key!r}, a value of vertices of the type "
                f"{of!r} alone",
                where=where,
                hint="return a value of all vertices, such as what the cell pushes, or of graphs: "
                "ops.sum_graph(value)",
            )
        if node.type.domain.base == "pair":
            raise TraceError(
                f"{method} returned {node.type} for {key!r}, a value of every pair of a link",
                where=where,
                hint="fold the pairs of each vertex, value.sum() or value.max()",
            )
        if not isinstance(key, str) or key in _RESERVED or key.startswith(_PREFIXES):
            raise TraceError(
                f"{method} returned a value by the name {key!r}, which is taken",
                where=where,
                hint="names are texts other than 'loss' and 'weight', and do not begin with "
                f"{', '.join(map(repr, _PREFIXES))}",
            )


def _check_held(model: Model, graph: Graph) -> None:
    """TraceError for a parameter that is used, but that training and checkpoints would miss."""
    held = set(map(id, model.parameters().values()))
    for node in graph.nodes():
        if node.op.name == "parameter" and id(node.attr("parameter")) not in held:
            parameter = node.attr("parameter")
            name = type(model).__name__
            raise TraceError(
                f"{name} uses a parameter of shape {list(parameter.shape)} that it does not hold",
                where=parameter.where,
                hint=f"create it once, in __init__, and set it as an attribute of {name} or of a "
                "layer or cell of it; lists and dicts of them are fine",
            )
