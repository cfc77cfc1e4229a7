"""Recovery of an elastic training whose ranks are killed with SIGKILL at random moments.

Each run trains a small Tree-LSTM on MPI ranks, waits until a random victim has reached a random
step, then some random milliseconds, and kills it. The survivors must finish the training with every
batch seen, and with the losses and parameters of an undisturbed run except for rounding. With stale
parameters (``--strategies "PSLoadBalancing(staleness=2)"``) they must be within the noise of
``--calm`` such runs with all ranks and as many with one less. The pause of the survivors, from the
kill to the end of their next step, is bounded.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import cavs
from benchmarks.harness import markdown, write_report
from benchmarks.killed_rank import FinishedRun, compare
from benchmarks.options import at_least, positive, strategy_name
from benchmarks.result_paths import GridParser
from benchmarks.samples import ROOT
from benchmarks.sentiment import Sentiment, trees
from cavs.distributed import Trainer
from cavs.distributed.comm import MPICommunicator
from cavs.distributed.launch.launcher import command_of, find_mpirun
from cavs.train.checkpoint import read_checkpoint

GRAPHS, BATCH = 96, 12
BUCKETS = "buckets"  # no strategy


class Watched(Trainer):
    """Write the number of the current step for the killer, and record events."""

    watch: Any
    rank: int
    losses: list[float]
    seen: list[int]

    def advance(self, batch: Any) -> Any:
        self.watch[self.rank] = self.steps
        report = super().advance(batch)
        self.watch[self.rank] = self.steps
        self.losses.append(report.loss)
        self.seen += list(batch.ids)
        return report


def train(given: argparse.Namespace) -> None:
    """Train on every rank."""
    folder = Path(given.folder)
    c = MPICommunicator(timeout=given.timeout)
    graphs = trees(GRAPHS, table=True)
    trainer = Watched(
        Sentiment(True),
        cavs.optim.Adagrad(lr=0.02),
        strategy=None if given.strategy == BUCKETS else given.strategy,
        communicator=c,
        elastic=True,
        dtype=np.float64,
        threads=1,
    )
    trainer.losses, trainer.seen, trainer.rank = [], [], c.rank
    trainer.watch = np.memmap(folder / "steps", np.int64, "r+", shape=(c.size,))
    (folder / f"pid{c.rank}").write_text(str(os.getpid()))
    loader = cavs.DataLoader(graphs[: GRAPHS - BATCH], BATCH, shuffle=True)
    dev = cavs.DataLoader(graphs[GRAPHS - BATCH :], BATCH // 2)
    result = trainer.fit(
        loader,
        epochs=given.epochs,
        dev=dev,
        checkpoint=folder / "checkpoint.safetensors",
        progress=False,
    )
    np.savez(
        folder / f"values{trainer.rank}.npz",
        **{name: p.value for name, p in trainer.parameters.items()},
    )
    record = {
        "losses": trainer.losses,
        "seen": [int(i) for i in trainer.seen],
        "dev": [e["dev_loss"] for e in result.epochs],
        "steps": trainer.steps,
        "ranks": trainer.communicator.size,
        "stale": trainer.strategy is not None and trainer.strategy.has_stale,
    }
    (folder / f"result{trainer.rank}.json").write_text(json.dumps(record))
    trainer.close()


def run(
    given: argparse.Namespace,
    strategy: str,
    ranks: int,
    kill: tuple[int, int, float] | None = None,
) -> FinishedRun:
    """Run one training; kill: the victim, its step, and the delay in that step in seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        watch = np.memmap(folder / "steps", np.int64, "w+", shape=(ranks,))
        watch[:] = -1
        own = ["--rank", "--folder", name, "--strategy", strategy]
        own += ["--epochs", str(given.epochs), "--timeout", str(given.timeout)]
        command = command_of(find_mpirun(), ranks, ["-m", "benchmarks.faults", *own], elastic=True)
        with open(folder / "errors", "w+b") as errors:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "CAVS_NUM_THREADS": "1"},
                stdout=errors,
                stderr=errors,
            )
            still = None
            if kill is not None:
                still = _kill(process, folder, watch, *kill, given.limit)
            status = _wait(process, given.limit)
            errors.seek(0)
            said = errors.read().decode(errors="replace")
        done = [r for r in range(ranks) if (folder / f"result{r}.json").exists()]
        checkpoint = folder / "checkpoint.safetensors"
        return FinishedRun(
            status,
            said,
            {r: json.loads((folder / f"result{r}.json").read_text()) for r in done},
            {r: dict(np.load(folder / f"values{r}.npz")) for r in done},
            read_checkpoint(checkpoint).progress["step"] if checkpoint.exists() else -1,
            still,
        )


def _wait(process: subprocess.Popen[bytes], limit: float) -> int:
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
        return 124


def _kill(
    process: subprocess.Popen[bytes],
    folder: Path,
    watch: Any,
    victim: int,
    step: int,
    later: float,
    limit: float,
) -> float | None:
    """Return seconds until all survivors finished another step or the training, or None."""
    while watch[victim] < step:
        if process.poll() is not None:
            return None
        time.sleep(1e-3)
    time.sleep(later)
    try:
        os.kill(int((folder / f"pid{victim}").read_text()), signal.SIGKILL)
    except ProcessLookupError:  # the training is over
        return None
    begun, others = time.monotonic(), np.arange(len(watch)) != victim
    reached = int(watch[others].max())
    while watch[others].min() <= reached and process.poll() is None:
        if time.monotonic() - begun > limit:
            break
        time.sleep(1e-3)
    return time.monotonic() - begun


def undisturbed(given: argparse.Namespace, strategy: str) -> list[FinishedRun]:
    """Return one undisturbed run; several, half of them with a rank less, if no two are equal."""
    calm: list[FinishedRun] = []
    sizes = [given.ranks]
    while len(calm) < len(sizes):
        ended = run(given, strategy, sizes[len(calm)])
        if len(ended.results) != sizes[len(calm)]:
            print(ended.errors, file=sys.stderr)
            raise SystemExit(f"{strategy}: an undisturbed run fails")
        calm.append(ended)
        if ended.is_stale:
            sizes = [given.ranks] * given.calm + [given.ranks - 1] * given.calm
    return calm


def main(arguments: list[str] | None = None) -> int:
    parser = GridParser("faults", __doc__ or "")
    add = parser.add_argument
    add("--ranks", type=at_least(2), default=4, metavar="N")
    add("--runs", type=at_least(1), default=20, metavar="N", help="of each strategy")
    add("--strategies", nargs="+", type=strategy_name(BUCKETS), default=[BUCKETS], metavar="NAME")
    add(
        "--calm",
        type=at_least(1),
        default=3,
        metavar="N",
        help="undisturbed runs of stale strategies",
    )
    add("--epochs", type=at_least(1), default=5, metavar="N")
    add("--seed", type=at_least(0), default=0)
    add("--timeout", type=positive, default=60, metavar="S", help="that a rank waits for another")
    add("--limit", type=positive, default=300, metavar="S", help="of a run; then it is ended")
    for hidden in ("--folder", "--strategy"):
        add(hidden, help=argparse.SUPPRESS)
    add("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.ranks > BATCH:
        parser.error(f"--ranks: a global batch has {BATCH} graphs, one for a rank at least")
    if given.rank:
        train(given)
        return 0
    chance, records = random.Random(given.seed), []
    for strategy in given.strategies:
        calm = undisturbed(given, strategy)
        steps = calm[0].results[0]["steps"]
        for i in range(given.runs):
            while True:
                victim, step = chance.randrange(given.ranks), chance.randrange(steps)
                later = chance.random() * 0.02
                ended = run(given, strategy, given.ranks, (victim, step, later))
                if victim not in ended.results:
                    break
                print(f"rank {victim} had ended before it was killed: once more", file=sys.stderr)
            record = {
                "strategy": strategy,
                "victim": victim,
                "step": step,
                "status": ended.status,
                "still": ended.still,
                **compare(ended, calm, given.ranks),
            }
            records.append(record)
            said = "; ".join(record["faults"]) or "as if nothing had happened"
            print(
                f"{strategy} {i + 1} of {given.runs}: rank {victim} killed at step {step + 1}: "
                f"{said}",
                file=sys.stderr,
            )
            if record["faults"]:
                print(ended.errors, file=sys.stderr)
    print(show(records))
    write_report(given.out, show(records), records)
    return 1 if any(r["faults"] for r in records) else 0


def show(records: list[dict[str, Any]]) -> str:
    headers = [
        "strategy",
        "victim",
        "step",
        "seconds still",
        "loss gap",
        "parameters",
        "faults",
    ]
    rows = [
        [
            r["strategy"],
            str(r["victim"]),
            str(r["step"] + 1),
            "" if r["still"] is None else f"{r['still']:.1f}",
            f"{r['losses']:.1e}",
            f"{r['distance']:.1e}",
            "; ".join(r["faults"]) or "none",
        ]
        for r in records
    ]
    return markdown(headers, rows)


if __name__ == "__main__":
    raise SystemExit(main())
