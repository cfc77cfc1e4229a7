"""Trees as nested JSON objects."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs import Graph
from cavs.data import JsonTree, Vocabulary, parse_json_trees, read_json_trees, write_json_trees
from cavs.data.readers.json_parser import _loads_nested
from cavs.errors import DataError, FeatureError, GraphError

PLAN = {"type": "join", "rows": 3.5, "Plans": [{"type": "scan", "rows": 1.0}, {"rows": 2.0}]}


def test_one_object_a_list_and_lines():
    text = '{"w": "a", "children": [{"w": "b", "children": []}, {"w": "c"}]}'
    (tree,) = parse_json_trees(text)
    assert tree.objects == [{"w": "b"}, {"w": "c"}, {"w": "a"}]
    assert tree.offsets == [0, 0, 0, 2] and tree.children == [0, 1] and tree.name == "<text>:1"
    assert [t.objects for t in parse_json_trees(f"[{text}, {text}]")] == [tree.objects] * 2
    lines = parse_json_trees(f"{text}\n\n{text}\n")
    assert [t.name for t in lines] == ["<text>:1", "<text>:3"]
    assert [t.objects for t in lines] == [tree.objects] * 2


def test_features_of_a_graph():
    by = {"type": ["scan", "join"]}
    graph = Graph.from_json(PLAN, children="Plans", features=["rows"], numberings=by)
    assert [graph.children(v).tolist() for v in range(3)] == [[], [], [0, 1]]
    assert graph.features["type"].tolist() == [0, -1, 1]
    assert graph.features["rows"].tolist() == [1, 2, 3.5]
    again = Graph.from_json(json.dumps(PLAN), children="Plans", features=["rows"], name="plan")
    assert again.features["rows"].tolist() == [1, 2, 3.5] and again.name == "plan"
    counted = Graph.from_json('{"n": 2, "children": [{}]}', features=["n"])
    assert counted.features["n"].tolist() == [-1, 2]
    with pytest.raises(FeatureError, match='vertex 0 has no attribute "x"'):
        Graph.from_json('{"x": 2.5, "children": [{}]}', features=["x"])
    with pytest.raises(FeatureError, match='no vertex has an attribute "y"; they have x'):
        Graph.from_json('{"x": 2.5}', features=["y"])
    with pytest.raises(DataError, match="vertex 0 has w 3, which is no text"):
        Graph.from_json('{"w": 3}', numberings={"w": Vocabulary(["a"])})
    with pytest.raises(DataError, match="vertex 0 has w 'b'; expected one of a"):
        Graph.from_json('{"w": "b"}', numberings={"w": ["a"]})
    with pytest.raises(DataError, match="<text>: tree 1: a second tree"):
        Graph.from_json('[{"w": "a"}, {"w": "b"}]')
    with pytest.raises(GraphError, match="from_json takes a text or a tree"):
        Graph.from_json(3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "<text>: no JSON: Expecting value"),
        ('{"a": [', "<text>:1: column 8: no JSON: .*\n.*\n.*may be cut off"),
        ('{"a": 1,\n"b"}', "<text>:2: column 4: no JSON: Expecting ':'"),
        ('{"a": 1}\n{"a"}', "<text>:2: column 5: no JSON"),
        ('{"a": NaN}', "<text>: no JSON: NaN is no number"),
        (f'{{"a": {"1" * 5000}}}', "<text>: no JSON: .*digits"),
        ("[]", "no tree in the text"),
        ("[1]", "<text>: tree 0: the root is 1, no object"),
        ('"a"', "<text>:1: the root is 'a', no object"),
        ('{"children": 3}', "<text>:1: the root has children 3, no list"),
        (
            '{"children": [{}, {"children": [[]]}]}',
            r"<text>:1: the child at 1.0 is \[\], no object",
        ),
        (f'{{"children": {"[" * 3000}{"]" * 3000}}}', "the child at 0 is .*, no object"),
        (f'{{"children": {"[" * 3000}', "column 3014: no JSON: Expecting value"),
    ],
)
def test_malformed_trees(text, message):
    with pytest.raises(DataError, match=message):
        parse_json_trees(text)


def test_wrong_arguments(tmp_path):
    for wrong in (b"{}", None):
        with pytest.raises(DataError, match="is no text; expected trees as JSON"):
            parse_json_trees(wrong)
    for own, message in [
        ({"children": 1}, "object 0 has the key 'children'"),
        ({"a": np.ones(2)}, "object 0 is not JSON: Object of type ndarray"),
        ({"a": float("nan")}, "object 0 is not JSON: Out of range"),
    ]:
        with pytest.raises(DataError, match=message):
            write_json_trees(tmp_path / "a.json", [JsonTree("", [own], [0, 0], [])])
    assert not (tmp_path / "a.json").exists()


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
simple = scalars | st.text(max_size=4)
values = (
    simple | st.lists(simple, max_size=3) | st.dictionaries(st.text(max_size=3), simple, max_size=2)
)
values = values | st.lists(values, max_size=2)
objects = st.recursive(
    st.dictionaries(st.sampled_from(["a", "b", 'q"\\', "é"]), values, max_size=3),
    lambda inner: st.tuples(
        st.dictionaries(st.just("a"), values, max_size=1), st.lists(inner, min_size=1, max_size=3)
    ).map(lambda pair: {**pair[0], "kids": pair[1]}),
    max_leaves=8,
)


@given(objects)
def test_a_written_tree_is_read_back(root):
    (tree,) = parse_json_trees(json.dumps(root), "kids")
    text = tree.to_json("kids")
    (again,) = parse_json_trees(text, "kids")
    assert (again.objects, again.children) == (tree.objects, tree.children)
    assert again.offsets == tree.offsets
    assert json.loads(text) == root


def test_a_written_file_is_read_back(tmp_path):
    trees = parse_json_trees('[{"a": "\\n", "kids": [{}, {"kids": [{"é": 1.5}]}]}, {}]', "kids")
    write_json_trees(tmp_path / "a", trees, "kids")
    assert len((tmp_path / "a").read_text().splitlines()) == 2
    again = read_json_trees(tmp_path / "a", "kids")
    assert [(t.objects, t.offsets, t.children) for t in again] == [
        (t.objects, t.offsets, t.children) for t in trees
    ]


@given(values, st.integers(0, 3))
def test_deeply_nested_text_is_read_as_json_reads_it(value, indent):
    text = json.dumps(value, indent=indent or None)
    assert _loads_nested(text) == value


@given(st.text(st.sampled_from('[]{},:"1a \\n'), max_size=12))
def test_deeply_nested_text_is_refused_as_json_refuses_it(text):
    def tried(read):
        try:
            return json.dumps(read(text))
        except json.JSONDecodeError:
            return "refused"

    assert tried(_loads_nested) == tried(json.loads)


def test_a_chain_of_five_thousand_objects():
    text = '{"x": 1, "children": [' * 4999 + '{"x": 2}' + "]}" * 4999
    (tree,) = parse_json_trees(text)
    assert tree.to_json() == text
    assert Graph.from_json(tree, features=["x"]).depth == 5000
