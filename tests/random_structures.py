"""Random models over samples of several structures, to compare every path with the oracle."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import cavs
from cavs import nn, ops
from tests.data.dags import child_lists, with_gaps
from tests.random_cells import OF_GRAPH, VOCABULARY, RandomCell, cells, graph_of
from tests.typed_cells import TYPES, WORDS, TypedCell, fitting, run_typed, typed_cells

NAMES = ("a", "b", "c")
FOLDS = {"take": ops.take, "sum": ops.sum_linked, "mean": ops.mean_linked}
PAIRED = (None, "weight", "index", "computed")


class StructuresModel(cavs.Model):
    """Cells over each structure in the order of their names; links read earlier ones, or features.

    choices: for each structure its cells, and what it reads along each link.
    """

    def __init__(self, choices):
        self.choices = choices
        width = choices["x_width"]
        self.embedding = nn.Embedding(VOCABULARY, width, init="xavier")
        self.cells, self.output, self.linked = [], [], []
        for structure in choices["structures"]:
            self.cells.append([RandomCell(c, width) for c in structure["cells"]])
            self.output.append(nn.Linear(self.width_of(structure), 3))
            self.linked.append(
                [
                    cavs.Parameter((self.width_read(source, how), width))
                    for source, how, *_ in structure["links"]
                ]
            )
        self.words = nn.Embedding(WORDS, 2)
        self.typed = [s["typed"] and TypedCell(s["typed"]) for s in choices["structures"]]
        self.from_typed = [s["typed"] and cavs.Parameter((3, width)) for s in choices["structures"]]
        self.narrow = cavs.Parameter((2, 3))
        self.of_graphs = [cavs.Parameter((self.width_of(s), 3)) for s in choices["structures"]]

    def __repr__(self):
        return f"StructuresModel({self.choices})"

    def width_of(self, structure):
        if not structure["cells"]:
            return self.choices["x_width"]
        last = structure["cells"][-1]
        return last["width"] + sum(last["state"].values()) * last["push_all"]

    def width_read(self, source, how):
        of = {"eager": self.choices["x_width"], "feature": 2}
        return of.get(how) or self.width_of(self.choices["structures"][source])

    def forward(self, batch):
        pushed, outputs, whole = [], {}, None
        for i, structure in enumerate(self.choices["structures"]):
            graph = batch.graphs[NAMES[i]]
            x = self.embedding(graph["token"])
            for j, (source, how, fold, paired) in enumerate(structure["links"]):
                link = batch.link(f"{NAMES[i]}{j}")
                values = self.read(batch.graphs[NAMES[source]], pushed, source, how)
                x = x + ops.tanh(self.fold(fold, values, link, paired) @ self.linked[i][j])
                if paired in ("index", "computed"):
                    own = self.embedding(link["k"])
                    own = ops.tanh(own) * x if paired == "computed" else own
                    x = x + (own if fold == "take" else own.sum() if fold == "sum" else own.mean())
            linked, along = None, {}
            if structure["source"] is not None:
                source, how = structure["source"]
                values = self.read(batch.graphs[NAMES[source]], pushed, source, how)
                link = batch.link(f"{NAMES[i]}s")
                more = {"w": link["w"], "k": link["k"], "more": ops.tanh(self.embedding(link["k"]))}
                along = {"source": ops.linked(link, h=values, w=link["w"])}
                named = {"weight": "w", "index": "k", "computed": "more"}
            if self.typed[i] is not None:
                x = x + ops.tanh(self.run_typed(i, graph, x, along) @ self.from_typed[i])
            for cell in self.cells[i]:
                if structure["source"] is not None:
                    own = named.get(cell.choices["paired"])
                    linked = ops.linked(link, h=values, **({own: more[own]} if own else {}))
                x = self.run(cell, graph, x, linked)
            pushed.append(x)
            outputs[f"logits_{NAMES[i]}"] = self.output[i](x)
            of_graphs = OF_GRAPH[structure["of_graph"]](ops.tanh(x)) @ self.of_graphs[i]
            whole = of_graphs if whole is None else whole * ops.sigmoid(of_graphs)
        return outputs | {"whole": whole}

    def fold(self, fold, values, link, paired):
        if paired != "weight":
            return FOLDS[fold](values, link)
        if fold == "take":
            return ops.take(values, link) * ops.reshape(link["w"], (1,))
        found = ops.sum_linked(values, link, link["w"])
        return found if fold == "sum" else found + link["w"].mean() * ops.mean_linked(values, link)

    def read(self, graph, pushed, source, how):
        if how == "pushed":
            return pushed[source]
        return graph["dense"] if how == "feature" else ops.tanh(self.embedding(graph["token"]))

    def run_typed(self, i, graph, x, along):
        """Return what a cell with a function for each type of vertices pushes."""
        of = {t: {"own": graph[t]["x"]} for t in TYPES}
        of["leaf"]["word"] = self.words(graph["leaf"]["word"])
        of["mul"] = graph["mul"]
        whole = ops.tanh(ops.sum_graph(x))
        given = {"dense": x, "whole": whole, "relation": graph["relation"], **of, **along}
        return run_typed(self.typed[i], graph, given).h

    def run(self, cell, graph, x, linked):
        inputs = {"source": linked} if cell.choices.get("along") else {}
        inputs |= {"whole": ops.tanh(ops.sum_graph(x))} if cell.choices["whole"] else {}
        if cell.choices["loss"]:
            inputs["label"] = graph["label"]
        if cell.starts:
            inputs["initial"] = cell.initial(graph)
        over = graph.reversed() if cell.choices["top_down"] else graph
        x = cell(over, x=x, relation=graph["relation"], **inputs)
        return ops.dropout(x, 0.3) if self.choices["dropout"] else x

    def loss(self, batch):
        found = self.forward(batch)
        loss = ops.mean_squared_error(found["whole"], 0.25)
        for i in range(len(self.choices["structures"])):
            logits, label = found[f"logits_{NAMES[i]}"], batch.graphs[NAMES[i]]["label"]
            loss = loss + ops.cross_entropy(logits, label)
            if of := self.choices["structures"][i]["labels"]:
                graph = batch.graphs[NAMES[i]]
                loss = loss + ops.cross_entropy(logits, graph[of]["label"])
                loss = loss + ops.mean_rows(ops.square(graph[of]["x"] @ self.narrow).sum(-1))
            if self.choices["rich"]:
                loss = loss + 0.1 * ops.mean_rows(ops.square(logits).sum(-1))
        return loss


@st.composite
def structure_models(draw, smooth=False, most=3, mergeable=False):
    """Return a model; mergeable: equal vertices of its first structure may be merged."""
    structures = []
    for i in range(draw(st.integers(1, most))):
        reads = [(s, "pushed", fold) for s in range(i) for fold in FOLDS]
        reads += [(s, how, f) for s in range(i + 1) for how in ("eager", "feature") for f in FOLDS]
        own = draw(st.lists(cells(smooth, 2), min_size=i == 0, max_size=1 + (i == 0)))
        sources = [(s, how) for s, how, _ in reads]
        source = draw(st.sampled_from(sources)) if own and draw(st.booleans()) else None
        folds = ("sum", "mean", "attend", "ask", "mixed", "prod", "dropout", "normal")
        folds += () if smooth else ("max",)
        for cell in own if source is not None else ():
            cell["along"] = draw(st.lists(st.sampled_from(folds), min_size=1, max_size=2))
            cell["paired"] = draw(st.sampled_from(PAIRED))
        typed = None
        if draw(st.sampled_from([False, False, True])):
            typed = draw(typed_cells(smooth, False))
            for of in typed["types"].values() if source is not None else ():
                of["along"] = draw(st.sampled_from([None, "sum", "mean", "attend"]))
        labels = draw(st.sampled_from(["", *TYPES])) if typed else ""
        structures.append(
            {
                "typed": typed,
                "labels": labels,
                "cells": own,
                "source": source,
                "links": [
                    (*how, draw(st.sampled_from(PAIRED)))
                    for how in draw(st.lists(st.sampled_from(reads), max_size=2))
                ],
                "of_graph": draw(st.sampled_from(list(OF_GRAPH)[: -1 if smooth else None])),
            }
        )
    if mergeable:
        structures[0] |= {"links": [], "source": None, "typed": None, "labels": ""}
        structures[0]["of_graph"] = draw(st.sampled_from(("sum", "mean", "roots", "leaves")))
        for cell in structures[0]["cells"]:
            starts = None if cell["starts"] == "graph" else cell["starts"]
            cell.update(whole=None, along=(), paired=None, starts=starts)
    return StructuresModel(
        {
            "x_width": draw(st.sampled_from((1, 2, 3, 5))),
            "structures": structures,
            "dropout": not mergeable and draw(st.booleans()),
            "rich": draw(st.booleans()),
        }
    )


def link_of(target, source, rows, whole, rng):
    """Return a link with features; rows: of (targets, sources) if it is to all vertices."""
    if whole:
        return cavs.Link.all(target, source, link_features(rng, *whole))
    lists = any(np.ndim(row) for row in rows)
    count = len(rows) if not lists else 0 if rows is NO_LISTS else sum(map(len, rows))
    return cavs.Link(target, source, rows, link_features(rng, count))


def link_features(rng, *shape):
    return {"w": rng.normal(size=shape), "k": rng.integers(-1, VOCABULARY, shape)}


#: Rows of a link to lists from a structure that no sample has vertices of: offsets and vertices.
NO_LISTS = (np.zeros(1, np.int32), np.zeros(0, np.int32))


def samples_for(model, rng, graphs_of, types_of):
    """Return a batch for a model.

    graphs_of: for each sample, child lists for each structure; types_of: types of their vertices.
    """
    samples = []
    for graphs, types in zip(graphs_of, types_of, strict=True):
        named = {
            NAMES[i]: graph_of(children, rng, types[i])
            if children or not any(other[i] for other in graphs_of)
            else cavs.Graph([])  # takes the types of features from the others
            for i, children in enumerate(graphs)
        }
        links = {}
        for i, structure in enumerate(model.choices["structures"]):
            of_none = not any(other[i] for other in graphs_of)
            for j, (source, _, fold, _) in enumerate(structure["links"]):
                n, count = len(graphs[i]), len(graphs[source])
                rows = rng.integers(-1, count, n)
                if fold != "take":
                    most = 4 if count else 1
                    rows = [rng.integers(0, count or 1, rng.integers(0, most)) for _ in range(n)]
                    rows = NO_LISTS if of_none else rows
                whole = (n, count) if fold != "take" and rng.random() < 0.2 else None
                links[f"{NAMES[i]}{j}"] = link_of(NAMES[i], NAMES[source], rows, whole, rng)
            if structure["source"] is not None:
                n, count = len(graphs[i]), len(graphs[structure["source"][0]])
                most = 5 if count else 1
                rows = [rng.integers(0, count or 1, rng.integers(0, most)) for _ in range(n)]
                rows = NO_LISTS if of_none else rows
                source = NAMES[structure["source"][0]]
                whole = (n, count) if rng.random() < 0.2 else None
                links[f"{NAMES[i]}s"] = link_of(NAMES[i], source, rows, whole, rng)
        samples.append(cavs.Sample(**named, links=links))
    return cavs.batch(samples)


@st.composite
def cases(draw, smooth=False, most=3, mergeable=False):
    """Return a model with its parameters drawn, and a batch that it accepts.

    mergeable: see `structure_models`; samples of the batch are repeated.
    """
    from tests.oracle import traced

    model = draw(structure_models(smooth, most, mergeable))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    graphs_of, types_of = [], []
    for _ in range(draw(st.integers(1, 2))):
        graphs_of.append([])
        types_of.append([])
        for structure in model.choices["structures"]:
            children = draw(child_lists(max_vertices=5, max_arity=3))
            if draw(st.sampled_from([False, False, True])):
                children = with_gaps(children, rng)
            if any(graphs_of[-1]) and draw(st.sampled_from([False, False, False, True])):
                children = []
            graphs_of[-1].append(children)
            used = draw(st.sampled_from([TYPES, TYPES[:2], TYPES[1:2]]))
            types = rng.choice(used, len(children)).tolist() if structure["typed"] else None
            types_of[-1].append(types)
    for cell in (cell for of in model.cells for cell in of):
        cell.used = 0
    graph = traced(model, samples_for(model, rng, graphs_of, types_of), training=False)
    model.initialize(3, np.float64)
    for structure in {slot.structure for slot in graph.slots}:
        i = NAMES.index(structure.of)
        for graphs, types in zip(graphs_of, types_of, strict=True):
            if structure.of_types:
                graphs[i] = fitting(graphs[i], types[i], structure.of_types)
            else:
                graphs[i] = [kids[: structure.arity] for kids in graphs[i]]
    batch = samples_for(model, rng, graphs_of, types_of)
    if mergeable:
        again = draw(st.lists(st.sampled_from(batch.samples), min_size=1, max_size=2))
        batch = cavs.batch([*batch.samples, *again])
    return model, batch
