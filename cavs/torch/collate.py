"""Batches for ``torch.utils.data.DataLoader``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import default_collate

from cavs.data import Graph, Sample, batch
from cavs.errors import FeatureError, user_line


def collate(samples: Sequence[Any]) -> Any:
    """Collate graphs into a ``cavs.batch``, and all else as torch does: a ``collate_fn``.

    Items of tuples and mappings are collated one by one: pairs of a graph and a label become a
    tuple of a batch and a tensor. `cavs.Sample` objects become a batch of samples.

    Raises FeatureError for no samples, or for samples of different forms.
    """
    if not samples:
        raise FeatureError(
            "no samples to collate; a batch needs at least one",
            where=user_line(),
            hint="a DataLoader of a data set that is not empty gives at least one",
        )
    first = samples[0]
    if isinstance(first, Graph | Sample):
        return batch(samples)
    if isinstance(first, Mapping):
        _check_forms(samples, Mapping, set)
        return {name: collate([sample[name] for sample in samples]) for name in first}
    if isinstance(first, tuple | list):
        _check_forms(samples, tuple | list, len)
        columns = [collate(column) for column in zip(*samples, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    _check_shapes(samples)
    return default_collate(list(samples))


def _check_forms(samples: Sequence[Any], types: Any, form: Any) -> None:
    """FeatureError for samples that are not all of ``types``, or whose forms differ."""
    for i, sample in enumerate(samples):
        if not isinstance(sample, types) or form(sample) != form(samples[0]):
            raise FeatureError(
                f"sample {i} is {sample!r:.80}, sample 0 {samples[0]!r:.80}",
                where=user_line(),
                hint="all samples of a batch have the same items",
            )


def _check_shapes(samples: Sequence[Any]) -> None:
    """FeatureError for tensors of different shapes, which cannot be stacked."""
    shapes = [tuple(getattr(sample, "shape", ())) for sample in samples]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise FeatureError(
                f"sample {i} has a tensor of shape {list(shape)}, sample 0 one of "
                f"{list(shapes[0])}; tensors of samples are stacked",
                where=user_line(),
                hint="rows for vertices belong to the graphs: "
                "cavs.Graph(children, {'label': labels}), then batch['label']",
            )
