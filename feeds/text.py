"""Plain text from markup, and text that XML can hold."""

from __future__ import annotations

import re
from html.parser import HTMLParser

LONGEST_TITLE = 1_000
"""The most characters of a feed's name or a folder's path, which each of its entries repeats."""

NESTED = "/"
"""Separates the names of nested folders."""

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAG = re.compile(
    r"</?(?:a|abbr|b|big|blockquote|br|cite|code|div|em|font|h[1-6]|hr|i|img|li|ol|p|pre|q|s|small|span|strong|sub|sup|tt|u|ul)"
    r"(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
_INLINE = frozenset(
    {"a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "ins"}
    | {"kbd", "mark", "q", "ruby", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u"}
    | {"var", "wbr"}
)
_UNSEEN = frozenset({"script", "style"})
# To a browser `<![` opens a comment that the next `>` ends; html.parser raises on most of them.
_MARKED_SECTION = re.compile(r"<!\[[^>]*>?")


def xml_text(text: str) -> str:
    """`text` without the characters that XML forbids."""
    return _FORBIDDEN.sub("", text)


def one_line(text: str) -> str:
    """`text` fit for XML, with every run of white space (no-break spaces too) as one blank, none at the ends."""
    return " ".join(xml_text(text).split())


def looks_like_markup(text: str) -> bool:
    """Whether text that should be plain has one of the HTML tags that feeds put into titles and names."""
    return bool(_TAG.search(text))


def html_to_text(markup: str) -> str:
    """The text of HTML: entities decoded, markup removed, a block's border as a blank, white space collapsed.

    >>> html_to_text("<p>Caf&eacute;s<br>in <b>bo</b>ld</p>")
    'Cafés in bold'
    """
    if "<" not in markup and "&" not in markup:
        return one_line(markup)
    reader = _TextReader()
    reader.feed(_MARKED_SECTION.sub("", markup))
    reader.close()
    return one_line("".join(reader.pieces))


class _TextReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._unseen = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNSEEN:
            self._unseen += 1
        elif tag not in _INLINE:
            self.pieces.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _INLINE:
            self.pieces.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in _UNSEEN:
            self._unseen = max(0, self._unseen - 1)
        elif tag not in _INLINE:
            self.pieces.append(" ")

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.pieces.append(data)
