"""Training one model on many workers: strategies, communicators, and the trainer that uses them."""

from cavs.distributed.communicator import world
from cavs.distributed.run import StepReport
from cavs.distributed.shards import by_counts, contiguous
from cavs.distributed.strategy import Strategy
from cavs.distributed.trainer import Trainer

__all__ = ["StepReport", "Strategy", "Trainer", "by_counts", "contiguous", "world"]
