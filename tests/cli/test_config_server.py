"""``cavs config-server``, and ``cavs launch --config-store`` before any rank starts."""

import signal
import subprocess
import sys

import pytest

from cavs.errors import CommunicationError
from cavs.train.configuration import FileStore, MemoryStore, location
from cavs.train.configuration.client import HTTPStore
from cavs.train.configuration.server import ConfigurationServer
from tests.cli.test_cli import cavs, numpy_engine, own_folder
from tests.patience import patience

__all__ = ["numpy_engine", "own_folder"]  # fixtures of every test here
LAUNCH = ("launch", "-n", "2", "--config-store")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_serves_until_it_is_told_to_stop(number, tmp_path):
    path = tmp_path / "cluster.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "cavs", "config-server", "--store", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = process.stdout.readline().split()[-1]
        token = process.stdout.readline().strip().removeprefix(f"export {location.TOKEN}=")
        assert url.startswith("http://127.0.0.1:") and len(token) > 20
        client = HTTPStore(url, token)
        assert client.write({"size": 4}, 0) and FileStore(path).read() == (1, {"size": 4})
        process.send_signal(number)
        assert process.communicate(timeout=patience(20)) == ("", "")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
    with pytest.raises(CommunicationError):
        client.read()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--port", "70000"), "'70000' is not a whole number from 0 to 65535"),
        (("--host", "999.1.1.1"), "cannot listen on 999.1.1.1, port 0"),
        (("--token-file", "none"), "cannot read the token in none: No such file"),
        (("--token-file", "empty"), "the token of empty is no word"),
        (("--store", "broken"), "broken has an invalid configuration"),
    ],
)
def test_options_that_cannot_be_used(words, message, tmp_path, capsys):
    (tmp_path / "empty").touch()
    (tmp_path / "broken").write_text("{")
    try:
        status = cavs("config-server", *words)
    except SystemExit as usage:
        status = usage.code
    assert status in (1, 2) and message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "warns"),
    [
        ("localhost", False),
        ("127.0.0.2", False),
        ("::1", False),
        ("0.0.0.0", True),
        ("head-of-cluster", True),
    ],
)
def test_an_address_that_others_reach_is_warned_of(host, warns, tmp_path, capsys, monkeypatch):
    class Served:
        def __init__(self, store, token, host, port):
            self.url = f"http://{host}:{port} with the token {token}"

        def serve(self):
            raise KeyboardInterrupt

    monkeypatch.setattr("cavs.train.configuration.server.ConfigurationServer", Served)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    (tmp_path / "token").write_text("a-word\n")
    assert cavs("config-server", "--host", host, "--port", 9, "--token-file", "token") == 0
    out, err = capsys.readouterr()
    assert out == f"configuration store at http://{host}:9 with the token a-word\n"
    told = f"cavs: {host} is reachable from other machines, and the token travels unencrypted: use"
    assert err.startswith(told) if warns else err == ""


def test_launch_needs_a_store_that_answers(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv(location.TOKEN, raising=False)
    (tmp_path / "token").write_text("a-word")
    (tmp_path / "broken").write_text("{")
    with ConfigurationServer(MemoryStore(), "another") as server:
        url = server.url
        assert cavs(*LAUNCH, url, "--config-token-file", "token", "train", "tree-lstm") == 1
        assert "refuses the token" in capsys.readouterr().err
    for words, message in (
        ((url, "--config-token-file", "token"), f"{url} does not answer: Connection refused"),
        ((url,), "needs a token"),
        (("broken",), "broken has an invalid configuration"),
    ):
        assert cavs(*LAUNCH, *words, "train", "tree-lstm") == 1
        assert message in capsys.readouterr().err
    words = ("launch", "-n", "2", "--config-token-file", "token", "train", "tree-lstm")
    assert cavs(*words) == 1
    assert "--config-token-file without --config-store" in capsys.readouterr().err


def test_launch_passes_the_store_to_the_ranks(tmp_path, monkeypatch):
    passed = []
    monkeypatch.setattr(
        "cavs.distributed.launch.launcher.launch", lambda *a, **o: passed.append(o) or 0
    )
    monkeypatch.delenv(location.TOKEN, raising=False)
    token = tmp_path / "token"
    token.write_text("a-word\n")
    assert cavs(*LAUNCH, "cluster.json", "train", "tree-lstm") == 0
    assert passed[0]["environment"] == {location.STORE: str(tmp_path / "cluster.json")}
    with ConfigurationServer(MemoryStore(), "a-word") as server:
        assert cavs(*LAUNCH, server.url, "--config-token-file", "token", "train", "x") == 0
        assert passed[1]["environment"] == {location.STORE: server.url, location.TOKEN: "a-word"}
