"""The translator with attention equals one in NumPy that runs word by word."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

import cavs
from cavs.cli import main, registry
from models import translator
from models._drawn_texts import draw_texts, encode
from models.translator import Translator, greedy, sample
from tests.models.against_numpy import check, cross_entropy, epoch_losses, lstm_step

# Sources and targets: one word each, and unequal lengths in one batch.
PAIRS = [([2], [1]), ([0, 3, 1, 4, 4, 2], [4, 0]), ([3, 3], [2, 2, 0, 1, 3])]


def decoded(p, source, target):
    """Return scores at each word of a target, given the words before it."""
    h = c = np.zeros(len(p["encode.U"]))
    states = []
    for x in p["word.weight"][source]:
        c, h = lstm_step(x @ p["encode.W"] + h @ p["encode.U"] + p["encode.b"], c)
        states.append(h)
    keys, scores = np.array(states), []
    for before in [-1, *target[:-1]]:
        x = p["after.weight"][before] if before >= 0 else np.zeros(len(h))
        weight = np.exp(keys @ h) / np.exp(keys @ h).sum()
        read = weight @ keys
        own = {n: p[f"decode.{n}"] for n in ("W", "R", "U", "b")}
        c, h = lstm_step(x @ own["W"] + read @ own["R"] + h @ own["U"] + own["b"], c)
        scores.append(np.concatenate([h, read]) @ p["output.weight"] + p["output.bias"])
    return scores


def reference(p):
    """Return the mean cross entropy over the words of all targets, and their scores."""
    scores = [row for source, target in PAIRS for row in decoded(p, source, target)]
    words = [word for _, target in PAIRS for word in target]
    losses = [cross_entropy(row, word) for row, word in zip(scores, words, strict=True)]
    return np.mean(losses), np.array(scores)


def test_loss_scores_and_gradients_equal_the_reference():
    batch = cavs.batch([sample(np.array(x), np.array(y)) for x, y in PAIRS])
    check(Translator(5, 4), batch, reference)


def test_greedy_decoding_writes_the_likeliest_words():
    model = Translator(5, 4)
    rng = np.random.default_rng(4)
    for parameter in model.parameters().values():
        parameter.value = rng.uniform(-1.5, 1.5, parameter.shape)
    p = {name: x.value for name, x in model.parameters().items()}
    sources = [np.array(source) for source, _ in PAIRS]
    found = greedy(cavs.Session(model, dtype=np.float64), sources, end=0, most=7)
    for source, words in zip(sources, found, strict=True):
        expected = []
        while len(expected) < 7 and (not expected or expected[-1] != 0):
            expected.append(int(np.argmax(decoded(p, source, [*expected, -1])[-1])))
        assert words == expected
    assert len({len(words) for words in found}) > 1  # one ends before the others


def test_targets_of_the_tasks():
    assert all(y == x[::-1] for x, y in draw_texts("reversal", 20, range(1, 9), 0))
    assert all(y == x for x, y in draw_texts("copy", 20, range(1, 9), 0))
    pairs = draw_texts("arithmetic", 200, range(2, 4), 0)
    assert all(int(y) == sum(map(int, x.split("+"))) for x, y in pairs)
    assert {max(map(len, x.split("+"))) for x, _ in pairs} == {2, 3}
    assert {min(map(len, x.split("+"))) for x, _ in pairs} == {1, 2, 3}
    assert encode("arithmetic", "1+09", 11).tolist() == [1, 10, 0, 9, 11]
    lengths = {len(x) for x, _ in draw_texts("copy", 200, range(3, 6), 0)}
    assert lengths == {3, 4, 5} and draw_texts("copy", 9, range(1, 5), 1) != pairs[:9]


def test_the_measure_of_sequences_counts_whole_targets():
    batch = cavs.batch([sample(np.array([1]), np.array(y)) for y in ([1, 0], [2], [1, 1, 0])])
    outputs = {"output": np.eye(3)[[1, 0, 2, 1, 2, 0]]}
    assert translator.sequence_right(outputs, batch) == (2, 3)


@pytest.mark.parametrize("task", ["reversal", "arithmetic"])
def test_the_loss_of_a_training_falls(tmp_path, capsys, task):
    words = ["--task", task, "--pairs=60", "--length=3", "--hidden-size=8", "--epochs=5"]
    words += ["--batch-size=10", "--lr=0.02", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["train", "translator", *words]) == 0
    losses = epoch_losses(tmp_path / "run")
    assert losses[-1] < 0.9 * losses[0]
    checkpoint = str(tmp_path / "run" / "checkpoint.best.safetensors")
    source = "1+22" if task == "arithmetic" else "abc"
    (tmp_path / "new").write_text(source + "\n")
    capsys.readouterr()
    assert main(["predict", checkpoint, str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.startswith(source + " ")
    for text in ("\n", "A\n", *(("+\n", "1++2\n", "7\n") if task == "arithmetic" else ())):
        (tmp_path / "new").write_text(f"{source}\n{text}")
        assert main(["predict", checkpoint, str(tmp_path / "new")]) == 1
        assert f"DataError: {tmp_path}/new:2: {text[:-1]!r} is no" in capsys.readouterr().err


def test_predictions_of_all_batches_share_a_session(monkeypatch):
    entry, made = registry.find("translator"), []
    task = entry.build(argparse.Namespace(**{**entry.options(), "hidden_size": 3}, seed=0))
    session = cavs.Session(task.model)
    monkeypatch.setattr(cavs, "Session", lambda model: made.append(model) or session)
    for text in ("ab", "c"):
        batch = cavs.batch(task.read(text))
        assert next(iter(task.predict({}, batch))).startswith(f"{text} ")
    assert made == [task.model]


@pytest.mark.parametrize("option", ["--pairs=0", "--length=0", "--task=arithmetic --length=12"])
def test_sizes_that_cannot_be_drawn_are_refused(tmp_path, capsys, option):
    words = [*option.split(), "--out", str(tmp_path / "run")]
    assert main(["train", "translator", *words]) == 1
    assert "hint: choose at least 1" in capsys.readouterr().err
