"""Some documents of each stream, to try patterns on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from feeds.document import Document, Reject
from xpath_stage.binder import Part, Take, each_binding
from xpath_stage.parse import DocumentError, ParsedDocument, parse_document
from xscl.algebra.functions import derive
from xscl.algebra.pattern import PatternNode

T = TypeVar("T")

MOST_BYTES = 32 << 20
"""The size of all documents of a sample, in bytes. Their trees take many times as much memory."""

MOST_STEPS = 1_000_000
"""How many steps a pattern may take in a document."""


class TooLong(Exception):
    """A pattern takes too long in a document."""


@dataclass
class Sample:
    """Documents from outside, each once, with their trees by stream. `refused` counts what could not be read."""

    documents: list[Document] = field(default_factory=list)
    trees: dict[str, list[ParsedDocument]] = field(default_factory=dict)
    refused: int = 0

    def of(self, stream: str) -> list[ParsedDocument]:
        """The documents of a stream."""
        return self.trees.get(stream, [])

    def with_published(self, published: Mapping[str, Iterable[str]]) -> Sample:
        """The sample with the documents that queries PUBLISHed on streams, too."""
        trees = {stream: list(found) for stream, found in self.trees.items()}
        for stream, texts in published.items():
            made = [parse_document(text.encode(), trusted=True) for text in texts]
            trees.setdefault(stream, []).extend(made)
        return Sample(self.documents, trees, self.refused)


def sample_of(items: Iterable[Document | Reject], most: int) -> Sample:
    """The first `most` documents that can be read."""
    sample, met, size = Sample(), set[tuple[str, str]](), 0
    for item in items:
        if isinstance(item, Reject):
            sample.refused += 1
            continue
        if (item.stream, item.id) in met:
            continue
        met.add((item.stream, item.id))
        xml = item.xml_bytes()
        try:
            tree = parse_document(xml)
        except DocumentError:
            sample.refused += 1
            continue
        sample.documents.append(item)
        sample.trees.setdefault(item.stream, []).append(tree)
        size += len(xml)
        if len(sample.documents) == most or size > MOST_BYTES:
            break
    return sample


def in_turns(sources: Iterable[Iterable[T]]) -> Iterator[T]:
    """Yields one item of each source after another, until all are empty: a sample then has some of each."""
    left = [iter(source) for source in sources]
    while left:
        going = []
        for source in left:
            for item in islice(source, 1):
                yield item
                going.append(source)
        left = going


def matches(part: Part, tree: ParsedDocument, take: Take | None = None) -> bool:
    """Whether a pattern that binds nothing matches a document. Raises TooLong, unless it is `take` that counts."""
    return any(True for _ in each_binding(part, tree, {}, take or _counter()))


def texts(pattern: PatternNode, tree: ParsedDocument) -> Iterator[str]:
    """The string values of a pattern's one variable, over all its matches in a document. Raises TooLong."""
    for ((_, node),) in each_binding(Part(pattern), tree, {}, _counter()):
        yield tree.string_value(*node)


def applied(text: str, functions: Sequence[str]) -> str:
    """A text with functions applied, the innermost first."""
    for name in functions:
        text = derive(name, text)
    return text


def elements(pattern: PatternNode, tree: ParsedDocument) -> Iterator[int]:
    """The numbers of the elements to which a pattern's one variable is bound. Raises TooLong."""
    for ((_, (number, attribute)),) in each_binding(Part(pattern), tree, {}, _counter()):
        if not attribute:
            yield number


def _counter() -> Callable[[int], None]:
    left = MOST_STEPS

    def take(steps: int) -> None:
        nonlocal left
        left -= steps
        if left < 0:
            raise TooLong

    return take
