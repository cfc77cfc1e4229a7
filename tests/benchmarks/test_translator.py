"""The program that compares the translator with attention with its rival."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import translator
from benchmarks.translator import LENGTHS, drawn


def test_lengths_and_words_are_drawn_from_their_whole_ranges():
    pairs = drawn(2000, 3)
    lengths = {len(x) for pair in pairs for x in (pair.source, pair.target)}
    assert lengths == set(range(LENGTHS[0], LENGTHS[1] + 1))
    assert set(np.concatenate([pair.target for pair in pairs])) == {0, 1, 2}


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
