"""A session holds one runner on one case and times passes over its batches.

By default each runner lives in a process of its own, so that one library's threads and allocator
never disturb another's; the processes take turns, pass by pass.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.apart import kill, lead
from benchmarks.runner import Timed, make_runner
from benchmarks.workloads import Case, load

# A vertex at a time is slow: these runners get the first batches of a pass only.
SLOW = {"naive": 1}


@dataclass(frozen=True)
class Pass:
    """One pass over the batches of a case. Seconds; `cpu` counts all threads of the process."""

    wall: float
    cpu: float


class Session(ABC):
    """One runner, case after case."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def configure(self, case: Case) -> int:
        """Loads data and runner for a case and warms up; the vertices of a pass."""

    @abstractmethod
    def run(self) -> Pass:
        """One pass of training steps or of inference, plans made before."""

    @abstractmethod
    def prepare(self) -> Pass:
        """One pass of preparation: collation, index tensors or schedules."""

    @abstractmethod
    def peak_memory(self) -> int:
        """Most bytes held so far: of the device that the case runs on, or of the process."""

    @abstractmethod
    def close(self) -> None:
        """Ends the session."""

    def kill(self) -> None:
        """Ends it at once, whatever it does."""
        self.close()


class LocalSession(Session):
    """In this process."""

    runner: Timed

    def configure(self, case: Case) -> int:
        few = SLOW.get(self.name, case.batches)
        self.case = case
        workload = load(case)
        if few < case.batches:
            if case.batch_size == 1:
                few = min(case.batches, 8)
            workload = replace(workload, batches=workload.batches[:few])
        self.runner = make_runner(self.name, workload)
        self.batches = workload.batches
        self.plans = [self.runner.prepare(batch) for batch in self.batches]
        self.runner.settle(self.plans)
        self._warm_up()
        return sum(workload.vertices)

    def _warm_up(self) -> None:
        start = time.perf_counter()
        passes = 0
        while passes < 1 or (time.perf_counter() - start < 0.3 and passes < 20):
            self._pass(self.plans)
            passes += 1

    def _pass(self, plans: list[Any]) -> None:
        if not self.case.training:
            for plan in plans:
                self.runner.infer(plan)
            self.runner.synchronize()
            return
        losses = self.runner.train_all(plans)
        if not np.isfinite(losses).all():
            raise FloatingPointError(f"{self.name}: the losses are {losses} on {self.case.title}")
        self.runner.synchronize()

    def run(self) -> Pass:
        self._pass(self.plans[:1])  # another process had the caches: wake up, untimed
        cpu, wall = time.process_time(), time.perf_counter()
        self._pass(self.plans)
        return Pass(time.perf_counter() - wall, time.process_time() - cpu)

    def prepare(self) -> Pass:
        cpu, wall = time.process_time(), time.perf_counter()
        for batch in self.batches:
            self.runner.prepare(batch)
        self.runner.synchronize()
        return Pass(time.perf_counter() - wall, time.process_time() - cpu)

    def peak_memory(self) -> int:
        on_device = self.runner.device_memory()
        return on_device or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def close(self) -> None:
        self.plans = []


def _serve(name: str, connection: Connection) -> None:
    """The life of a process: one request, one answer."""
    lead()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    session = LocalSession(name)
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            answer = (True, getattr(session, method)(*arguments))
        except KeyboardInterrupt:
            return
        except Exception as error:
            answer = (False, f"{error}\n{traceback.format_exc()}")
        connection.send(answer)
        if method == "close":
            return


class SessionError(RuntimeError):
    """A runner failed in its process; carries its traceback."""


class RemoteSession(Session):
    """In a process of its own, which idles between its turns.

    patience: seconds to wait for an answer before the process is killed; None waits forever.
    """

    def __init__(self, name: str, patience: float | None = None) -> None:
        super().__init__(name)
        self.patience = patience
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(name, theirs))
        self.process.start()
        theirs.close()

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            self.connection.send((method, arguments))
            if not self.connection.poll(self.patience):
                self.kill()
                raise SessionError(f"{self.name} gave no answer within {self.patience:g} s")
            good, answer = self.connection.recv()
        except (EOFError, OSError) as error:
            self.process.join(5)
            raise SessionError(
                f"the process of {self.name} ended with code {self.process.exitcode}"
            ) from error
        if not good:
            raise SessionError(f"{self.name}: {answer}")
        return answer

    def configure(self, case: Case) -> int:
        vertices: int = self._ask("configure", case)
        return vertices

    def run(self) -> Pass:
        result: Pass = self._ask("run")
        return result

    def prepare(self) -> Pass:
        result: Pass = self._ask("prepare")
        return result

    def peak_memory(self) -> int:
        result: int = self._ask("peak_memory")
        return result

    def kill(self) -> None:
        """Ends the process at once, with all that it has started."""
        kill(self.process)

    def close(self) -> None:
        if self.process.is_alive():
            try:
                self._ask("close")
            except SessionError:
                self.process.terminate()
        self.process.join(10)
        self.connection.close()
