"""The parts of a treebank of Universal Dependencies."""

from __future__ import annotations

import os
from pathlib import Path

from cavs.data.readers.conllu import read_conllu
from cavs.data.readers.sentence import Sentence
from cavs.data.source import as_path
from cavs.errors import DataError


def read_treebank(
    folder: str | os.PathLike[str], need: str | None = None
) -> dict[str, list[Sentence]]:
    """Return the sentences of the parts of a treebank: ``"train"``, ``"dev"`` and ``"test"``.

    They are the files ``*train.conllu``, ``*dev.conllu`` and ``*test.conllu`` of the folder; a
    missing part is left out. Without a training file, every tenth sentence of the development file
    is development data, the others are training data. ``need``: a part that must be there.
    DataError if it has no sentence, without any of the files, with two of one part, and as from
    `read_conllu`.
    """
    folder, found = as_path(folder), dict[str, list[Sentence]]()
    for name in ("train", "dev", "test"):
        files = sorted(Path(folder).glob(f"*{name}.conllu"))
        if len(files) > 1:
            raise DataError(
                f"{folder} has {len(files)} files *{name}.conllu; expected one treebank",
                hint="give each treebank a folder of its own",
            )
        if files:
            found[name] = read_conllu(files[0])
    if not found:
        raise DataError(
            f"{folder} has none of *train.conllu, *dev.conllu and *test.conllu",
            hint="pass the folder of a treebank",
        )
    if "train" not in found and "dev" in found:
        dev = found["dev"]
        found |= {"train": [s for i, s in enumerate(dev) if i % 10], "dev": dev[::10]}
    if need is not None and not found.get(need):
        raise DataError(_missing(folder, need, found), hint="pass a folder with that part")
    return found


def _missing(folder: str | os.PathLike[str], need: str, found: dict[str, list[Sentence]]) -> str:
    """Return the message for a part without a sentence."""
    if need != "train":
        return f"{folder} has no *{need}.conllu"
    if "dev" in found:
        return f"{folder} has a single sentence in *dev.conllu, and no *train.conllu"
    return f"{folder} has neither *train.conllu nor *dev.conllu"
