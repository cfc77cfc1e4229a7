"""Arrays of another library as features of a batch, and a vertex function as a model of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from cavs.data.features import FeatureDomain, FeatureSpec, owner_of
from cavs.errors import ConfigError, FeatureError, user_line
from cavs.frontend.batch import SymbolicBatch
from cavs.frontend.model import Model
from cavs.frontend.values import Pushed
from cavs.frontend.vertex import VertexFunction
from cavs.ir import Domain
from cavs.runtime.features import rows_in
from cavs.runtime.interface import Array, BatchLike

DOMAINS = ("vertex", "edge", "graph")
FUNCTION = "function."  # begins the names of parameters of a FunctionModel


class FunctionModel(Model):
    """A model of one vertex function. names: of the features that it takes as inputs."""

    def __init__(self, function: VertexFunction, names: Sequence[str]) -> None:
        self.function = function
        self.names = tuple(names)

    def forward(self, batch: SymbolicBatch) -> Any:
        """Return what the function pushes, by name where it pushes several values."""
        found = self.function(batch.graph, **{name: batch[name] for name in self.names})
        return dict(found._items()) if isinstance(found, Pushed) else found


class InputBatch:
    """A batch whose features are its own and, by other or the same names, given rows.

    Equal vertices are not searched for: the search would read features of the batch's own.
    """

    def __init__(
        self, batch: BatchLike, rows: Mapping[str, Array], specs: Mapping[str, FeatureSpec]
    ) -> None:
        self._batch, self._rows, self._specs = batch, rows, specs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __getitem__(self, name: str) -> Array:
        found = self._rows.get(name)
        return self._batch[name] if found is None else found

    def feature_schema(self) -> Mapping[str, Any]:
        """Return the type of every feature, those given among them."""
        return {**self._batch.feature_schema(), **self._specs}


def with_inputs(
    batch: BatchLike, rows: Mapping[str, Array], domains: Mapping[str, FeatureDomain], owner: str
) -> BatchLike:
    """Return ``batch`` with ``rows`` as float features.

    domains: of those that the batch has no feature of the same name for; the default is vertices.
    owner: the class that the user gives them to. FeatureError for another number of rows.
    """
    if not rows:
        return batch
    schema = batch.feature_schema()
    for name, array in rows.items():
        known = schema.get(name)
        domain = known.domain if known is not None else domains.get(name, "vertex")
        needed = len(batch[name]) if known is not None else _rows_for(batch, name, domain)
        if len(array) != needed:
            every = f"every {domain}" + (f" of type {known.type!r}" if known and known.type else "")
            raise FeatureError(
                f"{name!r} has {len(array)} rows, the batch needs {needed}: one for {every}",
                where=user_line(),
                hint="rows are in the order of the batch, graph after graph; "
                f"{owner}(..., domains={{{name!r}: 'graph'}}) gives one row for each graph",
            )
    return cast("BatchLike", InputBatch(batch, rows, _specs(batch, rows, domains)))


def with_specs(
    batch: BatchLike, arrays: Mapping[str, Any], domains: Mapping[str, FeatureDomain]
) -> BatchLike:
    """Return ``batch`` with the types of ``arrays``, whose values are not known yet."""
    return cast("BatchLike", InputBatch(batch, {}, _specs(batch, arrays, domains)))


def _specs(
    batch: BatchLike, arrays: Mapping[str, Any], domains: Mapping[str, FeatureDomain]
) -> dict[str, FeatureSpec]:
    schema, found = batch.feature_schema(), {}
    for name, array in arrays.items():
        known = schema.get(name)
        domain = known.domain if known is not None else domains.get(name, "vertex")
        of = known.type if known is not None else ""
        found[name] = FeatureSpec(domain, "float", tuple(map(int, array.shape[1:])), False, of)
    return found


def _rows_for(batch: BatchLike, name: str, domain: FeatureDomain) -> int:
    several = batch.structures is not None and domain != "graph"
    return rows_in(batch, Domain(domain, None, owner_of(name)[0] if several else ""))


def check_model(model: object, noun: str) -> None:
    """ConfigError for anything but a model or vertex function. noun: of what is made of it."""
    if not isinstance(model, Model | VertexFunction):
        raise ConfigError(
            f"a {noun} of {model!r:.60}",
            where=user_line(),
            hint="give an instance of a cavs.VertexFunction or a cavs.Model",
        )


def check_domains(domains: Mapping[str, FeatureDomain]) -> None:
    """ConfigError for anything but names with one of DOMAINS each."""
    for name, domain in domains.items():
        if domain not in DOMAINS:
            raise ConfigError(
                f"domains[{name!r}] is {domain!r:.60}, not one of {', '.join(DOMAINS)}",
                hint="it says what a row of the input is for",
            )
