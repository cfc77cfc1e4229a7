"""`write_report`: where a report goes, and names that it refuses."""

import os

import pytest

from cavs.errors import ConfigError
from cavs.inspect import write_report
from tests.inspect.report.logs import without_policies


@pytest.fixture
def path(tmp_path):
    return without_policies(tmp_path / "log.jsonl")


def test_a_report_is_next_to_the_log_by_default(path):
    assert write_report(path) == write_report(path.parent) == path.with_name("report.html")
    assert path.with_name("report.html").read_text().startswith("<!doctype html>")


def test_a_report_replaces_an_earlier_one(path):
    target = path.with_name("a.htm")
    target.write_text("x" * 10**6)
    assert write_report(path, target) == target
    assert target.read_text().endswith("</html>\n")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("a.svg", r"a\.svg: the suffix of its name is '\.svg'"),
        ("a", "the suffix of its name is ''"),
        ("no/such/a.html", r"cannot write the report .*a\.html: No such file"),
        ("folder.html", "cannot write the report .*: Is a directory"),
        ("log.html", r"log\.html is the log itself"),
    ],
)
def test_names_that_cannot_be_written(path, out, message):
    (path.parent / "folder.html").mkdir()
    os.link(path, path.parent / "log.html")
    text = path.read_text()
    with pytest.raises(ConfigError, match=message) as error:
        write_report(path, path.parent / out)
    assert error.value.hint and path.read_text() == text


def test_an_axis_is_steps_or_time(path):
    with pytest.raises(ConfigError, match="over is 'epochs'"):
        write_report(path, over="epochs")
