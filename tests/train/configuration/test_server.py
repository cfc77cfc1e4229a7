"""The configuration server, and its client: tokens, limits, and what is not a server."""

import json
import socket
import threading
import time
from http.client import HTTPConnection

import pytest

from cavs.errors import CommunicationError, ConfigError
from cavs.train.configuration import FileStore, MemoryStore, server
from cavs.train.configuration.client import HTTPStore
from cavs.train.configuration.server import ConfigurationServer
from cavs.train.configuration.store import LARGEST
from tests.patience import patience

TOKEN = "a-word"
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def served():
    with ConfigurationServer(MemoryStore(), TOKEN) as running:
        yield running


def request(served, method, path="/", body=None, headers=ALLOWED):
    """Return status and answer of one request."""
    connection = HTTPConnection(served.url.removeprefix("http://"), timeout=patience(5))
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}]
)
def test_requests_without_the_token_are_refused(served, headers):
    assert request(served, "GET", headers=headers)[0] == 401
    body = json.dumps({"version": 0, "value": {"size": 4}})
    assert request(served, "PUT", body=body, headers=headers)[0] == 401
    for call in (HTTPStore(served.url, "ä".encode().hex()).read,):
        with pytest.raises(ConfigError, match="refuses the token") as caught:
            call()
        assert "cavs config-server has printed" in caught.value.hint
    assert HTTPStore(served.url, TOKEN).read() == (0, {})


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/other", None, {}, 404),
        ("PUT", "/", b"{}", {}, 400),
        ("PUT", "/", b'{"version": 0, "value": {"size": 0}}', {}, 400),
        ("PUT", "/", b" " * (LARGEST + 1), {}, 413),
        ("PUT", "/", b"", {"Content-Length": "-1"}, 411),
        ("PUT", "/", b"", {"Content-Length": "9" * 5000}, 413),
        ("PUT", "/", b'{"version": 3, "value": {"size": 2}}', {}, 409),
    ],
)
def test_invalid_requests_are_answered_with_an_error(served, method, path, body, headers, status):
    if headers.get("Content-Length", "").startswith("9"):
        body = b" " * LARGEST  # all that the server reads of it
    found, text = request(served, method, path, body, {**ALLOWED, **headers})
    assert found == status and text["error"]
    assert HTTPStore(served.url, TOKEN).read() == (0, {})


def test_a_client_that_says_nothing_is_cut_off(monkeypatch):
    monkeypatch.setattr(server, "_SECONDS", 0.3)
    with ConfigurationServer(MemoryStore(), TOKEN) as served:
        address = served.url.removeprefix("http://").split(":")
        with socket.create_connection((address[0], int(address[1]))) as slow:
            slow.settimeout(patience(5))
            slow.sendall(b"GET / HTTP/1.0\r\n")
            begun = time.monotonic()
            with pytest.raises(OSError):  # bytes that come in time do not keep it
                while time.monotonic() - begun < patience(5):
                    slow.sendall(b"A: b\r\n")
                    time.sleep(0.05)
                raise AssertionError("it is still open")
        assert HTTPStore(served.url, TOKEN).read() == (0, {})


def test_connections_are_limited(monkeypatch):
    monkeypatch.setattr(server, "_MOST", 2)
    with ConfigurationServer(MemoryStore(), TOKEN) as served:
        address = served.url.removeprefix("http://").split(":")
        idle = [socket.create_connection((address[0], int(address[1]))) for _ in range(2)]
        time.sleep(0.1)
        with pytest.raises(CommunicationError, match="does not answer"):
            HTTPStore(served.url, TOKEN).read()
        for connection in idle:
            connection.close()
        limit = time.monotonic() + patience(5)
        while True:
            try:
                assert HTTPStore(served.url, TOKEN).read() == (0, {})
                break
            except CommunicationError:
                assert time.monotonic() < limit
                time.sleep(0.02)


def test_a_server_that_is_gone_is_named():
    with ConfigurationServer(MemoryStore(), TOKEN) as served:
        client = HTTPStore(served.url, TOKEN)
        assert client.write({"size": 2}, 0)
    for call in (client.read, lambda: client.write({"size": 3}, 1)):
        with pytest.raises(CommunicationError) as caught:
            call()
        assert f"{served.url} does not answer: Connection refused" in str(caught.value)
        assert "start cavs config-server" in caught.value.hint


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"", CommunicationError, "does not answer"),
        (b"SSH-2.0-OpenSSH\r\n", CommunicationError, "does not answer"),
        (b"HTTP/1.0 200 OK\r\n\r\n<html>", ConfigError, "invalid configuration"),
        (b"HTTP/1.0 302 Found\r\nLocation: /\r\n\r\n", CommunicationError, "with status 302"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b" " * (2 * LARGEST), ConfigError, "more than 65536"),
    ],
)
def test_another_program_at_the_address_is_an_error(answer, error, message):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def once():
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=once, daemon=True)
        thread.start()
        with pytest.raises(error, match=message):
            HTTPStore(f"http://127.0.0.1:{listening.getsockname()[1]}", TOKEN).read()
        thread.join()


@pytest.mark.parametrize(
    ("status", "error", "message", "hint"),
    [
        (400, ConfigError, "refuses the value: size is 4", '{"size": 4}'),
        (413, ConfigError, "refuses the value: size is 4", '{"size": 4}'),
        (401, ConfigError, "refuses the token", "--token-file"),
        (500, ConfigError, "fails: size is 4", "which cavs config-server reads"),
        (503, CommunicationError, "answers with status 503 of HTTP: size is 4", "has printed"),
    ],
)
def test_a_write_that_is_answered_with_an_error(status, error, message, hint):
    answer = b'{"error": "size is 4"}'
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def once():
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                head = f"HTTP/1.0 {status} No\r\nContent-Length: {len(answer)}\r\n\r\n"
                connection.sendall(head.encode() + answer)

        thread = threading.Thread(target=once, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(error, match=message) as caught:
            HTTPStore(url, TOKEN).write({"size": 4}, 0)
        assert url in caught.value.what and hint in caught.value.hint
        thread.join()


def test_an_invalid_file_of_the_server_is_an_error_of_its_clients(tmp_path):
    path = tmp_path / "cluster.json"
    with ConfigurationServer(FileStore(path), TOKEN) as served:
        client = HTTPStore(served.url, TOKEN)
        assert client.write({"size": 2}, 0)
        assert FileStore(path).read() == (1, {"size": 2})
        path.write_text("{")
        with pytest.raises(ConfigError, match=r"fails: .*cluster.json has an invalid"):
            client.read()


def test_an_address_in_use_is_an_error(served):
    port = int(served.url.rpartition(":")[2])
    for number in (port, 1 << 20):
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1, port {number}"):
            ConfigurationServer(MemoryStore(), TOKEN, port=number)
