import logging
import sys
from pathlib import Path


def test_a_short_round_of_fuzzing(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[1]), *sys.path])
    logging.getLogger("cavs.data").setLevel(logging.ERROR)
    import fuzz_readers

    assert fuzz_readers.rounds(minutes=0, examples=30, first_seed=1) >= 300
