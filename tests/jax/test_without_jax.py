"""cavs.jax where the package jax is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cavs.errors import ConfigError


def test_the_error_names_the_extra(monkeypatch):
    for name in [n for n in sys.modules if n == "jax" or n.startswith("cavs.jax")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ConfigError, match=r"cavs\.jax needs the Python package jax") as error:
        import cavs.jax  # noqa: F401
    assert 'pip install "cavs[jax]"' in str(error.value)


def test_cavs_does_not_import_jax():
    code = "import sys, cavs, cavs.train, cavs.runtime.session; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
