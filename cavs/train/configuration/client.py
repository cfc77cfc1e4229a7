"""`HTTPStore`: a configuration store that `cavs config-server` serves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from cavs.errors import CavsError, CommunicationError, ConfigError
from cavs.train.configuration.store import (
    LARGEST,
    Configuration,
    ConfigurationStore,
    check_token,
)

_OK, _REFUSED, _STALE = 200, 401, 409  # statuses of HTTP
_INVALID, _BROKEN = (400, 413), 500


class HTTPStore(ConfigurationStore):
    """A store at an ``http`` or ``https`` URL, with a bearer token.

    No proxy is asked and no redirection followed, which would see the token. timeout: seconds that
    each operation of the connection may take.
    """

    def __init__(self, url: str, token: str, *, timeout: float = 5.0) -> None:
        try:
            parts = urlsplit(url)
            self._port, self._host = parts.port, parts.hostname
        except ValueError as error:
            raise _no_url(url, str(error)) from error
        if self._host is None or parts.scheme not in ("http", "https") or parts.query:
            raise _no_url(url, "there is no host")
        check_token(token, url)
        self.where, self._path, self._timeout = url, parts.path or "/", timeout
        self._connection = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def read(self) -> Configuration:
        status, data = self._request("GET")
        if status != _OK:
            raise self._unexpected(status, data)
        return Configuration.decode(data, self.where)

    def write(self, value: Mapping[str, Any], version: int) -> bool:
        status, data = self._request("PUT", Configuration(version, dict(value)).encode())
        if status not in (_OK, _STALE):
            raise self._unexpected(status, data)
        return status == _OK

    def _request(self, method: str, body: bytes | None = None) -> tuple[int, bytes]:
        assert self._host is not None
        connection = self._connection(self._host, self._port, timeout=self._timeout)
        try:
            connection.request(method, self._path, body, self._headers)
            response = connection.getresponse()
            return response.status, response.read(LARGEST + 1)
        except (OSError, HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise CommunicationError(
                f"the configuration store {self.where} does not answer: {why}",
                hint="start cavs config-server there, or correct the URL",
            ) from error
        finally:
            connection.close()

    def _unexpected(self, status: int, data: bytes) -> CavsError:
        said = _text(data)
        if status == _REFUSED:
            return ConfigError(
                f"the configuration store {self.where} refuses the token",
                hint="pass the one that cavs config-server has printed, or its --token-file",
            )
        if status in _INVALID:
            return ConfigError(
                f"the configuration store {self.where} refuses the value: {said}",
                hint='write a JSON object such as {"size": 4}',
            )
        if status == _BROKEN:
            return ConfigError(
                f"the configuration store {self.where} fails: {said}",
                hint="correct the file that it names, which cavs config-server reads",
            )
        return CommunicationError(
            f"{self.where} answers with status {status} of HTTP: {said}",
            hint="name the URL that cavs config-server has printed",
        )


def _no_url(url: str, reason: str) -> ConfigError:
    hint = "write it as http://HOST:PORT, as cavs config-server prints it"
    return ConfigError(f"the configuration store {url!r:.80} has no valid URL: {reason}", hint=hint)


def _text(data: bytes) -> str:
    """Return the error in an answer of a server, or its first characters."""
    try:
        return str(json.loads(data)["error"])[:200]
    except (ValueError, TypeError, KeyError):
        return repr(data[:60].decode(errors="replace"))
