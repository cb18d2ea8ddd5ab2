"""What every page must be: small, balanced, of harmless elements, without a control byte."""

import re
from html.parser import HTMLParser

from lmlang import markup

ELEMENTS = {
    *("div", "b", "i", "u", "span", "pre", "p", "sup", "table", "tr", "td", "th"),
    *("details", "summary", "del", "ins"),
}
ATTRIBUTES = {"style", "title", "open", "cellpadding", "valign"}
HIDDEN = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ud800-\udfff\ufeff\U000e0000-\U000e0fff]"
)


class Page(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.open, self.shown = [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert tag in ELEMENTS, tag
        assert {name for name, _ in attributes} <= ATTRIBUTES
        for _, value in attributes:
            assert "url(" not in (value or "").lower() or tag == "span"
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.shown.append(data)

    def handle_comment(self, data):
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def checked_page(html):
    """The text of a page that is as it must be."""
    assert len(html.encode()) <= markup.PAGE_BYTES
    assert not HIDDEN.search(html)
    return "".join(Page(html).shown)


def checked_text(text, width):
    """The lines of a text that no terminal is harmed by, and that fit into its columns."""
    assert not HIDDEN.search(text)
    lines = text.split("\n")
    assert max(map(markup.width, lines)) <= max(width, markup.NARROWEST)
    return lines
