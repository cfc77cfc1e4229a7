"""How ranks exchange arrays: one interface, on one process, threads, MPI, and on GPUs NCCL."""

from cavs.distributed.communicator.device_array import DeviceArray
from cavs.distributed.communicator.mailbox import Letter, Mailbox
from cavs.distributed.communicator.mpi import MPICommunicator
from cavs.distributed.communicator.nccl import NCCLCommunicator
from cavs.distributed.communicator.protocol import Communicator, Handle, LostPeerError, Operations
from cavs.distributed.communicator.single import SingleCommunicator
from cavs.distributed.communicator.threads import ThreadCommunicator, run_threads
from cavs.distributed.communicator.world import world

__all__ = [
    "Communicator",
    "DeviceArray",
    "Handle",
    "Letter",
    "LostPeerError",
    "MPICommunicator",
    "Mailbox",
    "NCCLCommunicator",
    "Operations",
    "SingleCommunicator",
    "ThreadCommunicator",
    "run_threads",
    "world",
]
