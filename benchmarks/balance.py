"""Balance by structure on skewed trees: iteration time against equal counts, on the engine.

The parts of all ranks run one after the other on one thread; an iteration takes as long as its
slowest part. Times are processor time, the faster of two runs of each part; `--counted` takes the
engine's own estimate from the calls, products and elements of the schedule it ran, which is the
same on every machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

import cavs
from benchmarks.options import OptionParser, at_least
from cavs import nn, ops
from cavs.distributed.balance import CostModel, split_batch

LABELS = 2
WORDS = 20_000  # many words, so that few vertices are equal and merged


def tree(rng: np.random.Generator, depth: int, words: int = WORDS) -> cavs.Graph:
    """Return a spine of `depth` levels with growing subtrees: about depth² / 4 vertices."""
    children: list[list[int]] = [[]]
    top = 0
    for i in range(depth - 1):
        side = []
        for _ in range(1 + i // 4):
            side.append(len(children))
            children.append([])
        while len(side) > 1:
            side.append(len(children))
            children.append([side.pop(0), side.pop(0)])
        children.append([top, side[0]])
        top = len(children) - 1
    features = {
        "token": rng.integers(0, words, len(children)).astype(np.int32),
        "label": rng.integers(0, LABELS, len(children)).astype(np.int32),
    }
    return cavs.Graph.from_children(children, features=features)


def trees(count: int, seed: int = 0, words: int = WORDS) -> list[cavs.Graph]:
    """Return trees whose depths have a Pareto distribution from 5 to 60: most are small."""
    rng = np.random.default_rng(seed)
    return [tree(rng, int(min(60, 5 + 5 * rng.pareto(1.2))), words) for _ in range(count)]


class Classifier(cavs.Model):
    """A child-sum Tree-LSTM with a label at every vertex."""

    def __init__(self, size: int, words: int = WORDS) -> None:
        self.embedding = nn.Embedding(words, size)
        self.tree = nn.ChildSumTreeLSTM(size, size)
        self.output = nn.Linear(size, LABELS)

    def loss(self, batch):
        h = self.tree(batch.graph, x=self.embedding(batch["token"]))
        return ops.cross_entropy(self.output(h), batch["label"])


Cost = Callable[[cavs.Trainer, cavs.GraphBatch], float]


def timed(trainer: cavs.Trainer, batch: cavs.GraphBatch) -> float:
    """Return the seconds of processor time of a step."""
    times = []
    for _ in range(2):
        begin = time.process_time()
        trainer.step(batch)
        times.append(time.process_time() - begin)
    return min(times)


def counted(trainer: cavs.Trainer, batch: cavs.GraphBatch) -> float:
    """Return the seconds that the cost model of the engine gives for its last step."""
    trainer.step(batch)
    return float(trainer.session.report()["estimated_seconds"])


def measure(
    hidden: int,
    batch: int,
    ranks: int,
    steps: int,
    warm_up: int = 20,
    seed: int = 0,
    cost: Cost = timed,
) -> dict[str, float]:
    """`gain`: how much less time an iteration takes than with equal counts; `uneven`: the median
    of slowest part by mean part; `split_ms`: milliseconds of finding a split.
    """
    trainer = cavs.Trainer(Classifier(hidden), cavs.optim.SGD(lr=1e-6))

    def seconds(graphs: Sequence[cavs.Graph]) -> float:
        return cost(trainer, cavs.batch(graphs))

    rng, data, model = np.random.default_rng(seed), trees(600, seed), CostModel(ranks)
    equal, balanced, uneven, splitting = 0.0, 0.0, [], []
    share = batch // ranks
    for step in range(warm_up + steps):
        graphs = [data[i] for i in rng.integers(0, len(data), share * ranks)]
        begin = time.process_time()
        split = split_batch(graphs, model)
        spent = time.process_time() - begin
        mine = [seconds([graphs[i] for i in part]) for part in split.parts]
        model.update(split.features, mine)
        if step >= warm_up:
            splitting.append(spent)
            equal += max(seconds(graphs[r * share : (r + 1) * share]) for r in range(ranks))
            balanced += max(mine)
            uneven.append(max(mine) / statistics.mean(mine))
    return {
        "gain": 1 - balanced / equal,
        "uneven": statistics.median(uneven),
        "split_ms": 1e3 * statistics.median(splitting),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = OptionParser("benchmarks.balance", __doc__ or "")
    parser.add_argument("--hidden", type=at_least(1), default=128, metavar="N")
    parser.add_argument(
        "--batch-sizes", type=at_least(1), nargs="+", default=[16, 32, 64], metavar="N"
    )
    parser.add_argument("--ranks", type=at_least(2), nargs="+", default=[2], metavar="N")
    parser.add_argument("--steps", type=at_least(1), default=60, metavar="N")
    parser.add_argument("--counted", action="store_true", help="estimates in place of times")
    given = parser.parse_args(argv)
    if min(given.batch_sizes) < max(given.ranks):
        parser.error("--batch-sizes: a global batch needs a graph for every rank")
    cavs.set_num_threads(1)
    print("ranks  global batch  less time  slowest / mean  ms to split")
    for ranks in given.ranks:
        for batch in given.batch_sizes:
            cost = counted if given.counted else timed
            found = measure(given.hidden, batch, ranks, given.steps, cost=cost)
            print(
                f"{ranks:5}  {batch:12}  {found['gain']:9.1%}  {found['uneven']:14.3f}  "
                f"{found['split_ms']:11.1f}"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
