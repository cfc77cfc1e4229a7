"""Runs that go on in another trainer: where they stood, and with which best parameters."""

import pytest

from cavs.errors import CheckpointError, ConfigError
from tests.train.test_trainer import BATCHES, bits, dev_loader, make, train_loader


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        ({"train": train_loader(batch_size=4)}, CheckpointError),
        ({"patience": -1}, ConfigError),
        ({"checkpoint": "/proc/none/x"}, CheckpointError),
        ({"log": "/proc/none/x"}, ConfigError),
    ],
)
def test_a_refused_fit_leaves_the_resumed_run_where_it_stood(mistake, error, tmp_path):
    path = tmp_path / "run"
    options = {"dev": dev_loader(), "progress": False}
    make().fit(train_loader(), epochs=2, checkpoint=path, **options)
    trainer = make()
    trainer.resume(path)
    with pytest.raises(error):
        trainer.fit(**{"train": train_loader(), "epochs": 4} | options | mistake)
    result = trainer.fit(train_loader(), epochs=4, **options)
    assert [e["epoch"] for e in result.epochs] == [3, 4]
    assert trainer.steps == 4 * BATCHES
    whole = make()
    whole.fit(train_loader(), epochs=4, **options)
    assert bits(trainer) == bits(whole)
