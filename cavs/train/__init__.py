"""Training: optimisers, schedules, the data loader, checkpoints, metrics and the trainer."""

from cavs.train import metrics, optim, schedules
from cavs.train.checkpoint import Checkpoint, load_parameters, read_checkpoint, save_checkpoint
from cavs.train.fit_options import FitResult
from cavs.train.loader import DataLoader
from cavs.train.metrics import Metric
from cavs.train.trainer import Trainer

__all__ = [
    "Checkpoint",
    "DataLoader",
    "FitResult",
    "Metric",
    "Trainer",
    "load_parameters",
    "metrics",
    "optim",
    "read_checkpoint",
    "save_checkpoint",
    "schedules",
]
