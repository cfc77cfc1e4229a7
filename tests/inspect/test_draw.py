import re
import sys
import types

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.data import Graph, Vocabulary, batch
from cavs.errors import CavsError, ConfigError, FeatureError
from cavs.inspect import dot_function, dot_graph, dot_schedule, render
from tests.runtime.plans import Plan, PlanCost, plans


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


def test_a_vertex_function_shows_its_operators():
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


def arrows_of(dot, dashed):
    found = [line.strip() for line in dot.splitlines() if "->" in line]
    return [line for line in found if ("style=dashed" in line) == dashed]


def scatters_of(dot):
    return {line.split()[0] for line in dot.splitlines() if '[label="scatter ' in line}


def test_a_batch_shows_its_graphs_in_frames():
    dot = dot_graph(batch([Graph([[], [0]], name="one"), Graph([[], [], [0, 1]])]))
    assert 'subgraph cluster0 { label="graph 0 \\"one\\"";' in dot
    assert 'g0v0 -> g0v1 [label="0"];' in dot and 'g1v1 -> g1v2 [label="1"];' in dot
    assert dot.count("{") == dot.count("}") == 3
    with pytest.raises(ConfigError, match="600 vertices are too many"):
        dot_graph(batch([Graph.chain(300)] * 2))
    with pytest.raises(ConfigError, match=r"not list(.|\n)*cavs.batch\(graphs\)"):
        dot_graph([Graph.chain(2)])


def test_a_batch_shows_its_schedule():
    graph = Graph([[], [], [0, 1]])
    assert dot_schedule(batch([graph])) == dot_schedule(batch([graph]).schedule())
    assert dot_schedule(graph) == dot_schedule(batch([graph]))
    assert "level 1" in dot_schedule(graph)
    with pytest.raises(ConfigError, match=r"not list(.|\n)*session.schedule\(batch\)"):
        dot_schedule([graph])


def test_a_cell_is_drawn_by_itself():
    cell = nn.ChildSumTreeLSTM(3, 4)
    dot = dot_function(cell, x=(3,))
    assert dot.startswith('digraph "ChildSumTreeLSTM" {')
    assert 'label="pull x\\n[3] vertex"' in dot and 'label="U_f\\n[4, 4] one", shape=ell' in dot
    assert len(arrows_of(dot, dashed=True)) == 2
    one = batch([Graph([[], [0]], {"x": np.ones((2, 3)), "token": [1, 2], "ids": [[1, 2]] * 2})])
    assert dot_function(cell, one) == dot == dot_function(cell, x=3)
    assert dot_function(cell, one.graphs[0]) == dot
    with pytest.raises(FeatureError, match=r"pull\('x'\)[\s\S]*dot_function\(cell, x=\(3,\)\)"):
        dot_function(cell)
    with pytest.raises(FeatureError, match="called with y, which ChildSum"):
        dot_function(cell, one, y=3)
    for shape in ("3", (0,), (1.5,)):
        with pytest.raises(ConfigError, match="no shape of a row"):
            dot_function(cell, x=shape)


def test_features_of_edges_show_in_a_cell():
    class Typed(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=4)

        def vertex(self, v):
            h = v.pull("x") + (v.gather().h * v.edge("r")).sum()
            v.scatter(h=h)
            v.push(h=h, twice=h + h)

    dot = dot_function(Typed(), x=(4,), r=(4,))
    assert "pull r\\n[4] edge" in dot and "pull x\\n[4] vertex" in dot
    assert '[label="h", shape=plaintext]' in dot and '[label="twice", shape=plaintext]' in dot


def test_wrong_arguments_say_what_can_be_drawn():
    class Encoder(cavs.Model):
        def forward(self, batch):
            return batch["x"]

    for wrong in (
        lambda: dot_function(Encoder()),
        lambda: dot_function(Encoder(), batch([Graph.chain(2)]), x=(3,)),
        lambda: dot_function(Encoder(), [Graph.chain(2)]),
        lambda: dot_function(nn.Linear(2, 3), x=(3,)),
    ):
        with pytest.raises(ConfigError, match="hint: "):
            wrong()


def test_a_number_is_drawn_in_few_digits():
    class Clipped(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=4)

        def vertex(self, v):
            h = ops.maximum(v.pull("x") + v.gather().h.sum(), 1 / 3)
            v.scatter(h=h)
            v.push(h)

    assert '[label="0.3333"' in dot_function(Clipped(), x=(4,))


def test_every_scatter_of_a_top_down_cell_has_its_arrow():
    class Tagger(cavs.Model):
        def __init__(self):
            self.forth, self.back = nn.LSTM(3, 4), nn.LSTM(3, 4)

        def forward(self, batch):
            down = self.back(batch.graph.reversed(), x=batch["x"])
            return self.forth(batch.graph, x=batch["x"]) + down

    dot = dot_function(Tagger(), batch([Graph.chain(3, features={"x": np.ones((3, 3))})]))
    dashed = {arrow.split()[0] for arrow in arrows_of(dot, dashed=True)}
    assert len(dashed) == 4 and dashed == scatters_of(dot)
    assert "gather h of parents\\n[4] vertex" in dot and "gather h\\n[4] edge" in dot


def test_render(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="no suffix"):
        render("digraph {}", tmp_path / "picture")
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(ConfigError, match=r"pip install 'cavs\[viz\]'"):
        render("digraph {}", tmp_path / "picture.svg")


@pytest.fixture
def graphviz(monkeypatch):
    """Stand in for the package graphviz: return its module, whose pictures repeat the text."""

    class Source:
        def __init__(self, dot):
            self.dot = dot

        def pipe(self, format):
            if format not in ("svg", "png"):
                raise ValueError(f"unknown format: {format!r}")
            if "{" not in self.dot:
                raise module.CalledProcessError("syntax error in line 1")
            return f"{format}: {self.dot}".encode()

    module = types.ModuleType("graphviz")
    module.Source = Source
    module.ExecutableNotFound = type("ExecutableNotFound", (RuntimeError,), {})
    module.CalledProcessError = type("CalledProcessError", (RuntimeError,), {})
    monkeypatch.setitem(sys.modules, "graphviz", module)
    return module


@pytest.mark.usefixtures("graphviz")
def test_a_picture_has_the_format_of_its_suffix(tmp_path):
    for suffix in ("svg", "png"):
        target = tmp_path / f"a.{suffix}"
        assert render("digraph {}", str(target)) == target
        assert target.read_bytes() == f"{suffix}: digraph {{}}".encode()


@pytest.mark.usefixtures("graphviz")
@pytest.mark.parametrize(
    ("dot", "name", "told", "hint"),
    [
        ("digraph {}", "a.bmpx", r"cannot draw a\.bmpx: unknown format: 'bmpx'", "use .svg"),
        ("digraph", "a.svg", r"cannot draw a\.svg: syntax error in line 1", "use .svg"),
        ("digraph {}", "no/a.svg", r"cannot write the picture .*no/a\.svg: No such", "a folder"),
        ("digraph {}", "folder.svg", r"cannot write the picture .*: Is a directory", "a folder"),
    ],
)
def test_a_picture_that_cannot_be_made_is_named(dot, name, told, hint, tmp_path):
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(ConfigError, match=told) as caught:
        render(dot, tmp_path / name)
    assert hint in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


@pytest.mark.parametrize("name", ["dot_function", "dot_graph", "dot_schedule", "render"])
def test_names_that_moved_from_data(name):
    with pytest.raises(
        ImportError, match=rf"cavs\.data\.{name} has moved[\s\S]*cavs.inspect.{name}"
    ):
        getattr(cavs.data, name)
    with pytest.raises(CavsError, match=f"cavs.inspect.{name}"):
        exec(f"from cavs.data import {name}")
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        cavs.data.no_such_name  # noqa: B018


@pytest.mark.parametrize("name", ["Explanation", "explain"])
def test_names_that_moved_from_runtime(name):
    with pytest.raises(ImportError, match=rf"cavs\.runtime\.{name} has moved"):
        exec(f"from cavs.runtime import {name}")
    assert getattr(cavs, name) is getattr(cavs.inspect, name)


def test_vertices_are_filled_by_type():
    graph = Graph(
        [[], [], [0, 1]],
        {"size": [1, 2, 3], "scan": {"rows": [7, 8]}},
        types=["scan", "scan", "join"],
    )
    text = dot_graph(graph)
    assert '[label="1 scan\\nsize 2\\nrows 8", style=filled, fillcolor="/set312/2"]' in text
    assert '[label="2 join\\nsize 3", style=filled, fillcolor="/set312/1"]' in text
    assert "filled" not in dot_graph(Graph([[]]))
    assert dot_schedule(graph) == dot_schedule(batch([graph]).schedule(types=("join", "scan")))


def test_functions_of_types_are_drawn():
    batch_of_plans = batch(plans(3, np.random.default_rng(0)))
    cell = dot_function(Plan(2), batch_of_plans)
    assert "merge_types" in cell and "scan.table" in cell
    assert "merge_types" in dot_function(PlanCost(), batch_of_plans)


def test_functions_and_schedules_of_samples_are_drawn_one_structure_at_a_time():
    class Spelled(cavs.Model):
        def __init__(self):
            self.chars, self.words = nn.LSTM(1, 2), nn.LSTM(2, 2)

        def loss(self, batch):
            h = self.chars(batch.graphs["chars"], x=batch.graphs["chars"]["x"])
            read = ops.take(h, batch.link("spelling"))
            return ops.sum_rows(self.words(batch.graphs["words"], x=read).sum(-1))

    sample = cavs.Sample(
        chars=Graph.chain(3, {"x": np.ones((3, 1))}),
        words=Graph.chain(2),
        links={"spelling": cavs.Link("words", "chars", [1, 2])},
    )
    samples, model = batch([sample, sample]), Spelled()
    known = {"cavs": cavs, "batch": samples, "model": model, "cell": model.chars}
    known |= {f.__name__: f for f in (dot_function, dot_schedule)}
    known["session"] = cavs.Session(model)
    for call, found in (
        ("dot_function(model, batch)", r"(cavs.explain\(model, batch\)) prints the operators"),
        ("dot_function(cell, batch)", r'(dot_function\(cell, batch.graphs\["chars"\]\)) draws'),
        ("dot_schedule(batch)", r"(dot_schedule\(session.schedule\(batch\)\)) draws the tasks"),
    ):
        error = rf"this SampleBatch has the structures chars, words\n(.*\n)?  hint: {found}"
        with pytest.raises(ConfigError, match=rf"{call.partition('(')[0]} draws.*{error}") as info:
            eval(call, known)
        assert str(eval(re.search(found, str(info.value)).group(1), known))
    with pytest.raises(ConfigError, match="this Sample has the structures chars, words"):
        dot_schedule(sample)
    assert dot_schedule(samples.graphs["words"]).count("rank=same") == 2
