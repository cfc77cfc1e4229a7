"""A resumed run needs the settings and the data of the stored run."""

import json

import pytest

from cavs.errors import CheckpointError, ConfigError
from cavs.train import DataLoader, optim, read_checkpoint, safetensors, schedules
from tests.train.fake import make_graphs
from tests.train.test_trainer import GRAPHS, bits, make, train_loader

ADAM = {"lr": 0.1, "beta1": 0.8, "weight_decay": 0.01, "groups": {"*.b": {"lr": 0.5}}}


@pytest.mark.parametrize(
    ("change", "then", "now"),
    [
        ({"lr": 0.2}, "lr=0.1", "lr=0.2"),
        ({"lr": schedules.Constant(0.2)}, "lr=0.1", "lr=0.2"),
        ({"lr": schedules.WarmUp(0.1, 3)}, "lr=0.1", "lr=WarmUp(after=0.1, steps=3)"),
        ({"beta1": 0.9, "eps": 1e-6}, "beta1=0.8, eps=1e-08", "beta1=0.9, eps=1e-06"),
        ({"weight_decay": 0.0}, "weight_decay=0.01", "weight_decay=0.0"),
        ({"groups": {}}, "groups={'*.b': {'lr': 0.5}}", "groups={}"),
        ({"max_norm": 3}, "max_norm=None", "max_norm=3.0"),
    ],
)
def test_other_settings_are_refused_unless_not_strict(change, then, now, tmp_path):
    make(optim.Adam(**ADAM)).save(tmp_path / "m")
    max_norm = change.pop("max_norm", None)
    trainer = make(optim.Adam(**ADAM | change), max_norm=max_norm)
    before = bits(trainer)
    with pytest.raises(CheckpointError) as caught:
        trainer.resume(tmp_path / "m")
    assert f"was trained with {then}, but this trainer has {now}\n" in str(caught.value)
    assert f"build it with {then}; resume(path, strict=False)" in caught.value.hint
    assert bits(trainer) == before
    trainer.resume(tmp_path / "m", strict=False)


@pytest.mark.parametrize(
    ("before", "after", "then", "now"),
    [
        (
            schedules.Cosine(0.1, 9),
            schedules.Cosine(0.1, 7),
            "lr=Cosine(lr=0.1, steps=9",
            "lr=Cosine(lr=0.1, steps=7",
        ),
        (
            schedules.WarmUp(schedules.Cosine(0.1, 9), 3),
            schedules.WarmUp(schedules.Cosine(0.2, 9), 3),
            "lr=WarmUp(after=Cosine(lr=0.1, steps=9",
            "lr=WarmUp(after=Cosine(lr=0.2, steps=9",
        ),
    ],
)
def test_another_argument_of_the_same_schedule_is_refused(before, after, then, now, tmp_path):
    make(optim.SGD(before)).save(tmp_path / "m")
    make(optim.SGD(before)).resume(tmp_path / "m")
    with pytest.raises(CheckpointError) as caught:
        make(optim.SGD(after)).resume(tmp_path / "m")
    assert f"was trained with {then}" in caught.value.what
    assert f"this trainer has {now}" in caught.value.what


def test_the_state_of_a_schedule_is_not_a_setting(tmp_path):
    for lr in (
        lambda: schedules.Cosine(0.1, 9),
        lambda: schedules.Plateau(0.1, patience=0),
        lambda: schedules.WarmUp(schedules.Plateau(0.1), 2),
        lambda: schedules.Constant(0.1),
        lambda: lambda step: 0.1,
    ):
        trainer = make(optim.SGD(lr()))
        trainer.fit(train_loader(), epochs=1, checkpoint=tmp_path / "m", progress=False)
        trainer.optimizer.observe(9.0)
        trainer.save(tmp_path / "m")
        make(optim.SGD(lr())).resume(tmp_path / "m")


def rewritten(path, change):
    tensors, metadata = safetensors.read(path)
    progress = json.loads(metadata["progress"])
    change(progress)
    safetensors.write(path, tensors, metadata | {"progress": json.dumps(progress)})


def test_older_checkpoints_are_resumed(tmp_path):
    path = tmp_path / "m"
    make(optim.SGD(0.1)).fit(train_loader(), epochs=1, checkpoint=path, progress=False)

    def older(progress):
        del progress["max_norm"], progress["optimizer"]["settings"], progress["loader"]["contents"]

    rewritten(path, older)
    trainer = make(optim.SGD(0.2), max_norm=1.0)
    trainer.resume(path)
    trainer.fit(train_loader(), epochs=2, progress=False)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda p: p.update(step=-5),
            "has step -5, but step must be a whole number from 0 to 922337",
        ),
        (lambda p: p.update(step=2**70), "has step 11805"),
        (lambda p: p.update(seed=-1), "has seed -1"),
        (lambda p: p["fit"].update(epoch=-1), "has an invalid run state"),
        (lambda p: p["fit"].update(epoch="x"), "has an invalid run state"),
    ],
)
def test_invalid_counts_are_refused_before_anything_changes(change, text, tmp_path):
    path = tmp_path / "m"
    make().fit(train_loader(), epochs=1, checkpoint=path, progress=False)
    rewritten(path, change)
    trainer = make()
    before = bits(trainer)
    with pytest.raises(CheckpointError, match=text):
        trainer.resume(path)
    assert (bits(trainer), trainer.steps) == (before, 0)


def test_as_many_other_graphs_are_refused(tmp_path):
    path = tmp_path / "m"
    make().fit(train_loader(), epochs=1, checkpoint=path, progress=False)
    contents = read_checkpoint(path).progress["loader"]["contents"]
    assert contents["vertices"] == sum(g.num_vertices for g in GRAPHS)
    trainer = make()
    trainer.resume(path)
    for graphs in (make_graphs(60, seed=5), GRAPHS[::-1]):
        with pytest.raises(CheckpointError, match=f"graphs of vertices {contents['vertices']}, "):
            trainer.fit(train_loader(graphs), epochs=2, progress=False)
    trainer.fit(train_loader(tuple(GRAPHS)), epochs=2, progress=False)


def test_lazy_graphs_are_not_built_for_their_sizes():
    class Lazy:
        def __len__(self):
            return 3

        def __getitem__(self, i):
            raise AssertionError

    assert DataLoader(Lazy()).state_dict()["contents"] == {}
    assert DataLoader([1, 2, 3]).state_dict()["contents"] == {}


@pytest.mark.parametrize("name", ["shuffle", "drop_last"])
def test_flags_of_a_loader_are_checked(name):
    with pytest.raises(ConfigError, match=f"{name} is 'no', but must be True or False"):
        DataLoader(GRAPHS, **{name: "no"})


@pytest.mark.parametrize("name", ["progress", "restore_best"])
def test_flags_of_a_fit_are_checked(name):
    with pytest.raises(ConfigError, match=f"{name} is 'yes', but must be True or False"):
        make().fit(train_loader(), epochs=1, dev=train_loader(), **{name: "yes"})
