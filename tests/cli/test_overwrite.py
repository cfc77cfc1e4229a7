"""``--overwrite`` keeps the old run until the new one starts."""

import os
from pathlib import Path

from cavs.cli import main

TOY = str(Path(__file__).with_name("tree_toy.py"))


def test_overwriting_keeps_the_old_run_until_the_new_one_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = ["train", TOY, "--quiet", "--epochs", "1", "--out", "run"]
    assert main(run) == 0
    kept = {path: path.read_bytes() for path in Path("run").iterdir()}
    assert main([*run, "--overwrite", "--data", "nowhere", "--lr", "nan"]) == 1
    assert main([*run, "--overwrite", "--max-norm", "-1"]) == 1
    assert {path: path.read_bytes() for path in Path("run").iterdir()} == kept
    assert main([*run, "--overwrite", "--seed", "5"]) == 0
    assert (
        Path("run/checkpoint.safetensors").read_bytes() != kept[Path("run/checkpoint.safetensors")]
    )


def test_overwriting_a_run_that_cannot_be_removed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    os.makedirs("run/checkpoint.best.safetensors")
    assert main(["train", TOY, "--quiet", "--out", "run", "--overwrite"]) == 1
    assert "ConfigError: cannot replace run/checkpoint.best.safetensors" in capsys.readouterr().err
    os.makedirs("run/checkpoint.safetensors")
    assert main(["train", TOY, "--quiet", "--out", "run", "--overwrite"]) == 1
    assert "cannot write the checkpoint run/checkpoint.safetensors" in capsys.readouterr().err
