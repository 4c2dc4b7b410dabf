"""The elements of documents as columns, one document after the other: one pass reads all that stage 1 needs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from lxml import etree

from xpath_stage.outlines import Outline
from xpath_stage.parse import ParsedDocument, text_of

MOST_TEXT = 4
"""The most text of the values of elements with children that is read eagerly, as a multiple of the size of the
document: the value of an element is part of the values of all elements that contain it."""


class Columns:
    """Columns over elements, which are numbered in document order across all documents.

    `owned` says for each tag whether attributes of such elements matter; None if no attributes do. `valued` says
    whether their string values do. `interned` returns one object for each name. `keeps_trees` says that `element` will
    be called.

    `tags`, `counts` and `texts` have an entry for each element. `owners`, `places`, `names` and `values` have one for
    each attribute that may matter.
    """

    def __init__(
        self,
        owned: Mapping[str, bool] | None,
        valued: Mapping[str, bool],
        interned: Mapping[str, str],
        *,
        keeps_trees: bool,
    ) -> None:
        self._owned, self._valued, self._interned, self._keeps_trees = owned, valued, interned, keeps_trees
        self.tags: list[str] = []
        """The name of each element, `{uri}local` or `local`."""
        self.counts: list[int] = []
        """The number of child elements of each element."""
        self.texts: list[str | None] = []
        """The string value of each element without children, or whose value matters. None may stand for ''."""
        self.owners: list[int] = []
        """The number of the element of each attribute."""
        self.places: list[int] = []
        """The position of each attribute among those of its element, from 1."""
        self.names: list[str] = []
        """The name of each attribute."""
        self.values: list[str] = []
        """The value of each attribute."""
        self.first: list[int] = [0]
        """The number of the first element of each document, and at the end the number of all elements."""
        self.outline: Outline | None = None
        """The outline of the one document, if it was held by its texts."""
        self._trees: list[ParsedDocument] = []
        self.unread: dict[int, etree._Element] = {}
        """The elements whose values are not in `texts` until they are asked for, by number."""

    def add(self, document: ParsedDocument) -> None:
        """Adds a document to be walked."""
        if self._owned is None:
            self._read_elements(document)
        else:
            self._read_attributes_too(document, self._owned)
        if self._keeps_trees:
            self._trees.append(document)
        self.first.append(len(self.tags))

    def hold(self, document: ParsedDocument) -> None:
        """Replaces all columns by those of one document. `first` stays as it is."""
        if self.unread:
            self.unread = {}
        self.outline = None
        self.tags, self.counts, self.texts = tags, counts, texts = [], [], []
        if self._owned is not None:
            self.owners, self.places, self.names, self.values = [], [], [], []
            self._read_attributes_too(document, self._owned)
        else:
            valued = self._valued
            left = MOST_TEXT * document.size
            for element in document.top.iter():
                children = len(element)
                if children and valued[element.tag]:
                    left = self._add_value(element, left)
                else:
                    texts.append(element.text)
                tags.append(element.tag)
                counts.append(children)
        if self._keeps_trees:
            self._trees = [document]

    def needs_only_texts(self, outline: Outline) -> bool:
        """Whether nothing matters of documents with an outline but the texts of elements without children."""
        owned = self._owned
        return not any(self._valued[tag] for tag in outline.inner) and (
            owned is None or not any(owned[tag] for tag in outline.owners)
        )

    def hold_texts(self, document: ParsedDocument, outline: Outline, texts: list[str | None]) -> None:
        """Does what `hold` does, if only texts are needed: `texts` are those of the elements of the document."""
        if self.unread:
            self.unread = {}
        self.outline, self.tags, self.counts, self.texts = outline, outline.tags, outline.counts, texts
        if self.owners:
            self.owners, self.places, self.names, self.values = [], [], [], []
        if self._keeps_trees:
            self._trees = [document]
        document.outline = outline

    def add_held(self, other: Columns) -> None:
        """Adds the document that other columns hold."""
        before = len(self.tags)
        if other.unread:
            self.unread.update((before + number, element) for number, element in other.unread.items())
        if other.owners:
            self.owners += [before + owner for owner in other.owners]
            self.places += other.places
            self.names += other.names
            self.values += other.values
        self.tags += other.tags
        self.counts += other.counts
        self.texts += other.texts
        self._trees += other._trees
        self.first.append(len(self.tags))

    # The same loop three times, because it is most of stage 1: asking for each element whether attributes matter takes
    # 5 % of the time. Interning names saves 10 % in a large document, where names are looked up again and again, and
    # costs 5 % where a document is only compared with the one before.

    def _read_elements(self, document: ParsedDocument) -> None:
        tags, counts, texts, valued, interned = self.tags, self.counts, self.texts, self._valued, self._interned
        left = MOST_TEXT * document.size
        for element in document.top.iter():
            children, tag = len(element), interned[element.tag]
            if children and valued[tag]:
                left = self._add_value(element, left)
            else:
                texts.append(element.text)
            tags.append(tag)
            counts.append(children)

    def _read_attributes_too(self, document: ParsedDocument, owned: Mapping[str, bool]) -> None:
        tags, counts, texts, valued, interned = self.tags, self.counts, self.texts, self._valued, self._interned
        owners, places, names, values = self.owners, self.places, self.names, self.values
        left = MOST_TEXT * document.size
        for element in document.top.iter():
            tag = interned[element.tag]
            if (attributes := element.items()) and owned[tag]:
                place = 0
                for name, value in attributes:
                    place += 1  # noqa: SIM113  # most elements have none or one: `enumerate` takes longer
                    owners.append(len(tags))
                    places.append(place)
                    names.append(name)  # type: ignore[arg-type]  # only names of our own making could be bytes
                    values.append(value)  # type: ignore[arg-type]  # as above
            children = len(element)
            if children and valued[tag]:
                left = self._add_value(element, left)
            else:
                texts.append(element.text)
            tags.append(tag)
            counts.append(children)

    def _add_value(self, element: etree._Element, left: int) -> int:
        """Adds the value of the next element, which has children, or defers it. Returns how much may still be read
        eagerly."""
        if left >= 0:
            text = text_of(element)
            self.texts.append(text)
            return left - len(text)
        self.unread[len(self.tags)] = element
        self.texts.append(None)
        return left

    def element(self, number: int) -> etree._Element:
        """The element with a number. Trees must be kept."""
        place = bisect_right(self.first, number) - 1
        return self._trees[place].elements[number - self.first[place]]

    def string_values(self, numbers: Iterable[int]) -> list[str | None]:
        """The string values of some elements, by number. None may stand for ''."""
        if self.unread:
            numbers = list(numbers)
            for number in numbers:
                element = self.unread.pop(number, None)
                if element is not None:
                    self.texts[number] = text_of(element)
        return [self.texts[number] for number in numbers]
