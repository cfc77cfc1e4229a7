"""cavs: a runtime for dynamic neural networks.

Declare a cell once as a vertex function; every sample brings its input graph; the engine runs the
cell over all graphs of a batch, forward and backward, near the speed of the matrix products alone.
"""

from typing import TYPE_CHECKING

from cavs.exports import on_first_use

if TYPE_CHECKING:
    from cavs import data, inspect, nn, ops, train
    from cavs._engine import isa
    from cavs.config import num_threads, set_num_threads
    from cavs.data import Graph, GraphBatch, Link, Sample, SampleBatch, batch  # type: ignore[no-redef]
    from cavs.frontend import Model, Module, Parameter, State, VertexFunction
    from cavs.frontend.typed import vertex
    from cavs.inspect import Explanation, explain  # type: ignore[no-redef]
    from cavs.runtime import Session
    from cavs.train import DataLoader, Trainer, optim

__version__ = "0.1.0"

__all__ = [
    "DataLoader",
    "Explanation",
    "Graph",
    "GraphBatch",
    "Link",
    "Model",
    "Module",
    "Parameter",
    "Sample",
    "SampleBatch",
    "Session",
    "State",
    "Trainer",
    "VertexFunction",
    "batch",
    "data",
    "explain",
    "inspect",
    "isa",
    "nn",
    "num_threads",
    "ops",
    "optim",
    "set_num_threads",
    "train",
    "vertex",
]

__getattr__ = on_first_use(
    globals(),
    {
        **dict.fromkeys(("data", "inspect", "nn", "ops", "train"), ""),
        "isa": "_engine",
        **dict.fromkeys(("num_threads", "set_num_threads"), "config"),
        **dict.fromkeys(("Graph", "GraphBatch", "Link", "Sample", "SampleBatch", "batch"), "data"),
        **dict.fromkeys(("Model", "Module", "Parameter", "State", "VertexFunction"), "frontend"),
        **dict.fromkeys(("Explanation", "explain"), "inspect"),
        "Session": "runtime",
        "vertex": "frontend.typed",
        **dict.fromkeys(("DataLoader", "Trainer", "optim"), "train"),
    },
)
