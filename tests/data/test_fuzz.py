import logging

from tests import fuzz_readers


def test_a_short_round_of_fuzzing():
    logging.getLogger("cavs.data").setLevel(logging.ERROR)
    assert fuzz_readers.rounds(minutes=0, examples=30, first_seed=1) >= 300
