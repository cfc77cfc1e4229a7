"""``cavs launch`` and commands that ranks do not share."""

import pytest

from cavs.cli import strategy
from tests.cli.test_cli import cavs, numpy_engine, own_folder

__all__ = ["numpy_engine", "own_folder"]  # fixtures of every test here
STRATEGY = [f"strategy {action}" for action in strategy.ACTIONS]


@pytest.mark.parametrize("command", ["evaluate", "predict", "info", *STRATEGY])
def test_launch_refuses_commands_of_one_process(command, capsys):
    assert cavs("launch", "-n", "2", *command.split(), "run") == 1
    err = capsys.readouterr().err
    assert f"cavs {command} runs in one process: 2 ranks would each do all of it" in err
    assert f"hint: run cavs {command} without launch" in err


@pytest.mark.parametrize("command", ["evaluate", "predict", "launch", *STRATEGY])
def test_commands_of_one_process_refuse_ranks_of_mpirun(command, monkeypatch, capsys):
    rest = ("-n", "2", "train", "tree-lstm") if command == "launch" else ("run",)
    rest = ("tree-lstm",) if command in STRATEGY else rest
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    assert cavs(*command.split(), *rest) == 1
    err = capsys.readouterr().err
    assert f"cavs {command} runs in one process: 3 ranks of mpirun would each do all of it" in err
    assert f"hint: run cavs {command} without mpirun" in err


@pytest.mark.parametrize(
    ("where", "command"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "3"}, ("info",)),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, ("evaluate", "run")),
        ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.12.0"}, ("evaluate", "run")),
    ],
)
def test_one_rank_and_read_only_commands_are_allowed(where, command, monkeypatch, capsys):
    for name, value in where.items():
        monkeypatch.setenv(name, value)
    cavs(*command)
    assert "in one process" not in capsys.readouterr().err
