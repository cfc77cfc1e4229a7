"""Scales of axes: fractions, ticks, and short numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs.inspect.report.scale import Scale, scale_of, short

NUMBERS = st.floats(-1e300, 1e300).filter(lambda x: x == 0 or abs(x) > 1e-300)


@given(NUMBERS, NUMBERS)
def test_values_and_ticks_are_on_the_scale(one, other):
    low, high = min(one, other), max(one, other)
    scale = scale_of(low, high)
    assert scale.low < scale.high
    for value in (low, high, *scale.ticks()):
        assert -1e-6 <= scale.fraction(value) <= 1 + 1e-6
    assert scale.ticks() == sorted(scale.ticks()) and len(scale.ticks()) <= 8


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.5, 0.9, [0.5, 0.6, 0.7, 0.8, 0.9]),
        (0.001, 100, [0.001, 0.01, 0.1, 1, 10, 100]),
        (4, 4, [3.6, 3.8, 4, 4.2, 4.4]),
        (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ],
)
def test_ticks_are_round(low, high, ticks):
    assert scale_of(low, high).ticks() == pytest.approx(ticks)


def test_a_logarithmic_scale_within_a_power_of_ten_has_linear_ticks():
    assert Scale(2, 9, logarithmic=True).ticks() == [2, 4, 6, 8]
    assert Scale(2, 900, logarithmic=True).ticks() == [10, 100]


def test_ticks_of_whole_numbers_are_whole():
    assert scale_of(2, 4).ticks(whole=True) == [2, 3, 4]


def test_a_scale_is_logarithmic_for_a_ratio_of_100():
    assert scale_of(1, 100).logarithmic and not scale_of(1, 99).logarithmic
    assert not scale_of(0, 100).logarithmic and not scale_of(-1, 100).logarithmic
    scale = Scale(1, 100, logarithmic=True)
    assert scale.fraction(10) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (16.0, "16"),
        (123456.7, "123457"),
        (0.43217, "0.4322"),
        (1234.5, "1234"),
        (1e12, "1e+12"),
        (math.inf, "inf"),
        (math.nan, "nan"),
        (-0.0, "0"),
    ],
)
def test_short_numbers(value, text):
    assert short(value) == text
