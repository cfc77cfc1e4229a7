"""Devices of ranks: which one each computes on, which sum among themselves, their executors."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from cavs.config import require
from cavs.cuda.device import Device, count_devices, open_device
from cavs.distributed.comm.agreement import Agreement
from cavs.distributed.comm.interfaces import Communicator, LostPeerError
from cavs.distributed.comm.nccl.communicator import NCCLCommunicator
from cavs.distributed.comm.nccl.group import load_nccl
from cavs.distributed.sync import DeviceGroup
from cavs.distributed.sync.part import values_of
from cavs.distributed.sync.stale_server.owner import optimiser
from cavs.errors import CommunicationError, ConfigError, DeviceError

Array = NDArray[Any]
COLLECTIVES = ("auto", "nccl", "mpi")


def device_of_rank(
    device: str | Device,
    c: Communicator,
    collectives: str = "auto",
    replicas: Callable[[], int] | None = None,
    check: Callable[[], None] = lambda: None,
) -> str | Device:
    """Return the device of this rank that `device` names; all ranks call it.

    "cuda" is one of the GPUs of the host: they are dealt out to its ranks in turn. "cuda:1" is that
    one on every rank. DeviceError, on all ranks, if one of them cannot have it; ConfigError if some
    are to compute on the CPU and others on GPUs, and for `collectives` that do not go with it, see
    `join_devices`. replicas: asked on all ranks where one has a GPU, how many of them compute, the
    first ones; None: all. Ranks that do not compute need no GPU and get "cpu". check: raises a
    ConfigError if this rank has another fault, which is then raised on all.
    """
    kind = "cpu" if device == "cpu" else "cuda"
    try:
        kinds = c.share(kind)
        computes = c.rank < (replicas() if replicas is not None and "cuda" in kinds else c.size)
        wrong: ConfigError | None = None
        try:
            allowed = " or ".join(COLLECTIVES)
            require(collectives in COLLECTIVES, "collectives", collectives, allowed)
            on_host = kind == "cpu" and computes and collectives == "nccl"
            require(not on_host, "collectives", collectives, "'auto' or 'mpi' on the CPU")
            check()
        except ConfigError as error:
            wrong = error
        known = {"device": kind, "collectives": collectives}
        Agreement(c).same(known if computes else None, wrong)
        if "cuda" not in kinds:
            return device
        opens = computes and not isinstance(device, Device)
        all_hosts = c.share([socket.gethostname(), opens])
        ranks = [r for r, other in enumerate(all_hosts) if other == all_hosts[c.rank]]
        opened = device if computes else "cpu"
        with Agreement(c).guard("start"):
            if opens:
                number, host = ranks.index(c.rank), all_hosts[c.rank][0]
                opened = _open(str(device), number, len(ranks), host)
        return opened
    except LostPeerError:
        if device != "cpu":
            raise
        return device  # the first step finds that out again, and survivors go on if they can


def _open(device: str, number: int, ranks: int, host: str) -> Device:
    """Open the GPU of the rank that has this number among the `ranks` of `host` that open one."""
    if device == "cuda":
        devices = max(count_devices(), 1)  # without any, opening the first says what is wrong
        device = f"cuda:{number % devices}" if devices > 1 else device
        if number == 0 and ranks > devices:
            text = f"cavs: {ranks} ranks share {devices} GPUs of {host}"
            print(text, file=sys.stderr, flush=True)
    return open_device(device)


def join_devices(
    collectives: str, device: Device | None, replicas: Communicator, before: DeviceGroup | None
) -> DeviceGroup | None:
    """Return the devices of `replicas` as a group that sums by NCCL; all of them call it.

    None where `collectives` is "mpi", or it is "auto" and not every rank has a device of its own
    and NCCL; for "nccl" that is a DeviceError, on all ranks. before: a group that was given up.
    """
    if device is None or collectives == "mpi":
        return None
    missing, uuid = "", ""
    try:
        load_nccl()
        _ = device.native  # if the engine cannot have it, all ranks learn of that here
        uuid = device.uuid()
    except DeviceError as error:
        missing = error.what
    shared = replicas.share([missing, uuid])
    reasons = [f"rank {replicas.names[r]}: {text}" for r, (text, _) in enumerate(shared) if text]
    names = [name for _, name in shared]
    if not reasons and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        ranks = [str(replicas.names[r]) for r, name in enumerate(names) if name == twice]
        reasons = [f"ranks {' and '.join(ranks)} share a GPU"]
    if reasons and collectives == "nccl":
        raise DeviceError(
            "NCCL needs CuPy and a GPU of its own on every rank\n  " + "\n  ".join(reasons),
            hint="as many ranks as GPUs, or collectives='auto'",
        )
    if reasons:
        return None
    nccl: NCCLCommunicator | None = None
    try:
        with Agreement(replicas).guard("start", known=CommunicationError):
            nccl = NCCLCommunicator(replicas, device.ordinal)
    except CommunicationError:
        if nccl is not None:
            nccl.abort()
        raise
    assert nccl is not None
    nccl.sent_bytes = 0 if before is None else before.nccl.sent_bytes
    return DeviceGroup(nccl, replicas)


class DeviceReplica:
    """An executor of `cavs._cuda` with the interface of one on the CPU.

    Gradients that others need leave the device for the host; parameters that all ranks update alike
    never do. parameters: by name. served: numbers of those that servers own. Their owners update
    them on the host, where the values of other owners arrive, too; all are uploaded together before
    the next run. Norms of gradients on the host, and products of factors that others sent, are
    computed on the host as well.
    """

    def __init__(
        self, executor: Any, parameters: Mapping[str, Any], served: Collection[int]
    ) -> None:
        self.executor, self._served = executor, frozenset(served)
        self._host = optimiser(values_of(parameters))
        self._host.set_serial(False)
        self.add_product = self._host.add_product

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)  # all else takes place on the device

    def squared_norm(self, pieces: Sequence[tuple[Any, ...]]) -> float:
        """Return the sum of the squares of gradients, on the host or on the device."""
        there = [piece for piece in pieces if isinstance(piece[1], int)]
        here = [piece for piece in pieces if not isinstance(piece[1], int)]
        squares = float(self._host.squared_norm(here))
        return squares + float(self.executor.squared_norm(there)) if there else squares

    def apply(
        self,
        pieces: Sequence[tuple[Any, ...]],
        hyper: Mapping[str, Any],
        states: Sequence[Sequence[Array]],
        trainable: Sequence[bool],
        scale: float,
    ) -> None:
        """Apply gradients where their parameters are updated: on the host, or on the device."""
        here = [i in self._served for i in range(len(trainable))]
        owned = [piece for piece in pieces if here[piece[0]]]
        if owned:
            self._host.apply(owned, hyper, states, trainable, scale)
        # Served parameters have no states on the device: a stale copy could be downloaded.
        there = [[] if own else list(s) for own, s in zip(here, states, strict=True)]
        moves = [t and not own for own, t in zip(here, trainable, strict=True)]
        rest = [piece for piece in pieces if not here[piece[0]]]
        if rest:
            self.executor.apply(rest, hyper, there, moves, scale)
