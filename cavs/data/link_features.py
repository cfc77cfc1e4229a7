"""Collation of the features of links."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from cavs.data.features import Array, FeatureDomain, FeatureSpec, link_parts, spec_of
from cavs.data.sample import Sample
from cavs.errors import FeatureError


def joined_features(
    samples: Sequence[Sample], links: Mapping[str, Any], label: Callable[[int], str]
) -> tuple[Mapping[str, Array], dict[str, FeatureSpec]]:
    """Return the features of all links of samples by name, and their types.

    A sample whose link has no rows takes dtype and shape of its features from the others, and may
    leave them out. links: the `LinkType` of each by name. label: the name of a sample. FeatureError
    for a feature that a sample lacks, or that differs.
    """
    rows: dict[str, Array] = {}
    schema: dict[str, FeatureSpec] = {}
    for name in sorted({name for sample in samples for name in sample.link_features}):
        parts = [sample.link_features.get(name) for sample in samples]
        _, link, feature = link_parts(name)
        single = links[link].single is not False
        like: tuple[int, Array] | None = None
        for i, part in enumerate(parts):
            if part is None:
                if _has_rows(samples[i], link):
                    j = next(j for j, x in enumerate(parts) if x is not None)
                    raise FeatureError(
                        f'feature "{feature}" of link "{link}" is in {label(j)}, but not in '
                        f"{label(i)}",
                        hint="the links of all samples of a batch need the same features; one "
                        "without vertices to read may leave them out",
                    )
            elif len(part):
                if like is None:
                    like = i, part
                elif (part.dtype, part.shape[1:]) != (like[1].dtype, like[1].shape[1:]):
                    words = [f"{x.dtype} rows of shape {x.shape[1:]}" for x in (like[1], part)]
                    raise FeatureError(
                        f'feature "{feature}" of link "{link}" differs: {words[0]} in '
                        f"{label(like[0])}, {words[1]} in {label(i)}",
                        hint="give it alike in all samples: floats or integers, of one shape",
                    )
        given = [x for x in parts if x is not None]
        joined = np.concatenate([x for x in given if len(x)] or given[:1])
        joined.flags.writeable = False
        rows[name] = joined
        domain: FeatureDomain = "vertex" if single else "pair"
        schema[name] = spec_of(domain, joined, any(name in s.absent for s in samples))
    return MappingProxyType(rows), schema


def _has_rows(sample: Sample, link: str) -> bool:
    """True if a feature of a link of a sample has rows."""
    found = sample.links[link]
    if found.vertices is not None:
        return len(found.vertices) > 0
    return all(sample.graphs[end].num_vertices for end in (found.target, found.source))
