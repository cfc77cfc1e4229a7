"""A batch with tensors as further features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cavs.data.features import FeatureDomain
from cavs.errors import ConfigError, DTypeError, user_line
from cavs.runtime.host_inputs import with_inputs
from cavs.runtime.interface import BatchLike


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
    for name, tensor in tensors.items():
        _check(name, tensor, dtype)
    rows = {name: tensor.detach().contiguous().numpy() for name, tensor in tensors.items()}
    return with_inputs(batch, rows, domains, "Module")


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
