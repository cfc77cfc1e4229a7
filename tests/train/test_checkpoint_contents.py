"""Checkpoints whose contents do not belong together, and tensors that no file can hold."""

import json

import numpy as np
import pytest

from cavs.errors import CheckpointError
from cavs.train import optim, read_checkpoint, safetensors
from tests.train.test_trainer import bits, make, train_loader


@pytest.fixture
def path(tmp_path):
    """Return the checkpoint of a run of one epoch."""
    found = tmp_path / "run"
    make().fit(train_loader(), epochs=1, checkpoint=found, progress=False)
    return found


def rewrite(path, progress, **changed):
    """Replace entries of the progress and of the metadata of the file."""
    tensors, metadata = safetensors.read(path)
    text = json.dumps(json.loads(metadata["progress"]) | progress)
    safetensors.write(path, tensors, metadata | {"progress": text} | changed)


def refused(path, trainer=None):
    """Return the error of a trainer that resumes; it stays as it was."""
    trainer = trainer or make()
    before = bits(trainer), trainer.steps
    with pytest.raises(CheckpointError) as caught:
        trainer.resume(path)
    assert (bits(trainer), trainer.steps) == before
    return caught.value


def test_tensors_of_no_parameter_are_refused(path):
    tensors, metadata = safetensors.read(path)
    extra = {"optimizer.output.b.third": np.ones(3, np.float32), "stray": np.ones(1)}
    safetensors.write(path, tensors | extra, metadata)
    told = refused(path)
    assert told.what == f"{path}: tensor 'optimizer.output.b.third' belongs to no parameter"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("config", "its config or progress is not a JSON object"),
        ("progress", "its metadata is damaged"),
    ],
)
def test_a_config_or_progress_that_is_no_object_is_refused(name, told, path):
    tensors, metadata = safetensors.read(path)
    safetensors.write(path, tensors, metadata | {name: '["a", "list"]'})
    with pytest.raises(CheckpointError, match=told) as caught:
        read_checkpoint(path)
    assert "take an older checkpoint" in caught.value.hint


@pytest.mark.parametrize("lost", [{"step": "last"}, {"seed": 1.5}, {"step": None, "seed": None}])
def test_a_file_without_settings_to_resume_from_is_refused(lost, path):
    rewrite(path, lost)
    told = refused(path)
    assert told.what == f"{path} has no optimiser settings, step and seed to resume from"
    assert "load() takes over the parameters alone" in told.hint
    trainer = make()
    assert trainer.load(path) == []


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan"), 1, "0.5", None])
def test_a_scale_of_the_rate_that_is_no_number_above_0_is_refused(scale, path):
    rewrite(path, {"lr_scale": scale})
    told = refused(path)
    assert told.what == f"{path} has lr_scale {scale!r}, but lr_scale must be a number above 0"


def test_a_run_of_another_model_is_refused(path):
    rewrite(path, {}, model="Parser")
    told = refused(path)
    assert told.what == f"{path} holds a Parser, not a FakeModel"
    assert "load() for the arrays alone" in told.hint


def test_a_file_of_another_model_with_equal_parameters_is_not_replaced(path):
    rewrite(path, {}, model="Parser")
    before = path.read_bytes()
    with pytest.raises(CheckpointError) as caught:
        make().fit(train_loader(), epochs=1, checkpoint=path, progress=False)
    found = f"fit of a FakeModel would replace {path} of another model, a Parser"
    assert caught.value.what == found and path.read_bytes() == before


def test_a_run_of_another_optimiser_is_refused(path):
    told = refused(path, make(optim.SGD(0.1)))
    assert told.what == f"{path} was trained with 'adam', not 'sgd'"


def test_a_tensor_with_the_name_of_the_metadata_is_refused(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(CheckpointError, match="a tensor may not be called '__metadata__'"):
        safetensors.write(path, {"a": np.ones(1), "__metadata__": np.ones(2)}, {})
    assert not path.exists()


def test_a_header_above_the_limit_of_the_format_is_refused(tmp_path, monkeypatch):
    """The limit is lower here, as a header of its size takes a second to write."""
    monkeypatch.setattr(safetensors, "_MAX_HEADER", 1000)
    path = tmp_path / "file"
    safetensors.write(path, {"a": np.ones(1)}, {"config": "x" * 700})
    old = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"the header has 1\d{3} bytes, more than 1000"):
        safetensors.write(path, {"a": np.zeros(1)}, {"config": "x" * 1000})
    assert path.read_bytes() == old
    assert safetensors.read(path)[0]["a"].tolist() == [1.0]
