"""``cavs info`` on an installation with parts that are missing or cannot be read."""

import sys
from importlib import metadata

import pytest

import cavs as package
from cavs.cli import main, registry
from cavs.errors import ConfigError
from cavs.train.version import version


@pytest.fixture
def models(monkeypatch, tmp_path):
    """Let the models of the command line be those in an empty package of its own."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / f"models_of_{tmp_path.name}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.setattr(registry, "PACKAGES", (folder.name,))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        del sys.modules[name]


def lines(capsys):
    assert main(["info"]) == 0
    return [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]


def test_an_engine_that_is_not_built_is_told(models, monkeypatch, capsys):
    monkeypatch.delattr(package, "_engine")
    monkeypatch.setitem(sys.modules, "cavs._engine", None)
    (engine,) = [words for name, words in lines(capsys) if name == "engine"]
    assert engine.startswith("not built (") and "_engine" in engine


def test_an_engine_for_gpus_that_is_not_built_is_told(models, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cavs.cuda.cache", None)
    found = lines(capsys)
    (gpu,) = [words for name, words in found if name == "gpu"]
    assert gpu.startswith("none: the engine for GPUs is not built (") and "cavs.cuda.cache" in gpu
    assert "kernels" not in [name for name, _ in found]


def test_a_model_that_cannot_be_parsed_is_listed_with_the_reason(models, capsys):
    (models / "broken.py").write_text('"""Half of a model."""\ndef build(:\n')
    (models / "sound_one.py").write_text('"""A whole model.\n\nMore.\n"""\n')
    found = [words for name, words in lines(capsys) if name == "model"]
    (broken, sound) = found
    assert broken.split()[:4] == ["broken", "cannot", "be", "read:"] and "line 2" in broken
    assert sound.split(maxsplit=1) == ["sound-one", "A whole model."]


def test_a_package_that_lacks_a_module_is_not_taken_for_none(models):
    (models / "__init__.py").write_text("import a_module_that_is_missing\n")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
        registry.names()


def test_an_installation_without_models_has_no_names(monkeypatch, capsys):
    monkeypatch.setattr(registry, "PACKAGES", ("no_models", "no_models.either"))
    assert registry.names() == []
    assert "model" not in [name for name, _ in lines(capsys)]
    with pytest.raises(ConfigError, match="no model is called 'tree-lstm'; there are none\n"):
        registry.find("tree-lstm")


def test_a_source_tree_that_is_not_installed_has_no_version(models, monkeypatch, capsys):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert version() == "unknown"
    (found,) = [words for name, words in lines(capsys) if name == "cavs"]
    assert found.startswith("unknown in ")
