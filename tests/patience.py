"""Timeouts of tests for operations that may hang; no test takes that long."""

import os

_FACTOR = float(os.environ.get("CAVS_TEST_PATIENCE", "1"))  # more under sanitizers


def patience(seconds):
    """Return `seconds` times CAVS_TEST_PATIENCE."""
    return seconds * _FACTOR
