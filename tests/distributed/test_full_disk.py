"""A full disk on rank 0 is an error on all ranks, and existing files stay intact."""

import os
import shutil
import subprocess
import sys

import pytest

from cavs.train.checkpoint import read_checkpoint
from tests.distributed.mpirun import ROOT, needs_mpi
from tests.distributed.test_train_command import TOY, Running, cavs_command
from tests.patience import patience

# A file system that is full after the first checkpoint, in a namespace where any user may mount
# one. It ends with its last process, so its contents are copied out.
SCRIPT = """
mount -t tmpfs -o size=1m none "$DISK" || exit 77
(while [ ! -e "$DISK/run/checkpoint.safetensors" ]; do sleep 0.02; done
 cat /dev/zero > "$DISK/filler" 2> /dev/null) &
"$@"
status=$?
wait
cp "$DISK/run/checkpoint.safetensors" "$KEPT"
find "$DISK/run" -name ".*" > "$KEPT/hidden"
exit $status
"""


def has_namespaces():
    unshare = shutil.which("unshare")
    return unshare is not None and not subprocess.call(
        [unshare, "-rm", "true"], stderr=subprocess.DEVNULL
    )


@pytest.mark.skipif(not has_namespaces(), reason="no namespaces for users")
class TestFullDisk:
    pytestmark = needs_mpi

    def test_a_checkpoint_that_does_not_fit_keeps_the_old_one(self, tmp_path):
        disk, kept = tmp_path / "disk", tmp_path / "kept"
        disk.mkdir()
        kept.mkdir()
        train = ["train", TOY, "--out", str(disk / "run"), "--epochs", "1000", "--quiet"]
        command = [sys.executable, "-m", "cavs.cli", "launch", "-n", "2", *train]
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", SCRIPT, "sh", *command],
            env={**os.environ, "DISK": str(disk), "KEPT": str(kept)},
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            timeout=patience(60),
        )
        assert done.returncode == 1, done.stderr
        found = f"cannot write the checkpoint {disk}/run/checkpoint"
        assert done.stderr.count("CheckpointError") == done.stderr.count(found) == 1
        assert ": No space left on device\n  hint: free some space" in done.stderr
        assert "Traceback" not in done.stderr and "signal" not in done.stderr
        assert read_checkpoint(kept / "checkpoint.safetensors").progress["step"] >= 1
        assert (kept / "hidden").read_text() == ""  # no partial checkpoint remains


class TestLimits:
    pytestmark = needs_mpi

    def test_each_rank_quotes_the_error_of_rank_0(self, tmp_path):
        """The limit on file sizes applies to rank 0 only: the others quote it."""
        run = Running(tmp_path, "no room", "--epochs", 1000)
        status, errors = run.end()
        assert status == 1
        assert errors.count("CheckpointError: cannot write the checkpoint") == 1
        assert ": File too large\n  hint: free some space" in errors
        stored = read_checkpoint(run.out / "checkpoint.safetensors")
        assert stored.progress["step"] == 5
        assert sorted(f.name for f in run.out.iterdir() if f.name.startswith(".")) == []
        for rank in (1, 2):
            heard = (tmp_path / f"heard{rank}").read_text()
            assert heard.startswith("another rank failed\n  rank 0: CheckpointError: cannot write")

    def test_a_log_that_does_not_fit_is_only_a_warning(self, tmp_path):
        out = tmp_path / "run"
        out.mkdir()
        (out / "log.jsonl").symlink_to("/dev/full")
        process = cavs_command("launch", "-n", 2, "train", TOY, "--out", out, "--quiet")
        _, errors = process.communicate(timeout=patience(60))
        assert process.returncode == 0, errors
        assert errors.count("cannot append to the log") == 2  # for the options, and in `fit`
        assert "No space left on device; training goes on" in errors
        assert read_checkpoint(out / "checkpoint.safetensors").progress["step"] == 10
