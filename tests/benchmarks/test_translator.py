"""The translator with attention equals one in NumPy that runs word by word."""

from __future__ import annotations

import json

import numpy as np
import pytest

import cavs
from benchmarks import translator
from benchmarks.translator import LENGTHS, Translator, drawn, sample

WORDS, HIDDEN = 7, 5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(z, c):
    """Return h and c of an LSTM whose gates are ``z``."""
    i, f, o, u = np.split(z, 4)
    c = sigmoid(i) * np.tanh(u) + sigmoid(f) * c
    return sigmoid(o) * np.tanh(c), c


def losses(p, pair):
    """Return the cross entropy at each word of the target, in float64."""
    h = c = np.zeros(HIDDEN)
    source = []
    for x in p["word.weight"][pair.source]:
        h, c = step(x @ p["encode.W"] + h @ p["encode.U"] + p["encode.b"], c)
        source.append(h)
    keys, found = np.array(source), []
    for before, word in zip(pair.before, pair.target, strict=True):
        x = p["after.weight"][before] if before >= 0 else np.zeros(HIDDEN)
        weight = np.exp(keys @ h) / np.exp(keys @ h).sum()
        read = weight @ keys
        own = {n: p[f"decode.{n}"] for n in ("W", "R", "U", "b")}
        h, c = step(x @ own["W"] + read @ own["R"] + h @ own["U"] + own["b"], c)
        logits = np.concatenate([h, read]) @ p["output.weight"] + p["output.bias"]
        found.append(np.log(np.exp(logits).sum()) - logits[word])
    return found


def test_loss_equals_the_reference_and_falls():
    pairs = drawn(3, WORDS)
    model = Translator(WORDS, HIDDEN)
    model.initialize(0)
    session = cavs.Session(model, dtype=np.float64)
    batch = cavs.batch([sample(pair) for pair in pairs])
    p = {name: x.value.astype(float) for name, x in model.parameters().items()}
    before = session.evaluate(batch).loss
    expected = np.mean([x for pair in pairs for x in losses(p, pair)])
    assert before == pytest.approx(expected, rel=1e-12)
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.5), session=session)
    for _ in range(5):
        trainer.step(batch)
    assert session.evaluate(batch).loss < before


def test_lengths_and_words_are_drawn_from_their_whole_ranges():
    pairs = drawn(2000, 3)
    lengths = {len(x) for pair in pairs for x in (pair.source, pair.target)}
    assert lengths == set(range(LENGTHS[0], LENGTHS[1] + 1))
    assert set(np.concatenate([pair.target for pair in pairs])) == {0, 1, 2}
    assert pairs[0].before.tolist() == [-1, *pairs[0].target[:-1]]


@pytest.mark.parametrize(("least", "status"), [(0.0, 0), (1e9, 1)])
def test_the_program_compares_losses_and_writes_ratios(
    tmp_path, monkeypatch, capsys, least, status
):
    pytest.importorskip("torch")
    monkeypatch.setattr(translator, "LEAST", {"padded": least})
    out = tmp_path / "out.json"
    small = ["--rounds", "1", "--batches", "1", "--batch-size", "3", "--threads", "1"]
    small += ["--hidden", "4", "6", "--vocabulary", "9", "--out", str(out)]
    assert translator.main(small) == status
    shown = capsys.readouterr().out
    record = json.loads(out.read_text())
    assert record["text"].strip() == shown.strip()
    (result,) = record["results"]
    assert [case["hidden"] for case in result["cases"]] == [4, 6]
    for case in result["cases"]:
        assert list(case["seconds"]) == ["cavs", "padded"]
        assert case["ratios"]["padded"]["rounds"] == 1
    assert "h 6: time of padded over ours" in shown and shown.count("NO") == 2 * status
