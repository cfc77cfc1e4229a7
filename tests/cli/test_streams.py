"""The command with standard streams that are closed, full or broken."""

import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).with_name("tree_toy.py")
FULL = "cannot write to the standard output: No space left on device"


def cavs(words, folder):
    """Run in a shell, for its redirections."""
    line = f"{sys.executable} -m cavs {words}"
    return subprocess.run(
        line, shell=True, cwd=folder, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full", ">&- 2>&- <&-", ">/dev/full"])
def test_a_training_needs_no_stream(streams, tmp_path):
    done = cavs(f"train {TREE} --epochs 1 --limit 8 --out run {streams}", tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert ("saved run/checkpoint.best.safetensors" in done.stdout) == streams.startswith("2")
    assert (FULL in done.stderr) == (streams == ">/dev/full")


@pytest.mark.parametrize(
    ("words", "status", "err"),
    [
        ("info >&-", 0, ""),
        ("info >/dev/full", 1, f"cavs: {FULL}\n"),
        ("info --help >/dev/full", 1, f"cavs: {FULL}\n"),
        ("info nothing 2>/dev/full", 1, ""),
        ("info | head -c 1", 0, ""),
    ],
)
def test_broken_streams_of_other_commands(words, status, err, tmp_path):
    done = cavs(words, tmp_path)
    assert (done.returncode, done.stderr) == (status, err)


def test_programs_that_a_command_starts_have_streams(tmp_path):
    whole = "import sys; sys.exit(None in (sys.stdin, sys.stdout, sys.stderr))"
    code = "import subprocess, sys; from cavs.cli import streams; streams.prepare(); "
    code += f"sys.exit(subprocess.run([sys.executable, '-c', {whole!r}]).returncode)"
    line = f'{sys.executable} -c "{code}" <&- >&- 2>&-'
    assert subprocess.run(line, shell=True, cwd=tmp_path, check=False).returncode == 0
