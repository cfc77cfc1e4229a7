"""The tagger over words and characters equals one in NumPy that runs character by character."""

from __future__ import annotations

import json

import numpy as np
import pytest

import cavs
from benchmarks import tagger
from benchmarks.tagger import Corpus, Sentence, Tagger, corpus, sample


def sentence(words, tags, chars):
    spelt = [np.array(c, "i4") for c in chars]
    return Sentence(np.array(words, "i4"), np.array(tags, "i4"), spelt)


SENTENCES = [
    sentence([0, 1, 2], [3, -1, 0], [[0, 1], [2], [1, 3, 2]]),
    sentence([2], [16], [[0]]),
]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def states(p, name, rows):
    """Return h of an LSTM at every row, in float64."""
    w, u, b = (p[f"{name}.{key}"] for key in "WUb")
    h = c = np.zeros(len(u))
    found = []
    for x in rows:
        i, f, o, new = np.split(x @ w + h @ u + b, 4)
        c = sigmoid(i) * np.tanh(new) + sigmoid(f) * c
        h = sigmoid(o) * np.tanh(c)
        found.append(h)
    return found


def loss_of(p, sentences):
    """Return the mean cross entropy over the words that have a tag."""
    losses = []
    for s in sentences:
        rows = []
        for word, spelt in zip(s.words, s.chars, strict=True):
            c = list(p["char.weight"][spelt])
            ends = states(p, "forth", c)[-1], states(p, "back", c[::-1])[-1]
            rows.append(np.concatenate([p["word.weight"][word], *ends]))
        up, down = states(p, "tag.forth", rows), states(p, "tag.back", rows[::-1])[::-1]
        for tag, *both in zip(s.tags, up, down, strict=True):
            logits = np.concatenate(both) @ p["output.weight"] + p["output.bias"]
            if tag >= 0:
                losses.append(np.log(np.exp(logits).sum()) - logits[tag])
    return np.mean(losses)


def test_loss_equals_the_reference_and_falls():
    model = Tagger(Corpus(SENTENCES, 3, 4), 6)
    model.initialize(0)
    session = cavs.Session(model, dtype=np.float64)
    batch = cavs.batch([sample(s) for s in SENTENCES])
    p = {name: x.value.astype(float) for name, x in model.parameters().items()}
    before = session.evaluate(batch).loss
    assert before == pytest.approx(loss_of(p, SENTENCES), rel=1e-12)
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.5), session=session)
    for _ in range(5):
        trainer.step(batch)
    assert session.evaluate(batch).loss < before


def test_corpus_numbers_words_tags_and_characters(treebank):
    found = corpus(treebank)
    assert (len(found.sentences), found.num_words, found.num_chars) == (2, 2, 2)
    first = found.sentences[0]
    assert first.words.tolist() == [0, 1, 0] and first.tags[2] == -1
    assert [c.tolist() for c in first.chars] == [[0, 1], [1, 0], [0, 1]]


SMALL = ["--rounds", "1", "--batches", "1", "--batch-size", "2", "--threads", "1"]


@pytest.mark.parametrize(("least", "status", "more"), [(0.0, 0, ["--separate"]), (1e9, 1, [])])
def test_the_program_compares_losses_and_writes_ratios(
    treebank, tmp_path, monkeypatch, capsys, least, status, more
):
    pytest.importorskip("torch")
    monkeypatch.delenv(tagger.DYNET, raising=False)
    monkeypatch.setattr(tagger, "LEAST", {"dynet": least, "packed": least})
    out = tmp_path / "out.json"
    own = ["cavs", *([tagger.SEPARATE] if more else []), "packed"]
    more = [*more, "--hidden", "4", "6", "--data", treebank, "--out", str(out)]
    assert tagger.main([*SMALL, *more]) == status
    shown = capsys.readouterr().out
    record = json.loads(out.read_text())
    assert record["text"].strip() == shown.strip() and "h of a direction" in shown
    (result,) = record["results"]
    assert [case["hidden"] for case in result["cases"]] == [4, 6]
    for case in result["cases"]:
        assert case["words"] == 6 and list(case["seconds"]) == own
        assert case["ratios"]["cavs"]["median"] == 1.0 and case["ratios"]["packed"]["rounds"] == 1
    assert "h 6: time of packed over ours" in shown and "time of cavs" not in shown
    assert shown.count("NO") == 2 * status


def test_the_process_of_dynet_ends_with_its_measurement(treebank, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nwhile read line; do echo words; echo DONE 0.5 1.0; done\n")
    python.chmod(0o755)
    monkeypatch.setenv(tagger.DYNET, str(python))
    monkeypatch.setattr(tagger, "TOLERANCE", np.inf)
    started = []

    class Kept(tagger.RivalProcess):
        def __init__(self, *given):
            super().__init__(*given)
            started.append(self.process)

    monkeypatch.setattr(tagger, "RivalProcess", Kept)
    out = tmp_path / "out.json"
    tagger.main([*SMALL, "--hidden", "4", "6", "--data", treebank, "--out", str(out)])
    assert [process.returncode for process in started] == [0, 0]
    for case in json.loads(out.read_text())["results"][0]["cases"]:
        assert list(case["seconds"]) == ["cavs", "dynet", "packed"]
        assert case["seconds"]["dynet"]["median"] == 0.5


def test_the_program_needs_torch(monkeypatch, capsys):
    monkeypatch.setattr(tagger, "find_spec", lambda name: None)
    assert tagger.main(["--data", "none"]) == 2
    assert "needs PyTorch" in capsys.readouterr().err
