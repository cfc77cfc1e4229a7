"""Programs list the bounds that they miss, and return them in their exit status."""

from types import SimpleNamespace

from benchmarks import bounds, choices, clusters, distributed, stragglers
from cavs.distributed.planning.auto import CANDIDATES
from cavs.distributed.planning.builders import builders_of_equal_replicas


def holds(rows):
    return [holds for *_, holds in rows]


def test_a_bound_is_the_least_or_the_most():
    assert bounds.checked("m", 2, 2, True, "{:.1f}") == ("m", "2.0", "at least 2.0", "yes")
    assert bounds.checked("m", 2.1, 2, False, "{:.1f}")[2:] == ("at most 2.0", "NO")
    assert bounds.checked("m", float("nan"), 2, False, "{:.1f}")[3] == "NO"
    rows = [bounds.checked(name, 1, 1, name == "a", "{}") for name in "ab"]
    assert bounds.missed(rows) == [] and bounds.verdict([]) == ""
    assert "| a" in bounds.verdict(rows)


def test_two_ranks_at_the_size_with_bounds():
    found = {"speedup": 1.81, "overlap": 0.69, "bytes": 1.04e6, "formula": 1e6}
    result = {"ranks": 2, "hidden": 512, "batch_size": 64, "strategies": {"buckets": found}}
    assert holds(distributed.targets(result)) == ["yes", "NO", "yes"]
    assert holds(distributed.targets({**result, "megabits": 100})) == ["NO", "yes"]
    for other in ({"ranks": 4}, {"hidden": 64}, {"batch_size": 8}):
        assert holds(distributed.targets({**result, **other})) == ["yes"]  # bytes
    strategies = {"messages": {**found, "bytes": 1.06e6}}
    assert holds(distributed.targets({**result, "strategies": strategies})) == ["NO"]
    assert distributed.targets({**result, "ranks": 1, "strategies": {}}) == []


def test_auto_among_its_builders():
    builders = {"AllReduce": {"milliseconds": 11.5}, "PS": {"milliseconds": 10.0}}
    assert holds(choices.targets({"auto": "AllReduce", "builders": builders})) == ["NO"]
    assert holds(choices.targets({"auto": "PS", "builders": builders})) == ["yes"]


def test_the_builder_of_auto_is_always_measured():
    def runner(name, digest, builder):
        strategy = SimpleNamespace(digest=digest, builder=builder)
        return distributed.Runner(name, SimpleNamespace(strategy=strategy), [])

    def measured(*made):
        runners, chosen = choices.to_measure([runner(*one) for one in made])
        return [r.name for r in runners], chosen

    named = ("PS", "1", "PS"), ("BytePS", "1", "BytePS"), ("Horovod", "2", "Horovod")
    assert measured(*named, ("auto", "2", "AllReduce")) == (["PS", "Horovod"], "Horovod")
    assert measured(*named[:2], ("auto", "2", "Buckets")) == (["PS", "Buckets"], "Buckets")
    # A strategy of one name may be another one, for another cluster.
    assert measured(*named[:2], ("auto", "2", "PS")) == (["PS", "PS of auto"], "PS of auto")


def test_stragglers_are_measured_at_the_sizes_with_bounds(monkeypatch):
    asked = []
    monkeypatch.setattr(stragglers, "measure", lambda given: asked.append(given) or {})
    assert stragglers.main(["--rank"]) == 0
    assert (asked[0].hidden, asked[0].batch_sizes) == (512, [16, 24, 32])
    assert asked[0].cases == ["skewed", "slowed"]


def test_skewed_trees_and_a_slow_rank():
    of_24, of_32 = {"gain": 0.1, "iteration": 1.05}, {"gain": 0.1, "iteration": 1.06}
    skewed = {"16": {"gain": 0.1, "iteration": 1.06}, "24": of_24, "32": of_32}  # 16: shown alone
    found = {"predictor": "ema", "within_one": 0.95, "time": 1.1}
    slow = [{**found, "reached": reached} for reached in (40, None)]
    slow += [{**found, "reached": 2, "within_one": 0.94}]
    slow += [{**slow[1], "predictor": "memoryless"}]  # shown, not checked
    rows = stragglers.targets({"skewed": skewed, "slowed": {"16": slow}})
    of_slow = ["yes", "yes", "yes", "NO", "yes", "yes", "yes", "NO", "yes"]
    assert holds(rows) == ["NO", "yes", "NO", *of_slow]


def test_every_checked_balancer_is_measured():
    assert set(stragglers.CHECKED) <= set(stragglers.BALANCERS)
    assert stragglers.PAIRS in stragglers.BALANCERS


def test_auto_is_compared_with_more_than_its_candidates():
    others = set(builders_of_equal_replicas()) - {choices.AUTO}
    assert set(choices.BUILDERS) >= {*CANDIDATES, *others}
    assert set(clusters.RIVALS) > others and not set(clusters.RIVALS) <= set(CANDIDATES)
    name, found, _, holds = clusters.rivals("tree_lstm", "B4", overlapped=False)
    assert name.startswith("tree_lstm on B4, nothing hides") and (found, holds) == ("0.0%", "yes")
