"""Explanations as HTML: well-formed, self-contained, with the numbers of the explanation."""

import re

import numpy as np
import pytest

import cavs
from cavs.inspect.explanation.elements import SHORT, time_text
from cavs.inspect.explanation.graph_difference import graph_difference
from cavs.inspect.explanation.memory import live_bytes
from tests.inspect.explanation import models
from tests.inspect.pages import Page, assert_loads_nothing, contrast, themes
from tests.inspect.test_explain_run import Stacked, chains
from tests.runtime.trees import Classifier, treebank

SECTIONS = ["function", "passes", "schedule", "tasks", "time", "instructions", "memory"]
SECTIONS += ["not-batched", "program"]


@pytest.fixture(scope="module")
def explained():
    return models.tree()


@pytest.fixture(scope="module")
def drawn(explained):
    text = explained.html()
    return text, Page(text)


def section(text, name):
    """Return the HTML of a section."""
    return re.search(rf'<section id="{name}">(.*?)</section>', text, re.DOTALL)[1]


def squares(text):
    """Return the hover texts of the rectangles of the pictures in HTML."""
    return Page(text).texts.get("title", [])


MODELS = ["tree", "several_structures", "several_types", "by_policy", "hostile"]


@pytest.mark.parametrize("name", MODELS)
def test_a_page_is_whole_and_loads_nothing(name):
    text = getattr(models, name)().html()
    parsed = Page(text)
    assert_loads_nothing(text, parsed)
    ids = parsed.values("id")
    assert len(ids) == len(set(ids)) and [i for i in ids if i in SECTIONS] == SECTIONS
    assert [href[1:] for href in parsed.values("href")] == SECTIONS
    assert set(parsed.values("for")) <= set(ids)
    assert "script" not in parsed.texts and "script-src" not in text
    assert len(parsed.texts["h2"]) == len(SECTIONS)
    text.encode()


def test_themes_have_enough_contrast_and_phones_one_column(drawn):
    text, parsed = drawn
    assert "width=device-width,initial-scale=1" in parsed.values("content")
    assert "@media(max-width:700px)" in text
    for theme in themes(text):
        back = theme["--back"]
        assert all(contrast(theme[c], back) >= 4.5 for c in theme.keys() - {"--back", "--grid"})
        for name in ("--c2", "--bad"):  # added and removed lines
            tinted = zip(*(bytes.fromhex(rgb(theme[c])) for c in (name, "--back")), strict=True)
            behind = "#" + bytes(round(0.05 * a + 0.95 * b) for a, b in tinted).hex()
            assert contrast(theme[name], behind) >= 4.5


def rgb(color):
    return color[1:] if len(color) == 7 else "".join(2 * c for c in color[1:])


def test_facts(explained, drawn):
    _, parsed = drawn
    facts = dict(zip(parsed.texts["dt"], parsed.texts["dd"], strict=True))
    run = explained.run
    assert parsed.texts["h1"] == ["Classifier: how it is compiled and runs"]
    assert facts["model"] == "Classifier" and facts["program"] == "training"
    assert facts["batch"] == "12 graphs, 320 vertices (273 distinct), 308 edges"
    assert facts["tasks"] == f"{run.tasks}; no policy of batching needs fewer than {run.task_bound}"
    assert facts["peak of the arena"] == f"{run.peak_bytes:,} bytes"


def test_functions_have_their_source_and_the_trace(explained, drawn):
    (function,) = explained.functions
    assert function.name == "BinaryTreeLSTM.vertex" and function.cells == ("tree",)
    assert re.fullmatch(r"cells\.py:\d+", function.where)
    parsed = Page(section(drawn[0], "function"))
    assert parsed.texts["pre"] == [function.source, explained.stages[0][1]]
    assert parsed.texts["h3"] == ["tree: BinaryTreeLSTM.vertex"]


def test_passes_have_their_changes(explained, drawn):
    text = section(drawn[0], "passes")
    parsed = Page(text)
    expected, same = [], []
    for (_, before), (name, after) in zip(explained.stages, explained.stages[1:], strict=False):
        diff = graph_difference(before, after)
        signs = ("+", diff.added), ("-", diff.removed), ("±", diff.changed)
        expected += [(name, [f"{s}{n}" for s, n in signs if n])] if diff else []
        same += [] if diff else [name]
    summaries = re.findall(r"<summary><b>(\w+)</b>(.*?)</summary>", text)
    found = [(name, re.findall(r">([+±-]\d+)</span>", counts)) for name, counts in summaries]
    assert found == expected
    assert "differentiate" in dict(expected) and "trim_products" in same
    folded = f"{len(same)} passes changed nothing: {', '.join(same)}"
    assert folded in parsed.texts["summary"]
    assert parsed.texts["pre"][-1] == explained.stages[-1][1]
    assert any("+ return grad:tree.U = " in span for span in parsed.texts["span"])


@pytest.mark.parametrize("name", MODELS)
def test_the_schedule_has_every_task(name):
    explained = getattr(models, name)()
    shown = squares(section(explained.html(), "schedule"))
    numbers = [re.search(r"(\d+) vert(?:ex|ices), (\d+) edges?", text).groups() for text in shown]
    expected = [(str(t.vertices), str(t.edges)) for t in explained.tasks]
    assert sorted(numbers) == sorted(expected)
    assert sum(t.vertices for t in explained.tasks) == sum(k.vertices for k in explained.kinds)
    looped = [t for t in explained.tasks if explained.kinds[t.kind].looped]
    assert len(looped) == explained.run.tasks


def test_several_structures_have_a_picture_each():
    explained = models.several_structures()
    text = section(explained.html(), "schedule")
    captions = [c.strip() for c in Page(text).texts["figcaption"]]
    assert len(captions) == 2
    assert any(c.startswith("Tasks of chars, ") for c in captions)
    assert any(c.startswith("Tasks of words, ") for c in captions)
    assert explained.run.structures == {"chars": (36, 36), "words": (12, 12)}
    facts = Page(explained.html())
    facts = dict(zip(facts.texts["dt"], facts.texts["dd"], strict=True))
    assert facts["chars"] == "36 vertices (36 distinct)"
    names = [(f.name, f.cells) for f in explained.functions]
    assert names == [("LSTM.vertex", ("spell", "forth"))]


def test_types_have_a_function_and_a_kind_each():
    explained = models.several_types()
    names = [f.name for f in explained.functions]
    assert names == ["Plan.scan_vertex", "Plan.filter_vertex", "Plan.join_vertex"]
    assert '@cavs.vertex("scan")' in explained.functions[0].source
    words = Page(section(explained.html(), "schedule")).texts["span"]
    for name in ("scan without children", "filter with children", "join with children"):
        assert sum(name in text for text in words) == 1


def test_policies_are_compared_with_the_lower_bound():
    explained = models.by_policy()
    text = section(explained.html(), "tasks")
    values = Page(text).texts["span"]
    s = explained.run.scheduling
    for name, count in s.tasks.items():
        assert f"{count} tasks; no policy needs fewer than {s.bound}" in values
        assert f"{name}, which runs" in text if name == s.name else name in text
    assert "A row is a turn of the policy" in explained.html()


def test_the_timeline_adds_up(explained, drawn):
    text = section(drawn[0], "time")
    bars = re.findall(r'<rect class="fill c\d" x="([\d.]+)" y="8" width="([\d.]+)"', text)
    lefts = [float(left) for left, _ in bars]
    assert lefts == sorted(lefts) and lefts[0] >= 8
    assert all(float(left) + float(width) <= 473 for left, width in bars)
    t = explained.run.times
    backward = sum(s for stage, s in zip(explained.order, t.each, strict=True) if stage.backward)
    whole = max(t.wall, t.packing + t.stages + t.update + t.rest)
    assert f"backward {time_text(backward)}, {100 * backward / whole:.1f} %" in text
    shown = squares(text)
    timed = [n for n, seconds in enumerate(explained.run.times.each) if seconds]
    assert [int(n) for s in shown for n in re.findall(r"^stage (\d+)", s)] == timed
    assert any(s.startswith("rest: ") for s in shown)
    untimed = Page(text).texts["p"][-1]
    stages = {int(n) for n in re.findall(r"stage (\d+),", untimed)}
    assert stages == set(range(len(explained.order))) - set(timed)


def test_instructions_have_time_and_bytes_in_three_orders(explained, drawn):
    text = section(drawn[0], "instructions")
    found = [i for i in explained.run.instructions if i.seconds or i.total]
    values = [v for v in Page(text).texts["span"] if v.endswith(" bytes")]
    assert values == [f"{i.total:,} bytes" for i in found]
    for k, of in ((1, [i.seconds for i in found]), (2, [i.total for i in found])):
        ranks = [int(r) for r in re.findall(rf"--by{k}:(\d+)", text)]
        assert sorted(ranks) == list(range(len(found)))
        by_rank = [of[n] for n in np.argsort(ranks)]
        assert by_rank == sorted(of, reverse=True)
    assert f"gather reads {explained.run.gather_bytes:,} bytes" in text
    total = sum(i.seconds for i in found)
    t = explained.run.times
    assert total == pytest.approx(t.products + t.maps + t.other)


@pytest.mark.parametrize("name", MODELS)
def test_live_bytes_have_the_peak_that_the_engine_reports(name):
    explained = getattr(models, name)()
    live = live_bytes(explained)
    peak = max(sum(sizes) for sizes in live)
    assert peak == explained.run.peak_bytes  # no loop of these sums rows that wait
    text = section(explained.html(), "memory")
    shown = [s for s in squares(text) if s.startswith("stage ")]
    sizes = [int(re.search(r"([\d,]+) bytes live", s)[1].replace(",", "")) for s in shown]
    assert sizes == [sum(of) for of in live]
    assert f"up to {peak:,} bytes" in text
    kept = {b.name: b.bytes for b in explained.buffers}
    assert max(of for of, _ in live) <= min(explained.run.kept_bytes, sum(kept.values()))


def test_reasons_are_listed(explained, drawn):
    assert explained.not_batched
    assert Page(section(drawn[0], "not-batched")).texts["li"] == list(explained.not_batched)


def test_the_program_and_its_kernels_are_printed(explained, drawn):
    blocks = Page(section(drawn[0], "program")).texts["pre"]
    assert explained.program in blocks
    assert set(map(str.rstrip, explained.cuda.values())) <= set(blocks)


def test_names_of_users_cannot_inject_elements():
    text = models.hostile().html()
    assert "<script" not in text and "<i>h</i>" not in text
    assert (
        "&lt;script&gt;alert(&#x27;x&#x27;)" in text and "&lt;i&gt;h&lt;/i&gt; &amp; more" in text
    )
    assert "\u202e" not in text and r"\u202e" in text


def test_inference_and_explanations_without_a_run():
    inference = models.tree(training=False).html()
    facts = Page(inference).texts
    assert dict(zip(facts["dt"], facts["dd"], strict=True))["program"] == "inference"
    assert "read in backward" not in section(inference, "memory")
    explained = models.tree(run=False)
    text = explained.html()
    for name in ("tasks", "time", "instructions"):
        assert "No step was run" in section(text, name)
    assert len(squares(section(text, "schedule"))) == len(explained.tasks)


class Flat(cavs.Model):
    """A model without a vertex function."""

    def __init__(self):
        self.inner = Classifier().output

    def loss(self, batch):
        return cavs.ops.mean_squared_error(self.inner(batch["x"]), 0.0)


def test_a_model_without_a_vertex_function():
    graph = cavs.Graph([[], [0]], {"x": np.ones((2, 6))})
    text = cavs.explain(Flat(), cavs.batch([graph])).html()
    assert "The model has no vertex function." in section(text, "function")
    assert "The program has no loop over tasks" in section(text, "tasks")


def test_a_function_without_source():
    space = {"cavs": cavs}
    exec(
        "class Cell(cavs.VertexFunction):\n"
        "    def __init__(self):\n        self.state = cavs.State(h=8)\n"
        "    def vertex(self, v):\n"
        "        v.scatter(h=v.gather().h.sum() + v.pull('x'))\n"
        "        v.push(v.gather().h.sum())\n",
        space,
    )
    explained = cavs.explain(Classifier(space["Cell"](), input_size=8), treebank(3), run=False)
    assert [(f.where, f.source) for f in explained.functions] == [("", "")]
    assert "Python has no source of it." in explained.html()


def test_long_schedules_are_cut():
    explained = models.chains(200)
    text = section(explained.html(), "schedule")
    assert len(squares(text)) == 120 and "80 more levels with 80 tasks are not drawn." in text


def test_a_page_is_written_whole(tmp_path, explained):
    target = tmp_path / "a.html"
    target.write_text("x" * 10**6)
    assert explained.write_html(str(target)) == target
    assert target.read_text(encoding="utf-8") == explained.html()
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(
        cavs.errors.ConfigError, match=r"cannot write .*no/such/a\.html: No such file"
    ):
        explained.write_html(tmp_path / "no/such/a.html")
    with pytest.raises(cavs.errors.ConfigError, match=r"cannot write .*not a file"):
        explained.write_html(tmp_path)


def test_long_texts_and_lists_are_folded(drawn):
    _, parsed = drawn
    opened = [name for tag, name, _ in parsed.attributes if tag == "details"]
    assert opened == ["open"] * 4  # trace, the first pass, stages, instructions
    explained = cavs.explain(Stacked(8), chains())
    text = explained.html()
    assert len(explained.run.instructions) > SHORT < explained.stages[0][1].count("\n")
    assert "<details open" not in section(text, "function")
    assert "<details open" not in section(text, "instructions")
