"""Configuration stores by their location: a URL or a file."""

from __future__ import annotations

import os

from cavs.errors import ConfigError
from cavs.train.configuration.names import STORE, TOKEN
from cavs.train.configuration.store import ConfigurationStore, FileStore, read_token


def open_store(
    location: str | None = None, token_file: str | os.PathLike[str] | None = None
) -> ConfigurationStore:
    """Return the store at `location`: ``http://HOST:PORT``, ``https://...``, or a file.

    location: by default that of the environment, which ``cavs launch --config-store`` sets.
    token_file: a file with the token of an HTTP store; by default ``CAVS_CONFIG_TOKEN`` has it.
    Raises `ConfigError` if there is no location or token; nothing is read yet.
    """
    location = location or os.environ.get(STORE)
    if not location:
        raise ConfigError(
            "no configuration store is named",
            hint="pass its URL or file, or start with cavs launch --config-store",
        )
    scheme, separator, _ = location.partition("://")
    if not separator:
        return FileStore(location)
    if scheme not in ("http", "https"):
        raise ConfigError(
            f"the configuration store {location} has the scheme {scheme!r}",
            hint="it is http://HOST:PORT, https://..., or a file",
        )
    from cavs.train.configuration.client import HTTPStore  # slow to import

    token = os.environ.get(TOKEN) if token_file is None else read_token(token_file)
    if not token:
        raise ConfigError(
            f"the configuration store {location} needs a token",
            hint=f"set {TOKEN} to the one that cavs config-server has printed, or name its file",
        )
    return HTTPStore(location, token)
