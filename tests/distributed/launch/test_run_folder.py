"""The folder of a launcher: nothing of it stays, not even of one that was killed."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from cavs.distributed.launch import run_folder as module
from cavs.distributed.launch.run_folder import run_folder

KILLED = """
import os, signal, subprocess, sys
from cavs.distributed.launch.run_folder import run_folder
with run_folder() as (folder, kept):
    (folder / "ranks").write_text("")
    print(folder, flush=True)
    if "child" in sys.argv:
        print(subprocess.Popen(["sleep", "60"], pass_fds=(kept,)).pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Temporary files are made here, and no folder is too new to be left by somebody."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(module, "_NEW", 0.0)
    return tmp_path


def killed(*arguments):
    """The folder of a run that was killed, and what else it printed."""
    run = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    assert run.returncode == -signal.SIGKILL
    return run.stdout.split()


def test_a_folder_goes_with_its_run(here):
    with run_folder() as (folder, _):
        assert folder.parent == here
        (folder / "ranks").write_text("")
    assert not list(here.iterdir())


def test_what_a_killed_run_left_goes_with_the_next_one(here):
    (left,) = killed()
    assert os.listdir(left) == ["ranks"]
    with run_folder() as (folder, _):
        assert list(here.iterdir()) == [folder]


def test_runs_side_by_side_keep_their_folders(here):
    with run_folder() as (first, _), run_folder() as (second, _):
        assert sorted(here.iterdir()) == sorted([first, second])


def test_a_folder_is_kept_by_who_outlives_the_launcher(here):
    output = subprocess.Popen(
        [sys.executable, "-c", KILLED, "child"], stdout=subprocess.PIPE, text=True
    )
    left, child = output.stdout.readline().strip(), int(output.stdout.readline())
    assert output.wait() == -signal.SIGKILL
    with run_folder():
        assert os.path.isdir(left)
    os.kill(child, signal.SIGKILL)
    output.stdout.read()  # to the end, which comes when the child is gone
    output.stdout.close()
    with run_folder():
        assert not os.path.exists(left)


def test_a_new_folder_may_not_be_locked_yet_and_stays(here, monkeypatch):
    monkeypatch.setattr(module, "_NEW", 60.0)
    (left,) = killed()
    with run_folder():
        assert os.path.isdir(left)


def test_what_others_call_so_stays(here):
    file = here / "cavs-ranks-notes"
    file.write_text("mine")
    link = here / "cavs-ranks-link"
    link.symlink_to(here)
    with run_folder():
        assert file.read_text() == "mine" and link.is_symlink()
