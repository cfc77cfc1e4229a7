"""Softmax regression on made-up chains.

An example of a model of the command line; this line is not part of the summary.
"""

from pathlib import Path

import numpy as np

from cavs.cli import Task
from cavs.errors import DataError
from cavs.train import metrics
from tests.train.fake import SIZE, FakeModel, make_graph, make_graphs

DEFAULTS = {"epochs": 3, "lr": 0.5, "batch_size": 8, "bucket": "size"}


def add_arguments(parser):
    parser.add_argument("--offset", type=float, default=0.0, help="added to every label's score")


def build(args, assets=None):
    if args.data is not None and not Path(args.data).is_dir():
        raise DataError(f"{args.data} is not a folder")
    model = FakeModel()
    model.parameters()["output.b"].value += args.offset
    classes = assets["classes"] if assets else ["low", "middle", "high"]

    def predict(outputs, batch):
        best = outputs["output"].argmax(axis=1)
        for root in metrics.batch_roots(batch):
            yield classes[best[root]]

    def read(text):
        rows = [[float(x) for x in line.split()] for line in text.splitlines()]
        if any(len(row) != SIZE for row in rows):
            raise DataError(f"a line needs {SIZE} numbers")
        return [make_graph(np.array([row]), np.array([-1])) for row in rows]

    return Task(
        model,
        train=lambda: make_graphs(60),
        dev=make_graphs(20, seed=1),
        test=lambda: make_graphs(20, seed=2),
        metrics=[metrics.accuracy(), metrics.root_accuracy()],
        assets={"classes": classes},
        predict=predict,
        read=read,
    )
