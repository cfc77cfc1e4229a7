"""What a program of many parts has found so far: one failing part does not stop the others."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any

from benchmarks import machine
from benchmarks.apart import apart
from benchmarks.harness import measure, write_json
from benchmarks.samples import RANDOM
from benchmarks.sessions import LocalSession, RemoteSession, Session
from benchmarks.workloads import Case


class Collected:
    """The record of one run, which is a JSON file after each part, and the runners' processes.

    given: has ``data``, ``out``, ``in_process``, and ``patience``, the seconds that a process may
    take to answer.
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
        """What ``work`` returns, run in a process of its own; None where it failed.

        patience: seconds that it may take, where that is less than others may.
        """
        try:
            if self.given.in_process:
                return work(*arguments)
            return apart(work, *arguments, patience=min(patience, self.given.patience))
        except Exception as error:  # whatever it is, the other parts still count
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
        """Ends sessions; one that is asked for again begins anew."""
        for runner in runners:
            if runner in self.sessions:
                self.sessions.pop(runner).close()

    def measured(self, name: str, case: Case, runners: SequenceOf[str], rounds: int) -> Any:
        """What `measure` finds, ratios taken to the first of the runners; None where it failed."""
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
        """Ends all processes of runners at once, whatever they do."""
        for session in self.sessions.values():
            session.kill()
