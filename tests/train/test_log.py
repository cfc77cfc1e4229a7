"""The JSON-lines log of a run."""

import json
from pathlib import Path

import numpy as np
import pytest

from cavs.errors import ConfigError
from cavs.train.log import JsonLines
from tests.train.test_trainer import make, records, train_loader


def test_log_lines_are_strict_json_and_a_partial_line_is_ended(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "old"}\n{"event": "to')
    JsonLines(path).write("epoch", loss=float("nan"), values=[1, {"a": float("inf")}])
    lines = path.read_text().splitlines()
    assert lines[1] == '{"event": "to'
    record = json.loads(lines[2])
    assert (record["event"], record["loss"], record["values"]) == (
        "epoch",
        "nan",
        [1, {"a": "inf"}],
    )


def test_values_that_json_lacks_are_written_as_near_ones(tmp_path):
    path = tmp_path / "log"
    values = {
        "number": np.float32(0.5),
        "count": np.int64(3),
        "array": np.array([2.5]),
        "infinite": np.float64("inf"),
        "file": Path("runs/a"),
        "set": {1},
        "none": None,
        "pair": (True, np.bool_(False)),
        "by_number": {1: "one"},
    }
    JsonLines(path).write("options", **values)
    (record,) = records(path)
    assert {name: record[name] for name in values} == {
        "number": 0.5,
        "count": 3,
        "array": 2.5,
        "infinite": "inf",
        "file": "runs/a",
        "set": "{1}",
        "none": None,
        "pair": [True, False],
        "by_number": {"1": "one"},
    }


def test_a_log_that_fails_later_warns_once(tmp_path):
    log = JsonLines(tmp_path / "logs" / "log.jsonl")
    (tmp_path / "logs" / "log.jsonl").unlink()
    (tmp_path / "logs").rmdir()
    with pytest.warns(RuntimeWarning, match="cannot append to the log") as caught:
        log.write("epoch")
        log.write("epoch")
    assert len(caught) == 1


def test_a_zero_byte_in_the_path_of_a_log_is_refused():
    with pytest.raises(ConfigError, match="cannot write the log a\0b: embedded null byte"):
        make().fit(train_loader(), epochs=1, log="a\0b", progress=False)


def test_a_line_cut_by_a_full_disk_is_ended_before_the_next(tmp_path, monkeypatch):
    path = tmp_path / "log"
    log = JsonLines(path)
    log.write("a")
    with path.open("ab") as file:
        file.write(b'{"event": "cut')
    log.write("b")
    lines = path.read_text().splitlines()
    assert lines[1] == '{"event": "cut' and json.loads(lines[2])["event"] == "b"
    path.write_text("")
    log.write("c")
    assert [r["event"] for r in records(path)] == ["c"]
