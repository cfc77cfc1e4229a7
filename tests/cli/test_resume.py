"""``cavs train --resume`` of a run of another model, of a moved file, or without its best."""

from pathlib import Path

import pytest

from tests.cli.test_cli import BEST, TOY, cavs, numpy_engine, own_folder, train

__all__ = ["numpy_engine", "own_folder"]  # fixtures of every test here


def test_resume_of_a_run_of_another_model_is_refused(capsys):
    assert train("--epochs", "1", "--out", "mine") == 0
    kept = {path: path.read_bytes() for path in Path("mine").iterdir()}
    capsys.readouterr()
    assert cavs("train", "tree-fc", "--out", "mine", "--resume", "--quiet") == 1
    told = capsys.readouterr().err
    assert f"ConfigError: --resume with tree-fc, but the run in mine is of {TOY}\n" in told
    assert f"hint: resume it by cavs train {TOY}, or pass the --out of a run of tree-fc" in told
    assert {path: path.read_bytes() for path in Path("mine").iterdir()} == kept


@pytest.mark.parametrize("moved", [True, False])
def test_resume_by_a_file_that_was_moved_or_copied(moved):
    first, last = Path("first.py"), Path("last.py")
    first.write_text(Path(TOY).read_text())
    assert cavs("train", first, "--quiet", "--epochs", "1", "--out", "mine") == 0
    last.write_text(first.read_text())
    if moved:
        first.unlink()
    assert cavs("train", last, "--quiet", "--epochs", "2", "--out", "mine", "--resume") == 0


def test_resume_without_the_best_names_a_cure_of_the_command_line(capsys):
    assert train("--epochs", "1") == 0
    BEST.unlink()
    assert train("--resume", "--epochs", "2") == 1
    told = capsys.readouterr().err
    assert "CheckpointError: restore_best=True" in told
    assert "on the command line --overwrite starts a new run" in told
    assert train("--overwrite", "--epochs", "1") == 0
