"""`ConfigurationServer`: serves a configuration store over HTTP, to those that have the token.

``GET /`` answers with ``{"version": V, "value": {...}}``. ``PUT /`` with such an object writes the
value if the store has version V, else the status is 409.
"""

from __future__ import annotations

import hmac
import json
import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from cavs.errors import CavsError, ConfigError
from cavs.train.configuration.store import LARGEST, Configuration, ConfigurationStore, check_token

_SECONDS = 10.0  # that a request may take, from its connection to its end
_MOST = 64  # connections at once; further ones are closed


class ConfigurationServer:
    """An HTTP server for `store`, at ``url``.

    Args:
        store: The store.
        token: The word that requests must carry, as ``Authorization: Bearer TOKEN``.
        host: The address to listen on; tokens and values travel unencrypted.
        port: The port; 0 for a free one.

    Raises `ConfigError` if it cannot listen there.
    """

    def __init__(
        self, store: ConfigurationStore, token: str, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        check_token(token, f"the server at {host}")
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._server = _Server(family, (host, port), partial(_Handler, store, token))
        except (OSError, OverflowError) as error:  # OverflowError: a port above 65535
            raise ConfigError(
                f"cannot listen on {host}, port {port}: {getattr(error, 'strerror', '') or error}",
                hint="choose another --host or --port, or port 0 for a free one",
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_address[1]}"

    def serve(self) -> None:
        """Answer requests until `close` is called on another thread, or an exception ends it."""
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """End `serve`, and listen no longer."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> ConfigurationServer:
        """Serve on a thread of its own."""
        threading.Thread(target=self.serve, daemon=True, name="configuration server").start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads, allow_reuse_address = True, True

    def __init__(self, family: int, *arguments: Any) -> None:
        self.address_family, self._free = family, threading.BoundedSemaphore(_MOST)
        super().__init__(*arguments)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._free.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # A timeout of the socket limits each operation alone: a client could send byte by byte.
        limit = threading.Timer(_SECONDS, _cut_off, (request,))
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Drop a client that has gone, or that was cut off."""


def _cut_off(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request a connection."""

    timeout = _SECONDS
    server_version, sys_version = "cavs", ""

    def __init__(self, store: ConfigurationStore, token: str, *arguments: Any) -> None:
        self._store, self._expected = store, f"Bearer {token}".encode()
        super().__init__(*arguments)  # it handles the request

    def do_GET(self) -> None:
        """Answer with the configuration."""
        if self._is_allowed():
            self._answer(self._store.read)

    def do_PUT(self) -> None:
        """Write a configuration."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._send(HTTPStatus.LENGTH_REQUIRED, "a value needs a Content-Length")
            return
        is_large = len(length) > len(str(LARGEST)) or int(length) > LARGEST
        # Read it in any case: a client that cannot send all of it never reads the answer.
        data = self.rfile.read(LARGEST if is_large else int(length))
        if not self._is_allowed():
            return
        if is_large:
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a value has {LARGEST} bytes at most")
            return
        try:
            version, value = Configuration.decode(data, "the request")
            wanted = Configuration(version + 1, value)
            wanted.encode()
        except ConfigError as error:
            self._send(HTTPStatus.BAD_REQUEST, error.what)
            return
        self._answer(lambda: wanted if self._store.write(value, version) else None)

    def _is_allowed(self) -> bool:
        """True if the request has the token and the path; otherwise it is answered."""
        found = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if not hmac.compare_digest(found, self._expected):
            self._send(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
            return False
        if self.path != "/":
            self._send(HTTPStatus.NOT_FOUND, "the only path is /")
            return False
        return True

    def _answer(self, work: Callable[[], Configuration | None]) -> None:
        """Answer with the result of `work`; None if the store has another version."""
        try:
            found = work()
        except CavsError as error:
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, error.what)
            return
        if found is None:
            self._send(HTTPStatus.CONFLICT, "others have written meanwhile; read again")
        else:
            self._send(HTTPStatus.OK, found.encode())

    def _send(self, status: HTTPStatus, content: str | bytes) -> None:
        """Answer with JSON, or with an error."""
        data = content if isinstance(content, bytes) else json.dumps({"error": content}).encode()
        self.send_response(status)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing: requests come all the time."""
