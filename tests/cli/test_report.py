"""``cavs report``: of runs of ``cavs train``, resumed ones, and errors."""

from pathlib import Path

import pytest

from tests.cli.test_cli import RUN, cavs, numpy_engine, own_folder, train

__all__ = ["numpy_engine", "own_folder"]  # fixtures of every test here


def test_the_report_of_a_run_and_of_the_resumed_one(capsys):
    assert train() == 0
    capsys.readouterr()
    assert cavs("report", RUN) == 0
    assert capsys.readouterr().out == f"written: {RUN}/report.html\n"
    first = (RUN / "report.html").read_text()
    assert "<dt>epochs</dt><dd>3 of 3</dd>" in first and "resumed" not in first.split("<dl>")[2:]
    assert train("--resume", "--epochs", "5") == 0
    assert cavs("report", RUN / "log.jsonl", "--out", "new.html", "--over", "time") == 0
    again = Path("new.html").read_text()
    assert "<dt>epochs</dt><dd>5 of 5</dd>" in again and "resumed after step 24" in again
    for name in ("Loss", "Metrics on dev", "Throughput"):
        assert f'aria-label="{name}"' in again
    assert 'class="mark checkpoint"' in again


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none",), "DataError: none: no such file"),
        ((".",), "there is no log.jsonl in it"),
        (("/dev/zero",), "DataError: /dev/zero is no regular file"),
        (("empty.jsonl",), "DataError: empty.jsonl is empty"),
        (("toy.py",), "toy.py:1: 'import cavs' is no record of a log"),
        (("empty.jsonl", "--out", "a.pdf"), "ConfigError: a report cannot be written to a.pdf"),
    ],
)
def test_errors_of_reports(words, message, capsys):
    Path("empty.jsonl").touch()
    Path("toy.py").write_text("import cavs\n")
    assert cavs("report", *words) == 1
    told = capsys.readouterr().err
    assert message in told and "hint: " in told


def test_a_report_is_written_by_one_process(capsys):
    assert cavs("launch", "-n", "2", "report", ".") == 1
    assert "cavs report runs in one process" in capsys.readouterr().err
