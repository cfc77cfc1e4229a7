"""Test that the code of docs/jax.md runs and prints the text below it."""

from __future__ import annotations

import contextlib
import io

import pytest

from tests.test_documents import blocks, matches

pytest.importorskip("jax", reason="cavs.jax needs the package jax")


def test_the_code_runs():
    names = {}
    for code, expected in blocks("docs/jax.md"):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            exec(compile(code, "example.py", "exec"), names)
        assert matches(shown.getvalue(), expected), shown.getvalue()
