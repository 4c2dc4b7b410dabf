"""Who has subscribed to rows of R_T: the registered queries and the hidden streams behind them, with their targets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from join_stage.store.protocol import StoreError
from templates.catalog import INFINITE, Catalog, Placement
from xscl.algebra.normal import Conjunct, Hidden, JoinOp, NormalQuery
from xscl.algebra.system_names import short_name

NUMBERED = re.compile(r"q([0-9]+)")
"""The names of queries that PUBLISH none."""


class Ready(Protocol):
    """A query whose normal form can be had, if need be by parsing it then."""

    @property
    def normal(self) -> NormalQuery: ...


ReadersOf = Callable[[str], list["Subscription"]]
"""Gives the queries that read a hidden stream, by its name."""


class Owner(Protocol):
    """A node of the plan: what subscribes to rows of R_T. What it makes of its matches is an operator's, which
    `mmqjp.answers.operators` has for each kind of node."""

    targets: list[Target]

    @property
    def conjuncts(self) -> tuple[Conjunct, ...]:
        """Its conjunctive queries, one for each of its targets."""

    @property
    def active(self) -> bool:
        """Whether it is answered."""

    @property
    def label(self) -> str:
        """What it is called where people read of it."""

    def sees(self, docids: Iterable[int]) -> bool:
        """Whether all documents that appeared with these are among those that it is answered for."""

    def readers(self, readers_of: ReadersOf) -> list[Subscription]:
        """The queries that get what it gives: itself, or those that read its stream."""


@dataclass(eq=False)
class Subscription:
    """A registered query. `since` is the last document that it does not see; `occurrence` counts equal queries.

    `paused` says why it rests, if it does, and `removed` that it is about to go. Nor does it see the documents of
    `gaps`, which came while it was paused: a gap is the last one before it and the last one of it.
    """

    qid: int
    name: str
    text: str
    occurrence: int
    since: int
    ready: Ready
    paused: str | None = None
    removed: bool = False
    gaps: list[tuple[int, int | None]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)

    @property
    def normal(self) -> NormalQuery:
        """Its normal form. That of a query of an earlier run is made when it is asked for."""
        return self.ready.normal

    @property
    def conjuncts(self) -> tuple[Conjunct, ...]:
        """Its conjunctive queries, one for each of its targets."""
        return self.normal.conjuncts

    @property
    def label(self) -> str:
        """Its name."""
        return self.name

    def readers(self, readers_of: ReadersOf) -> list[Subscription]:
        """Itself."""
        return [self]

    @property
    def publishes(self) -> bool:
        """Whether it has a PUBLISH name of its own."""
        return not NUMBERED.fullmatch(self.name)

    @property
    def active(self) -> bool:
        """Whether it is answered."""
        return self.paused is None and not self.removed

    def sees(self, docids: Iterable[int]) -> bool:
        """Whether all documents that appeared with these are among those that it is answered for."""
        if not self.gaps:
            return min(docids) > self.since
        return all(
            docid > self.since and not any(low < docid <= (docid if high is None else high) for low, high in self.gaps)
            for docid in docids
        )

    def pause(self, docid: int, reason: str) -> None:
        """Notes that it rests from behind a document on."""
        self.paused = reason
        self.gaps.append((docid, None))

    def resume(self, docid: int) -> None:
        """Notes that it rested up to a document."""
        self.paused = None
        self.gaps.append((self.gaps.pop()[0], docid))

    @property
    def key(self) -> tuple[str | None, str]:
        """PUBLISH name, if it has one, and text: what makes two queries the same one."""
        return (self.name if self.publishes else None), self.text


@dataclass(eq=False)
class HiddenStream:
    """An inner join whose tuples queries read; `uses` counts the conjunctive queries that do, `calls` those of them
    that are answered. `find` gives what it is made of."""

    stream: str
    find: Callable[[], Hidden]
    since: int
    uses: int = 0
    calls: int = 0
    targets: list[Target] = field(default_factory=list)

    @cached_property
    def hidden(self) -> Hidden:
        """What it is made of."""
        return self.find()

    @property
    def conjuncts(self) -> tuple[Conjunct, ...]:
        """Its conjunctive queries, one for each of its targets."""
        return self.hidden.conjuncts

    @property
    def label(self) -> str:
        """That it is an inner join, and its stream's name in short."""
        return f"inner join {short_name(self.stream)}"

    def readers(self, readers_of: ReadersOf) -> list[Subscription]:
        """Those that read its tuples."""
        return readers_of(self.stream)

    @property
    def active(self) -> bool:
        """Whether its tuples are wanted."""
        return self.calls > 0

    def sees(self, docids: Iterable[int]) -> bool:
        """Whether all these documents are among those that it is made of."""
        return min(docids) > self.since


class Standing(NamedTuple):
    """What is written down of a subscriber of a row: it is the `place`-th of its owner's conjunctive queries."""

    place: int
    row: int
    template: int
    op: JoinOp | None
    window: int
    streams: tuple[str, ...]


@dataclass(eq=False)
class Target:
    """A subscriber of a row of R_T: one conjunctive query, of streams, of a subscription or of a hidden stream."""

    owner: Owner
    catalog: Catalog
    place: int
    row: int
    template: int
    op: JoinOp | None
    window: int
    streams: tuple[str, ...]

    @cached_property
    def conjunct(self) -> Conjunct:
        """The conjunctive query."""
        return self.owner.conjuncts[self.place]

    @cached_property
    def placement(self) -> Placement:
        """Where its nodes are in the row."""
        found = self.catalog.place(self.conjunct)
        if found.row != self.row:
            raise StoreError("the store has the row of another query for one of its queries: its tables do not agree")
        return found


def width(op: JoinOp | None, window: int | None) -> int:
    """The window of a conjunctive query in microseconds: that of a filter is 0, that of None INFINITE."""
    return INFINITE if window is None and op is not None else window or 0
