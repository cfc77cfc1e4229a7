"""Names of functions: trees of statements under a bidirectional chain (ASTNN).

    cavs train astnn [--data DIR]

A sample is a function of Python's own library, or of the .py files below DIR, whose syntax tree is
cut at its statements (Zhang et al. 2019): one structure has the trees of all statements, another
one the chain of the statements in the order of the source, which reads along a link what the tree
of each encodes. The header of a compound statement is a tree of its own, before those of its body.
The model predicts the first word of the name, as ast-naming does: the defaults reach 58 % of the
functions of the test part. It needs no download.
"""

from __future__ import annotations

import ast

import numpy as np

import cavs
from cavs import nn, ops

from . import ast_naming
from .ast_naming import add_arguments

__all__ = ["DEFAULTS", "add_arguments", "build"]

DEFAULTS = {"epochs": 10, "batch_size": 32, "lr": 0.002, "optimizer": "adam"}
DEFAULTS |= {"schedule": "cosine"}


class StatementTree(cavs.VertexFunction):
    """Encode trees from the leaves up: h of a vertex, and 1 plus the maximum over its subtree."""

    def __init__(self, input_size: int, size: int):
        self.state = cavs.State(h=size, most=size)
        self.linear = nn.Linear(input_size, size)

    def vertex(self, v):
        """Add up the children before the tanh; push 1 plus the maxima of the subtree."""
        below = v.gather()
        h = ops.tanh(self.linear(v.pull("x")) + below.h.sum())
        # A maximum over no children is 0, which h + 1 exceeds.
        most = ops.maximum(h + 1.0, below.most.max())
        v.scatter(h=h, most=most)
        v.push(most)


class StatementChain(cavs.Model):
    """Encode statements by their trees, read them in both directions, and score names."""

    def __init__(self, num_types: int, num_names: int, num_classes: int, size: int, dropout: float):
        self.type = nn.Embedding(num_types, size)
        self.name = nn.Embedding(num_names, size)
        self.tree = StatementTree(size, size)
        self.chain = nn.Bidirectional(nn.GRU(size, size), nn.GRU(size, size))
        self.output = nn.Linear(2 * size, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch):
        """Return scores of the words, one row per function."""
        trees, statements = batch.graphs["trees"], batch.graphs["statements"]
        x = self.dropout(self.type(trees["type"]) + self.name(trees["name"]))
        tree = self.tree(trees, x=x)
        x = self.dropout(ops.take(tree, batch.link("tree")) - 1.0)
        return self.output(self.dropout(ops.max_graph(self.chain(statements, x=x))))

    def loss(self, batch):
        """Return the mean cross entropy over functions."""
        return ops.cross_entropy(self.forward(batch), batch.graphs["statements"]["label"])


def statements(graph, types):
    """Return the sample of a function, whose graph is a tree in postorder.

    types: the vocabulary of its feature "type".
    """
    names = [n for n, of in vars(ast).items() if isinstance(of, type) and issubclass(of, ast.stmt)]
    begins = np.isin(graph.features["type"], [types[name] for name in names if name in types])
    begins[-1] = True  # the function itself
    first = np.arange(graph.num_vertices)  # the first vertex of each subtree
    children = []
    for v in range(graph.num_vertices):
        below = graph.children(v)
        first[v] = first[below[0]] if len(below) else v
        children.append(below[~begins[below]])
    roots = np.flatnonzero(begins)
    # In the order of the source a vertex is before those of its subtree.
    roots = roots[np.lexsort((-roots, first[roots]))]
    return cavs.Sample(
        trees=cavs.Graph(children, graph.features),
        statements=cavs.Graph.chain(len(roots), graph_features=graph.graph_features),
        links={"tree": cavs.Link("statements", "trees", roots)},
        name=graph.name,
    )


def build(args, assets=None):
    """Return the model and the functions, split as those of `ast_naming`."""
    label = "statements.label"
    return ast_naming.naming_task(args, assets, StatementChain, statements, label)
