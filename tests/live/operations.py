"""The operations on an engine in live use, as values whose `repr` is the Python that creates them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from feeds.documents import Document, Visit

How = Literal["replace", "add", "ensure"]
"""What happens to existing queries that have a name of the script."""

Lateness = int | None | Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Doc:
    """A document that arrives. Times are in microseconds."""

    id: str
    stream: str
    t0: int
    t1: int
    xml: str
    feed: str = ""

    def document(self) -> Document:
        """The document as an engine takes it."""
        return Document(self.id, self.xml, self.stream, (self.t0, self.t1), feed=self.feed)


def taken(document: Document, after: int = 0) -> Doc:
    """The operand for a document, some time later."""
    xml = document.xml if isinstance(document.xml, str) else document.xml.decode()
    return Doc(document.id, document.stream, document.t0 + after, document.t1 + after, xml)


@dataclass(frozen=True, slots=True)
class Batch:
    """Processes documents, and visits of the feeds that show some of them."""

    documents: tuple[Doc | Visit, ...]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscribes a script. By `how`, its queries replace those of the same names, are added to them, or are added
    unless they are there already (`ensure`)."""

    text: str
    how: How = "replace"
    backfill: bool = False


@dataclass(frozen=True, slots=True)
class _OfAName:
    """Concerns the queries of a name."""

    name: str


class Unsubscribe(_OfAName):
    pass


class Pause(_OfAName):
    pass


class Resume(_OfAName):
    pass


@dataclass(frozen=True, slots=True)
class Prune:
    """Marks all outputs as delivered, and drops what is old. Times are in microseconds."""

    keep: int | None
    keep_ids: int | None


@dataclass(frozen=True, slots=True)
class PassTime:
    """Advances the clock by some microseconds, and silent streams with it."""

    by: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """Marks all outputs as delivered."""


@dataclass(frozen=True, slots=True)
class Reopen:
    """Closes the engine, and opens its store again as another process would. Times are in microseconds."""

    plan: str = "signature"
    lateness: Lateness = None
    idle_after: int | None = None
    max_ahead: int | None = None
    settle: int | None = None
    belated: str | Mapping[str, str] = "take"


Change = Batch | Subscribe | Unsubscribe | Pause | Resume | Prune
"""The operations that write to the store, each in its own batch."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A change during which the n-th call of the store, counted from 1, fails: before it has done anything, or after it
    has done everything. Then either the process dies and another one opens the store, or it goes on. If `interrupted`,
    the call does not fail: Ctrl-C comes then, and the process goes on."""

    change: Change
    call: int
    after: bool = False
    dies: bool = True
    interrupted: bool = False


Operation = Change | PassTime | Delivered | Reopen | Broken


def printed(operations: Sequence[Operation]) -> str:
    """Operations as the Python that creates them."""
    return "[\n" + "".join(f"    {operation!r},\n" for operation in operations) + "]"


def shrunk(
    operations: Sequence[Operation], fails: Callable[[Sequence[Operation]], bool], most: int = 150
) -> list[Operation]:
    """Fewer and shorter operations that still fail, found in at most `most` trials. The first, which opens the store,
    stays."""
    best = list(operations)
    waiting = _smaller(best)
    for _ in range(most):
        candidate = next(waiting, None)
        if candidate is None:
            break
        if fails(candidate):
            best, waiting = candidate, _smaller(candidate)
    return best


def _smaller(operations: list[Operation]) -> Iterator[list[Operation]]:
    """Operations with something left out, largest parts first."""
    size = len(operations) // 2
    while size:
        for start in range(len(operations) - size, 0, -size):
            yield operations[:start] + operations[start + size :]
        size //= 2
    for at, operation in enumerate(operations):
        for simpler in _simpler(operation):
            yield [*operations[:at], simpler, *operations[at + 1 :]]


def _simpler(operation: Operation) -> Iterator[Operation]:
    match operation:
        case Broken():
            yield operation.change
        case Batch(documents):
            yield from (Batch(documents[:at] + documents[at + 1 :]) for at in range(len(documents)))
        case Subscribe(text):
            texts = text.split(";")
            yield from (replace(operation, text=";".join(texts[:at] + texts[at + 1 :])) for at in range(len(texts)))
