"""Modules that have another name now: where the old one is used, the error says the new one."""

import importlib

import pytest

import cavs.distributed

MOVED = {
    "builders": "planning.builders",
    "communicator": "comm",
    "compressors": "compression",
    "cost": "planning.cost",
    "resources": "cluster.resources",
    "synchronisers": "sync",
}


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_import_by_an_old_name_names_the_new_one(old, new):
    message = f"^cavs.distributed.{old} is now cavs.distributed.{new}$"
    with pytest.raises(ModuleNotFoundError, match=message) as found:
        importlib.import_module(f"cavs.distributed.{old}")
    assert found.value.name == f"cavs.distributed.{old}"
    with pytest.raises(ModuleNotFoundError, match=message):
        getattr(cavs.distributed, old)
    assert importlib.import_module(f"cavs.distributed.{new}")


def test_a_name_that_never_was_is_no_attribute():
    with pytest.raises(AttributeError, match="nothing"):
        cavs.distributed.nothing  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'cavs\.distributed\.nothing'"):
        importlib.import_module("cavs.distributed.nothing")
