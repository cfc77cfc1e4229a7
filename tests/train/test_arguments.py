"""Invalid arguments raise an error of cavs, and nothing is lost."""

import math
from pathlib import Path

import numpy as np
import pytest

import cavs
from cavs.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DTypeError,
    FeatureError,
    GraphError,
    NumericsError,
    ShapeError,
)
from cavs.train import DataLoader, Trainer, optim, read_checkpoint, safetensors
from tests.train.classifier import Classifier, trees
from tests.train.test_engine import bits

GRAPHS = trees(12)
NAN = math.nan


def make(optimizer=None, **options):
    model = Classifier(0.0)
    model.initialize(7)
    return Trainer(model, optimizer or optim.SGD(0.1), **options)


def loader(**options):
    return DataLoader(GRAPHS, 4, prefetch=0, **options)


@pytest.mark.parametrize("threads", [0, -1, 257, 10**30, "2", 1.5, True])
def test_numbers_of_threads(threads):
    before = cavs.num_threads()
    for call in (
        lambda: cavs.set_num_threads(threads),
        lambda: cavs.Session(Classifier(), threads=threads),
        lambda: make(threads=threads),
    ):
        with pytest.raises(ConfigError) as error:
            call()
        assert f"threads is {threads!r}, but must be a whole number from 1 to 256" in str(
            error.value
        )
        assert error.value.hint.endswith("as threads")
    assert cavs.num_threads() == before


def test_a_model_without_a_trainable_parameter_is_refused():
    model = Classifier()
    for parameter in model.parameters().values():
        parameter.trainable = False
    with pytest.raises(ConfigError, match=r"has no trainable parameter\n(.|\n)*cavs\.Parameter"):
        Trainer(model, optim.SGD(0.1))
    model.output.bias.trainable = True
    assert Trainer(model, optim.SGD(0.1)).steps == 0


def test_none_is_not_a_number_of_threads():
    with pytest.raises(ConfigError, match="threads is None"):
        cavs.set_num_threads(None)
    make(threads=None)


def test_a_nan_loss_ends_a_run_with_a_checkpoint(tmp_path):
    """The error names step, graphs and the last good checkpoint, from which a run resumes."""
    path = tmp_path / "run.safetensors"
    trainer = make(optim.SGD(0.1))
    step = trainer.session.step

    def poisoned(batch, *args, **kwargs):
        if kwargs["step"] == 4:
            trainer.parameters["output.weight"].value[0, 0] = NAN
            trainer.session.invalidate()
        return step(batch, *args, **kwargs)

    trainer.session.step = poisoned
    with pytest.raises(NumericsError) as error:
        trainer.fit(loader(), epochs=3, checkpoint=path, checkpoint_every=1, progress=False)
    text = str(error.value)
    assert "step 5: the loss is nan" in text
    assert "on graphs 4, 5, 6, 7; nothing was updated" in text
    assert f"last good checkpoint: {path}" in text
    assert read_checkpoint(path).progress["step"] == 4
    again, whole = make(), make()
    again.resume(path)
    again.fit(loader(), epochs=3, progress=False)
    whole.fit(loader(), epochs=3, progress=False)
    assert bits(again) == bits(whole)


def test_predictions_that_are_nan_are_refused():
    """The error names the vertex and the parameter that is not finite."""
    trainer = make()
    batch = next(iter(loader()))
    before = trainer.session.predict(batch)["output"]
    assert np.isfinite(before).all()
    bias = trainer.parameters["output.bias"].value
    kept = bias[1]
    bias[1] = NAN
    trainer.session.invalidate()
    with pytest.raises(NumericsError) as error:
        trainer.session.predict(batch)
    assert "prediction 'output' is NaN at vertex 0 of graph" in str(error.value)
    assert "output.bias holds values that are not finite" in str(error.value)
    bias[1] = -np.inf  # a class that is never predicted
    trainer.session.invalidate()
    assert np.isneginf(trainer.session.predict(batch)["output"][:, 1]).all()
    bias[1] = kept
    trainer.session.invalidate()
    assert np.array_equal(trainer.session.predict(batch)["output"], before)


def test_checkpoints_with_nan_are_refused(tmp_path):
    trainer = make()
    before = bits(trainer)
    arrays = {name: p.value.copy() for name, p in trainer.parameters.items()}
    arrays["output.bias"][1] = np.inf
    safetensors.write(tmp_path / "m", arrays, {})
    with pytest.raises(CheckpointError, match=r"'output\.bias' holds inf"):
        trainer.load(tmp_path / "m")
    assert bits(trainer) == before


def test_deeply_nested_metadata_is_refused(tmp_path):
    make().save(tmp_path / "m")
    tensors, metadata = safetensors.read(tmp_path / "m")
    safetensors.write(tmp_path / "m", tensors, {**metadata, "progress": "[" * 100_000})
    with pytest.raises(CheckpointError, match="metadata is damaged"):
        make().resume(tmp_path / "m")


def test_a_zero_byte_in_a_path_is_refused():
    for call in (
        lambda: make().save("a\0b"),
        lambda: make().load("a\0b"),
        lambda: make().fit(loader(), epochs=1, checkpoint="a\0b", progress=False),
    ):
        with pytest.raises(CheckpointError, match="null byte"):
            call()


BATCH_NEEDED = [None, GRAPHS[0], GRAPHS[:2], []]


@pytest.mark.parametrize("batch", BATCH_NEEDED)
def test_objects_that_are_no_batch_are_refused(batch):
    trainer = make()
    for call in (trainer.step, trainer.session.evaluate, trainer.session.predict):
        with pytest.raises(FeatureError, match=r"a batch is needed, not (.|\n)*cavs\.batch"):
            call(batch)
    assert trainer.steps == 0


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: make().fit(GRAPHS, epochs=1), ConfigError, "train is .*a cavs.DataLoader"),
        (lambda: make().fit(loader(), epochs=1, dev=3), ConfigError, "dev is 3"),
        (
            lambda: make().fit(loader(), epochs=2, dev=iter([cavs.batch(GRAPHS)])),
            ConfigError,
            "dev is .*a list of batches",
        ),
        (lambda: make().fit(loader(), epochs=1, dev=[]), ConfigError, r"dev is \[\].*one batch"),
        (lambda: make().fit(loader(), epochs=1, dev=GRAPHS), ConfigError, r"dev\[0\] is Graph"),
        (lambda: make().fit(loader(), epochs=1, checkpoint=3), ConfigError, "checkpoint is 3"),
        (lambda: make().fit(loader(), epochs=1, checkpoint=b"x"), ConfigError, "point is b'x'"),
        (lambda: make().fit(loader(), epochs=1, log=3), ConfigError, "log is 3"),
        (lambda: make().evaluate(GRAPHS), FeatureError, "a batch is needed"),
        (lambda: make().evaluate(None), ConfigError, "loader is None"),
        (lambda: make().evaluate([]), ConfigError, "at least one batch"),
        (lambda: make().evaluate(loader(), 3), ConfigError, "metrics is 3"),
        (
            lambda: make().evaluate(loader(), {"a": lambda outputs, batch: 3}),
            ConfigError,
            "metric 'a' returned 3, but must return two numbers",
        ),
        (lambda: Trainer(3, optim.SGD(0.1)), ConfigError, "model is 3"),
        (lambda: Trainer(Classifier, optim.SGD(0.1)), ConfigError, "model is <class"),
        (lambda: make().save(None), CheckpointError, "cannot write the checkpoint None"),
        (
            lambda: make().evaluate(loader(), [cavs.train.metrics.accuracy]),
            ConfigError,
            r"metrics.accuracy\(\)",
        ),
        (lambda: cavs.nn.Linear(0, 4), ShapeError, r"shape \[0, 4\]"),
        (lambda: cavs.data.Vocabulary("ab"), ConfigError, "the text 'ab'"),
        (lambda: cavs.data.Vocabulary.build("a b"), ConfigError, r"text.split\(\)"),
        (lambda: cavs.data.Vocabulary(["a"]).encode("ab"), ConfigError, "the text 'ab'"),
        (lambda: cavs.data.chains(["ab"], cavs.data.Vocabulary([])), ConfigError, "sentence 0"),
        (lambda: cavs.Graph.from_ast(3), GraphError, "not 3"),
        (lambda: cavs.Graph.from_ast("-" * 10**5 + "1"), GraphError, "nests too deep"),
        (lambda: cavs.Graph.from_networkx([(0, 1)]), GraphError, "networkx graph is needed"),
        (lambda: cavs.Graph([[]], {"x": [-5]}), FeatureError, "holds -5(.|\n)*as floats"),
        (lambda: make(config=3), ConfigError, "config is 3"),
        (lambda: make(config={"data": Path("x")}), ConfigError, r"config\['data'\] is PosixPath"),
        (lambda: make(config={"a": [1, np.ones(2)]}), ConfigError, r"config\['a'\]\[1\] is array"),
        (lambda: make(config={"a": {3: "b"}}), ConfigError, r"a key of config\['a'\] is 3, but"),
        (lambda: make(seed=2**64), ConfigError, "seed is 18446744073709551616"),
        (lambda: Classifier().initialize(-1), ConfigError, "seed is -1"),
        (lambda: Classifier().initialize(None), ConfigError, "seed is None"),
        (lambda: make().session.gradients(cavs.batch(GRAPHS), seed=-1), ConfigError, "seed is -1"),
        (lambda: cavs.Session(3), ConfigError, "model is 3"),
        (lambda: cavs.Session(Classifier(), dtype=np.int32), ConfigError, "np.float32 or"),
        (lambda: cavs.Session(Classifier(), dtype="zz"), ConfigError, "dtype is 'zz'"),
        (lambda: cavs.Session(Classifier(), passes=3), ConfigError, "passes is 3"),
        (lambda: DataLoader(None), ConfigError, "graphs is None"),
        (lambda: DataLoader(iter(GRAPHS)), ConfigError, "a list of graphs"),
        (lambda: DataLoader({0: GRAPHS[0]}), ConfigError, "a list of graphs"),
        (lambda: DataLoader([3], bucket="size"), ConfigError, r"graphs\[0\] is 3"),
        (lambda: list(DataLoader([3], prefetch=0)), FeatureError, "graph 0 of the data set"),
        (lambda: DataLoader(GRAPHS, cache="all"), ConfigError, "cache is 'all'"),
        (lambda: cavs.batch(GRAPHS[0]), FeatureError, "several graphs"),
        (lambda: cavs.batch([GRAPHS[0], None]), FeatureError, "item 1 is None"),
        (lambda: cavs.batch(GRAPHS[:1], ["a"]), FeatureError, "ids are whole numbers"),
        (lambda: cavs.Graph([[]], [1]), FeatureError, "are a dict of arrays"),
        (lambda: cavs.Graph([[]], {3: [1]}), FeatureError, "names of features are texts, found 3"),
        (lambda: cavs.Graph.chain(2.5), GraphError, "found 2.5"),
        (lambda: cavs.Graph.chain(2**40), GraphError, "32 bits"),
        (lambda: cavs.Graph.from_edges("2", [(0, 1)]), GraphError, "found '2'"),
        (lambda: cavs.Graph.from_edges(2, None), GraphError, "pairs"),
        (lambda: cavs.Graph.from_edges(2, [(0, 1), (1,)]), GraphError, "pairs"),
        (lambda: cavs.Graph.from_edge_index(2, [[0], [1, 0]]), GraphError, "num_edges"),
        (lambda: cavs.data.Vocabulary([3]), ConfigError, "holds texts, found 3"),
        (lambda: cavs.data.load_functions(limit=0), ConfigError, "limit is 0"),
        (lambda: cavs.data.read_sst("x", num_classes=0), ConfigError, "num_classes is 0"),
        (lambda: cavs.data.read_sst("no/such"), DataError, "No such file"),
        (lambda: cavs.Parameter((2.5, 2)), ShapeError, "2.5"),
        (lambda: cavs.Parameter("a"), ShapeError, "'a'"),
        (lambda: cavs.State(h=0), ShapeError, r"state 'h' of shape \[0\]"),
        (lambda: cavs.State(h=2.5), ShapeError, "2.5"),
        (lambda: cavs.nn.Dropout(1.0), ConfigError, "dropout rate 1.0"),
        (lambda: cavs.nn.Dropout(NAN), ConfigError, "dropout rate nan"),
        (lambda: cavs.nn.Dropout("a"), ConfigError, "dropout rate 'a'"),
    ],
)
def test_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("dev", [[], GRAPHS, {0: GRAPHS[0]}])
def test_dev_batches_are_checked_before_the_first_step(dev):
    trainer = make()
    with pytest.raises(ConfigError, match="dev"):
        trainer.fit(loader(), epochs=1, dev=dev, progress=False)
    assert trainer.steps == 0
    result = trainer.fit(loader(), epochs=1, dev=[cavs.batch(GRAPHS)], progress=False)
    assert "dev_loss" in result.epochs[0]


def test_json_values_are_allowed_in_the_config(tmp_path):
    config = {"a": [1, 2.5, None, True, "x"], "b": {"c": (np.int64(3), np.float32(0.5))}}
    make(config=config).save(tmp_path / "m")
    assert read_checkpoint(tmp_path / "m").config == config | {"b": {"c": [3, 0.5]}}


def test_numbers_of_numpy_are_numbers(tmp_path):
    """Options may come from arrays; `resume` compares them with those in the checkpoint."""

    def run(resume):
        data = DataLoader(GRAPHS * 4, np.int64(2), shuffle=True, seed=np.uint8(3))
        trainer = make(seed=np.int64(7), max_norm=np.float32(4), config={"size": np.int32(5)})
        if resume:
            assert trainer.resume(tmp_path / "c").config == {"size": 5}
        trainer.fit(data, epochs=np.int64(1 + resume), checkpoint=tmp_path / "c", progress=False)
        return trainer.steps

    steps = run(False)
    assert run(True) == 2 * steps
    assert Trainer(Classifier(), optim.SGD(np.float32(0.5))).optimizer.rate(0) == 0.5
    assert cavs.nn.Dropout(np.float32(0.5)).rate == 0.5


@pytest.mark.parametrize("rate", [NAN, -1.0, "x", None])
def test_a_schedule_must_return_a_rate(rate):
    trainer = Trainer(Classifier(), optim.SGD(lambda step: rate if step else 0.1))
    trainer.step(cavs.batch(GRAPHS))
    before = {name: p.value.copy() for name, p in trainer.parameters.items()}
    with pytest.raises(ConfigError, match="the rate of step 2 is"):
        trainer.step(cavs.batch(GRAPHS))
    assert all(np.array_equal(p.value, before[n]) for n, p in trainer.parameters.items())


def test_a_feature_without_numbers():
    class Model(cavs.Model):
        def forward(self, batch):
            return batch["x"]

    batch = cavs.batch([cavs.Graph([[]], {"x": np.zeros((1, 0))})])
    with pytest.raises(FeatureError, match=r"'x' has rows of shape \[0\]") as caught:
        cavs.Session(Model()).predict(batch)
    assert caught.value.where.startswith("test_arguments.py:")


def test_root_accuracy_of_rows_that_are_graphs():
    with pytest.raises(FeatureError, match="2 rows for 3 vertices"):
        cavs.train.metrics.root_accuracy(label="y")(
            {"output": np.zeros((2, 2))},
            cavs.batch([cavs.Graph([[]] * n, graph_features={"y": 0}) for n in (1, 2)]),
        )


def test_values_of_parameters():
    parameter = cavs.Parameter((2, 2))
    before = parameter.value.copy()
    for value, error in (
        (np.full((2, 2), NAN), NumericsError),
        (np.ones((2, 2), complex), DTypeError),
        (np.array([["a"] * 2] * 2), DTypeError),
        (np.ones((2, 3)), ShapeError),
    ):
        with pytest.raises(error):
            parameter.value = value
    assert np.array_equal(parameter.value, before)
    with pytest.raises(NumericsError, match="inf"):
        cavs.Parameter((2,), init=np.inf).value.sum()
