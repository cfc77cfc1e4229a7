"""cavs: a runtime for dynamic neural networks.

Declare a cell once as a vertex function; every sample brings its input graph; the engine runs the
cell over all graphs of a batch, forward and backward, near the speed of the matrix products alone.
"""

from cavs import data, inspect, nn, ops, train
from cavs._engine import isa
from cavs.config import num_threads, set_num_threads
from cavs.data import Graph, GraphBatch, batch
from cavs.frontend import Model, Module, Parameter, State, VertexFunction
from cavs.inspect import Explanation, explain
from cavs.runtime import Session
from cavs.train import DataLoader, Trainer, optim

__version__ = "0.1.0"

__all__ = [
    "DataLoader",
    "Explanation",
    "Graph",
    "GraphBatch",
    "Model",
    "Module",
    "Parameter",
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
]
