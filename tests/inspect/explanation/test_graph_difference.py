"""`graph_difference`: numbers and order of values mean nothing, operators and inputs do."""

import time

from cavs.inspect.explanation.graph_difference import graph_difference

BEFORE = """%1 = feature [name='x'] : f32[2]@vertex    # a.py:1
%2 = tanh %1 : f32[2]@vertex    # a.py:2
%3 = exp %2 : f32[2]@vertex    # a.py:3
%4 = sum_rows %3 : f32[]@one    # a.py:4
return loss = %4"""


def shown(before, after):
    diff = graph_difference(before, after)
    return [sign + text for sign, text in diff.lines], (diff.added, diff.removed, diff.changed)


def test_equal_graphs_have_no_difference():
    assert not graph_difference(BEFORE, BEFORE)
    assert shown(BEFORE, BEFORE) == (["~5"], (0, 0, 0))


def test_numbers_order_and_lines_of_sources_mean_nothing():
    after = """%7 = feature [name='x'] : f32[2]@vertex
%8 = tanh %7 : f32[2]@vertex    # b.py:9
%2 = exp %8 : f32[2]@vertex
%10 = sum_rows %2 : f32[]@one
return loss = %10"""
    assert not graph_difference(BEFORE, after)
    two = "%1 = a : f32[]@one\n%2 = b : f32[]@one\n%3 = add %1, %2 : f32[]@one"
    assert not graph_difference(
        two, "%2 = b : f32[]@one\n%1 = a : f32[]@one\n%3 = add %1, %2 : f32[]@one"
    )
    assert graph_difference(two, two.replace("add %1, %2", "add %2, %1")).changed == 1


def test_an_added_value_changes_its_readers_alone():
    after = """%1 = feature [name='x'] : f32[2]@vertex    # a.py:1
%2 = tanh %1 : f32[2]@vertex    # a.py:2
%3 = neg %2 : f32[2]@vertex    # a.py:2
%4 = exp %3 : f32[2]@vertex    # a.py:3
%5 = sum_rows %4 : f32[]@one    # a.py:4
return loss = %5"""
    lines, counts = shown(BEFORE, after)
    assert counts == (1, 0, 1)
    assert lines == [
        " %1 = feature [name='x'] : f32[2]@vertex    # a.py:1",
        " %2 = tanh %1 : f32[2]@vertex    # a.py:2",
        "+%3 = neg %2 : f32[2]@vertex    # a.py:2",
        "-%4 = exp %2 : f32[2]@vertex    # a.py:3",
        "+%4 = exp %3 : f32[2]@vertex    # a.py:3",
        " %5 = sum_rows %4 : f32[]@one    # a.py:4",
        " return loss = %5",
    ]


def test_removed_values_have_the_numbers_of_the_earlier_graph():
    after = """%1 = feature [name='x'] : f32[2]@vertex    # a.py:1
%2 = sum_rows %1 : f32[]@one    # a.py:4
return loss = %2"""
    lines, counts = shown(BEFORE, after)
    assert counts == (0, 2, 1)
    assert lines[1:5] == [
        "-%2' = tanh %1 : f32[2]@vertex    # a.py:2",
        "-%3' = exp %2' : f32[2]@vertex    # a.py:3",
        "-%2 = sum_rows %3' : f32[]@one    # a.py:4",
        "+%2 = sum_rows %1 : f32[]@one    # a.py:4",
    ]


def test_lines_far_from_changes_are_counted():
    before = "\n".join(f"%{n} = constant [value={n}] : f32[]@one" for n in range(30))
    lines, counts = shown(before, before.replace("value=20", "value=x"))
    assert counts == (1, 1, 0)
    assert lines[0] == "~18" and lines[-1] == "~7" and len(lines) == 8


def test_large_graphs_are_compared_in_reasonable_time():
    before = "\n".join(f"%{n + 1} = mul %{n}, %{n} : f32[8]@vertex" for n in range(3000))
    started = time.perf_counter()
    diff = graph_difference(before, before.replace("@vertex", "@vertex.0"))
    assert (diff.added, diff.removed) == (3000, 3000)
    assert graph_difference(before, before.replace("= mul", "= add", 1)).added <= 2
    assert time.perf_counter() - started < 20


def test_too_many_lines_of_one_form_are_not_compared():
    """Equal forms are aligned at both ends alone: a search among all pairs would take minutes."""

    def chain(names, count):
        lines = ["%0 = feature [name='x'] : f32[2]@vertex"]
        lines += [f"%{n + 1} = {names[n % 2]} %{n} : f32[2]@vertex" for n in range(count)]
        return "\n".join([*lines, f"return loss = %{count}"])

    few = graph_difference(chain(["exp", "tanh"], 20), chain(["tanh", "exp"], 20))
    assert (few.added, few.removed) == (1, 1)
    many = graph_difference(chain(["exp", "tanh"], 800), chain(["tanh", "exp"], 800))
    assert (many.added, many.removed, many.changed) == (800, 800, 1)
