"""`Adaptation`: the policies and monitors of a `fit`, between its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from cavs.train.batches import Loader
from cavs.train.coordination import Coordinator
from cavs.train.fit_options import FitOptions
from cavs.train.monitors import NoiseScale, Throughput, monitors_of
from cavs.train.policy import Hook, Policies, TrainingRun
from cavs.train.run_state import RunState
from cavs.train.run_table import RunTable
from cavs.train.stepping import Step, TrainingState

Log = Callable[..., None]


class Adaptation:
    """Calls the hooks of policies and gives the facts of steps to monitors.

    log: ``log(event, **record)`` appends to the log of the `fit`.
    """

    def __init__(
        self,
        options: FitOptions,
        state: TrainingState,
        coordinator: Coordinator,
        train: Loader,
        run: RunState,
        log: Log,
    ) -> None:
        self.policies = Policies(options.policies)
        self.monitors = monitors_of(options.monitors, self.policies.policies)
        self._state, self._coordinator, self._log = state, coordinator, log
        group = coordinator.group
        self.run = TrainingRun(state, train, run, group, RunTable(group), self.monitors)
        self.run.on_change = self._changed
        self.failed: Exception | None = None  # raised by a hook
        self._ended = math.nan  # time at which the last step ended
        self.size = coordinator.agreed_size()  # number of ranks that the policies know of

    @property
    def is_active(self) -> bool:
        """True if there is a policy or a monitor."""
        return bool(self.policies) or bool(self.monitors.monitors)

    def call(self, hook: Hook, *facts: int) -> None:
        """Call a hook of all policies."""
        if not self.policies:
            return
        with self._coordinator.guard_policies():
            try:
                self.policies.call(hook, self.run, *facts)
            except Exception as error:
                self.failed = error
                raise

    def note_size(self) -> None:
        """Call the policies if the number of ranks has changed since the last call."""
        old, self.size = self.size, self._coordinator.agreed_size()
        if self.size != old:
            self.call("on_resize", old, self.size)

    def restart_clock(self) -> None:
        """Do not count what comes between two steps, such as an evaluation, as time of a step."""
        self._ended = math.nan
        self._coordinator.restart_clock()

    def before_step(self) -> None:
        """Prepare the monitors for the step that is about to begin, and call the policies."""
        if self.is_active:
            if math.isnan(self._ended):
                self._ended = time.perf_counter()
            self.call("before_step")
            self._coordinator.watch(self.monitors.due(self._state.steps))

    def after_step(self, step: Step) -> None:
        """Give the facts of an ended step to the monitors, call the policies, and log it."""
        if not self.is_active:
            return
        now = time.perf_counter()
        seconds, self._ended = now - self._ended, now
        facts = self._coordinator.step_facts(step.batch, step.outcome, seconds)
        self.monitors.end_step(self._state.steps - 1, facts)
        run = self.run
        run.loss, run.grad_norm = step.outcome.loss, step.outcome.grad_norm
        self._log(
            "step",
            epoch=run.epoch,
            step=run.step,
            loss=run.loss,
            grad_norm=run.grad_norm,
            batch_size=facts.graphs,
            ranks=run.size,
            seconds=facts.seconds,
            **self._known_measures(),
        )
        self.call("after_step")

    def shown(self) -> dict[str, float]:
        """Return numbers for the progress line, the most important ones first.

        The throughput is left out, since the line has the graphs per second.
        """
        if not self.is_active:
            return {}
        found: dict[str, float] = {"batch": self.run.batch_size}
        if self.run.size > 1:
            found["ranks"] = self.run.size
        known = self._known_measures()
        if NoiseScale.name in known:
            found["noise"] = known.pop(NoiseScale.name)
        known.pop(Throughput.name, None)
        return found | {name.replace("_", " "): value for name, value in known.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what policies and monitors have learned, for a checkpoint."""
        found: dict[str, Any] = {}
        if self.policies:
            found["policies"] = self.policies.state_dict()
        if self.monitors.monitors:
            found["monitors"] = self.monitors.state_dict()
        return found

    def load_state_dict(self, progress: Mapping[str, Any]) -> None:
        """Continue from the progress in a checkpoint."""
        self.policies.load_state_dict(progress.get("policies", []))
        self.monitors.load_state_dict(progress.get("monitors", {}))

    def _known_measures(self) -> dict[str, float]:
        return {name: x for name, x in self.monitors.values().items() if not math.isnan(x)}

    def _changed(self, name: str, value: Any) -> None:
        if name == "batch_size":
            self._coordinator.batch_size_changed()
        self._log("change", step=self._state.steps, setting=name, value=value)
