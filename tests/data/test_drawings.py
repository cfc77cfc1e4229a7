import sys

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.data import Graph, Vocabulary, batch, dot_function, dot_graph, dot_schedule, render
from cavs.errors import ConfigError


def test_a_graph_shows_features_and_edges():
    graph = Graph(
        [[], [], [1, 0]],
        {"token": [1, 2, -1], "x": [0.5, 1.0, 2.0], "v": np.ones((3, 2))},
        {"rel": [4, -1]},
        name='say "hi"',
    )
    dot = dot_graph(graph, {"token": Vocabulary(['a"b', "back\\slash"])})
    assert dot.startswith('digraph "say \\"hi\\"" {')
    assert 'v0 [label="0\\na\\"b\\nx 0.5\\nv [1 1]"];' in dot
    assert 'v1 [label="1\\nback\\\\slash\\nx 1\\nv [1 1]"];' in dot
    assert 'v2 [label="2\\nx 2\\nv [1 1]"];' in dot
    assert 'v1 -> v2 [label="0\\nrel 4"];' in dot and 'v0 -> v2 [label="1"];' in dot
    assert dot.count("{") == dot.count("}")
    with pytest.raises(ConfigError, match="501 vertices are too many"):
        dot_graph(Graph.chain(501))


def test_a_schedule_shows_tasks_by_level():
    graph = Graph([[], [], [0, 1], [2]], {"t": [0, -1, -1, -1]})
    s = batch([graph, graph]).schedule(("t",))
    dot = dot_schedule(s)
    assert "level 0, kind 2 (leaf, mask 1)\\n2 vertices, 0 edges" in dot
    assert "level 2, kind 0 (inner, mask 0)\\n2 vertices, 2 edges" in dot
    assert "{ rank=same; t0; t1; }" in dot
    arrows = [line.split("[")[0].strip() for line in dot.splitlines() if "->" in line]
    assert arrows == ["t0 -> t2", "t1 -> t2", "t2 -> t3"]
    assert "2 more tasks" in dot_schedule(s, max_tasks=2)


def test_a_vertex_function_shows_its_primitives():
    class Encoder(cavs.Model):
        def __init__(self):
            self.tree = nn.BinaryTreeLSTM(3, 4)

        def forward(self, batch):
            return self.tree(batch.graph, x=batch["x"])

    dot = dot_function(Encoder(), batch([Graph([[], [], [0, 1]], {"x": np.ones((3, 3))})]))
    assert dot.startswith('digraph "Encoder" {') and dot.count("{") == dot.count("}")
    for label in (
        "tree.W\\n[3, 12] one", "feature x\\n[3] vertex", "gather h\\n[4] edge",
        "child 1\\n[4] vertex", "scatter c\\nBinaryTreeLSTM", "push\\n[4] vertex", "output",
    ):  # fmt: skip
        assert f'[label="{label}"' in dot, label
    names = {line.split()[0] for line in dot.splitlines() if "[label=" in line}
    arrows = [line.strip().rstrip(";") for line in dot.splitlines() if "->" in line]
    ends = {end for arrow in arrows for end in arrow.split(" [")[0].split(" -> ")}
    assert ends == names  # every box is there once and is tied to the rest
    assert sum("style=dashed" in arrow for arrow in arrows) == 2  # c and h, to the parents


def test_render(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="no suffix"):
        render("digraph {}", tmp_path / "picture")
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(ConfigError, match=r"pip install 'cavs\[viz\]'"):
        render("digraph {}", tmp_path / "picture.svg")
