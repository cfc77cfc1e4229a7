"""Checks of HTML pages that load nothing: well-formed, in both themes, with enough contrast."""

import re
from html.parser import HTMLParser

VOID = ("meta", "input", "br")


class Page(HTMLParser):
    """Checks that every element is closed; collects attributes and texts by element."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.attributes, self.texts = [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names))
        if tag not in VOID:
            self.open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]][-1] += data

    def values(self, name):
        """Return the values of an attribute."""
        return [value for _, attribute, value in self.attributes if attribute == name]


def assert_loads_nothing(text, parsed):
    """Assert that a page refers to nothing outside of it."""
    assert not re.search(r"https?://|@import|url\(", text)
    names = {name for _, name, _ in parsed.attributes}
    assert not names & {"src", "srcset", "action", "data", "poster", "xlink:href"}
    assert all(value.startswith("#") for value in parsed.values("href"))
    assert not any(name.startswith("on") for name in names)
    assert not {"link", "img", "iframe", "object", "image", "use"} & set(parsed.texts)
    assert "default-src 'none'" in text


def themes(text):
    """Return the colours of a page by name, in light and in dark mode."""
    rules = re.findall(r":root\{([^}]*)\}", text)
    assert len(rules) == 2 and "@media(prefers-color-scheme:dark){:root" in text
    found = [dict(re.findall(r"(--\w+):(#\w+)", rule)) for rule in rules]
    used = set(re.findall(r"var\((--[a-z]\w*)\)", text)) - {"--color"}
    assert all({n for n in used if not n.startswith("--by")} <= theme.keys() for theme in found)
    return found


def contrast(a, b):
    """Return the contrast of two colours, as WCAG 2 defines it."""

    def luminance(color):
        digits = color[1:] if len(color) == 7 else "".join(2 * c for c in color[1:])
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)
