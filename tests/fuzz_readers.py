"""Feed readers, builders and collation with broken input: ``tests/fuzz_readers.py --minutes 10``.

Only errors of cavs may come out, and accepted input must collate and schedule.
"""

import argparse
import contextlib
import itertools
import logging
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from cavs import _engine
from cavs.data import (
    Graph,
    Sample,
    Vocabulary,
    batch,
    binarise,
    chains,
    collapse_unary,
    dependency_graphs,
    parse_conllu,
    parse_conllx,
    parse_json_trees,
    parse_newick,
    parse_ptb,
    parse_tree,
    read_conllu,
    read_conllx,
    read_functions,
    read_json_trees,
    read_newick,
    read_ptb,
    read_sst,
    read_text,
    read_vectors,
    sst_graphs,
)
from cavs.errors import CavsError, GraphError

networkx = None
with contextlib.suppress(ImportError):
    import networkx

WORDS = Vocabulary(["a", "b", "<eos>"])
SEEDS = {
    "sst": b"(3 (2 It) (4 (1 a) (0 -LRB-)))\n(2 (2 x) (1 y))\n",
    "conllu": (
        b"# text = I\n1-2\tIx\t_\t_\t_\t_\t_\t_\t_\t_\n1\tI\t_\tPRON\t_\t_\t2\tnsubj\t_\t_\n"
        b"2\tsee\ta\tVERB\tb\tc=d\t0\troot\t_\te=f\n2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n\n"
        b"1\tYes\t_\tX\t_\t_\t0\troot\t_\t_\n\n"
    ),
    "brackets": b"( (S (NP the -LRB-)\n (VP (V a) b)) )",
    "ptb": b"( (S (NP the -LRB-)\n (VP (V a) b)) )\n( (NP a) (. .) )\n(TOP (X b))\n",
    "conllx": (
        b"1\tI\t_\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\tsee\ta\tV\tb\tc=d\t0\troot\t0\te\n\n"
        b"1\tYes\t_\tX\t_\t_\t0\troot\t_\t_\n"
    ),
    "newick": b"[&R]((a:1,'b c':2e-3[x])ab:0.5,_d)100;\n(x,(,));\n",
    "json": b'[{"w": "a", "n": 2.5, "children": [{"w": "b"}, {"children": []}]}]\n',
    "json lines": b'{"w": "a", "children": [{"w": "b"}]}\n{"w": null}\n',
    "glove": b"a 1 2.5\n. . 0 -1e-3\nb 3 4\n",
    "word2vec": b"2 2\na 1 2\nb 3 4\n",
    "word2vec binary": b"2 2\na \0\0\x80?\0\0\0@\nb \0\0\0\0\0\0\0\0\n",
    "text": b" = Title = \n\n a b <unk> c\nd\n",
    "python": b"def get_a(x, *y):\n    '''s'''\n    return [get_a(z) for z in y if x.get_a]\n",
}
TEXTS = {
    "labels": b"(S (NP It) (VP (2 a) (2 b)))",
    "ast": SEEDS["python"],
    "vocabulary": b'["<unk>", "a", "\\u00e9", "b"]',
}
PIECES = [
    b"(", b")", b"\t", b"\n", b"\n\n", b" ", b"0", b"-1", b"99999999999", b"1-2", b"1.1", b"_",
    b"#", b"\xff", b"\xc3", b"\x00", b"\xe2\x80\xa8", b"\\", b"\r", b"(2 ", b"\xef\xbb\xbf",
    b"def f(", b"'", b"(NP ", b'"', b",", b"[", b"-" * 3000, b"null",
]  # fmt: skip


@st.composite
def broken(draw, text):
    """Return the text after some cuts, insertions and repetitions, or plain noise."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=80))
    for _ in range(draw(st.integers(0, 6))):
        i = draw(st.integers(0, len(text)))
        j = draw(st.integers(i, min(len(text), i + 20)))
        new = draw(st.sampled_from([*PIECES, b"", text[i:j] * 2]) | st.binary(max_size=4))
        text = text[:i] + new + text[j:]
    return text


def run_all(graphs):
    found = batch(graphs)
    schema = found.feature_schema()
    of_vertices = {k: v for k, v in schema.items() if v.domain == "vertex" and v.shape == ()}
    names = tuple(k for k, v in of_vertices.items() if v.has_absent)
    schedule = found.schedule(names)
    assert sum(end - begin for _, _, (begin, end), _ in schedule.tasks) == found.num_vertices
    assert np.array_equal(np.sort(schedule.order), np.arange(found.num_vertices))
    schedule.nth_child(0)
    schedule.nth_parents(0)
    merged = found.merged((*found.features, *found.edge_features))
    assert merged.copies.sum() == found.num_vertices
    assert len(merged.schedule(names).order) == merged.num_vertices
    batch([graph.reversed() for graph in graphs]).schedule()


def read(kind, folder):
    path = folder / "input.py"
    if kind == "sst":
        return sst_graphs(read_sst(path), WORDS)
    if kind == "brackets":
        text = path.read_bytes().decode(errors="replace")
        make = Graph.from_conllu if "\t" in text else Graph.from_brackets
        options = {"tags": WORDS} if "\t" in text else {"labelled": "S" in text, "labels": WORDS}
        return [make(text, vocabulary=WORDS, **options)]
    if kind == "ptb":
        trees = read_ptb(path)
        written = "".join(f"{tree.to_brackets()}\n" for tree in trees)
        assert [t.to_brackets() for t in parse_ptb(written)] == [t.to_brackets() for t in trees]
        trees += [binarise(collapse_unary(tree)) for tree in trees]
        return [Graph.from_brackets(tree, vocabulary=WORDS) for tree in trees]
    if kind == "conllu":
        sentences = read_conllu(path)
        written = "".join(sentence.to_conllu() for sentence in sentences)
        again = [sentence.to_conllu() for sentence in parse_conllu(written)]
        assert again == [sentence.to_conllu() for sentence in sentences]
        assert all(len(sentence.tokens) <= len(sentence.forms) for sentence in sentences)
        return dependency_graphs(sentences, WORDS, Vocabulary(["nsubj"]))
    if kind == "conllx":
        sentences = read_conllx(path)
        written = "".join(sentence.to_conllx() for sentence in sentences)
        assert [s.to_conllx() for s in parse_conllx(written)] == [s.to_conllx() for s in sentences]
        return dependency_graphs(sentences, WORDS)
    if kind == "newick":
        trees = read_newick(path)
        assert [parse_newick(t.to_newick())[0].to_newick() for t in trees] == [
            t.to_newick() for t in trees
        ]
        return [Graph.from_newick(t, vocabulary=WORDS, default_length=0.0) for t in trees]
    if kind.startswith("json"):
        trees = read_json_trees(path)
        assert [parse_json_trees(t.to_json())[0].objects for t in trees] == [
            t.objects for t in trees
        ]
        return [Graph.from_json(t, numberings={"w": WORDS}) for t in trees]
    if kind in ("glove", "word2vec", "word2vec binary"):
        found = read_vectors(path, WORDS, fallback=str.upper)
        assert np.isfinite(found.values).all() and 0 <= found.coverage <= 1
        return [Graph([[]], {"x": found.values[:1]})]
    if kind == "text":
        return chains(read_text(path, max_length=4), WORDS)
    return [Graph(f.children, name=f.name) for f in read_functions(folder, sizes=(1, 200))]


def fuzz_reader(kind, folder, content):
    (folder / "input.py").write_bytes(content)
    try:
        graphs = read(kind, folder)
    except CavsError:
        return
    run_all(graphs)


numbers = st.integers(-3, 9) | st.integers(-(2**40), 2**40)
arrays = st.lists(numbers, max_size=8)
values = arrays | st.lists(st.floats(), max_size=8) | st.lists(arrays, max_size=4)


@st.composite
def any_graph(draw):
    children = draw(
        st.lists(st.lists(st.integers(-1, 6), max_size=4), max_size=6)
        | st.tuples(arrays.map(np.array), arrays.map(np.array))
        | st.lists(st.lists(st.just(0), max_size=2), max_size=4).map(lambda kids: [[], *kids])
    )
    options = st.dictionaries(st.sampled_from(["a", "b"]), values, max_size=2)
    return children, draw(options), draw(options)


def transposed(edges):
    """Return rows of children and of parents, if the edges are pairs."""
    fits = isinstance(edges, list) and edges and all(isinstance(e, tuple) for e in edges)
    return list(zip(*edges, strict=True)) if fits else edges


counts = st.integers(-2, 9) | st.sampled_from([-(2**40), 2.5, None, "3"])
pairs = st.lists(st.tuples(st.integers(-1, 6), st.integers(-1, 6)), max_size=8)
# Values that a caller may pass by mistake instead of numbers of vertices.
odd = st.sampled_from(
    [
        *[None, 3, "ab", [None], [[0], [1, 2]], [0.5, 1.0], [True, False], ["a"], [float("nan")]],
        *[np.zeros((2, 0)), np.zeros((0, 2), int), np.zeros((2, 2, 2), int), np.array(["x"])],
    ]
)
named = st.dictionaries(st.sampled_from(["a", "b"]), values, max_size=2)


def ascending(edges):
    """Return edges of a DAG, so that some inputs are accepted."""
    return [(a, b) for a, b in edges if 0 <= a < b]


edges_of_graphs = pairs.map(ascending) | pairs | odd | st.lists(arrays, max_size=3)
builders = {
    "parents": st.tuples(
        arrays | arrays.map(np.array) | odd | st.lists(st.integers(-1, 5), max_size=6)
    ),
    "edges": st.tuples(counts, edges_of_graphs | pairs.map(np.array)),
    "edge_index": st.tuples(counts, edges_of_graphs.map(transposed) | pairs | odd),
    "networkx": st.tuples(
        pairs.map(ascending) | pairs, st.lists(st.sampled_from("abc")) | st.just("a")
    ),
}


def built(kind, args, features, edge_features):
    if kind == "networkx":
        graph = networkx.MultiDiGraph()
        for position, (child, parent) in enumerate(args[0]):
            graph.add_edge(child, parent, **{name: row for name, row in edge_features.items()})
            graph.nodes[child]["a"] = position
        names = {"features": args[1], "edge_features": list(edge_features)}
        return Graph.from_networkx(graph, **names, to_children=len(features) > 1)
    make = getattr(Graph, f"from_{kind}")
    return make(*args, features=features, edge_features=edge_features)


def fuzz_builder(kind, args, features, edge_features):
    accepted = []
    with contextlib.suppress(CavsError):
        accepted.append(built(kind, args, features, edge_features))
    with contextlib.suppress(CavsError):  # the structure may be valid where the features are not
        accepted.append(built(kind, args, {}, {}))
    for graph in accepted:
        if graph.num_vertices:
            run_all([graph])
        else:
            run_empty(graph)


def run_empty(graph):
    """A graph without vertices is refused by itself, and runs as a structure of a sample."""
    with contextlib.suppress(GraphError):
        batch([graph])
        raise AssertionError("a batch of a graph without vertices")
    found = batch([Sample(one=Graph([[]]), none=part) for part in (graph, graph.reversed())])
    assert list(found.schedule().order) == [0, 1]
    assert (found.graphs["none"].num_vertices, found.graphs["none"].num_edges) == (0, 0)


def fuzz_join(samples, features, edge_features):
    graphs = []
    for children, own, of_edges in samples:
        with contextlib.suppress(CavsError):
            graphs.append(Graph(children, own, of_edges))
    accepted = []
    with contextlib.suppress(CavsError):
        accepted.append(Graph.join(graphs, features, edge_features, graph_features=features))
    with contextlib.suppress(CavsError):
        accepted.append(Graph.join([Graph(graph.topology) for graph in graphs]))
    for graph in accepted:
        run_all([graph])


def fuzz_text(kind, content, folder):
    """Test readers that take a text, not a file, and the file of a vocabulary."""
    if kind == "vocabulary":
        path = folder / "words.json"
        path.write_bytes(content)
        with contextlib.suppress(CavsError):
            words = Vocabulary.load(path)
            words.save(path)
            assert Vocabulary.load(path).to_json() == words.to_json()
            ids = words.encode(["a", "never seen"])
            assert len(list(words.decode(ids))) == 2
        return
    for text in (content, content.decode("utf-8", "replace")):
        accepted = []
        with contextlib.suppress(CavsError):
            if kind == "ast":
                accepted = [Graph.from_ast(text)]
            elif isinstance(text, str):
                tree = parse_tree(text, labels=["S", "NP", "VP", "2"])
                accepted = sst_graphs([tree], WORDS)
        if accepted:
            run_all(accepted)


def fuzz_graphs(samples):
    graphs = []
    for children, features, edge_features in samples:
        try:
            graphs.append(Graph(children, features, edge_features))
        except CavsError:
            continue
        if not graphs[-1].num_vertices:
            run_empty(graphs.pop())
    try:
        batch(graphs)
    except CavsError:
        graphs = [Graph(graph.topology) for graph in graphs]
    if graphs:
        run_all(graphs)
        one = _engine.collate([graph.topology for graph in graphs])
        presence = np.arange(one.num_vertices, dtype=np.uint32) * np.uint32(2654435761)
        assert len(_engine.make_schedule(one, presence).order) == one.num_vertices


def rounds(minutes, examples, first_seed):
    """Run every target repeatedly with new seeds; return the number of inputs tried."""
    end = time.monotonic() + 60 * minutes
    tried = 0
    quick = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def try_reader(kind, content):
            nonlocal tried
            tried += 1
            fuzz_reader(kind, folder, content)

        def try_graphs(samples):
            nonlocal tried
            tried += 1
            fuzz_graphs(samples)

        def try_text(kind, content):
            nonlocal tried
            tried += 1
            fuzz_text(kind, content, folder)

        def try_builder(kind, args, features, edge_features):
            nonlocal tried
            tried += 1
            fuzz_builder(kind, args, features, edge_features)

        def try_join(samples, features, edge_features):
            nonlocal tried
            tried += 1
            fuzz_join(samples, features, edge_features)

        samples = st.lists(any_graph(), max_size=4)
        targets = [given(kind=st.just(k), content=broken(t))(try_reader) for k, t in SEEDS.items()]
        targets += [given(kind=st.just(k), content=broken(t))(try_text) for k, t in TEXTS.items()]
        targets += [
            given(kind=st.just(kind), args=args, features=named, edge_features=named)(try_builder)
            for kind, args in builders.items()
            if kind != "networkx" or networkx is not None
        ]
        targets.append(given(samples=samples, features=named, edge_features=named)(try_join))
        targets.append(given(samples=samples)(try_graphs))
        targets = [quick(target) for target in targets]
        for number in itertools.count(first_seed):
            for target in targets:
                seed(number)(target)()
            if time.monotonic() >= end:
                break
    return tried


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.getLogger("cavs.data").setLevel(logging.ERROR)  # skipped sources are expected here
    tried = rounds(options.minutes, 500, options.seed)
    print(f"{tried} inputs, no surprise")
    return 0


if __name__ == "__main__":
    sys.exit(main())
