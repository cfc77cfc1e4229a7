"""A recurrent classifier of made-up trees."""

from cavs.cli import Task
from cavs.train import metrics
from tests.train.classifier import Classifier, trees

DEFAULTS = {"epochs": 2, "lr": 0.1, "batch_size": 8}


def build(args, assets=None):
    model = Classifier()
    model.initialize(args.seed)
    return Task(
        model,
        train=trees(40),
        dev=trees(10, seed=1),
        test=trees(10, seed=2),
        metrics=[metrics.accuracy()],
        predict=lambda outputs, batch: map(str, outputs["output"].argmax(axis=1)),
    )
