"""``cavs.cli.main``, called by a program."""

import gc

from cavs.cli import main


def test_the_objects_of_a_caller_are_collected_as_before(capsys):
    frozen = gc.get_freeze_count()
    assert main(["info"]) == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() <= frozen  # some may have been freed
