"""The lattice LSTM equals one in NumPy that runs arc by arc; lattices of text are as expected."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cavs
from cavs.cli import main
from cavs.data import Vocabulary
from models.lattice_lstm import LatticeTagger, find_words, lattice
from tests.models.against_numpy import check, cross_entropy, epoch_losses, lstm_step
from tests.models.test_models import CONLLU

# Characters, tags (-1: none), words as (character before, last character, number): two that end at
# one character, two that begin with the text, none at all.
LATTICES = [
    ([0, 1, 2, 1, 3], [-1, 0, 1, 1, 0], [(-1, 1, 0), (0, 3, 1), (1, 3, 2), (-1, 4, 1)]),
    ([2], [1], []),
    ([3, 3, 0], [-1, 1, 1], [(0, 2, 0)]),
]


def reference(p):
    """Return the mean cross entropy of the tags, and the scores at characters, then at words."""

    def step(name, number, state):
        c, h = state
        w, u, b = (p[f"cell.{name}.{key}"] for key in "WUb")
        return np.array(lstm_step(p[f"{name}.weight"][number] @ w + h @ u + b, c))

    losses, scores = [], []
    for chars, tags, words in LATTICES:
        states = {-1: np.zeros((2, p["char.weight"].shape[1]))}
        for k, (char, tag) in enumerate(zip(chars, tags, strict=True)):
            states[k] = step("char", char, states[k - 1])
            for before, last, number in words:
                if last == k:
                    states[k] = states[k] + step("word", number, states[before])
            scores.append(states[k][1] @ p["output.weight"] + p["output.bias"])
            losses += [cross_entropy(scores[-1], tag)] if tag >= 0 else []
        scores += [p["output.bias"]] * len(words)  # words push nothing
    return np.mean(losses), np.array(scores)


def test_loss_scores_and_gradients_equal_the_reference():
    graphs = [
        lattice(np.array(chars), words, {"tag": np.array(tags)}) for chars, tags, words in LATTICES
    ]
    check(LatticeTagger(4, 3, 2, 3), cavs.batch(graphs), reference)


def test_words_are_found_at_every_part_of_a_text():
    words = Vocabulary(["ab", "abc", "ca", "d"])
    assert find_words("abcad", words) == [(-1, 1, 1), (-1, 2, 2), (1, 3, 3)]
    assert find_words("d", words) == find_words("abc", Vocabulary([])) == []


def train(folder, *more):
    small = ["--hidden-size=6", "--quiet", "--data", str(folder), "--out", str(folder / "run")]
    return main(["train", "lattice-lstm", *small, *more])


def test_the_loss_of_a_training_falls_and_texts_keep_their_characters(tmp_path, capsys):
    for part in ("train", "dev", "test"):
        (tmp_path / f"xx-ud-{part}.conllu").write_text(CONLLU * 8)
    assert train(tmp_path, "--epochs=12", "--batch-size=4", "--lr=0.2") == 0
    losses = epoch_losses(tmp_path / "run")
    assert losses[-1] < 0.7 * losses[0]
    checkpoint = str(tmp_path / "run" / "checkpoint.best.safetensors")
    capsys.readouterr()
    assert main(["predict", checkpoint, "--split", "test"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["Dogs bark .", "Go now"]
    (tmp_path / "new").write_text("Gobark\né x\n")
    assert main(["predict", checkpoint, str(tmp_path / "new")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.replace(" ", "") for line in lines] == ["Gobark", "éx"]
    (tmp_path / "new").write_text("Go\n  \n")
    assert main(["predict", checkpoint, str(tmp_path / "new")]) == 1
    assert f"DataError: {tmp_path}/new:2: no characters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "has none of \\*train.conllu"),
        ({"xx-test.conllu": CONLLU}, "has neither \\*train.conllu nor \\*dev.conllu"),
        ({"xx-train.conllu": CONLLU.rstrip()}, "xx-train.conllu:6: "),
    ],
)
def test_bad_data_is_refused(tmp_path, capsys, files, told):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert train(tmp_path) == 1
    assert re.search(f"cavs: DataError: .*{told}", capsys.readouterr().err)
