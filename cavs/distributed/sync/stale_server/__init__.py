"""Servers that apply gradients as they come: bounded staleness and asynchronous training."""

from cavs.distributed.sync.stale_server.owner import Group, Layout, Unit, layout_of
from cavs.distributed.sync.stale_server.push import StalePush
from cavs.distributed.sync.stale_server.servers import StaleServers

__all__ = ["Group", "Layout", "StalePush", "StaleServers", "Unit", "layout_of"]
