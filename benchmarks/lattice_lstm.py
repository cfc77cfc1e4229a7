"""Inference of a lattice LSTM over characters and words against DyNet and PyTorch.

A lattice is a chain of characters with words above some of its parts. One LSTM reads a character
from the state before it, another one a word from the state before its first character; the state
after a character is the sum of that of its own LSTM and of those of the words that end there, and
gives its tag. This is the model and these are the sizes of the benchmark of ED-Batch (Chen et al.,
ICML 2023), whose lattices are Chinese sentences; here they are drawn with the same lengths and as
many words, or read from a file of that benchmark by `--lattices`.

In `cavs` characters and words are types of vertices; few are equal, so none are merged, but the
products of looked-up characters and words are computed once for each number. Batches are collated
and scheduled within the time that is measured. The PyTorch program is batched by hand, character by
character, by indices prepared before; DyNet, which builds its graphs within that time, takes part
where $CAVS_BENCH_PYTHON_DYNET names a Python that has it, on one thread. Each rival has a process
of its own, so that no threads of it wait busily while `cavs` runs. All compute the loss of the same
batches with the same parameters in turns; first their losses are compared.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import cavs
from benchmarks.bounds import Row, checked, missed, verdict
from benchmarks.harness import markdown, speed_table, write_report
from benchmarks.options import THREADS, at_least
from benchmarks.ratios import Pass, take_turns, timed
from benchmarks.result_paths import GridParser
from benchmarks.rival_process import DYNET, rival_passes
from cavs.compiler.pipeline import Passes
from models.lattice_lstm import LatticeTagger
from models.lattice_lstm import lattice as graph_of

NUMBERS = 256  # words and characters each; larger numbers are taken modulo it, as ED-Batch does
TAGS = 18
# The lengths of the 1,147 sentences of its training data have this gamma distribution, up to their
# quartiles, and parts of each number of characters are words as often as this.
SHAPE, SCALE, LONGEST = 2.4, 18.2, 210
WORDS = {2: 0.47, 3: 0.063, 4: 0.012, 5: 0.003}
LEAST = {"dynet": 3.0, "grouped": 1.5}  # times as fast as these
PER_SECOND = 8000  # lattices on two threads; ED-Batch reached 3,585
TASKS = 1.05  # most tasks, over the fewest of the agenda and of a policy learned on each batch
TOLERANCE = 1e-4  # relative difference allowed between losses
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Lattice:
    """Characters and their tags; words as (character before the first, last character, number).

    The character before the first one of the sentence is -1.
    """

    chars: Ints
    tags: Ints
    words: list[tuple[int, int, int]]


def drawn(count: int, seed: int = 0) -> list[Lattice]:
    """Return lattices of drawn lengths with drawn words."""
    rng = np.random.default_rng(seed)

    def lattice() -> Lattice:
        length = int(np.clip(rng.gamma(SHAPE, SCALE), 2, LONGEST))
        words = [
            (last - size, last, int(rng.integers(NUMBERS)))
            for last in range(length)
            for size, share in WORDS.items()
            if last - size >= -1 and rng.random() < share
        ]
        chars, tags = (rng.integers(0, n, length).astype(np.int32) for n in (NUMBERS, TAGS))
        return Lattice(chars, tags, words)

    return [lattice() for _ in range(count)]


def read(path: str | os.PathLike[str]) -> list[Lattice]:
    """Return the lattices of a file of ED-Batch's benchmark.

    It has their number; for each one the number of its states, the tag of each, and for each state
    the number of the arcs that end there, each with the state that it leads from and a number: a
    character leads from the state before, a word from an earlier one. ValueError for another file.
    """
    numbers = iter(map(int, Path(path).read_text(encoding="utf-8").split()))
    found = []
    try:
        for _ in range(next(numbers)):
            states = next(numbers)
            tags = [next(numbers) for _ in range(states)]
            chars, words = list[int](), list[tuple[int, int, int]]()
            for state in range(states):
                for _ in range(next(numbers)):
                    begin, number = next(numbers), next(numbers) % NUMBERS
                    if begin == state - 1:
                        chars.append(number)
                    else:
                        words.append((begin - 1, state - 1, number))
            if len(chars) != states - 1:
                raise ValueError(f"{path}: {len(chars)} characters between {states} states")
            of = np.array(chars, np.int32), np.array(tags[1:], np.int32)
            found.append(Lattice(*of, words))
    except StopIteration:
        raise ValueError(f"{path} ends within lattice {len(found)}") from None
    return [lattice for lattice in found if len(lattice.chars)]


def new_model(hidden: int) -> LatticeTagger:
    """Return the model for the numbers of drawn lattices."""
    return LatticeTagger(NUMBERS, NUMBERS, TAGS, hidden)


def graph(lattice: Lattice) -> cavs.Graph:
    """Return a lattice as a graph: its characters, then its words."""
    return graph_of(lattice.chars, lattice.words, {"tag": lattice.tags})


def plain(batches: Sequence[Sequence[Lattice]]) -> list[list[Any]]:
    """Return batches as lists of (characters, tags, words), for the rivals."""
    return [[(x.chars.tolist(), x.tags.tolist(), x.words) for x in batch] for batch in batches]


@contextmanager
def runners(
    session: cavs.Session, model: LatticeTagger, batches: Sequence[Sequence[Lattice]], threads: int
) -> Iterator[dict[str, Pass]]:
    """Give the inference of all batches by each runner; the processes of rivals end with it."""
    graphs = [[graph(lattice) for lattice in lattices] for lattices in batches]

    def own() -> float:
        return [float(session.evaluate(cavs.batch(each)).loss) for each in graphs][-1]

    programs = {"grouped": (sys.executable, "lattice_torch")}
    if threads == 1 and (python := os.environ.get(DYNET)):
        programs["dynet"] = python, "lattice_dynet"
    given = {"threads": threads, "training": False, "lr": 0.0, "batches": plain(batches)}
    with rival_passes(programs, model, given) as found:
        yield {"cavs": timed(own), **found}


def counted(session: cavs.Session, batches: Sequence[Sequence[Lattice]]) -> dict[str, Any]:
    """Return the tasks of all batches by policy, those of the chosen one, and the lower bound."""
    found = [
        session.compare_scheduling(cavs.batch([graph(x) for x in batch]), training=False)
        for batch in batches
    ]
    names = {each.name for each in found}
    (chosen,) = names  # the first batch decides
    tasks = {name: sum(each.tasks[name] for each in found) for name in found[0].tasks}
    best = sum(min(each.tasks["agenda"], each.tasks["learned"]) for each in found)
    return {
        "policy": chosen,
        "tasks": tasks,
        "over": tasks[chosen] / best,
        "bound": sum(each.bound for each in found),
    }


def measure(lattices: Sequence[Lattice], hidden: int, threads: int, given: Any) -> dict[str, Any]:
    """Return times of passes over the batches, by runner, their ratio to cavs, and tasks."""
    size = given.batch_size
    batches = [lattices[i : i + size] for i in range(0, len(lattices), size)]
    model = new_model(hidden)
    model.initialize(0)
    session = cavs.Session(model, threads=threads, passes=Passes(merge_vertices=False))
    with runners(session, model, batches, threads) as passes:
        turns = take_turns(passes, given.rounds, TOLERANCE)
    case = {"hidden": hidden, "threads": threads, "lattices": len(lattices)}
    return {**case, **turns, **counted(session, batches)}


def title(threads: int) -> str:
    """Return a number of threads as text."""
    return f"{threads} thread{'s' * (threads > 1)}"


def bounds(cases: Sequence[Any], batch_size: int) -> list[Row]:
    """Return the bounds: of rivals and tasks, and of speed at the size of ED-Batch's benchmark."""
    rows = []
    for case in cases:
        at = f"h {case['hidden']}, {title(case['threads'])}"
        rows += [
            checked(f"{at}: time of {name} over ours", found["median"], LEAST[name], True, "{:.2f}")
            for name, found in case["ratios"].items()
            if name in LEAST
        ]
        of_tasks = f"{at}: tasks over the fewest of agenda and learned"
        rows.append(checked(of_tasks, case["over"], TASKS, False, "{:.3f}"))
        if (case["hidden"], batch_size, case["threads"]) == (128, 32, 2):
            found = case["lattices"] / case["seconds"]["cavs"]["median"]
            rows.append(checked(f"{at}: lattices a second", found, PER_SECOND, True, "{:,.0f}"))
    return rows


def tables(cases: Sequence[Any]) -> str:
    """Return speeds by the number of threads, then the tasks of the last case by policy."""
    parts = []
    for threads in dict.fromkeys(case["threads"] for case in cases):
        chosen = [case for case in cases if case["threads"] == threads]
        parts.append(f"{title(threads)}\n\n{speed_table('h', 'lattices', chosen)}")
    last = cases[-1]
    rows = [
        [name, str(tasks), f"{tasks / last['bound']:.2f}"] for name, tasks in last["tasks"].items()
    ]
    text = f"tasks of all batches, which run by the policy {last['policy']!r}"
    parts.append(f"{text}\n\n{markdown(['policy', 'tasks', 'over the bound'], rows)}")
    return "\n\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("lattice_lstm", __doc__ or "")
    add = parser.add_argument
    add("--hidden", type=at_least(2), nargs="+", default=[128])
    add("--batch-size", type=at_least(1), default=32, help="lattices")
    add("--batches", type=at_least(1), default=32)
    add("--threads", type=THREADS, nargs="+", default=[1, 2], metavar="N")
    add("--rounds", type=at_least(1), default=11)
    add("--lattices", default="", metavar="FILE", help="of ED-Batch's benchmark; default: drawn")
    given = parser.parse_args(arguments)
    if find_spec("torch") is None:
        print('a rival needs PyTorch: pip install "torch==2.13.0"', file=sys.stderr)
        return 2
    count = given.batches * given.batch_size
    lattices = read(given.lattices)[:count] if given.lattices else drawn(count)
    cases = [
        measure(lattices, hidden, threads, given)
        for hidden in given.hidden
        for threads in given.threads
    ]
    rows = bounds(cases, given.batch_size)
    text = f"batches of {given.batch_size}\n\n{tables(cases)}{verdict(rows)}"
    print(text)
    write_report(given.out, text, [{"batch_size": given.batch_size, "cases": cases}])
    return 1 if missed(rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
