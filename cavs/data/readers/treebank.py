"""The parts of a treebank of Universal Dependencies."""

from __future__ import annotations

import os
from pathlib import Path

from cavs.data.readers.conllu import read_conllu
from cavs.data.readers.sentence import Sentence
from cavs.data.source import as_path
from cavs.errors import DataError


def read_treebank(folder: str | os.PathLike[str]) -> dict[str, list[Sentence]]:
    """Return the sentences of the parts of a treebank: ``"train"``, ``"dev"`` and ``"test"``.

    They are the files ``*train.conllu``, ``*dev.conllu`` and ``*test.conllu`` of the folder; a
    missing part is left out. Without a training file, every tenth sentence of the development file
    is development data, the others are training data. DataError without any of the files, with two
    of one part, and as from `read_conllu`.
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
    return found
