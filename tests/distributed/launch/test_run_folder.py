"""The folder of a launch is removed, also by the next launch after a kill."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from cavs.distributed.launch import watch
from cavs.distributed.launch.watch import run_folder

KILLED = """
import os, signal, subprocess, sys
from cavs.distributed.launch.watch import run_folder
with run_folder() as (folder, kept):
    (folder / "ranks").write_text("")
    print(folder, flush=True)
    if "child" in sys.argv:
        print(subprocess.Popen(["sleep", "60"], pass_fds=(kept,)).pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Create temporary files here; no folder counts as too new to be a leftover."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(watch, "_NEW", 0.0)
    return tmp_path


def killed(*arguments):
    """Return the folder of a run that was killed, and its other output."""
    run = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    assert run.returncode == -signal.SIGKILL
    return run.stdout.split()


def test_a_folder_is_removed_with_its_run(here):
    with run_folder() as (folder, _):
        assert folder.parent == here
        (folder / "ranks").write_text("")
    assert not list(here.iterdir())


def test_leftovers_of_a_killed_run_are_removed_by_the_next(here):
    (left,) = killed()
    assert os.listdir(left) == ["ranks"]
    with run_folder() as (folder, _):
        assert list(here.iterdir()) == [folder]


def test_concurrent_runs_keep_their_folders(here):
    with run_folder() as (first, _), run_folder() as (second, _):
        assert sorted(here.iterdir()) == sorted([first, second])


def test_a_child_that_outlives_the_launcher_keeps_the_folder(here):
    output = subprocess.Popen(
        [sys.executable, "-c", KILLED, "child"], stdout=subprocess.PIPE, text=True
    )
    left, child = output.stdout.readline().strip(), int(output.stdout.readline())
    assert output.wait() == -signal.SIGKILL
    with run_folder():
        assert os.path.isdir(left)
    os.kill(child, signal.SIGKILL)
    output.stdout.read()  # to the end, when the child has ended
    output.stdout.close()
    with run_folder():
        assert not os.path.exists(left)


def test_a_new_folder_without_a_lock_stays(here, monkeypatch):
    monkeypatch.setattr(watch, "_NEW", 60.0)
    (left,) = killed()
    with run_folder():
        assert os.path.isdir(left)


def test_other_files_of_that_name_stay(here):
    file = here / "cavs-ranks-notes"
    file.write_text("mine")
    link = here / "cavs-ranks-link"
    link.symlink_to(here)
    with run_folder():
        assert file.read_text() == "mine" and link.is_symlink()
