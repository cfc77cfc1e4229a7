"""The command with standard streams that are closed, full, broken, or of another encoding."""

import os
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


ASCII = "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii"
ESCAPED = r"\udcc3\udcbcn"  # a C locale decodes arguments as bytes


def test_text_that_a_stream_cannot_encode_is_escaped(tmp_path):
    folder, options = tmp_path / "ün", {**os.environ, **dict(o.split("=") for o in ASCII.split())}
    folder.mkdir()
    text = TREE.read_text().replace("map(str, ", "map('ü{}'.format, ")
    (folder / "ün.py").write_text(text)

    def run(*words):
        command = [sys.executable, "-m", "cavs", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=options, capture_output=True, check=False, timeout=100
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode("ascii"), done.stderr.decode("ascii")

    train = ["train", "ün/ün.py", "--epochs", "1", "--limit", "8", "--data", "ün"]
    shown, said = run(*train, "--out", "ün/run")
    assert f"saved {ESCAPED}/run/checkpoint.best.safetensors" in shown
    assert f"{ESCAPED}/{ESCAPED}.py: " in said
    assert (
        f"{ESCAPED}/run/checkpoint.safetensors" in run("info", "ün/run/checkpoint.safetensors")[0]
    )
    shown, _ = run("predict", "ün/run/checkpoint.safetensors", "--split", "dev")
    assert shown.startswith(r"\xfc")
    shown, _ = run("explain", "ün/ün.py", "--draw", "graph", "--out", "ün/graph.dot")
    assert shown == f"written: {ESCAPED}/graph.dot\n"
    run("strategy", "show", "ün/ün.py", "--strategy", "PS", "--out", "ün/strategy.json")
    shown, _ = run("strategy", "check", "ün/ün.py", "--strategy", "ün/strategy.json")
    assert shown.startswith(f"{ESCAPED}/strategy.json fits")
