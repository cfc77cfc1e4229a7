"""Configuration stores: compare-and-set, invalid content, several writers."""

import errno
import fcntl
import json
import os
import threading

import pytest

from cavs.errors import ConfigError
from cavs.train.configuration import FileStore, MemoryStore, location, open_store, store
from cavs.train.configuration.client import HTTPStore
from cavs.train.configuration.server import ConfigurationServer

TOKEN = "a-word"


@pytest.fixture(params=["memory", "file", "http"])
def any_store(request, tmp_path):
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "file":
        yield FileStore(tmp_path / "cluster.json")
    else:
        with ConfigurationServer(MemoryStore(), TOKEN) as server:
            yield HTTPStore(server.url, TOKEN)


def test_a_write_needs_the_version_that_it_is_based_on(any_store):
    assert any_store.read() == (0, {})
    assert any_store.write({"size": 4}, 0)
    assert any_store.read() == (1, {"size": 4})
    assert not any_store.write({"size": 5}, 0)
    assert any_store.write({"size": 2, "hosts": {"a": [1, "ü", None, 0.5]}}, 1)
    assert not any_store.write({"size": 5}, 1) and not any_store.write({"size": 5}, 3)
    assert any_store.read() == (2, {"size": 2, "hosts": {"a": [1, "ü", None, 0.5]}})


def test_of_writers_of_one_version_one_succeeds(any_store):
    wins, threads = [0] * 4, []

    def write(writer):
        while sum(wins) < 20:
            version, value = any_store.read()
            wins[writer] += any_store.write({"count": value.get("count", 0) + 1}, version)

    for writer in range(4):
        threads.append(threading.Thread(target=write, args=(writer,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    version, value = any_store.read()
    assert version == value["count"] == sum(wins)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"size": 0}, "size is 0, but must be a whole number of at least 1"),
        ({"size": "4"}, "size is '4'"),
        ({"x": float("nan")}, "is no JSON object"),
        ({"x": object()}, "is no JSON object"),
        ({"x": "a" * store.LARGEST}, "but a store takes 65536"),
    ],
)
def test_values_that_no_store_takes(any_store, value, message):
    with pytest.raises(ConfigError, match=message):
        any_store.write(value, 0)
    assert any_store.read() == (0, {})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"4",
        b"{",
        b"\xff\xfe",
        b'{"size": 4}',
        b'{"version": 1, "value": 4}',
        b'{"version": -1, "value": {}}',
        b'{"version": true, "value": {}}',
        b'{"version": 1, "value": {"size": 0}}',
        b'{"version": 1, "value": {"x": NaN}}',
        b'{"version": 1, "value": {"x": 1e999}}',
        b"[" * 50000,
        b" " * (store.LARGEST + 1),
    ],
)
def test_a_file_with_other_content_is_an_error(tmp_path, content):
    path = tmp_path / "cluster.json"
    path.write_bytes(content)
    for call in (FileStore(path).read, lambda: FileStore(path).write({"size": 2}, 1)):
        with pytest.raises(ConfigError, match=r"has an invalid configuration") as caught:
            call()
        assert str(path) in str(caught.value) and '{"size": 4}' in caught.value.hint
    assert path.read_bytes() == content


def test_a_file_is_replaced_and_nothing_is_left_next_to_it(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"version": 7, "value": {"size": 3}}))
    with path.open() as before:
        assert FileStore(path).write({"size": 4}, 7)
        assert json.load(before)["version"] == 7  # a reader keeps the file that it has opened
    assert FileStore(path).read() == (8, {"size": 4})
    assert sorted(os.listdir(tmp_path)) == [".cluster.json.lock", "cluster.json"]


def test_a_file_that_cannot_be_used_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*: Is a directory"):
        FileStore(tmp_path).read()
    with pytest.raises(ConfigError, match=r"cannot write the configuration .*: No such file"):
        FileStore(tmp_path / "none" / "a").write({}, 0)
    monkeypatch.setattr(store, "_PATIENCE", 0.1)
    with (tmp_path / ".a.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=r"a.lock is locked for more than 0.1 s"):
            FileStore(tmp_path / "a").write({}, 0)


def test_a_file_system_without_locks_is_an_error(tmp_path, monkeypatch):
    def no_lock(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    path = tmp_path / "a"
    monkeypatch.setattr(fcntl, "flock", no_lock)
    with pytest.raises(ConfigError, match=rf"cannot write the configuration {path}: No lo") as told:
        FileStore(path).write({"size": 4}, 0)
    assert "on a file system with locks" in told.value.hint
    assert FileStore(path).read() == (0, {})


def test_stores_are_named_by_a_text(tmp_path, monkeypatch):
    monkeypatch.delenv(location.STORE, raising=False)
    monkeypatch.delenv(location.TOKEN, raising=False)
    for name, message in (
        (None, "no configuration store is named"),
        ("ftp://host", "has the scheme 'ftp'"),
        ("http://host:80", "needs a token"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_store(name)
    (tmp_path / "token").write_text(" word\n")
    assert isinstance(open_store("http://host:80", tmp_path / "token"), HTTPStore)
    monkeypatch.setenv(location.TOKEN, "word")
    for url in ("http://", "http://host:x", "http://host:99999", "http://h/?a=b"):
        with pytest.raises(ConfigError, match="has no valid URL"):
            open_store(url)
    monkeypatch.setenv(location.STORE, str(tmp_path / "a"))
    assert open_store().where == str(tmp_path / "a")


@pytest.mark.parametrize("text", ["", "two words", "ü", "a\nb"])
def test_a_file_without_a_token_is_an_error(tmp_path, text):
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigError, match="is no word of printable ASCII"):
        store.read_token(tmp_path / "token")
    with pytest.raises(ConfigError, match="cannot read the token in"):
        store.read_token(tmp_path / "none")
