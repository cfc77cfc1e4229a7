"""The last lines of ``cavs demo``: its commands to type next, and the majority class."""

import os
import sys
from pathlib import Path

import pytest

from cavs import Graph
from cavs.cli import Task, demo
from cavs.errors import DataError


@pytest.fixture
def tools(monkeypatch, tmp_path):
    """Let this Python be one of an environment that has ``cavs``, in the working folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "env" / "bin"
    folder.mkdir(parents=True)
    (folder / "cavs").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return folder


def labelled(*labels):
    return [Graph.chain(1, graph_features={"label": label}) for label in labels]


def test_the_command_is_its_name_where_the_path_finds_it(tools, monkeypatch):
    monkeypatch.setenv("PATH", str(tools))
    assert demo.command() == "cavs"


@pytest.mark.parametrize("other", [True, False])
def test_the_command_is_its_file_where_the_path_finds_none_or_another(other, tools, monkeypatch):
    folder = tools.parent / "other"
    folder.mkdir()
    if other:
        (folder / "cavs").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert demo.command() == os.path.join("env", "bin", "cavs")


def test_the_command_is_a_module_where_the_environment_has_no_script(tools, monkeypatch):
    Path(tools, "cavs").unlink()
    monkeypatch.setenv("PATH", str(tools))
    assert demo.command() == f"{tools / 'python'} -m cavs"


def test_the_majority_class_is_that_of_the_training_graphs():
    classes = {"classes": ["get", "set", "is"]}
    task = Task(None, labelled(1, 1, 0, -1, -1, -1), test=labelled(1, 0, 2, 1, -1), assets=classes)
    assert demo.majority(task) == (2 / 4, "set")


def test_training_graphs_without_a_label_have_no_majority_class():
    task = Task(None, labelled(-1, -1), test=labelled(0), assets={"classes": ["get"]})
    with pytest.raises(DataError, match=r"no training graph has a label(.|\n)*give more graphs"):
        demo.majority(task)
