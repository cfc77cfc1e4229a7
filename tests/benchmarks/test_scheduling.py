"""The program that compares policies of batching on word lattices."""

from __future__ import annotations

import pytest

from benchmarks import scheduling


def test_every_policy_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--hidden", "4", "--batch-size", "3", "--batches", "2", "--rounds", "1"]
    assert scheduling.main(small) == 0
    head, _, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert head.startswith("6 lattices in 2 batches; no policy needs fewer than")
    bound = int(head.split()[-2])
    columns = [[column.strip() for column in row.split("|")] for row in rows]
    found = {name: int(tasks) for _, name, tasks, *_ in columns}
    assert list(found) == ["level", "agenda", "learned"]
    assert bound <= found["learned"] <= found["level"]
