from __future__ import annotations

import random
from pathlib import Path

import pytest


def bracketed(rng: random.Random, leaves: int) -> str:
    label = rng.randrange(5)
    if leaves == 1:
        return f"({label} w{rng.randrange(30)})"
    left = rng.randrange(1, leaves)
    return f"({label} {bracketed(rng, left)} {bracketed(rng, leaves - left)})"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data folder with random trees, one of a single vertex among them, and random sentences."""
    folder: Path = tmp_path_factory.mktemp("data")
    rng = random.Random(3)
    (folder / "sst").mkdir()
    trees = [bracketed(rng, rng.randrange(1, 14)) for _ in range(31)]
    (folder / "sst" / "train.txt").write_text("\n".join(["(3 w0)", *trees]) + "\n")
    (folder / "wikitext2").mkdir()
    for name in ("valid.txt", "test.txt"):
        lines = [
            " ".join(f"w{rng.randrange(40)}" for _ in range(rng.randrange(2, 12))) + " ."
            for _ in range(40)
        ]
        (folder / "wikitext2" / name).write_text(" = Head = \n\n" + "\n".join(lines) + "\n")
    return str(folder)


@pytest.fixture
def treebank(tmp_path: Path) -> str:
    """A folder of data whose treebank has two files with a sentence each."""
    folder = tmp_path / "data" / "ud_english_ewt"
    folder.mkdir(parents=True)
    lines = ["ab\tNOUN", "ba\tVERB", "ab\t_"]
    rows = (line.split("\t") for line in lines)
    text = "\n".join(
        f"{i}\t{form}\t_\t{tag}\t_\t_\t{int(i > 1)}\t_\t_\t_"
        for i, (form, tag) in enumerate(rows, 1)
    )
    (folder / "en_ewt-ud-dev.conllu").write_text(text + "\n\n")
    (folder / "en_ewt-ud-test.conllu").write_text(text + "\n\n")
    return str(folder.parent)
