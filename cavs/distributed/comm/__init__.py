"""How ranks exchange arrays: one interface, on one process, threads, MPI, and on GPUs NCCL."""

from typing import TYPE_CHECKING

from cavs.exports import on_first_use

if TYPE_CHECKING:
    from cavs.distributed.comm.interfaces import Communicator, Handle, LostPeerError, Operations
    from cavs.distributed.comm.mailbox import Letter, Mailbox
    from cavs.distributed.comm.mpi.communicator import MPICommunicator
    from cavs.distributed.comm.named import NamedCollectives
    from cavs.distributed.comm.nccl.communicator import NCCLCommunicator
    from cavs.distributed.comm.nccl.device_array import DeviceArray
    from cavs.distributed.comm.own_ranks import SingleCommunicator, world
    from cavs.distributed.comm.rates import Rates
    from cavs.distributed.comm.store import Reply, Store
    from cavs.distributed.comm.threads import ThreadCommunicator, run_threads
    from cavs.distributed.comm.topology import Topology, minimum_spanning_tree

__all__ = [
    "Communicator",
    "DeviceArray",
    "Handle",
    "Letter",
    "LostPeerError",
    "MPICommunicator",
    "Mailbox",
    "NCCLCommunicator",
    "NamedCollectives",
    "Operations",
    "Rates",
    "Reply",
    "SingleCommunicator",
    "Store",
    "ThreadCommunicator",
    "Topology",
    "minimum_spanning_tree",
    "run_threads",
    "world",
]

__getattr__ = on_first_use(
    globals(),
    {
        **dict.fromkeys(("Communicator", "Handle", "LostPeerError", "Operations"), "interfaces"),
        **dict.fromkeys(("Letter", "Mailbox"), "mailbox"),
        "MPICommunicator": "mpi.communicator",
        "NamedCollectives": "named",
        "NCCLCommunicator": "nccl.communicator",
        "DeviceArray": "nccl.device_array",
        "Rates": "rates",
        **dict.fromkeys(("Reply", "Store"), "store"),
        **dict.fromkeys(("ThreadCommunicator", "run_threads"), "threads"),
        **dict.fromkeys(("Topology", "minimum_spanning_tree"), "topology"),
        **dict.fromkeys(("SingleCommunicator", "world"), "own_ranks"),
    },
)
