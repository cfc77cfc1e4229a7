"""``cavs demo``: train a tree model on data that every Python has, in a few minutes."""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cavs.cli import options, train
from cavs.cli.numbers import count
from cavs.cli.registry import Task, find
from cavs.errors import DataError
from cavs.train import DataLoader, Trainer

MODEL = "ast-naming"
OUT = "runs/demo"
SHOWN = 6
NEXT = (
    ("explain {model}", "what the compiler made of its cell"),
    ("bench {model}", "how fast a step is"),
    ("predict {best} FILE.py", "a name for each function of a file"),
    ("train {model} --data DIR", "the same on the .py files below DIR"),
    ("train tree-lstm --data DIR", "sentiment, on the Stanford Sentiment Treebank"),
    ("train my_model.py", "a model of your own"),
)


def add_parser(commands: Any, argv: list[str]) -> None:
    """Add the command."""
    text = "train a Tree-LSTM to name functions of the standard library; needs no data"
    parser = commands.add_parser("demo", help=text, description=text)
    parser.add_argument("--out", metavar="DIR", default=OUT, help="default: %(default)s, replaced")
    parser.add_argument("--epochs", type=count(1), metavar="N")
    parser.add_argument("--data", metavar="DIR", help="name functions of the .py files below DIR")
    options.add_engine_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train, then compare with the majority class on functions of other modules."""
    started = time.perf_counter()
    entry = find(MODEL)
    parser = argparse.ArgumentParser()
    entry.add_arguments(parser)
    train.add_arguments(parser, entry)
    parser.set_defaults(**entry.defaults)
    given = parser.parse_args(["--overwrite", "--out", args.out])
    given.entry, given.data = entry, args.data
    for name, value in options.engine_options(args).items():
        setattr(given, name, value)
    given.threads = args.threads
    given.epochs = args.epochs or given.epochs
    print("A function as a tree, its name hidden: which word does the name begin with?")
    print("Reading functions ...", flush=True)
    with train.locking(given) as lock:
        done = train.train(given, lock=lock)
    graphs = done.task.required("test")
    share, word = majority(done.task)
    accuracy = done.trainer.evaluate(DataLoader(graphs, 64), done.task.metrics)["accuracy"]
    print(f"\nOn {len(graphs)} functions of modules it has not seen:")
    print(f"  majority class ({word!r} always)   {share:6.1%}")
    print(f"  this model                    {accuracy:6.1%}")
    print(f"\nSome of them, after {time.perf_counter() - started:.0f} seconds in all:")
    for line in examples(done.task, done.trainer):
        print(f"  {line}")
    print("\nNext:")
    activation = activate()
    if activation:
        print(f"  {activation}\n      this once: it brings cavs and its tools into your shell")
    cavs = "cavs" if activation else command()
    for words, text in NEXT:
        print(f"  {cavs} {words.format(model=MODEL, best=done.kept)}\n      {text}")
    print(f"The model is a short file to read and to copy:\n  {entry.module.__file__}")
    return 0


def activate() -> str | None:
    """Return the line that activates this environment; None if it is active or there is none.

    PATH does not tell: make puts the tools of an environment there that no shell has activated.
    """
    script = Path(sys.prefix, "bin", "activate")
    active = os.path.realpath(os.environ.get("VIRTUAL_ENV", os.devnull))
    if sys.prefix == sys.base_prefix or active == os.path.realpath(sys.prefix):
        return None
    return f". {os.path.relpath(script)}" if script.exists() else None


def command() -> str:
    """Return the command by which a shell without an environment runs ``cavs``."""
    own = Path(sys.executable).with_name("cavs")
    found = shutil.which("cavs")
    if found is not None and Path(found).resolve() == own.resolve():
        return "cavs"
    return os.path.relpath(own) if own.exists() else f"{sys.executable} -m cavs"


def _labels(graphs: Sequence[Any]) -> Counter[int]:
    """Count the labels of graphs."""
    found = (int(graph.graph_features["label"]) for graph in graphs)
    return Counter(label for label in found if label >= 0)


def majority(task: Task) -> tuple[float, str]:
    """Return the share of test labels that are the most frequent training label, and its name."""
    most = _labels(task.required("train")).most_common(1)
    if not most:
        raise DataError("no training graph has a label", hint="give more graphs to train on")
    counts = _labels(task.required("test"))
    label = most[0][0]
    return counts[label] / max(counts.total(), 1), str(task.assets["classes"][label])


def examples(task: Task, trainer: Trainer) -> list[str]:
    """Return predictions for some test functions, one per module, with the right answers."""
    assert task.predict is not None
    by_module = {graph.name.partition(":")[0]: graph for graph in task.required("test")}
    graphs = list(itertools.islice(by_module.values(), SHOWN))
    (batch,) = DataLoader(graphs, len(graphs), prefetch=0)
    lines = task.predict(trainer.session.predict(batch), batch)
    classes = task.assets["classes"]
    return [
        f"{line:44} (it is {classes[_labels([graph]).most_common(1)[0][0]]}_...)"
        for line, graph in zip(lines, graphs, strict=True)
    ]
