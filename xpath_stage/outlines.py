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

RUN = 8
"""An outline is made when so many documents of a stream have had it one after the other: making it takes as long as
reading 100 documents."""

MOST_OUTLINES, MOST_STREAMS = 1_000, 1_000
"""The largest numbers of outlines and of streams that are known."""

TRIAL, PAUSE = 128, 2_048
"""When TRIAL documents of a stream had not the outline of the one before, the trees of its next PAUSE documents are
read if fewer than twice as many had it since the last time: to find another outline takes as long as to read a tree."""

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


class _Stream:
    """The last outline of a stream, or the last skeleton and how many documents in a row have had it; how many
    documents had the outline of the one before (`hits`) or not, and how many will not be compared (`resting`)."""

    __slots__ = ("hits", "last", "misses", "resting", "run", "skeleton")

    def __init__(self) -> None:
        self.last: Outline | None = None
        self.skeleton = ""
        self.run = self.hits = self.misses = self.resting = 0


class Outlines:
    """The outlines that documents have had. `forget` says that other tags matter."""

    def __init__(self) -> None:
        self._known: dict[str, Outline] = {}
        self._streams: dict[str, _Stream] = {}
        self._suits: dict[Outline, bool] = {}

    def forget(self) -> None:
        """Decides again for which outlines texts are all that matters, because other patterns are registered."""
        self._suits.clear()
        self._streams.clear()

    def hold(self, stream: str, document: ParsedDocument, columns: Columns) -> bool:
        """Replaces all columns by those of a document. False if its tree must be read instead."""
        text = document.text
        if text is None:
            return False
        state = self._streams.get(stream)
        if state is None:
            if len(self._streams) >= MOST_STREAMS:
                self._streams.clear()
            state = self._streams[stream] = _Stream()
        if state.resting:
            state.resting -= 1
            return False
        last = state.last
        if last is not None and (texts := last.texts(text)) is not None:
            state.hits += 1
            columns.hold_texts(document, last, texts)
            return True
        state.misses += 1
        if state.misses == TRIAL:
            state.resting = PAUSE if state.hits < 2 * TRIAL else 0
            state.hits = state.misses = 0
        outline = self._found(state, text, document)
        if outline is None or not self._is_enough(outline, columns) or (texts := outline.texts(text)) is None:
            return False
        state.last = outline
        columns.hold_texts(document, outline, texts)
        return True

    def _found(self, state: _Stream, text: str, document: ParsedDocument) -> Outline | None:
        """The outline of a document. It is made if the documents before had the same."""
        skeleton = skeleton_of(text)
        outline = self._known.get(skeleton)
        if outline is not None:
            return outline
        state.run = state.run + 1 if skeleton == state.skeleton else 1
        state.skeleton = skeleton
        if state.run < RUN or skeleton.count("<") > MOST_TAGS or "='" in skeleton:
            return None
        if len(self._known) >= MOST_OUTLINES:
            self._known.clear()
            self._suits.clear()
        outline = self._known[skeleton] = Outline(skeleton, list(document.top.iter()))
        return outline

    def _is_enough(self, outline: Outline, columns: Columns) -> bool:
        """Whether nothing matters of documents with an outline but the texts of elements without children."""
        suits = self._suits.get(outline)
        if suits is None:
            suits = self._suits[outline] = columns.needs_only_texts(outline)
        return suits


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
