"""Parts of a page for explanations that have nothing to show there."""

from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.inspect.explanation.elements import size_text
from tests.inspect.explanation import models
from tests.inspect.explanation.test_page import section, squares
from tests.inspect.pages import Page
from tests.runtime.trees import Classifier, treebank


@pytest.fixture(scope="module")
def explained():
    return models.tree()


def paragraphs(explained, name):
    return Page(section(explained.html(), name)).texts.get("p", [])


@pytest.mark.parametrize(
    ("part", "change", "text"),
    [
        ("memory", {"buffers": ()}, "No value is stored from one stage to another."),
        ("not-batched", {"not_batched": ()}, "All work of the batch ran in as few pieces as it"),
        ("schedule", {"tasks": ()}, "The batch has no vertices."),
    ],
)
def test_a_part_without_content_says_so(part, change, text, explained):
    assert not any(p.startswith(text) for p in paragraphs(explained, part))
    (found,) = paragraphs(replace(explained, **change), part)
    assert found.startswith(text)


def test_a_run_without_work_has_no_list_of_instructions(explained):
    idle = replace(explained, run=replace(explained.run, instructions=()))
    assert paragraphs(idle, "instructions") == ["No instruction did any work."]


def test_text_and_page_of_a_batch_without_reasons(explained):
    assert "== not batched" in str(explained)
    assert "== not batched" not in str(replace(explained, not_batched=()))


def test_a_structure_without_a_vertex_has_no_picture():
    explained = models.several_structures()
    kinds = {n for n, kind in enumerate(explained.kinds) if kind.structure == "words"}
    some = replace(explained, tasks=tuple(t for t in explained.tasks if t.kind in kinds))
    text = section(some.html(), "schedule")
    (caption,) = Page(text).texts["figcaption"]
    assert caption.startswith("Tasks of words, ")
    assert len(squares(text)) == len(some.tasks) < len(explained.tasks)


def test_a_step_that_updated_nothing_says_so(explained):
    told = "The step updated nothing: loss or gradient is not finite."
    assert told not in paragraphs(explained, "time")
    failed = replace(explained, run=replace(explained.run, updated=False))
    assert told in paragraphs(failed, "time")
    assert "no update: loss or gradient is not finite" in str(failed)
    assert "no update: " not in str(explained)


def test_a_loss_that_is_not_finite_is_explained():
    model = Classifier()
    for parameter in model.parameters().values():
        parameter.value[...] = np.nan
    explained = cavs.explain(model, treebank(3))
    assert not explained.run.updated
    assert all(np.isnan(p.value).all() for p in model.parameters().values())
    assert "no update: loss or gradient is not finite" in str(explained)


def test_a_batch_that_is_not_made_of_graphs_is_not_collated_again():
    batch = treebank(3)

    class Fixed(type(batch)):
        select = None

    batch.__class__ = Fixed
    fixed = cavs.explain(Classifier(), batch)
    assert fixed.run.times.collate is None and fixed.run.times.prepare is None
    assert "by a DataLoader" not in str(fixed)
    assert not any("DataLoader" in text for text in paragraphs(fixed, "time"))
    usual = models.tree()
    assert usual.run.times.collate > 0 and "by a DataLoader" in str(usual)
    assert any("DataLoader" in text for text in paragraphs(usual, "time"))


def test_an_explanation_of_the_trace_alone_has_no_passes(explained):
    traced = replace(explained, stages=explained.stages[:1])
    text = section(traced.html(), "passes")
    assert "<details" not in text and "The graph after all passes" not in text
    assert explained.stages[0][1] in Page(section(traced.html(), "function")).texts["pre"]
    without = replace(explained, stages=())
    assert "The graph of the model after" not in section(without.html(), "function")


def test_passes_that_all_change_something_have_no_list_of_others(explained):
    (_, first), (_, last) = explained.stages[0], explained.stages[-1]
    changed = replace(explained, stages=(("trace", first), ("differentiate", last)))
    text = section(changed.html(), "passes")
    assert "changed nothing" not in text and "The graph after all passes" in text


def test_a_program_without_kernels_has_none_to_print(explained):
    assert "Fused kernels as CUDA C" in section(explained.html(), "program")
    plain = section(replace(explained, cuda={}).html(), "program")
    assert "Fused kernels as CUDA C" not in plain and "The program: " in plain


def test_work_that_a_device_does_not_time_is_not_listed(explained):
    times = replace(explained.run.times, products=0.0, maps=0.0, other=0.0)
    text = str(replace(explained, run=replace(explained.run, times=times)))
    assert "work in the stages" in str(explained) and "work in the stages" not in text


class Numbered(cavs.Model):
    """A model whose feature has a name like those of the compiler."""

    def __init__(self):
        self.cell = nn.LSTM(2, 3)

    def loss(self, batch):
        h = self.cell(batch.graph, x=batch["#x"])
        return ops.mean_squared_error(h, 0.5)


def test_vertices_with_a_feature_named_like_those_of_the_compiler_are_not_merged():
    graphs = [cavs.Graph([[], [0], [1]], {"#x": np.ones((3, 2))})] * 4
    explained = cavs.explain(Numbered(), cavs.batch(graphs), run=False)
    why = "a feature's name begins with #, as those of the compiler do"
    assert f"equal vertices are not looked for: {why}" in explained.not_batched


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (512, "512 B"),
        (1536, "1.5 KiB"),
        (3 << 20, "3 MiB"),
        (3 << 30, "3 GiB"),
        (5 << 40, "5120 GiB"),
    ],
)
def test_sizes_have_the_unit_that_fits(size, text):
    assert size_text(size) == text
