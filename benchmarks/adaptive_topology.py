"""A link that slows in the run: the adaptive topology against trees that stay as they are.

Ranks of this machine are behind links of `--megabits` Mbit/s, of which that of `--victim` falls to
`--slowed` after `--calm` steps. Every choice trains the same model on the same batches; the graphs
a second after the change are those of the last `--steps` steps, and the adaptive policy has
`WITHIN` steps to notice and act (KungFu, figure 5). It needs what `benchmarks.links` does.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import cavs
from benchmarks.balance import Classifier, trees
from benchmarks.bounds import Row, checked, missed, verdict
from benchmarks.distributed import print_result, run_ranks
from benchmarks.harness import markdown, write_report
from benchmarks.links import Links, linked, slow_links
from benchmarks.options import at_least, positive
from benchmarks.result_paths import GridParser
from cavs.distributed import Trainer, world
from cavs.distributed.launch.launcher import command_of, find_mpirun
from cavs.train import Policy, TrainingRun
from cavs.train.policies import AdaptiveTopology

ADAPTIVE, RING = "adaptive", "no tree"
WITHIN = 20  # steps
LEAST = 0.95  # part of the graphs a second that the best tree which stays gives
SLOW = "SLOW"  # line by which rank 0 asks for the change


def choices(ranks: int) -> dict[str, list[int] | None]:
    """Return the trees that stay, by name: stars, a chain, and none."""
    found: dict[str, list[int] | None] = {RING: None}
    found |= {f"star around {root}": [root] * ranks for root in range(ranks)}
    found["chain"] = [0, *range(ranks - 1)]
    return found


class Timed(Policy):
    """Sets a tree that stays, asks for the change of the link, and takes the times of steps."""

    def __init__(self, tree: list[int] | None, calm: int) -> None:
        self.tree, self.calm = tree, calm
        self.ends, self.trees = list[float](), list[Any]()

    def before_train(self, run: TrainingRun) -> None:
        if self.tree is not None:
            run.set_tree(self.tree)

    def after_step(self, run: TrainingRun) -> None:
        self.ends.append(time.perf_counter())
        self.trees.append(run.table["tree"])
        if run.step == self.calm and run.rank == 0:
            print(SLOW, flush=True)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Train with one choice; return graphs a second before and after the change, on rank 0."""
    c = world(120.0)
    trainer = Trainer(Classifier(given.hidden), cavs.optim.SGD(lr=1e-4), communicator=c, threads=1)
    timed = Timed(choices(c.size).get(given.choice), given.calm)
    policies: list[Policy] = [timed]
    if given.choice == ADAPTIVE:
        policies.append(AdaptiveTopology(window=given.window))
    steps = given.calm + WITHIN + given.steps
    loader = cavs.DataLoader(trees(given.batch_size) * steps, given.batch_size)
    trainer.fit(loader, epochs=1, progress=False, policies=policies)
    trainer.close()
    ends, calm = timed.ends, given.calm

    def rate(first: int, last: int) -> float:
        return float(given.batch_size * (last - first) / (ends[last - 1] - ends[first - 1]))

    return {
        "before": rate(calm // 2, calm),
        "after": rate(calm + WITHIN, steps),
        "tree": timed.trees[-1],
        "noticed": next(
            (i + 1 - calm for i, t in enumerate(timed.trees) if i >= calm and t != timed.trees[0]),
            0,
        ),
    }


def run_slowing(command: list[str], links: Links, given: argparse.Namespace) -> dict[str, Any]:
    """Run the ranks; slow the link when rank 0 asks for it, and return the result of rank 0."""
    links.limit(given.victim, given.megabits)

    def slow(line: str) -> None:
        if line.strip() == SLOW:
            links.limit(given.victim, given.slowed)

    return run_ranks(linked(command, links), slow)


def show(result: dict[str, Any]) -> str:
    rows = [
        [name, f"{r['before']:.0f}", f"{r['after']:.1f}", str(r["tree"]), str(r["noticed"] or "")]
        for name, r in result["choices"].items()
    ]
    headers = ["tree", "graphs a second", "after the change", "last tree", "steps until it acts"]
    head = f"{result['ranks']} ranks, links of {result['megabits']:g} Mbit/s, that of rank "
    head += f"{result['victim']} of {result['slowed']:g} after {result['calm']} steps; "
    head += f"h {result['hidden']}, batches of {result['batch_size']}"
    return head + "\n\n" + markdown(headers, rows) + verdict(targets(result))


def targets(result: dict[str, Any]) -> list[Row]:
    """Return the bound: the adaptive topology against the best tree that stays."""
    found = result["choices"]
    stay = [r["after"] for name, r in found.items() if name not in (ADAPTIVE, RING)]
    if ADAPTIVE not in found or not stay:
        return []
    part = found[ADAPTIVE]["after"] / max(stay)
    return [checked("graphs a second, of the best tree that stays", part, LEAST, True, "{:.2f}")]


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("adaptive_topology", __doc__ or "")
    add = parser.add_argument
    add("--ranks", type=at_least(3), default=4, metavar="N")
    add("--choices", nargs="+", default=None, metavar="NAME")
    add("--megabits", type=positive, default=100.0, metavar="X")
    add("--victim", type=at_least(0), default=1, metavar="RANK")
    add("--slowed", type=positive, default=20.0, metavar="X", help="Mbit/s of its link")
    add("--hidden", type=at_least(1), default=160, metavar="N")
    add("--batch-size", type=at_least(2), default=16, metavar="N", help="of all ranks")
    add("--calm", type=at_least(4), default=24, metavar="N", help="steps before the change")
    add("--steps", type=at_least(2), default=20, metavar="N", help="that count")
    add("--window", type=at_least(1), default=5, metavar="N", help="of the policy, in steps")
    add("--choice", default="", help=argparse.SUPPRESS)
    add("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.rank:
        found = measure(given)
        print_result(found)
        return 0
    own = list(sys.argv[1:] if arguments is None else arguments)
    names = ("ranks", "megabits", "victim", "slowed", "calm", "hidden", "batch_size")
    result: dict[str, Any] = {name: getattr(given, name) for name in names}
    result["choices"] = {}
    with slow_links(given.ranks, given.megabits) as links:
        for name in given.choices or [*choices(given.ranks), ADAPTIVE]:
            words = ["-m", "benchmarks.adaptive_topology", "--rank", *own, "--choice", name]
            command = command_of(find_mpirun(), given.ranks, words)
            result["choices"][name] = run_slowing(command, links, given)
    print(show(result))
    write_report(given.out, show(result), [result])
    return 1 if missed(targets(result)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
