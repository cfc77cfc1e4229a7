import ast
import logging
import os

import pytest

from cavs.data import Graph, batch, load_functions, read_functions
from cavs.data.readers.python_functions import SELF, functions_of, split_of, words_of
from cavs.errors import DataError, GraphError

SOURCE = '''
class A:
    def get_size(self, deep=False):
        """Text."""
        if deep:
            return self.get_size(None) + get_size + 7
        def inner_one(x):
            return x.y
        return inner_one(0)

async def __init__(a): return a
def _(a): return a
'''


def test_names_are_hidden():
    found = {f.name: f for f in functions_of(SOURCE, "m", (3, 200))}
    assert list(found) == ["get_size", "inner_one", "__init__"]  # "_" has no word
    outer = found["get_size"]
    assert "get_size" not in outer.values
    assert outer.values.count(SELF) == 3  # the root, the attribute, the name
    assert {"inner_one", "deep", "<str>", "<int>", "None", "False", "0"} <= set(outer.values)
    assert outer.types[-1] == "FunctionDef" and outer.values[-1] == SELF
    assert found["inner_one"].values.count(SELF) == 1
    assert found["__init__"].words == ["init"] and outer.line == 3
    assert all(child < v for v, kids in enumerate(outer.children) for child in kids)


def test_a_byte_order_mark_is_no_part_of_the_code():
    for source in ("\ufeffx = 1", "\ufeffx = 1".encode()):
        assert Graph.from_ast(source).num_vertices == Graph.from_ast("x = 1").num_vertices
    names = [f.name for f in functions_of(SOURCE, "m", (5, 200))]
    for source in ("\ufeff" + SOURCE, ("\ufeff" + SOURCE).encode()):
        assert [f.name for f in functions_of(source, "m", (5, 200))] == names


def test_sizes_limit_functions():
    size = {f.name: len(f.types) for f in functions_of(SOURCE, "m", (1, 200))}
    kept = [f.name for f in functions_of(SOURCE, "m", (size["inner_one"], size["get_size"] - 1))]
    assert kept == ["inner_one"]


def test_words():
    assert words_of("getURL_now2") == ["get", "url", "now", "2"]
    assert words_of("__enter__") == ["enter"] and words_of("_") == []
    assert words_of("HTTPServer") == ["http", "server"]


def test_a_folder_of_sources(tmp_path, caplog):
    (tmp_path / "one.py").write_text(SOURCE)
    (tmp_path / "copy.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("def f(:")
    (tmp_path / "nul.py").write_bytes(b"x = 1\0")
    (tmp_path / "latin.py").write_bytes(b"x = '\xff'")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "hidden.py").write_text("def unseen(a): return a + 1")
    with caplog.at_level(logging.WARNING, logger="cavs.data"):
        found = read_functions(tmp_path)
    assert sorted(f.name for f in found) == ["__init__", "get_size", "inner_one"]  # no repetition
    left_out = {record.args[0].name for record in caplog.records}
    assert left_out == {"broken.py", "nul.py", "latin.py"}
    assert [f.name for f in read_functions(tmp_path, limit=1)] == ["get_size"]
    with pytest.raises(DataError, match="no such folder"):
        read_functions(tmp_path / "none")
    with pytest.raises(DataError, match=r"no function of 100\.\.200 vertices"):
        read_functions(tmp_path / "tests", sizes=(100, 200))
    with pytest.raises(DataError, match="no function for the"):
        load_functions(tmp_path)


def test_a_named_pipe_is_not_waited_for(tmp_path, caplog):
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "one.py").write_text(SOURCE)
    with caplog.at_level(logging.WARNING, logger="cavs.data"):
        found = read_functions(tmp_path)
    assert sorted(f.name for f in found) == ["__init__", "get_size", "inner_one"]
    (record,) = caplog.records
    assert record.getMessage() == f"{tmp_path / 'pipe.py'} left out: it is no regular file"


def test_nodes_of_another_module_have_no_type():
    class Marked(ast.Expr):
        """A node that a program has added."""

    tree = ast.parse("x = 1")
    assert Graph.from_ast(tree).num_vertices == 4
    tree.body.append(Marked(ast.Constant(2)))
    with pytest.raises(GraphError, match="\"mine\": 'Marked' is no class of the module") as caught:
        Graph.from_ast(tree, name="mine")
    assert caught.value.hint == "convert it to nodes of ast"


def test_the_standard_library():
    data = load_functions(limit=1500, num_classes=8)
    assert len(data.classes) == 8 and {"init", "get"} <= set(data.classes)
    again = load_functions(limit=1500, num_classes=8)
    assert [g.name for g in data.test] == [g.name for g in again.test]
    assert data.names == again.names and data.types == again.types
    for part in (data.train, data.dev, data.test):
        for graph in part:
            assert 5 <= graph.num_vertices <= 200 and graph.roots.tolist() == [
                graph.num_vertices - 1
            ]
            assert 0 <= graph.graph_features["label"] < 8
    modules = [{g.name.split(":")[0] for g in part} for part in (data.train, data.dev, data.test)]
    assert not (modules[0] & modules[1] or modules[0] & modules[2] or modules[1] & modules[2])
    assert {split_of(m) for m in modules[2]} == {"test"}
    b = batch(data.train[:32])
    assert len(b.schedule(("name",)).kinds) == 4
    assert b["type"].max() < len(data.types) and b["name"].max() < len(data.names)
