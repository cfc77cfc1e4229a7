"""Named collectives against a coordinator that orders every collective.

The ranks of this machine reduce the gradients of a step, which every rank computes in an order of
its own. ``named``: a rank launches each at once, under its name, and no rank waits for another's
order. ``coordinator``: as in Horovod, ranks tell once a cycle of `--cycle` ms which gradients they
have, and reduce in one order those that all have, one by one. ``fused``: the same, in one
buffer, as the buckets of `cavs.distributed.Trainer` do without a coordinator. The time of a step is
that until all sums are there, of which `--compute` ms are computing (KungFu, figure 9: equal on 8
machines, 28 to 98 % more throughput on 32). Ranks share the cores.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bounds import Row, checked, missed, verdict
from benchmarks.distributed import print_result, run_ranks
from benchmarks.harness import markdown, write_report
from benchmarks.options import at_least, positive
from benchmarks.result_paths import GridParser
from cavs.distributed import world
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.launch.launcher import command_of, find_mpirun

Array = NDArray[np.float32]
NAMED, COORDINATOR, FUSED = "named", "coordinator", "fused"
WAYS = (NAMED, COORDINATOR, FUSED)


class Cycles:
    """The thread of a rank that reduces in one order what all ranks have."""

    def __init__(self, c: Communicator, arrays: list[Array], seconds: float, fuse: bool) -> None:
        self.c, self.arrays, self.seconds, self.fuse = c, arrays, seconds, fuse
        self.ready = deque[int]()

    def run(self) -> None:
        """Reduce all arrays, once each."""
        missing = dict.fromkeys(range(len(self.arrays)), self.c.size)
        while missing:
            time.sleep(self.seconds)
            told = [self.ready.popleft() for _ in range(len(self.ready))]
            for numbers in self.c.all_gather(np.array(told, np.int64)):
                for number in numbers.tolist():
                    missing[number] -= 1
            chosen = [number for number, ranks in missing.items() if not ranks]
            for number in chosen:
                del missing[number]
            self._reduce([self.arrays[number] for number in chosen])

    def _reduce(self, chosen: list[Array]) -> None:
        if not self.fuse:
            for array in chosen:
                self.c.all_reduce(array)
        elif chosen:
            buffer = np.concatenate(chosen)
            self.c.all_reduce(buffer)
            for array, total in zip(
                chosen, np.split(buffer, np.cumsum([a.size for a in chosen])[:-1]), strict=True
            ):
                array[:] = total


def computed(c: Communicator, arrays: list[Array], seconds: float, step: int) -> Iterator[int]:
    """Yield the numbers of the arrays as this rank computes them, in an order of its own."""
    order = np.random.default_rng([c.rank, step]).permutation(len(arrays))
    begun = time.perf_counter()
    for i, number in enumerate(order.tolist(), 1):
        if (left := begun + seconds * i / len(arrays) - time.perf_counter()) > 0:
            time.sleep(left)
        yield number


def sizes_of(tensors: int, kilobytes: float) -> list[int]:
    """Return the elements of every gradient: sizes of a network, a few large and many small."""
    drawn = np.random.default_rng(0).lognormal(0, 2, tensors)
    return [max(1, int(n)) for n in drawn / drawn.sum() * kilobytes * 256]


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Return the milliseconds of a step in every way, on rank 0."""
    c, compute, cycle = world(60.0), given.compute / 1e3, given.cycle / 1e3
    arrays = [np.zeros(n, np.float32) for n in sizes_of(given.tensors, given.kilobytes)]
    named = c.named()

    def launch(step: int) -> None:
        for number in computed(c, arrays, compute, step):
            named.all_reduce(str(number), arrays[number])
        named.end_step()

    def cycles(fuse: bool) -> Callable[[int], None]:
        def run(step: int) -> None:
            state = Cycles(c, arrays, cycle, fuse)
            thread = threading.Thread(target=state.run)
            thread.start()
            for number in computed(c, arrays, compute, step):
                state.ready.append(number)
            thread.join()

        return run

    steps = {NAMED: launch, COORDINATOR: cycles(False), FUSED: cycles(True)}
    seconds: dict[str, list[float]] = {way: [] for way in given.ways}
    for step in range(given.warm_up + given.steps):
        for way in given.ways:
            for array in arrays:
                array[:] = c.rank + 1
            c.barrier()
            begun = time.perf_counter()
            steps[way](step)
            if step >= given.warm_up:
                seconds[way].append(time.perf_counter() - begun)
            total = c.size * (c.size + 1) / 2
            assert all((array == total).all() for array in arrays), "a sum is wrong"
    c.barrier()
    c.close()
    return {way: 1e3 * statistics.median(found) for way, found in seconds.items()}


def show(result: dict[str, Any]) -> str:
    head = f"{result['tensors']} gradients of {result['kilobytes']:g} kB, "
    head += f"{result['compute']:g} ms of computing a step, cycles of {result['cycle']:g} ms"
    rows = [
        [ranks, *(f"{found[way]:.1f}" for way in found)] for ranks, found in result["ranks"].items()
    ]
    ways = list(next(iter(result["ranks"].values())))
    table = markdown(["ranks", *(f"{way}, ms a step" for way in ways)], rows)
    return f"{head}\n\n{table}" + verdict(targets(result))


def targets(result: dict[str, Any]) -> list[Row]:
    """Return the bound: with most ranks, named collectives are at least as fast as one by one."""
    ranks, found = max(result["ranks"].items(), key=lambda item: int(item[0]))
    if COORDINATOR not in found:
        return []
    times = found[COORDINATOR] / found[NAMED]
    measure = f"{ranks} ranks: time of the coordinator, of named"
    return [checked(measure, times, 1.0, True, "{:.2f}")]


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("ordering", __doc__ or "")
    add = parser.add_argument
    add("--ranks", nargs="+", type=at_least(2), default=[2, 4, 8], metavar="N")
    add("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    add("--tensors", type=at_least(1), default=160, metavar="N")
    add("--kilobytes", type=positive, default=2000.0, metavar="X", help="of all gradients")
    add("--compute", type=positive, default=20.0, metavar="MS", help="of a step")
    add("--cycle", type=positive, default=1.0, metavar="MS")
    add("--warm-up", type=at_least(1), default=3, metavar="N", help="steps")
    add("--steps", type=at_least(1), default=25, metavar="N")
    add("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if NAMED not in given.ways:
        parser.error(f"--ways needs {NAMED}, with which the others are compared")
    if given.rank:
        print_result(measure(given))
        return 0
    own = list(sys.argv[1:] if arguments is None else arguments)
    words = ["-m", "benchmarks.ordering", "--rank", *own]
    names = ("tensors", "kilobytes", "compute", "cycle")
    result: dict[str, Any] = {name: getattr(given, name) for name in names}
    result["ranks"] = {str(n): run_ranks(command_of(find_mpirun(), n, words)) for n in given.ranks}
    print(show(result))
    write_report(given.out, show(result), [result])
    return 1 if missed(targets(result)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
