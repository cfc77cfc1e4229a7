"""Explanations in a browser, where one is installed: nothing is wider than a phone."""

import json
import re
import shutil
import subprocess
from html import escape, unescape

import pytest

from tests.inspect.explanation import models

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
WIDTH = 390
MEASURE = """
onload = () => {
  const frame = document.querySelector("iframe"), page = frame.contentDocument;
  for (const folded of page.querySelectorAll("details")) folded.open = true;
  const wide = [...page.querySelectorAll("body *")]
    .filter(e => !e.closest("pre") || e.matches("pre"))
    .filter(e => e.getBoundingClientRect().right > frame.clientWidth + 0.5)
    .map(e => e.outerHTML.slice(0, 200));
  const style = frame.contentWindow.getComputedStyle(page.body);
  document.body.textContent = JSON.stringify({
    scrolls: page.documentElement.scrollWidth, wide, back: style.backgroundColor,
    text: style.color, tall: page.documentElement.scrollHeight});
};
"""


def measured(text, theme, folder):
    """Return widths and colours of a page in a frame of the width of a phone."""
    style = f"border:0;width:{WIDTH}px;height:800px;color-scheme:{theme}"
    frame = f'<iframe style="{style}" srcdoc="{escape(text)}"></iframe>'
    (folder / "frame.html").write_text(
        f"<!doctype html><meta charset=utf-8><body>{frame}<script>{MEASURE}</script></body>"
    )
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", f"file://{folder / 'frame.html'}"]
    run = subprocess.run(command, capture_output=True, timeout=120, check=False)
    found = re.search(r"<body>(\{.*\})</body>", run.stdout.decode())
    if found is None:
        pytest.skip(f"{BROWSER} shows no page here: {run.stderr.decode()[-200:]}")
    return json.loads(unescape(found[1]))


@pytest.mark.skipif(BROWSER is None, reason="no chromium and no google-chrome is installed")
@pytest.mark.parametrize("name", ["by_policy", "hostile"])
@pytest.mark.parametrize(
    ("theme", "back", "text"),
    [
        ("light", "rgb(255, 255, 255)", "rgb(28, 30, 33)"),
        ("dark", "rgb(21, 23, 26)", "rgb(230, 231, 233)"),
    ],
)
def test_a_page_fits_a_phone_in_both_themes(tmp_path, name, theme, back, text):
    found = measured(getattr(models, name)().html(), theme, tmp_path)
    assert found["wide"] == [] and found["scrolls"] <= WIDTH
    assert (found["back"], found["text"]) == (back, text)
    assert found["tall"] > 3000
