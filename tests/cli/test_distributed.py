"""Errors of one of many ranks: which end the others, and which are printed."""

import sys
from types import SimpleNamespace

import pytest

from cavs.cli.distributed import one_voice
from cavs.errors import ConfigError


@pytest.fixture
def ranks(monkeypatch):
    """Return a function that makes a rank which records why it ends the others."""
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # restored after the test
    ended = []
    return lambda rank, size=2: (SimpleNamespace(rank=rank, size=size, abort=ended.append), ended)


def failed(rank, error):
    with pytest.raises(type(error)) as caught, one_voice(rank):
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConfigError("no folder", hint="pass another"), "ConfigError: no folder"),
        (SystemExit("no folder"), "SystemExit: no folder"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
    ],
)
def test_an_error_of_one_rank_ends_the_others_with_its_text(error, told, ranks):
    rank, ended = ranks(0)
    failed(rank, error)
    assert len(ended) == 1 and ended[0].startswith(told)


@pytest.mark.parametrize("status", [0, None])
def test_a_rank_that_exits_without_an_error_leaves_the_others_alone(status, ranks):
    rank, ended = ranks(1)
    errors = sys.stderr
    failed(rank, SystemExit(status))
    assert ended == [] and sys.stderr is errors


def test_an_interrupt_with_a_text_was_agreed_on_before(ranks):
    rank, ended = ranks(0)
    failed(rank, KeyboardInterrupt("stopped after step 3"))
    assert ended == []


def test_an_error_on_one_process_ends_no_other(ranks):
    rank, ended = ranks(0, size=1)
    failed(rank, ConfigError("no folder", hint="pass another"))
    assert ended == []


def test_only_the_first_rank_prints_an_error_that_all_have(ranks, capsys):
    first, ended = ranks(0)
    error = ConfigError("no folder", hint="pass another")
    error.agreed = True
    failed(first, error)
    print("from the first", file=sys.stderr)
    failed(ranks(1)[0], error)
    print("from the second", file=sys.stderr)
    sys.stderr.close()
    assert ended == [] and capsys.readouterr().err == "from the first\n"
