"""Training: optimisers, schedules, the data loader, checkpoints, metrics and the trainer."""

from typing import TYPE_CHECKING

from cavs.exports import on_first_use

if TYPE_CHECKING:
    from cavs.train import metrics, monitors, optim, schedules
    from cavs.train.checkpoint import Checkpoint, load_parameters, read_checkpoint, save_checkpoint
    from cavs.train.fit_options import FitResult
    from cavs.train.loader import DataLoader
    from cavs.train.metrics import DataSetMetric, Metric
    from cavs.train.monitors import Monitor
    from cavs.train.policy import Policy, TrainingRun
    from cavs.train.sampling import Sampler, WeightedSampler
    from cavs.train.stream import BatchStream, StreamLoader
    from cavs.train.trainer import Trainer

__all__ = [
    "BatchStream",
    "Checkpoint",
    "DataLoader",
    "DataSetMetric",
    "FitResult",
    "Metric",
    "Monitor",
    "Policy",
    "Sampler",
    "StreamLoader",
    "Trainer",
    "TrainingRun",
    "WeightedSampler",
    "load_parameters",
    "metrics",
    "monitors",
    "optim",
    "read_checkpoint",
    "save_checkpoint",
    "schedules",
]

__getattr__ = on_first_use(
    globals(),
    {
        **dict.fromkeys(("metrics", "monitors", "optim", "schedules"), ""),
        **dict.fromkeys(
            ("Checkpoint", "load_parameters", "read_checkpoint", "save_checkpoint"), "checkpoint"
        ),
        "FitResult": "fit_options",
        "DataLoader": "loader",
        **dict.fromkeys(("Sampler", "WeightedSampler"), "sampling"),
        **dict.fromkeys(("BatchStream", "StreamLoader"), "stream"),
        **dict.fromkeys(("DataSetMetric", "Metric"), "metrics"),
        "Monitor": "monitors",
        **dict.fromkeys(("Policy", "TrainingRun"), "policy"),
        "Trainer": "trainer",
    },
)
