"""Options that several commands share."""

from pathlib import Path

import pytest

from cavs.cli import main

TOY = str(Path(__file__).with_name("tree_toy.py"))


@pytest.mark.parametrize("threads", ["0", "-1", "257", "many"])
@pytest.mark.parametrize("command", [["demo"], ["train", TOY], ["evaluate", "x"], ["bench", TOY]])
def test_numbers_of_threads_on_the_command_line(command, threads, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*command, "--threads", threads])
    assert stop.value.code == 2
    assert f"--threads: {threads!r} is not a whole number from 1 to 256" in capsys.readouterr().err
