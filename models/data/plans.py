"""Plans of PostgreSQL, as EXPLAIN (FORMAT JSON) prints them, as graphs with an operator a type."""

from __future__ import annotations

import gzip
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np

import cavs
from cavs.data import parse_json_trees
from cavs.data.readers.json_parser import JsonTree, tree_of
from cavs.errors import DataError

RECORDING = Path(__file__).with_name("plans.json.gz")
ESTIMATES = ("Plan Rows", "Plan Width", "Startup Cost", "Total Cost")
# The operators by their number of children, None for any number.
ARITIES = {
    0: "Seq Scan, Index Scan, Index Only Scan, Bitmap Index Scan",
    1: "Bitmap Heap Scan, Subquery Scan, Hash, Sort, Incremental Sort, Aggregate, GroupAggregate, "
    "HashAggregate, Group, WindowAgg, Unique, SetOp, HashSetOp, Limit, Materialize, Memoize",
    2: "Nested Loop, Hash Join, Merge Join",
    None: "Append, Merge Append, BitmapAnd, BitmapOr, Result",
}
OPERATORS = {name: arity for arity, names in ARITIES.items() for name in names.split(", ")}
# Operators with strategies, by the names that EXPLAIN gives them in its text format.
STRATEGIES = {
    ("Aggregate", "Sorted"): "GroupAggregate",
    ("Aggregate", "Hashed"): "HashAggregate",
    ("SetOp", "Hashed"): "HashSetOp",
}


def number(values: dict, key: str, where: str) -> float:
    """Return a number of an operator; DataError unless it is one, and not below 0."""
    found = values.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 1e30:
        raise DataError(
            f"{where} has {key} {found!r:.40}; expected a number from 0",
            hint="EXPLAIN (FORMAT JSON) prints it, and the times with EXPLAIN (ANALYZE)",
        )
    return float(found)


def operator(values: dict, children: int, where: str) -> str:
    """Return the type of an operator; DataError if it is unknown, or has other children."""
    node = values.get("Node Type")
    found = STRATEGIES.get((str(node), str(values.get("Strategy"))), str(node))
    if found not in OPERATORS:
        hint = f"known operators: {', '.join(OPERATORS)}"
        raise DataError(f"{where} is {found!r:.40}, an operator without a unit", hint=hint)
    arity = OPERATORS[found]
    if arity is not None and arity != children:
        raise DataError(
            f"{where}, {found}, has {children} plans below; expected {arity}",
            hint="write subqueries as joins: a plan that an operator runs for itself has no place",
        )
    return found


def plan_of(tree: JsonTree) -> JsonTree:
    """Return the tree of a plan, below the object of the statement if EXPLAIN printed one."""
    if "Plan" not in tree.objects[-1]:
        return tree
    plan = tree.objects[-1]["Plan"]
    if not isinstance(plan, dict):
        raise DataError(
            f"{tree.name}: Plan is {plan!r:.40}, no object",
            hint="EXPLAIN (FORMAT JSON) prints one plan for each statement",
        )
    return tree_of(plan, "Plans", tree.name)


def positions(children: list[list[int]]) -> list[str]:
    """Return the position of each operator: the steps from the root in JSON, the last 8 at most."""
    parents = {c: (v, k) for v, below in enumerate(children) for k, c in enumerate(below)}
    found = []
    for vertex in range(len(children)):
        above, steps = vertex, list[str]()
        while above in parents and len(steps) < 8:
            above, k = parents[above]
            steps.append(f"Plans[{k}]")
        found.append(".".join(reversed(steps)) or "the root")
    return found


def plan_graphs(text: str, name: str, timed: bool = True) -> list[cavs.Graph]:
    """Return the graph of each plan of a text: one on each line, or what EXPLAIN printed.

    Features of operators: "estimates", logarithms of what the planner estimates; "time", log(1 +
    microseconds), the mean over the times that it ran; "ran", 0 for one that never ran. timed:
    True if times are required; without it they may be absent, and count as never run.
    """
    graphs = []
    for tree in parse_json_trees(text, "Plans", name):
        plan = plan_of(tree)
        children = [plan.children[a:b] for a, b in pairwise(plan.offsets)]
        types, rows = [], []
        for values, below, at in zip(plan.objects, children, positions(children), strict=True):
            where = f"{tree.name}: the operator at {at}"
            types.append(operator(values, len(below), where))
            known = timed or "Actual Total Time" in values
            keys = (*ESTIMATES, "Actual Total Time", "Actual Loops") if known else ESTIMATES
            row = [number(values, key, where) for key in keys]
            rows.append(row + [0.0] * (len(ESTIMATES) + 2 - len(row)))
        estimates, (time, loops) = np.array(rows)[:, :-2], np.array(rows).T[-2:]
        features = {
            "estimates": np.log1p(estimates) / 8,
            "time": np.log1p(1000 * time)[:, None],
            "ran": (loops > 0).astype(np.float32)[:, None],
        }
        graphs.append(cavs.Graph(children, features, types=types, name=tree.name))
    return graphs


def read_plans(path: Path) -> list[cavs.Graph]:
    """Return the plans of a recording of `models.data.record_plans`."""
    try:
        text = gzip.decompress(path.read_bytes()).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        hint = "models.data.record_plans writes recordings"
        raise DataError(f"{path}: no recording: {error}", hint=hint) from error
    return plan_graphs(text, path.name)
