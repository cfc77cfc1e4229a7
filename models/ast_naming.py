"""Names of functions: a child-sum Tree-LSTM on syntax trees of the standard library.

    cavs train ast-naming [--data DIR]

A sample is the tree of one function of Python's own library, or of the .py files below DIR, with
its name hidden. The model predicts the first word of the name (get, is, set, ...) from the state
at the root. It needs no download.
"""

from __future__ import annotations

import ast
import functools
import sys
import warnings

import cavs
from cavs import nn, ops
from cavs.cli import Task
from cavs.data import Vocabulary, function_graphs, read_functions
from cavs.data.readers.python_functions import (
    function_vocabularies,
    functions_of,
    split_of,
    words_of,
)
from cavs.errors import DataError
from cavs.train import metrics

MOST = 1000  # nodes of a function whose name is predicted
DEFAULTS = {"epochs": 10, "batch_size": 16, "lr": 0.05, "schedule": "cosine"}


class NamePredictor(cavs.Model):
    """Embed the class and the identifier of a node, compose the tree, score names at the root."""

    def __init__(self, num_types: int, num_names: int, num_classes: int, size: int, dropout: float):
        self.type = nn.Embedding(num_types, size)
        self.name = nn.Embedding(num_names, size)
        self.tree = nn.ChildSumTreeLSTM(size, size)
        self.output = nn.Linear(size, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch):
        """Return scores of the words, one row per function."""
        x = self.dropout(self.type(batch["type"]) + self.name(batch["name"]))
        root = ops.sum_roots(self.tree(batch.graph, x=x))
        return self.output(self.dropout(root))

    def loss(self, batch):
        """Return the mean cross entropy over functions."""
        return ops.cross_entropy(self.forward(batch), batch["label"])


def add_arguments(parser):
    """Add the options of this model."""
    parser.add_argument("--size", type=int, default=128, help="of embeddings and hidden state")
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument(
        "--classes", type=int, default=20, help="number of words to predict, the most frequent"
    )
    parser.add_argument("--min-count", type=int, default=3, help="rarer identifiers are <unk>")


def left_out(text, found):
    """Yield a line with the reason for every function of a file that is not in `found`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nodes = list(ast.walk(ast.parse(text)))
    kept = {(function.line, function.name) for function in found}
    defined = (n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    for node in sorted(defined, key=lambda n: n.lineno):
        if (node.lineno, node.name) not in kept:
            large = len(list(ast.walk(node))) > MOST
            why = f"it has more than {MOST} nodes" if large else "its tree is a single node"
            why = why if words_of(node.name) else "there is no word in its name"
            yield f"{node.name} in line {node.lineno}: {why}"


def build(args, assets=None):
    """Return the model and the functions, split by module: most for training, a tenth for tests."""
    return naming_task(args, assets, NamePredictor)


def naming_task(args, assets, predictor, sample=None, label="label"):
    """Return the task of a model that names functions.

    predictor: makes the model, see `NamePredictor`. sample: makes the sample of a function from its
    graph and the vocabulary of types, by default the graph itself; label: the feature of its class.
    """

    @functools.cache
    def functions():
        return read_functions(args.data)

    def part(name):
        return [f for f in functions() if split_of(f.module) == name]

    if assets is None:
        types, names, classes = function_vocabularies(part("train"), args.classes, args.min_count)
    else:
        types, names = Vocabulary(assets["types"]), Vocabulary(assets["names"])
        classes = tuple(assets["classes"])

    def samples(functions, **options):
        found = function_graphs(functions, types, names, classes, **options)
        return found if sample is None else [sample(graph, types) for graph in found]

    def read(text):
        try:
            found = list(functions_of(text, "input", sizes=(2, MOST)))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None) or 1
            raise DataError(f"<text>:{line}: {getattr(error, 'msg', error)}") from error
        for line in left_out(text, found):
            print(f"cavs: left out: {line}", file=sys.stderr)
        return samples(found, keep_other=True)

    def predict(outputs, batch):
        best = outputs["output"].argmax(axis=1)
        return (f"{name}: {classes[i]}" for name, i in zip(batch.names, best, strict=True))

    model = predictor(len(types), len(names), len(classes), args.size, args.dropout)
    model.initialize(args.seed)
    return Task(
        model,
        train=lambda: samples(part("train")),
        dev=lambda: samples(part("dev")),
        test=lambda: samples(part("test")),
        metrics=[metrics.accuracy(label=label)],
        assets={"types": types.to_json(), "names": names.to_json(), "classes": list(classes)},
        predict=predict,
        read=read,
    )
