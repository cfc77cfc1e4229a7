"""A batch with tensors as further features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

from cavs.data.features import FeatureDomain, FeatureSpec, owner_of
from cavs.errors import ConfigError, DTypeError, FeatureError, user_line
from cavs.runtime.interface import Array, BatchLike

DOMAINS = ("vertex", "edge", "graph")


class TensorBatch:
    """A batch whose features are its own and, by other or the same names, rows of tensors."""

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
        """Return the type of every feature, those of tensors among them."""
        return {**self._batch.feature_schema(), **self._specs}


def with_tensors(
    batch: BatchLike,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    domains: Mapping[str, FeatureDomain],
) -> BatchLike:
    """Return ``batch`` with ``tensors`` as float features.

    domains: of those that the batch has no feature of the same name for; the default is vertices.
    FeatureError for a tensor with another number of rows, DTypeError for one of another dtype, and
    ConfigError for one on another device, or anything that is no tensor.
    """
    schema = batch.feature_schema()
    rows: dict[str, Array] = {}
    specs: dict[str, FeatureSpec] = {}
    for name, tensor in tensors.items():
        _check(name, tensor, dtype)
        known = schema.get(name)
        domain = known.domain if known is not None else domains.get(name, "vertex")
        needed = len(batch[name]) if known is not None else _rows_of(batch, name, domain)
        if len(tensor) != needed:
            every = f"every {domain}" + (f" of type {known.type!r}" if known and known.type else "")
            raise FeatureError(
                f"{name!r} has {len(tensor)} rows, the batch needs {needed}: one for {every}",
                where=user_line(),
                hint="rows are in the order of the batch, graph after graph; "
                f"Module(..., domains={{{name!r}: 'graph'}}) gives one row for each graph",
            )
        rows[name] = tensor.detach().contiguous().numpy()
        specs[name] = _spec(tensor, known, domain)
    return cast("BatchLike", TensorBatch(batch, rows, specs))


def with_specs(
    batch: BatchLike, tensors: Mapping[str, torch.Tensor], domains: Mapping[str, FeatureDomain]
) -> BatchLike:
    """Return ``batch`` with the types of ``tensors``, whose values are not known yet."""
    schema = batch.feature_schema()
    specs = {}
    for name, tensor in tensors.items():
        known = schema.get(name)
        domain = known.domain if known is not None else domains.get(name, "vertex")
        specs[name] = _spec(tensor, known, domain)
    return cast("BatchLike", TensorBatch(batch, {}, specs))


def _spec(tensor: torch.Tensor, known: Any, domain: FeatureDomain) -> FeatureSpec:
    of = known.type if known is not None else ""
    return FeatureSpec(domain, "float", tuple(map(int, tensor.shape[1:])), False, of)


def _check(name: str, tensor: Any, dtype: torch.dtype) -> None:
    if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0 or tensor.is_sparse:
        raise ConfigError(
            f"input {name!r} is {tensor!r:.60}, not a dense torch tensor with a row for each "
            "vertex, edge or graph",
            where=user_line(),
            hint="features that are no tensors belong to the graphs: cavs.Graph(children, "
            "features)",
        )
    if tensor.device.type != "cpu":
        raise ConfigError(
            f"input {name!r} is on the device {tensor.device}; cavs.torch runs on the CPU",
            where=user_line(),
            hint=f"give {name}.cpu()",
        )
    if tensor.dtype != dtype:
        raise DTypeError(
            f"input {name!r} is {tensor.dtype}, the module {dtype}",
            where=user_line(),
            hint=f"convert it, {name}.to({dtype}), or the module, module.to({tensor.dtype})"
            if tensor.dtype in (torch.float32, torch.float64)
            else "integers belong to the graphs, cavs.Graph(children, {'token': ids}), or are "
            "looked up in a torch.nn.Embedding first",
        )


def _rows_of(batch: Any, name: str, domain: FeatureDomain) -> int:
    if domain == "graph":
        return int(batch.num_graphs)
    graphs = batch if batch.structures is None else batch.graphs[owner_of(name)[0]]
    return int(graphs.num_vertices if domain == "vertex" else graphs.num_edges)


def check_domains(domains: Mapping[str, FeatureDomain]) -> None:
    """ConfigError for anything but names with one of DOMAINS each."""
    for name, domain in domains.items():
        if domain not in DOMAINS:
            raise ConfigError(
                f"domains[{name!r}] is {domain!r:.60}, not one of {', '.join(DOMAINS)}",
                hint="it says what a row of the input is for",
            )
