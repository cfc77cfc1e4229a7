"""Policies of batching on word lattices: tasks, their lower bound, time of schedules and steps.

Batches of drawn lattices, whose characters and words are vertices of two kinds. The learned policy
is that of the first batch. Times are medians, with quartiles, of rounds in which the policies take
turns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import cavs
from benchmarks.harness import markdown
from benchmarks.options import OptionParser, at_least
from benchmarks.ratios import Pass, Turns, quartiles, take_turns
from benchmarks.word_lattices import lattices
from cavs import nn, ops

POLICIES = ("level", "agenda", "learned")


class LatticeTagger(cavs.Model):
    """A child-sum Tree-LSTM over characters and words, which labels the characters."""

    def __init__(self, size: int) -> None:
        self.char, self.word = nn.Embedding(9, size), nn.Embedding(9, size)
        self.cell, self.output = nn.ChildSumTreeLSTM(size, size), nn.Linear(size, 3)

    def loss(self, batch: Any) -> Any:
        """Return the mean cross entropy over characters."""
        x = self.char(batch["char"]) + self.word(batch["word"])
        return ops.cross_entropy(self.output(self.cell(batch.graph, x=x)), batch["label"])


def seconds_of(work: Callable[[Any], Any], batch: Any) -> float:
    """Return the seconds that ``work`` takes on a batch."""
    begin = time.perf_counter()
    work(batch)
    return time.perf_counter() - begin


def passes(session: cavs.Session, drawn: Sequence[Sequence[cavs.Graph]]) -> dict[str, Pass]:
    """Return passes over new batches, by the part of the work that is timed."""

    def schedule(batch: cavs.GraphBatch) -> float:
        seconds = seconds_of(session.prepare, batch)
        session.gradients(batch)  # the next schedule finds its values in the caches
        return seconds

    def training(batch: cavs.GraphBatch) -> float:
        session.prepare(batch)
        return seconds_of(session.gradients, batch)

    def inference(batch: cavs.GraphBatch) -> float:
        session.prepare(batch, training=False)
        return seconds_of(session.evaluate, batch)

    def over(part: Callable[[cavs.GraphBatch], float]) -> Pass:
        return lambda: (sum(map(part, [cavs.batch(graphs) for graphs in drawn])), math.nan)

    return {part.__name__: over(part) for part in (schedule, training, inference)}


def main(arguments: list[str] | None = None) -> int:
    parser = OptionParser("benchmarks.scheduling", __doc__ or "")
    parser.add_argument("--hidden", type=at_least(1), default=128)
    parser.add_argument("--batch-size", type=at_least(1), default=32)
    parser.add_argument("--batches", type=at_least(1), default=8)
    parser.add_argument("--length", type=at_least(3), default=40, help="most characters")
    parser.add_argument("--threads", type=at_least(1), default=1)
    parser.add_argument("--rounds", type=at_least(1), default=9)
    args = parser.parse_args(arguments)
    length = args.length // 3, args.length + 1
    drawn = [lattices(args.batch_size, seed, length=length) for seed in range(args.batches)]
    sessions, tasks, bound = {}, dict.fromkeys(POLICIES, 0), 0
    for name in POLICIES:
        model = LatticeTagger(args.hidden)
        model.initialize(seed=0)
        sessions[name] = cavs.Session(model, scheduling=name, threads=args.threads)
        for graphs in drawn:  # each session chooses from the first one
            batch = cavs.batch(graphs)
            sessions[name].gradients(batch)
            found = sessions[name].compare_scheduling(batch)
            tasks[name] += found.tasks[name]
            bound += found.bound if name == "level" else 0
    of_policy = {name: passes(session, drawn) for name, session in sessions.items()}
    turns: dict[str, Turns] = {
        part: take_turns({name: each[part] for name, each in of_policy.items()}, args.rounds, None)
        for part in of_policy["level"]
    }
    graphs = args.batch_size * args.batches

    def per_second(name: str, part: str) -> str:
        return quartiles(turns[part]["seconds"][name], "{:.0f}", lambda t: graphs / t)

    def schedule(name: str) -> str:
        found = turns["schedule"]["seconds"][name]
        return quartiles(found, "{:.0f}", lambda t: 1e6 * t / args.batches)

    table = [
        [
            name,
            str(tasks[name]),
            f"{tasks[name] / bound:.2f}",
            schedule(name),
            per_second(name, "training"),
            per_second(name, "inference"),
        ]
        for name in POLICIES
    ]
    print(f"{graphs} lattices in {args.batches} batches; no policy needs fewer than {bound} tasks")
    head = ["policy", "tasks", "of the bound", "schedule, us", "trained/s", "inferred/s"]
    print(markdown(head, table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
