"""``cavs demo`` from end to end, on few functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from cavs.cli import demo, main
from tests.models.test_models import CODE


def test_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for i in range(40):
        (source / f"m{i}.py").write_text(CODE.format("abcdefghij"[i % 10] * (i // 10 + 1)))
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # a second time replaces the first
        assert main(["demo", "--data", str(source), "--epochs", "3"]) == 0
    done = capsys.readouterr()
    assert "epoch 3/3" in done.err  # progress
    shares = {}
    for line in done.out.splitlines():
        if line.startswith("  majority class") or line.startswith("  this model"):
            shares[line.split()[0]] = float(line.split()[-1].rstrip("%"))
    assert shares["majority"] == pytest.approx(100 / 3, abs=0.1)  # get, set and is occur alike
    assert shares["this"] > 60
    assert "train tree-lstm --data DIR" in done.out
    best = tmp_path / "runs" / "demo" / "checkpoint.best.safetensors"
    assert f"predict {best.relative_to(tmp_path)}" in done.out
    assert best.exists()


def test_the_next_commands_can_be_typed(monkeypatch, tmp_path):
    """They run in a shell in which the environment is not active."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/activate").touch()
    monkeypatch.setattr("sys.prefix", str(tmp_path / "env"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert demo.activate() == ". env/bin/activate"
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "env"))
    assert demo.activate() is None
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setattr("sys.base_prefix", str(tmp_path / "env"))
    assert demo.activate() is None
