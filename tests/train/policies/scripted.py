"""A training that a test writes down, for the rules of policies."""

import json
import math

import numpy as np


class ScriptedRun:
    """The attributes of a `TrainingRun` that built-in policies read, and what they have changed.

    changes: every change as (name, value).
    """

    def __init__(self, **facts):
        self.rank, self.size, self.max_size = 0, 1, 8
        self.step, self.epoch, self.batch_size = 0, 1, 8
        self.noise_scale = self.gradient_variance = self.throughput = math.nan
        self.grad_norm, self.lr_scale = 1.0, 1.0
        self.changes = []
        self.agree = True  # the verdict of the ranks
        self.broadcasts = None  # the value of rank 0, on another rank
        vars(self).update(facts)

    def all_reduce(self, value, op="sum"):
        return value * self.size if op == "sum" else value

    def broadcast(self, value, root=0):
        return value if self.rank == root else self.broadcasts

    def latency_tree(self, nbytes):
        return [0] * self.size

    def _change(self, name, value):
        assert type(value) in (int, float, list)
        self.changes.append((name, value))
        if self.agree and name != "tree":
            setattr(self, name, value)
        return self.agree

    def set_batch_size(self, size):
        assert type(size) is int and size >= 1
        return self._change("batch_size", size)

    def set_lr_scale(self, scale):
        assert scale > 0 and np.isfinite(scale)
        return self._change("lr_scale", scale)

    def resize(self, size):
        assert 1 <= size <= self.max_size
        return self._change("size", size)

    def set_tree(self, tree):
        return self._change("tree", tree)


def epochs(policy, run, values):
    """Let `policy` see one epoch for each noise scale of `values`; return the batch sizes."""
    sizes = []
    for run.noise_scale in values:
        policy.after_epoch(run)
        run.epoch += 1
        sizes.append(run.batch_size)
    return sizes


def steps(policy, run, count, **facts):
    """Let `policy` see `count` steps with these facts."""
    vars(run).update(facts)
    for _ in range(count):
        run.step += 1
        policy.after_step(run)


def restored(policy, **options):
    """Return a new policy that has the state of `policy`, as a checkpoint stores it."""
    again = type(policy)(**options)
    again.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
    assert again.state_dict() == policy.state_dict()
    return again
