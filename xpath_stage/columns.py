"""The elements of some documents as columns, one document after the other: all that stage 1 reads, in one pass."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import compress

from lxml import etree

from xpath_stage.parse import ParsedDocument, text_of


class Columns:
    """Columns over elements, which are numbered in document order through all documents.

    `owners` tells for each tag whether attributes of such elements matter, None if none do; `valued` whether string
    values do. `keeps_trees` tells whether elements will be asked for.
    """

    def __init__(self, owners: Mapping[str, bool] | None, valued: Mapping[str, bool], *, keeps_trees: bool) -> None:
        self._owners, self._valued, self._keeps_trees = owners, valued, keeps_trees
        self.tags: list[str] = []
        """The name of each element, `{uri}local` or `local`."""
        self.counts: list[int] = []
        """How many elements are children of each element."""
        self.texts: list[str | None] = []
        """The string value of each element that has no children, or whose value matters; None may stand for ''."""
        self.owners: list[int] = []
        """The elements that the attributes which may matter belong to."""
        self.places: list[int] = []
        """The attributes' places among those of their owner, from 1."""
        self.names: list[str] = []
        """The attributes' names."""
        self.values: list[str] = []
        """The attributes' values."""
        self.first: list[int] = [0]
        """The number of each document's first element, and at the end how many elements there are."""
        self._trees: list[ParsedDocument] = []
        self._large: list[tuple[int, ParsedDocument]] = []
        self._filled: set[int] = set()

    def add(self, document: ParsedDocument) -> None:
        """Adds a document."""
        if document.large:
            self._large.append((self.first[-1], document))
            # Only the values that are asked for are read: elements within elements have them all again.
            self._read(document, None)
        else:
            self._read(document, self._valued)
        self.first.append(len(self.tags))

    def hold(self, document: ParsedDocument) -> None:
        """Holds a document that is not large, and nothing else; `first` is left as it is."""
        self.tags, self.counts, self.texts = [], [], []
        if self._owners is not None:
            self.owners, self.places, self.names, self.values = [], [], [], []
        if self._keeps_trees:
            self._trees = []
        self._read(document, self._valued)

    def add_held(self, other: Columns) -> None:
        """Adds the document that others hold."""
        before = len(self.tags)
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

    def _read(self, document: ParsedDocument, valued: Mapping[str, bool] | None) -> None:
        tags, counts, texts, owners = self.tags, self.counts, self.texts, self._owners
        for element in document.root.iter():
            if owners is not None and owners[element.tag]:
                self._read_attributes(element)
            children = len(element)
            tags.append(element.tag)
            counts.append(children)
            texts.append(text_of(element) if children and valued is not None and valued[element.tag] else element.text)
        if self._keeps_trees:
            self._trees.append(document)

    def _read_attributes(self, element: etree._Element) -> None:
        if names := element.keys():
            self.owners += [len(self.tags)] * len(names)
            self.places += range(1, len(names) + 1)
            self.names += names  # type: ignore[arg-type]  # only the names of our own making could be bytes
            self.values += element.values()  # type: ignore[arg-type]

    def element(self, number: int) -> etree._Element:
        """The element of a number, if trees are kept."""
        place = bisect_right(self.first, number) - 1
        return self._trees[place].elements[number - self.first[place]]

    def string_values(self, numbers: Sequence[int]) -> list[str | None]:
        """The string values of some elements, by ascending numbers; None may stand for ''."""
        for first, document in self._large:
            self._fill(numbers, first, document)
        return [self.texts[number] for number in numbers]

    def _fill(self, numbers: Sequence[int], first: int, document: ParsedDocument) -> None:
        """Reads those of the values that lie in elements with children of a large document."""
        last = self.first[bisect_right(self.first, first)]
        within = numbers[bisect_left(numbers, first) : bisect_left(numbers, last)]
        asked = dict.fromkeys(number for number in within if self.counts[number])
        missing = [number for number in asked if number not in self._filled]
        flags = bytearray(last - first)
        for number in missing:
            flags[number - first] = 1
        for number, element in zip(missing, compress(document.root.iter(), flags), strict=True):
            self.texts[number] = text_of(element)
        self._filled.update(missing)
