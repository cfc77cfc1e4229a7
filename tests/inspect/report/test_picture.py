"""Reports as PNG by matplotlib."""

import struct
import sys

import pytest

from cavs.errors import ConfigError
from cavs.inspect import write_report
from tests.inspect.report.logs import Log, adaptive, without_policies


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


@pytest.mark.parametrize("over", ["steps", "time"])
@pytest.mark.parametrize("write", [without_policies, adaptive])
def test_a_png_has_a_panel_for_every_chart(path, write, over):
    pytest.importorskip("matplotlib")
    target = path.with_name("a.PNG")
    assert write_report(write(path), target, over=over) == target
    head = target.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", head[16:24])
    assert width == 1210 and height > (900 if write is adaptive else 600)


def test_odd_texts_and_values_are_drawn(path):
    pytest.importorskip("matplotlib")
    log = Log(path).start().step(1, "nan", **{"$a_{": 1.0}).step(2, 1e300, **{"$a_{": "inf"})
    log.write("change", step=2, setting="$x", value="$").write("error", step=2, error="$")
    assert write_report(path, path.with_name("a.png")).stat().st_size > 1000


def test_values_of_several_powers_of_ten_have_a_logarithmic_axis(path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure")
    saved = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *a, **o: saved.append(self))
    log = Log(path).start()
    for step, loss in enumerate([900.0, 30.0, 1.0], start=1):
        log.step(step, loss, my_monitor=1 / step)
    write_report(path, path.with_name("a.png"))
    (drawn,) = saved
    scales = {panel.get_title(loc="left"): panel.get_yscale() for panel in drawn.axes}
    assert scales["Loss"] == "log" and scales["My monitor"] == "linear"


def test_without_matplotlib_the_error_names_two_cures(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="needs the Python package matplotlib") as error:
        write_report(without_policies(path), path.with_name("a.png"))
    assert "pip install 'cavs[report]'" in error.value.hint and ".html" in error.value.hint
    assert not path.with_name("a.png").exists()
