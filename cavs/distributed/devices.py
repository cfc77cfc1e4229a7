"""Which device a rank computes on."""

from __future__ import annotations

import socket
import sys

from cavs.cuda.device import Device, count_devices, open_device
from cavs.distributed.agreement import Agreement
from cavs.distributed.communicator.protocol import Communicator


def device_of_rank(device: str | Device, c: Communicator) -> str | Device:
    """What `device` means on this rank; all ranks call it.

    "cuda" is one of the GPUs of the host: they are dealt out to its ranks in turn. "cuda:1" is that
    one on every rank. DeviceError, on all ranks, if one of them cannot have it.
    """
    if device == "cpu" or isinstance(device, Device):
        return device
    told = c.share({"host": socket.gethostname(), "device": "cuda"})
    ranks = [r for r, other in enumerate(told) if other.get("host") == told[c.rank]["host"]]
    opened: Device | None = None
    failed: Exception | None = None
    try:
        place = ranks.index(c.rank)
        if device == "cuda":
            devices = max(count_devices(), 1)  # without any, opening the first says what is wrong
            device = f"cuda:{place % devices}" if devices > 1 else device
            if place == 0 and len(ranks) > devices:
                print(
                    f"cavs: {len(ranks)} ranks share {devices} GPUs of {told[c.rank]['host']}",
                    file=sys.stderr,
                    flush=True,
                )
        opened = open_device(device)
    except Exception as error:  # the other ranks must learn of it, whatever it is
        failed = error
    Agreement(c).meet("start", failed)
    assert opened is not None
    return opened
