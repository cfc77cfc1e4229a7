"""The program that compares the tagger over words and characters with its rivals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import rival_process, tagger
from benchmarks.tagger import corpus


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

    class Kept(rival_process.RivalProcess):
        def __init__(self, *given):
            super().__init__(*given)
            started.append(self.process)

    monkeypatch.setattr(rival_process, "RivalProcess", Kept)
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
