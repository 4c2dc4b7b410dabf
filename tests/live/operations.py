"""What can happen to an engine in live use, as values that print as the Python that makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from feeds.document import Document

How = Literal["replace", "add", "ensure"]
"""What becomes of queries that are there under the names of a script."""

Lateness = int | None | Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Doc:
    """A document that arrives; times in microseconds."""

    id: str
    stream: str
    t0: int
    t1: int
    xml: str

    def document(self) -> Document:
        """What an engine takes."""
        return Document(self.id, self.xml, self.stream, (self.t0, self.t1))


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents are processed."""

    documents: tuple[Doc, ...]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A script is subscribed: its queries replace those of their names, join them, or are there anyhow (`ensure`)."""

    text: str
    how: How = "replace"
    backfill: bool = False


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """The queries of a name go."""

    name: str


@dataclass(frozen=True, slots=True)
class Pause:
    """The queries of a name rest."""

    name: str


@dataclass(frozen=True, slots=True)
class Resume:
    """The queries of a name go on."""

    name: str


@dataclass(frozen=True, slots=True)
class Prune:
    """All outputs are marked as delivered, and what is old goes; microseconds."""

    keep: int | None
    keep_ids: int | None


@dataclass(frozen=True, slots=True)
class PassTime:
    """The clock goes on by so much, and silent streams with it."""

    by: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """All outputs are marked as delivered."""


@dataclass(frozen=True, slots=True)
class Reopen:
    """The engine is closed, and its store opened again, as if by another process. Times in microseconds."""

    plan: str = "signature"
    lateness: Lateness = None
    idle_after: int | None = None
    max_ahead: int | None = None


Change = Batch | Subscribe | Unsubscribe | Pause | Resume | Prune
"""What writes to the store, in a batch of its own."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A change during which the n-th call of the store, counted from 1, fails, before it has done anything or after it
    has done all. Either the process dies of it, and another one opens the store, or it goes on."""

    change: Change
    call: int
    after: bool = False
    dies: bool = True


Operation = Change | PassTime | Delivered | Reopen | Broken
