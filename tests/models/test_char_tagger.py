"""The tagger over words and their characters equals one in NumPy that runs vertex by vertex."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import cavs
from cavs.cli import main
from models.char_tagger import Tagger, sample
from tests.models.against_numpy import check, cross_entropy, epoch_losses, lstm_step
from tests.models.test_models import CONLLU

# Words, tags (-1: none) and characters; one word of one character, and words of unequal lengths.
SENTENCES = [
    ([0, 1, 2, 0], [3, -1, 0, 16], [[0, 1], [2], [1, 3, 2, 2, 0], [0, 1]]),
    ([2], [16], [[0]]),
    ([-1, 1], [1, 2], [[3, 3], [2]]),
]


def states(p, name, rows):
    """Return h of an LSTM at every row."""
    w, u, b = (p[f"{name}.{key}"] for key in "WUb")
    c = h = np.zeros(len(u))
    found = []
    for x in rows:
        c, h = lstm_step(x @ w + h @ u + b, c)
        found.append(h)
    return found


def reference(p):
    """Return the mean cross entropy over the words that have a tag, and the scores of all words."""
    losses, scores = [], []
    for words, tags, chars in SENTENCES:
        rows = []
        for word, spelt in zip(words, chars, strict=True):
            c = list(p["char.weight"][spelt])
            own = p["word.weight"][word] if word >= 0 else np.zeros(p["word.weight"].shape[1])
            ends = states(p, "forth", c)[-1], states(p, "back", c[::-1])[-1]
            rows.append(np.concatenate([own, *ends]))
        up, down = states(p, "tag.forth", rows), states(p, "tag.back", rows[::-1])[::-1]
        for tag, *both in zip(tags, up, down, strict=True):
            scores.append(np.concatenate(both) @ p["output.weight"] + p["output.bias"])
            losses += [cross_entropy(scores[-1], tag)] if tag >= 0 else []
    return np.mean(losses), np.array(scores)


def samples():
    return [sample(w, t, [np.array(x) for x in c]) for w, t, c in SENTENCES]


@pytest.mark.parametrize("copies", [1, 40])  # 40: a batch whose equal characters are merged
def test_loss_scores_and_gradients_equal_the_reference(copies):
    def repeated(p):
        loss, scores = reference(p)
        return loss, np.tile(scores, (copies, 1))

    model = Tagger(3, 4, 6, word_size=3, char_size=2)
    check(model, cavs.batch(samples() * copies), repeated)


def train(folder: Path, *more: str) -> int:
    small = ["--hidden-size=6", "--word-size=5", "--char-size=4", "--dropout=0", "--quiet"]
    out = ["--data", str(folder), "--out", str(folder / "run")]
    return main(["train", "char-tagger", *small, *out, *more])


def test_the_loss_of_a_training_falls(tmp_path, capsys):
    for part in ("train", "dev"):
        (tmp_path / f"xx-ud-{part}.conllu").write_text(CONLLU * 8)
    assert train(tmp_path, "--epochs=6", "--batch-size=4") == 0
    losses = epoch_losses(tmp_path / "run")
    assert losses[-1] < 0.7 * losses[0]
    checkpoint = str(tmp_path / "run" / "checkpoint.best.safetensors")
    (tmp_path / "new").write_text("Dogs bark .\nunseen\n")
    capsys.readouterr()
    assert main(["predict", checkpoint, str(tmp_path / "new")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert len(first.split()) == 3 and len(second.split()) == 1
    (tmp_path / "new").write_text("Dogs bark .\n\nunseen\n")
    assert main(["predict", checkpoint, str(tmp_path / "new")]) == 1
    assert f"DataError: {tmp_path}/new:2: no words" in capsys.readouterr().err


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_hidden_size_that_cannot_be_halved_is_refused(tmp_path, capsys, size):
    (tmp_path / "xx-train.conllu").write_text(CONLLU)
    assert train(tmp_path, f"--hidden-size={size}") == 1
    assert f"ConfigError: --hidden-size {size}\n  hint: choose" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "has none of \\*train.conllu"),
        ({"xx-test.conllu": CONLLU}, "has neither \\*train.conllu nor \\*dev.conllu"),
        (
            {"xx-train.conllu": CONLLU.replace("ADV", "ADVERB")},
            "conllu:5: word 2 has part of",
        ),
        ({"xx-train.conllu": CONLLU, "yy-train.conllu": CONLLU}, "has 2 files \\*train.conllu"),
    ],
)
def test_bad_data_is_refused(tmp_path, capsys, files, told):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert train(tmp_path) == 1
    assert re.search(f"cavs: DataError: .*{told}", capsys.readouterr().err)
