"""A session holds one runner on one case and times passes over its batches.

By default each runner lives in a process of its own, so that one library's threads and allocator
never disturb another's; the processes take turns, pass by pass.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import machine
from benchmarks.runner import Timed, computed, make_runner, python_of
from benchmarks.samples import ROOT
from benchmarks.workloads import Case, load

# One vertex at a time is slow: these runners get only the first batches of a pass.
SLOW = {"naive": 1}


@dataclass(frozen=True)
class Pass:
    """One pass over the batches of a case. Seconds; `cpu` counts all threads of the process."""

    wall: float
    cpu: float


class Session(ABC):
    """A runner that measures case after case."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def configure(self, case: Case) -> int:
        """Load data and runner for a case and warm up; return the vertices of a pass."""

    @abstractmethod
    def run(self) -> Pass:
        """Run one pass of training steps or of inference on prepared plans."""

    @abstractmethod
    def prepare(self) -> Pass:
        """Run one pass of preparation: collation, index tensors or schedules."""

    def construct(self) -> Pass | None:
        """Run one pass that only builds the expressions of steps; None if steps build none."""
        return None

    @abstractmethod
    def peak_memory(self) -> int:
        """Return the peak of the bytes of the device, or of the process since its case began."""

    def moved(self) -> dict[str, float]:
        """Return bytes that a step gathers and writes, its peak, and seconds by kind, if known."""
        return {}

    def own_versions(self) -> dict[str, str]:
        """Return the versions of Python and packages if the runner has another Python."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """End the session."""

    def kill(self) -> None:
        """Kill its process."""
        self.close()


class LocalSession(Session):
    """A session in this process."""

    runner: Timed
    plans: list[Any]

    def configure(self, case: Case) -> int:
        machine.forget_peak()
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
        self._pass(self.plans[:1])  # other processes used the caches: warm up, untimed
        cpu, wall = time.process_time(), time.perf_counter()
        self._pass(self.plans)
        return Pass(time.perf_counter() - wall, time.process_time() - cpu)

    def prepare(self) -> Pass:
        cpu, wall = time.process_time(), time.perf_counter()
        for batch in self.batches:
            self.runner.prepare(batch)
        self.runner.synchronize()
        return Pass(time.perf_counter() - wall, time.process_time() - cpu)

    def construct(self) -> Pass | None:
        if not self.runner.constructs():
            return None
        cpu, wall = time.process_time(), time.perf_counter()
        for plan in self.plans:
            self.runner.construct(plan)
        return Pass(time.perf_counter() - wall, time.process_time() - cpu)

    def compute(self, case: Case) -> dict[str, npt.NDArray[np.float32]]:
        """Return the values that the check of the runners compares."""
        return computed(self.name, case)

    def versions(self) -> dict[str, str]:
        """Return the versions of Python and packages here."""
        return machine.versions()

    def peak_memory(self) -> int:
        return self.runner.device_memory() or machine.peak_memory()

    def moved(self) -> dict[str, float]:
        return self.runner.moved(self.plans)

    def close(self) -> None:
        self.plans = []


def serve(name: str, connection: Connection) -> None:
    """Answer requests until the connection closes."""
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
    """A runner failed in its process; has its traceback."""


def _path() -> str:
    """Return the PYTHONPATH of a process that imports this package from any folder."""
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(ROOT), *filter(None, [given])])


class RemoteSession(Session):
    """A session in a new process, with the Python of the runner, which is idle between its turns.

    patience: seconds to wait for an answer before the process is killed; None waits forever.
    """

    def __init__(self, name: str, patience: float | None = None) -> None:
        super().__init__(name)
        self.patience = patience
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [python_of(name), "-m", "benchmarks.serve", name, str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": _path()},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        self.connection = Connection(ours.detach())

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            self.connection.send((method, arguments))
            if not self.connection.poll(self.patience):
                self.kill()
                raise SessionError(f"{self.name} gave no answer within {self.patience:g} s")
            good, answer = self.connection.recv()
        except (EOFError, OSError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            raise SessionError(
                f"the process of {self.name} ended with code {self.process.returncode}"
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

    def construct(self) -> Pass | None:
        result: Pass | None = self._ask("construct")
        return result

    def compute(self, case: Case) -> dict[str, npt.NDArray[np.float32]]:
        """Return the values that the check of the runners compares."""
        result: dict[str, npt.NDArray[np.float32]] = self._ask("compute", case)
        return result

    def own_versions(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if python_of(self.name) != sys.executable:
            found = self._ask("versions")
        return found

    def peak_memory(self) -> int:
        result: int = self._ask("peak_memory")
        return result

    def moved(self) -> dict[str, float]:
        result: dict[str, float] = self._ask("moved")
        return result

    def kill(self) -> None:
        """Kill the process with all processes that it has started.

        A process that hangs in a driver remains; do not wait for it.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)

    def close(self) -> None:
        if self.process.poll() is None:
            try:
                self._ask("close")
            except SessionError:
                self.process.terminate()
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
