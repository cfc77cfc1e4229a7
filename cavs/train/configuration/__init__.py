"""Configuration stores: what the world outside of a training wants of it, in a versioned object."""

from typing import TYPE_CHECKING

from cavs.exports import on_first_use

if TYPE_CHECKING:
    from cavs.train.configuration.location import open_store
    from cavs.train.configuration.store import (
        Configuration,
        ConfigurationStore,
        FileStore,
        MemoryStore,
    )

__all__ = ["Configuration", "ConfigurationStore", "FileStore", "MemoryStore", "open_store"]

__getattr__ = on_first_use(
    globals(),
    {
        "open_store": "location",
        **dict.fromkeys(
            ("Configuration", "ConfigurationStore", "FileStore", "MemoryStore"), "store"
        ),
    },
)
