"""How ranks exchange arrays: one interface, on one process, threads or MPI; GPUs sum by NCCL."""

from cavs.distributed.communicator.mailbox import Letter, Mailbox
from cavs.distributed.communicator.mpi import MPICommunicator
from cavs.distributed.communicator.protocol import Communicator, Handle, LostPeerError
from cavs.distributed.communicator.single import SingleCommunicator
from cavs.distributed.communicator.threads import ThreadCommunicator, run_threads
from cavs.distributed.communicator.world import world

__all__ = [
    "Communicator",
    "Handle",
    "Letter",
    "LostPeerError",
    "MPICommunicator",
    "Mailbox",
    "SingleCommunicator",
    "ThreadCommunicator",
    "run_threads",
    "world",
]
