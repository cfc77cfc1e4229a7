"""Files that are written whole, on file systems and machines that lack something."""

import errno
import os
import re
import stat
from pathlib import Path

import pytest

from cavs.data import whole_file
from cavs.data.whole_file import replace_whole
from cavs.errors import CheckpointError
from cavs.train import safetensors


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


def failing(monkeypatch, number, *, folders):
    """Let `os.fsync` of folders, or of files, fail with an error."""
    sync = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == folders:
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF])
def test_a_file_system_that_cannot_flush_names_is_enough(number, target, monkeypatch):
    failing(monkeypatch, number, folders=True)
    replace_whole(target, [b"new ", b"text"])
    assert target.read_bytes() == b"new text" and os.listdir(target.parent) == ["file"]


def test_names_that_a_broken_disk_loses_are_an_error(target, monkeypatch):
    failing(monkeypatch, errno.EIO, folders=True)
    with pytest.raises(OSError) as caught:
        replace_whole(target, [b"new"])
    assert caught.value.errno == errno.EIO
    with pytest.raises(CheckpointError, match=f"cannot write the checkpoint {target}: Input/ou"):
        safetensors.write(target, {}, {})


def test_contents_that_cannot_be_flushed_leave_the_old_file(target, monkeypatch):
    failing(monkeypatch, errno.EINVAL, folders=False)
    with pytest.raises(OSError):
        replace_whole(target, [b"new"])
    assert target.read_bytes() == b"old" and os.listdir(target.parent) == ["file"]


@pytest.mark.parametrize("known", [True, False])
def test_a_temporary_file_names_the_machine_where_the_system_tells_it(known, target, monkeypatch):
    seen = os.stat

    def hidden(path, *arguments, **options):
        if not known and os.fspath(path) == "/proc/self/ns/pid":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return seen(path, *arguments, **options)

    names = []

    def parts():
        names.extend(set(os.listdir(target.parent)) - {"file"})
        yield b"new"

    known = known and os.path.exists("/proc/self/ns/pid")
    monkeypatch.setattr(os, "stat", hidden)
    whole_file._here.cache_clear()
    try:
        replace_whole(target, parts())
    finally:
        whole_file._here.cache_clear()
    machine = r"\.[0-9a-f]{16}" if known else ""
    (name,) = names
    assert re.fullmatch(rf"\.file\.{os.getpid()}\.[0-9a-f]{{8}}{machine}\.tmp", name)
    assert target.read_bytes() == b"new"


def test_an_old_file_of_a_writer_that_is_gone_is_removed_without_a_machine(target):
    """Files of unknown machines stay for an hour."""
    gone = 2**22 + 1  # above the largest number of a process
    old, young = (target.with_name(f".file.{gone}.0000000{i}.tmp") for i in range(2))
    other = Path(f"{target}.tmp")
    for path in (old, young, other):
        path.touch()
    os.utime(old, (0, 0))
    replace_whole(target, [b"new"])
    assert sorted(os.listdir(target.parent)) == sorted([young.name, "file", other.name])
