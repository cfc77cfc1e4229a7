"""The results of a program of many parts so far: a failing part does not stop the others."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any

from benchmarks import machine
from benchmarks.harness import measure, write_json
from benchmarks.new_process import in_new_process
from benchmarks.samples import RANDOM
from benchmarks.sessions import LocalSession, RemoteSession, Session
from benchmarks.workloads import Case


class Findings:
    """The record of one run, a JSON file that is written after each part, and its processes.

    given: has ``data``, ``out``, ``in_process``, and ``patience``, the longest time in seconds to
    wait for a process.
    """

    def __init__(self, given: argparse.Namespace, started: float, benchmark: str) -> None:
        self.given = given
        self.started = started
        self.sessions: dict[str, Session] = {}
        self.record: dict[str, Any] = {
            "benchmark": benchmark,
            **machine.surroundings(),
            "data": "drawn" if given.data == RANDOM else "files",
            "cases": [],
            "failed": [],
        }

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def say(self, text: str) -> None:
        print(f"[{self.seconds:4.0f} s] {text}", file=sys.stderr, flush=True)

    def save(self) -> None:
        self.record["seconds"] = round(self.seconds, 1)
        write_json(self.given.out, self.record)

    def fail(self, name: str, error: object) -> None:
        text = str(error).strip() or type(error).__name__
        self.record["failed"].append({"part": name, "error": text})
        self.say(f"{name} failed: {text}")

    def found(
        self, name: str, work: Callable[..., Any], *arguments: Any, patience: float = math.inf
    ) -> Any:
        """Return the result of ``work``, run in a new process; None if it failed.

        patience: seconds to wait, if that is less than for other parts.
        """
        try:
            if self.given.in_process:
                return work(*arguments)
            return in_new_process(work, *arguments, patience=min(patience, self.given.patience))
        except Exception as error:  # the other parts still count
            self.fail(name, error)
            return None

    def session(self, runner: str) -> Session:
        if runner not in self.sessions:
            local, patience = self.given.in_process, self.given.patience
            self.sessions[runner] = (
                LocalSession(runner) if local else RemoteSession(runner, patience)
            )
        return self.sessions[runner]

    def drop(self, *runners: str) -> None:
        """End sessions; `session` starts a new one."""
        for runner in runners:
            if runner in self.sessions:
                self.sessions.pop(runner).close()

    def measured(self, name: str, case: Case, runners: SequenceOf[str], rounds: int) -> Any:
        """Return the entry of `measure`, with ratios to the first runner; None if it failed."""
        try:
            sessions = [self.session(runner) for runner in runners]
            entry = measure(case, sessions, rounds, runners[0])
        except Exception as error:  # a runner of this process, or one that failed in a round
            self.fail(name, error)
            self.drop(*runners)
            return None
        for runner, error in entry["failed"].items():
            self.fail(f"{name}: {runner}", error)
        self.drop(*entry["failed"])  # a device's fault stays with the process
        return entry

    def kill(self) -> None:
        """Kill all processes of runners."""
        for session in self.sessions.values():
            session.kill()
