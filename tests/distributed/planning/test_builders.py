"""Strategy builders: each follows its rule, and all are verified on any model and cluster."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cavs.distributed.cluster.resources import Node, ResourceSpec
from cavs.distributed.planning import builders
from cavs.distributed.planning.builders import REGISTRY, build, factors_pay, find
from cavs.distributed.planning.builders.builder import smallest_divisor, smallest_non_divisor
from cavs.distributed.strategy import Variable, shards_of
from cavs.distributed.strategy.verify import problems
from cavs.distributed.sync import AllReduce, ParameterServer, SufficientFactors
from cavs.errors import ConfigError

TWO = ResourceSpec(nodes=(Node(address="a", chief=True), Node(address="b")))
GPUS = ResourceSpec(
    nodes=(Node(address="a", chief=True, gpus=(0, 1)), Node(address="b", gpus=(0, 1)))
)
MIXED = ResourceSpec(
    nodes=(
        Node(address="a", chief=True, gpus=(0, 1)),
        Node(address="b", gpus=(0, 1)),
        Node(address="c"),
        Node(address="d"),
    )
)
CLUSTERS = [ResourceSpec.local(1), ResourceSpec.local(4), TWO, GPUS, MIXED]


def v(name, *shape, **fields):
    return Variable(name=name, shape=shape, **fields)


MODEL = [
    v("embedding", 21, 4, sparse=True, rows=6),
    v("W", 12, 6, factors=5),
    v("U", 7, 7, factors=9),
    v("b", 6),
    v("scale", 1),
    v("scalar"),
]


def destinations(strategy):
    return [leaf.sync.destination for leaf in strategy.leaves]


def groups(strategy):
    return [leaf.sync.group for leaf in strategy.leaves]


def parts(strategy):
    return [node.partition for node in strategy.nodes]


def test_divisors():
    assert [smallest_divisor(n) for n in (1, 2, 3, 4, 9, 15, 101)] == [1, 2, 3, 2, 3, 3, 101]
    assert [smallest_non_divisor(n) for n in (1, 2, 3, 4, 6, 12, 60)] == [1, 2, 2, 3, 4, 5, 7]
    assert smallest_divisor(0) == 1


def test_ps():
    strategy = build("PS", MODEL, TWO)
    assert destinations(strategy) == ["a:CPU:0"] * 6
    assert strategy.graph.replicas == ("a:CPU:0", "b:CPU:0")
    assert strategy.builder == "PS"
    assert all(leaf.sync == ParameterServer(destination="a:CPU:0") for leaf in strategy.leaves)


def test_ps_options():
    strategy = build("PS(staleness=3)", MODEL, GPUS)
    assert {(leaf.sync.staleness, leaf.sync.two_level) for leaf in strategy.leaves} == {(3, False)}
    strategy = build("PS(local_replication=True)", MODEL, GPUS)
    assert [leaf.sync.local_replication for leaf in strategy.leaves] == [False] + [True] * 5
    assert all(leaf.sync.two_level for leaf in strategy.leaves)
    assert not build("PS(sync=False)", MODEL, TWO).leaves[0].sync.sync
    assert not build("PS(two_level=False)", MODEL, GPUS).leaves[0].sync.two_level


def test_load_balancing():
    model = [v("a", 10), v("b", 4), v("c", 5), v("d", 3), v("e", 1)]
    # loads: 10|0 -> 10|4 -> 10|9 -> 10|12 -> 11|12
    strategy = build("PSLoadBalancing", model, TWO)
    assert [d[0] for d in destinations(strategy)] == ["a", "b", "b", "b", "a"]


def test_load_is_balanced_over_processes():
    """Eight device names of one process are one server, for Poseidon's rule, too."""
    many = Node(address="a", chief=True, gpus=(0,), cpus=tuple(range(8)))
    others = [Node(address=address, gpus=(0,)) for address in "bcd"]
    cluster = ResourceSpec(nodes=(many, *others))
    model = [v(f"w{i}", 8) for i in range(8)]
    for name in ("PSLoadBalancing", "BytePS", "Parallax"):
        strategy = build(name, [*model, v("table", 8, 2, sparse=True)], cluster)
        owned = [leaf.sync for leaf in strategy.leaves if isinstance(leaf.sync, ParameterServer)]
        assert {sync.destination for sync in owned} <= {f"{node}:CPU:0" for node in "abcd"}
    shards = destinations(build("PartitionedPS", [v("w", 25)], cluster))
    assert [d[0] for d in shards] == list("abcda")
    served = destinations(build("PSLoadBalancing", model, cluster))
    assert [d[0] for d in served] == list("abcdabcd")
    factored = build("Poseidon", [v("fc", 64, 64, factors=16)], cluster)
    assert isinstance(factored.leaves[0].sync, SufficientFactors)


def test_partitioned():
    model = [v("even", 12, 3), v("prime", 5, 2), v("one", 1, 9), v("scalar"), v("odd", 9)]
    strategy = build("PartitionedPS", model, TWO)
    assert parts(strategy) == [(2, 1), (5, 1), (), (), (3,)]
    # 36 elements: 18|18; prime: a b a b a, 24|22; one: b, 24|31; scalar: a, 25|31; odd: a b a
    assert [d[0] for d in destinations(strategy)] == list(
        "ababababaaba"[:2] + "ababa" + "b" + "a" + "aba"
    )
    assert shards_of(strategy.node("prime"), (5, 2))[4].shape == (1, 2)


def test_large_primes_are_not_partitioned():
    """A vocabulary of prime size would become thousands of shards of one row each."""
    model = [v("table", 2003, 2), v("row", 2, 2003)]
    assert parts(build("PartitionedPS", model, TWO)) == [(), (2, 1)]
    assert parts(build("PartitionedAR", model, TWO)) == [(), (2, 1)]
    assert parts(build("PartitionedPS(max_shards=4000)", model, TWO)) == [(2003, 1), (2, 1)]
    assert parts(build("PartitionedPS(max_shards=1)", model, TWO)) == [(), ()]


def test_unevenly_partitioned():
    model = [v("a", 12, 3), v("b", 5), v("c", 2), v("d", 1), v("e")]
    strategy = build("UnevenPartitionedPS", model, TWO)
    assert parts(strategy) == [(5, 1), (2,), (2,), (), ()]
    assert [s.shape for s in shards_of(strategy.node("a"), (12, 3))] == [(3, 3)] * 2 + [(2, 3)] * 3
    for size in range(3, 200):
        found = shards_of(build("UnevenPartitionedPS", [v("a", size)], TWO).nodes[0], (size,))
        assert len({shard.shape for shard in found}) == 2


def test_all_reduce():
    assert groups(build("AllReduce", MODEL, TWO)) == [0] * 6
    strategy = build("AllReduce(chunk=4, spec='ring', compressor='float16')", MODEL, TWO)
    assert groups(strategy) == [0, 0, 0, 0, 1, 1]
    assert [leaf.compressor for leaf in strategy.leaves] == ["none"] + ["float16"] * 5
    assert all(leaf.sync.spec == "ring" for leaf in strategy.leaves)
    by_nccl = build("AllReduce(spec='nccl')", MODEL, TWO)
    assert [leaf.sync.spec for leaf in by_nccl.leaves] == ["auto"] + ["nccl"] * 5  # not for tables


def test_buckets_are_left_to_the_run():
    strategy = build("Buckets", MODEL, TWO)
    assert groups(strategy) == [None] * 6 and parts(strategy) == [()] * 6
    assert strategy.graph.replicas == ("a:CPU:0", "b:CPU:0")


def test_partitioned_all_reduce():
    strategy = build("PartitionedAR(chunk=4)", MODEL, TWO)
    assert parts(strategy) == [(3, 1), (2, 1), (7, 1), (2,), (), ()]
    assert groups(strategy) == [i // 4 for i in range(16)]


def test_random_axes():
    model = [v(f"w{i}", 4, 9) for i in range(30)] + [v("t", 9, 4, sparse=True), v("row", 1, 6)]
    strategy = build("RandomAxisPartitionAR(seed=7)", model, TWO)
    cuts = parts(strategy)
    assert set(cuts[:30]) == {(2, 1), (1, 3)}
    assert cuts[30:] == [(3, 1), (1, 2)]
    assert build("RandomAxisPartitionAR(seed=7)", model, TWO) == strategy
    assert build("RandomAxisPartitionAR(seed=8)", model, TWO).digest != strategy.digest


def test_parallax():
    model = [v("e", 9, 2, sparse=True), v("w", 3), v("f", 5, 2, sparse=True), v("x", 3)]
    strategy = build("Parallax(chunk=3, local_replication=True)", model, GPUS)
    kinds = [leaf.sync.type for leaf in strategy.leaves]
    assert kinds == ["parameter_server", "all_reduce"] * 2
    assert [strategy.leaves[i].sync.destination for i in (0, 2)] == ["a:CPU:0", "b:CPU:0"]
    assert [strategy.leaves[i].sync.group for i in (1, 3)] == [0, 1]
    assert not strategy.leaves[0].sync.local_replication


def test_the_rule_of_poseidon():
    """The example of the paper: 3.7 million floats of factors against 58.7 million by servers."""
    assert 2 * 32 * 7 * 8192 == 3_670_016
    assert 2 * 4096 * 4096 * 14 // 8 == 58_720_256
    assert factors_pay((4096, 4096), 32, 8, 8)
    assert not factors_pay((1000, 1024), 128, 16, 16)
    assert not factors_pay((4096, 4096), 1, 1, 1)
    # M = N, as many servers as workers: up to K = M / P
    assert factors_pay((64, 64), 16, 4, 4)
    assert not factors_pay((64, 64), 17, 4, 4)


def test_poseidon():
    cluster = ResourceSpec.local(4)
    model = [v("fc", 64, 64, factors=16), v("big", 64, 64, factors=17), v("w", 64, 64), v("b", 64)]
    strategy = build("Poseidon", model, cluster)
    kinds = [type(leaf.sync) for leaf in strategy.leaves]
    assert kinds == [SufficientFactors] + [ParameterServer] * 3
    assert len(set(destinations_of(strategy))) == 3
    assert type(build("Poseidon(batch_size=17)", model, cluster).leaves[0].sync) is ParameterServer
    kinds = [type(leaf.sync) for leaf in build("Poseidon(batch_size=2)", model, cluster).leaves]
    assert kinds == [SufficientFactors] * 2 + [ParameterServer] * 2
    alone = build("Poseidon", model, ResourceSpec.local(1))
    assert {type(leaf.sync) for leaf in alone.leaves} == {ParameterServer}


def destinations_of(strategy):
    return [x.sync.destination for x in strategy.leaves if isinstance(x.sync, ParameterServer)]


def test_horovod():
    model = [v("a", 10), v("b", 10), v("e", 99, 9, sparse=True), v("c", 30), v("d", 10)]
    strategy = build("Horovod(fusion=80)", model, TWO)
    assert groups(strategy) == [0, 0, 0, 1, 2]
    assert all(leaf.sync.spec == "ring" for leaf in strategy.leaves)


def test_byteps():
    strategy = build("BytePS", [v("a", 5), v("b", 3)], MIXED)
    assert strategy.graph.replicas == ("a:GPU:0", "a:GPU:1", "b:GPU:0", "b:GPU:1")
    assert strategy.graph.servers == ("c:CPU:0", "d:CPU:0")
    assert destinations(strategy) == ["c:CPU:0", "d:CPU:0"]
    assert strategy.leaves[0].sync.two_level
    assert build("BytePS", [v("a", 5)], MIXED).graph.servers == ("c:CPU:0",)
    colocated = build("BytePS", [v("a", 5), v("b", 3)], GPUS)
    assert colocated.graph.servers == ()
    assert destinations(colocated) == ["a:CPU:0", "b:CPU:0"]


def test_byteps_chooses_its_servers_itself():
    with pytest.raises(ConfigError, match=r"BytePS: servers=2") as found:
        build("BytePS(servers=2)", [v("a", 5)], MIXED)
    assert found.value.hint == "nodes without GPUs are its servers"


def test_two_levels_are_off_on_one_host():
    assert not build("PS", MODEL, ResourceSpec.local(4)).leaves[0].sync.two_level
    assert not build("PS", MODEL, TWO).leaves[0].sync.two_level


variables = st.lists(
    st.tuples(st.lists(st.integers(1, 31), max_size=3).map(tuple), st.booleans(), st.booleans()),
    min_size=1,
    max_size=7,
).map(
    lambda items: [
        Variable(
            name=f"v{i}",
            shape=shape,
            sparse=sparse and len(shape) > 1,
            factors=4.0 if product and len(shape) == 2 else None,
        )
        for i, (shape, sparse, product) in enumerate(items)
    ]
)


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - {"auto"}))  # it takes one of these
@given(variables, st.sampled_from(CLUSTERS))
@settings(deadline=None, max_examples=30)
def test_every_builder_passes_verification(name, model, cluster):
    strategy = build(name, model, cluster)
    assert problems(strategy, model, cluster) == []
    assert [node.name for node in strategy.nodes] == [variable.name for variable in model]
    assert build(name, model, cluster).digest == strategy.digest


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - {"auto"}))  # it takes one of these
def test_one_worker(name):
    strategy = build(name, MODEL, ResourceSpec.local(1))
    assert strategy.graph.replicas == ("localhost:CPU:0",)


def test_names_and_options_are_kept():
    for text in ("PS", "AllReduce(chunk=4)", "PS(sync=False)", "Parallax(compressor='float16')"):
        assert str(find(text)) == text
        assert find(str(find(text))) == find(text)
    assert str(find("AllReduce(chunk=128)")) == "AllReduce"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Gossip", "no strategy builder is called 'Gossip'"),
        ("AllReduce(chunk=0)", "chunk is 0"),
        ("AllReduce(chunk=1.5)", "chunk is 1.5"),
        ("AllReduce(speed=1)", "unexpected keyword argument 'speed'"),
        ("AllReduce(compressor='zip')", "unknown compressor 'zip'"),
        ("AllReduce(4)", "names no strategy builder"),
        ("AllReduce(chunk=f())", "names no strategy builder"),
        ("AllReduce(**{})", "names no strategy builder"),
        ("AllReduce(", "names no strategy builder"),
        ("a.b", "names no strategy builder"),
        ("", "names no strategy builder"),
        ("PS(staleness=1, sync=False)", "staleness 1 with sync=False"),
        ("PS(staleness='x')", "staleness is 'x'"),
        ("Horovod(fusion=0)", "fusion is 0"),
        ("Poseidon(batch_size=-1)", "batch_size is -1"),
        ("absent.py:Mine", "there is no file absent.py"),
        ("PS(staleness=2, local_replication=True)", "local_replication with staleness 2"),
        ("AllReduce(spec='tree')", "spec is 'tree'"),
        ("AllReduce(compressor=3)", "compressor is 3"),
        ("AllReduce(compressor=None)", "compressor is None"),
        ("Horovod(compressor=[1])", "compressor is [1]"),
        ("Parallax(compressor={})", "compressor is {}"),
        ("PartitionedPS(max_shards='a')", "max_shards is 'a'"),
        ("PartitionedPS(max_shards=0)", "max_shards is 0"),
        ("RandomAxisPartitionAR(max_shards=-3)", "max_shards is -3"),
        ("PS(local_replication='x')", "local_replication is 'x'"),
        ("PS(sync=1)", "sync is 1"),
        ("PS(two_level='no')", "two_level is 'no'"),
        ("PS(servers={[1]: 2})", "names no strategy builder"),
    ],
)
def test_invalid_builders_are_refused(text, words):
    with pytest.raises(ConfigError) as caught:
        build(text, MODEL, GPUS)
    assert words in str(caught.value)


def test_a_model_without_parameters():
    with pytest.raises(ConfigError, match="no trainable parameter"):
        build("PS", [], TWO)


MINE = """
from dataclasses import dataclass
from cavs.distributed.planning.builders import Builder, build

@dataclass(frozen=True, kw_only=True)
class Mine(Builder):
    chunk: int = 2

    def build(self, variables, resources):
        return build(f"AllReduce(chunk={self.chunk})", variables, resources)

class Odd(Builder):
    def build(self, variables, resources):
        return None

class Wrong(Builder):
    def build(self, variables, resources):
        return build("PS", variables[1:], resources)

class Other:
    pass
"""


def test_a_user_builder(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    strategy = build(f"{path}:Mine(chunk=3)", MODEL, TWO)
    assert groups(strategy) == [0, 0, 0, 1, 1, 1]
    assert strategy.builder == "Mine(chunk=3)"
    assert groups(build(f"{path}:Mine", MODEL, TWO)) == [0, 0, 1, 1, 2, 2]
    for name, words in [
        ("Odd", "builder Odd returned NoneType"),
        ("Wrong", "says nothing about parameter embedding"),
        ("Other", "no class Other that is a Builder"),
        ("Absent", "no class Absent that is a Builder"),
        ("Mine(x=1)", "unexpected keyword argument 'x'"),
    ]:
        with pytest.raises(ConfigError) as caught:
            build(f"{path}:{name}", MODEL, TWO)
        assert words in str(caught.value)


BROKEN = """
from cavs.distributed.planning.builders import Builder

class Unfinished(Builder):
    pass

class Raises(Builder):
    def build(self, variables, resources):
        return self._strategy(variables[0])

    def _strategy(self, variable):
        return variable.absent

class Adds(Raises):
    def __init__(self, n):
        self.n = n + 1
"""


@pytest.mark.parametrize(
    ("text", "name", "words", "line"),
    [
        (BROKEN, "Unfinished", "has no method build", 0),
        (BROKEN, "Raises", "builder Raises: AttributeError: 'Variable' object has no", 12),
        (BROKEN, "Adds(n=1)", "builder Adds: AttributeError", 12),
        (BROKEN, "Adds(n='x')", "Adds(n='x'): TypeError: can only concatenate", 16),
        ("\ndef f(:\n", "F", "cannot be loaded: SyntaxError: invalid syntax", 2),
        ("import absent_module\n", "F", "cannot be loaded: ModuleNotFoundError: No module", 1),
    ],
)
def test_the_line_of_a_user_builder_that_fails(text, name, words, line, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        build(f"{path}:{name}", MODEL, TWO)
    assert words in caught.value.what and caught.value.hint
    # Without a line of its own, the error names the line that uses the builder.
    assert caught.value.where.startswith(f"broken.py:{line}" if line else "test_builders.py:")


def test_names_of_builders_are_unique():
    with pytest.raises(ConfigError, match="already a builder PS"):
        builders.register(builders.PS)
    assert dataclasses.is_dataclass(REGISTRY["PS"])
    assert AllReduce is not REGISTRY["AllReduce"]


def test_poseidon_may_reduce_gradients_without_factors():
    shapes = {"table": (50, 4), "W": (64, 64), "V": (64, 64)}
    table, w, v = (Variable(name=name, shape=shape) for name, shape in shapes.items())
    variables = [dataclasses.replace(table, sparse=True, rows=3), w]
    variables.append(dataclasses.replace(v, factors=2))
    made = build("Poseidon(otherwise='all_reduce')", variables, ResourceSpec.local(2))
    kinds = [type(node.sync) for node in made.nodes]
    assert kinds == [ParameterServer, AllReduce, SufficientFactors]
    assert made.nodes[1].sync.group is None
    with pytest.raises(ConfigError, match="otherwise is 'ring'") as caught:
        build("Poseidon(otherwise='ring')", variables, ResourceSpec.local(2))
    assert "'servers' or 'all_reduce'" in caught.value.hint
