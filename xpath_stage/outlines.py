"""Outlines: documents with the same tags in the same order, whose texts one regular expression reads without a tree.

Only documents with a `text` have one: the parser has read them, and wrote them down in the one way in which it writes a
document. There, each `<` begins a tag, and each attribute is in double quotes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lxml import etree

from common.lazy import lazy

if TYPE_CHECKING:
    from xpath_stage.columns import Columns
    from xpath_stage.parse import ParsedDocument

MOST_TAGS = 128
"""The largest number of tags, of starts and ends, of a document that has an outline."""

MEETINGS = 16
"""An outline is made when so many documents have had it: compiling it takes as long as reading 100 documents."""

MOST_OUTLINES = 2_000
"""The largest number of outlines that are known or counted."""

TRIAL, PAUSE = 256, 2_048
"""At every TRIAL-th document without an outline, none is looked for in the next PAUSE documents if fewer than a third
had one since the last time."""

_TEXT = re.compile(">[^<]+<")
_VALUE = re.compile('( xmlns[^ =]*="[^"]*")|="[^"]*"')
_TAG = re.compile("<([^>]*)>")
_ANY = "=\0"
"""Stands for the value of an attribute. No document has the character."""


class Outline:
    """What documents with the same tags in the same order have in common.

    `tags` and `counts` have the name and the number of children of each element, and `key` both. `inner` are the names
    of the elements with children, and `owners` those of the elements with attributes.
    """

    def __init__(self, skeleton: str, elements: Sequence[etree._Element]) -> None:
        """`skeleton` is that of a document with these elements, see `skeleton_of`."""
        self.tags = [element.tag for element in elements]
        self.counts = list(map(len, elements))
        self.key = outline_key(self.tags, self.counts)
        self.inner = {element.tag for element in elements if len(element)}
        self.owners = {element.tag for element in elements if element.attrib}
        self._match = re.compile(_pattern(skeleton)).fullmatch

    def texts(self, text: str) -> list[str | None] | None:
        """The text of each element up to its first child, for a document that has this outline; None for others."""
        found = self._match(text)
        if found is None:
            return None
        return [*map(_unescaped, found.groups())] if "&" in text else [*found.groups()]

    @lazy
    def parents(self) -> list[int | None]:
        """For each element, the number of its parent; None for the root element."""
        found: list[int | None] = []
        waiting: list[int | None] = [None]
        for number, children in enumerate(self.counts):
            found.append(waiting.pop())
            waiting += [number] * children
        return found


class Outlines:
    """The outlines that documents have had. `forget` says that other tags matter."""

    def __init__(self) -> None:
        self._known: dict[str, Outline | int] = {}
        self._suits: dict[Outline, bool] = {}
        self._last: Outline | None = None
        self._hits = self._misses = self._resting = 0

    def forget(self) -> None:
        """Decides again for which outlines texts are all that matters, because other patterns are registered."""
        self._suits = {}
        self._last = None

    def hold(self, document: ParsedDocument, columns: Columns) -> bool:
        """Replaces all columns by those of a document. False if its tree must be read instead."""
        text = document.text
        if text is None:
            return False
        last = self._last
        # Often a document has the outline of the one before it. Comparing is faster than finding its skeleton.
        if last is not None and (texts := last.texts(text)) is not None:
            self._hits += 1
            columns.hold_texts(document, last, texts)
            return True
        if self._resting:
            self._resting -= 1
            return False
        outline = self._found(text, document)
        if outline is not None and self._is_enough(outline, columns) and (texts := outline.texts(text)) is not None:
            self._hits += 1
            self._last = outline
            columns.hold_texts(document, outline, texts)
            return True
        self._missed()
        return False

    def _found(self, text: str, document: ParsedDocument) -> Outline | None:
        skeleton = skeleton_of(text)
        known = self._known.get(skeleton, 0)
        if isinstance(known, Outline):
            return known
        if not known and len(self._known) >= MOST_OUTLINES:
            self._known.clear()
            self.forget()
        if known + 1 < MEETINGS or skeleton.count("<") > MOST_TAGS or "='" in skeleton:
            self._known[skeleton] = known + 1
            return None
        outline = self._known[skeleton] = Outline(skeleton, list(document.top.iter()))
        return outline

    def _is_enough(self, outline: Outline, columns: Columns) -> bool:
        """Whether nothing matters of documents with an outline but the texts of elements without children."""
        suits = self._suits.get(outline)
        if suits is None:
            suits = self._suits[outline] = columns.needs_only_texts(outline)
        return suits

    def _missed(self) -> None:
        self._misses += 1
        if self._misses == TRIAL:
            if 2 * self._hits < TRIAL:
                self._resting = PAUSE
            self._hits = self._misses = 0


def outline_key(tags: Sequence[str], counts: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """The tree of tags, hashable."""
    return " ".join(tags), tuple(counts)  # no name has a blank


def skeleton_of(text: str) -> str:
    """A document without its texts and the values of its attributes. Namespaces stay, because tags depend on them."""
    skeleton = _TEXT.sub("><", text)
    return _VALUE.sub(_without_value, skeleton) if '"' in skeleton else skeleton


def _without_value(attribute: re.Match[str]) -> str:
    return attribute[1] or _ANY


def _pattern(skeleton: str) -> str:
    """The pattern of documents with a skeleton. It has a group for the text of each element."""
    parts = []
    for tag in _TAG.findall(skeleton):
        tag_itself = f"<{re.escape(tag)}>".replace(_ANY, '="[^"<]*+"')
        text = "()[^<]*+" if tag.endswith("/") else "[^<]*+" if tag.startswith("/") else "([^<]*+)"
        parts.append(tag_itself + text)
    return "".join(parts)


def _unescaped(text: str) -> str:
    """A text as it was before the parser wrote it down."""
    if "&" not in text:
        return text
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&#13;", "\r")
    return text.replace("&amp;", "&")
