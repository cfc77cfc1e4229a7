"""Servers that apply gradients as they come: bounded staleness and asynchronous training."""

from cavs.distributed.synchronisers.stale.layout import Group, Layout, Unit, layout_of
from cavs.distributed.synchronisers.stale.push import StalePush
from cavs.distributed.synchronisers.stale.servers import StaleServers

__all__ = ["Group", "Layout", "StalePush", "StaleServers", "Unit", "layout_of"]
