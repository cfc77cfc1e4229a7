"""The treebank of Universal Dependencies in ``--data``, as the taggers read it."""

from __future__ import annotations

from cavs.cli import require_data
from cavs.data import read_treebank


def treebank_parts(args, assets, model: str):
    """Return the sentences of each part, none without ``--data``; training needs ``"train"``."""
    require_data(args, assets, model)
    if args.data is None:
        return {}
    return read_treebank(args.data, need="train" if assets is None else None)
