"""Numbers that a report of a step derives from others."""

import pytest

from cavs.distributed import StepReport


def report(communication, exposed, **options):
    return StepReport(
        loss=1.0,
        grad_norm=1.0,
        compute_seconds=0.5,
        communication_seconds=communication,
        exposed_seconds=exposed,
        sent_bytes=0,
        **options,
    )


@pytest.mark.parametrize(
    ("communication", "exposed", "overlap"),
    [
        (0.4, 0.1, 0.75),
        (0.4, 0.0, 1.0),
        (0.4, 0.4, 0.0),
        (0.4, 0.9, 0.0),  # waits count as exposed, and may be longer
        (0.0, 0.0, 1.0),
        (0.0, 0.3, 1.0),
    ],
)
def test_the_overlap_is_the_hidden_share_of_communication(communication, exposed, overlap):
    assert report(communication, exposed).overlap == pytest.approx(overlap)


def test_loads_are_seconds_of_computation_and_delays():
    assert report(0.0, 0.0, rank_seconds=(0.5, 0.25)).rank_loads == (0.5, 0.25)
    late = report(0.0, 0.0, rank_seconds=(0.5, 0.25), rank_delays=(0.0, 0.5))
    assert late.rank_loads == (0.5, 0.75)
