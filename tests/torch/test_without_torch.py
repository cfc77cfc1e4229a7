"""cavs.torch where the package torch is missing."""

from __future__ import annotations

import sys

import pytest

from cavs.errors import ConfigError


def test_the_error_names_the_extra(monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "torch" or "cavs.torch" in n]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"cavs\.torch needs the Python package torch") as error:
        import cavs.torch  # noqa: F401
    assert 'pip install "cavs[torch]"' in str(error.value)
