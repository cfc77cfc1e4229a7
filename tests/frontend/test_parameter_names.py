"""Reading a parameter before it has a name does not change its initial value."""

import copy
import pickle

import numpy as np
import pytest

import cavs
from cavs import nn


class Two(cavs.Model):
    def __init__(self):
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, batch):
        return self.b(self.a(batch["x"]))


def weights(model):
    return [layer.weight.value for layer in (model.a, model.b)]


def named(model):
    model.parameters()
    return model


UNSEEN = weights(named(Two()))


def test_reading_a_value_does_not_change_it():
    model = Two()
    seen = weights(model)
    assert (seen[0] == seen[1]).all()  # one shape, no names
    found = weights(named(model))
    assert all((ours == theirs).all() for ours, theirs in zip(found, UNSEEN, strict=True))
    assert all(ours is theirs for ours, theirs in zip(found, seen, strict=True))
    assert not (found[0] == found[1]).all()


def in_place(parameter):
    parameter.value[0, 0] = 7


def by_assignment(parameter):
    parameter.value = 7


def the_same_values(parameter):
    parameter.value = parameter.value.copy()


def drawn(parameter):
    parameter.initialize(0)


def drawn_then_converted(parameter):
    parameter.current()
    parameter.convert(np.float64)


@pytest.mark.parametrize(
    "write", [in_place, by_assignment, the_same_values, drawn, drawn_then_converted]
)
def test_a_written_value_stays(write):
    model = Two()
    weight, other = model.a.weight, model.b.weight.current()
    weight.current()
    write(weight)
    before = weight.value.copy()
    found = weights(named(model))
    assert (found[0] == before).all()
    assert (found[1] == UNSEEN[1]).all() and found[1] is other


def test_a_traced_value_does_not_follow_names_of_other_models():
    class Around(cavs.Model):
        def __init__(self, inner):
            self.inner = inner

        def forward(self, batch):
            return self.inner.forward(batch)

    model = Two()
    batch = cavs.batch([cavs.Graph([[]], {"x": np.ones((1, 4), np.float32)})])
    first = cavs.Session(model).predict(batch)["output"]
    again = cavs.Session(Around(model)).predict(batch)["output"]
    assert (first == again).all()
    assert (model.a.weight.value == UNSEEN[0]).all()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_are_equal_and_layers_of_a_copied_model_are_not(copied):
    model = Two()
    other = copied(model)
    for found in (weights(named(model)), weights(named(other))):
        assert all((ours == theirs).all() for ours, theirs in zip(found, UNSEEN, strict=True))
    model.a = nn.Linear(4, 4)
    model.b = copied(model.a)  # which has no name yet
    assert (model.a.weight.value == model.b.weight.value).all()
    ours, theirs = weights(named(model))
    assert (ours == theirs).all()
