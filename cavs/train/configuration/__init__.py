"""Configuration stores: what the world outside of a training wants of it, in a versioned object."""

from cavs.train.configuration.location import open_store
from cavs.train.configuration.store import (
    Configuration,
    ConfigurationStore,
    FileStore,
    MemoryStore,
)

__all__ = ["Configuration", "ConfigurationStore", "FileStore", "MemoryStore", "open_store"]
