"""The plan nodes: registered queries and hidden streams, with their targets, the rows of R_T that they subscribe to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from common.lazy import lazy
from join_stage.store.protocol import StoreError
from mmqjp.queries.identity import Identity
from templates.catalog import INFINITE, Catalog, Placement
from xscl.algebra.mirror import Mirror, mirror_of
from xscl.algebra.normal import Conjunct, Hidden, JoinOp, NormalQuery
from xscl.algebra.system_names import short_name

EVENT_FORM = "events-"
"""The ids of forms of event queries begin so."""

_NUMBERED = re.compile(r"q[1-9][0-9]{0,999}")


def number_of(name: str) -> int:
    """The number in a name of the form that queries without PUBLISH are given, `q` and a number; 0 for other names."""
    return int(name[1:]) if name.startswith("q") and _NUMBERED.fullmatch(name) else 0


class HasNormalForm(Protocol):
    """A query with a normal form and the id of its form, which may be computed on first use."""

    @property
    def normal(self) -> NormalQuery: ...

    @property
    def form_id(self) -> str: ...


ReadersOf = Callable[[str], list["Subscription"]]
"""Returns the queries that read a hidden stream, given its name."""


class Owner(Protocol):
    """A plan node that subscribes to rows of R_T. `mmqjp.answers.operators` says what each kind does with its
    matches."""

    targets: list[Target]

    @property
    def conjuncts(self) -> tuple[Conjunct, ...]:
        """Its conjunctive queries, one for each target."""

    @property
    def active(self) -> bool:
        """Whether it is answered."""

    @property
    def label(self) -> str:
        """Its name in messages and explanations."""

    def sees(self, docids: Iterable[int]) -> bool:
        """Returns whether it is answered for everything that appeared with these documents."""

    def readers(self, readers_of: ReadersOf) -> list[Subscription]:
        """Returns the queries that get its results: itself, or the readers of its stream."""


@dataclass(eq=False, slots=True)
class Subscription:
    """A registered query.

    `since` is the last document that it does not see. `occurrence` numbers equal queries from 0. `window` is in
    microseconds, None for INF. `form_id` names its form (see `mmqjp.queries.forms`). `begun` is the batch that
    registered it, or resumed it last. `paused` is the reason for the current pause, if any, and `removed` is true while
    it is being removed. `gaps` are the pauses: the last document before each one and the last document of it, which is
    None for the current one.
    """

    qid: int
    name: str
    text: str
    occurrence: int
    since: int
    window: int | None
    form_id: str
    begun: int
    compiled: HasNormalForm
    paused: str | None = None
    removed: bool = False
    gaps: list[tuple[int, int | None]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    _identity: Identity | None = field(default=None, init=False, repr=False)

    @property
    def identity(self) -> Identity:
        """The part of the ids of its outputs that they share."""
        if self._identity is None:
            self._identity = self.new_identity()
        return self._identity

    def new_identity(self) -> Identity:
        """Returns its identity, and does not keep it: it is as long as the text."""
        return Identity.of(self.name, self.text, self.occurrence)

    @property
    def width(self) -> int:
        """The window in microseconds; INFINITE without one."""
        return INFINITE if self.window is None else self.window

    @property
    def normal(self) -> NormalQuery:
        """The normal form. For a query of an earlier run it is computed on first use."""
        return self.compiled.normal

    @property
    def conjuncts(self) -> tuple[Conjunct, ...]:
        """Its conjunctive queries, one for each target."""
        return self.normal.conjuncts

    @property
    def label(self) -> str:
        """Its name."""
        return self.name

    def readers(self, readers_of: ReadersOf) -> list[Subscription]:
        """Returns the query itself."""
        return [self]

    @property
    def publishes(self) -> bool:
        """Whether it has a PUBLISH name. Its text then ends with it, and what is told once."""
        if not number_of(self.name) or self.text.endswith(f" PUBLISH {self.name}"):
            return True
        return f" PUBLISH {self.name} ONCE PER (" in self.text and self.normal.once is not None

    @property
    def is_events(self) -> bool:
        """Whether it is an event query. Its times are then in microseconds, where others have numbers of documents:
        `since`, and those of pauses and resumptions."""
        return self.form_id.startswith(EVENT_FORM)

    @property
    def active(self) -> bool:
        """Whether it is answered."""
        return self.paused is None and not self.removed

    def sees(self, docids: Iterable[int]) -> bool:
        """Returns whether it is answered for everything that appeared with these documents."""
        if not self.gaps:
            return min(docids) > self.since
        return all(
            docid > self.since and not any(low < docid <= (docid if high is None else high) for low, high in self.gaps)
            for docid in docids
        )

    @property
    def sees_after(self) -> int:
        """The document after which it sees all documents."""
        return max([self.since, *(high for _, high in self.gaps if high is not None)])

    @property
    def waits(self) -> bool:
        """Whether it has an absence, itself or in an inner join."""
        return " NOT " in self.text and not self.is_events and has_absence(self.normal)

    def pause(self, docid: int, reason: str) -> None:
        """Pauses it after a document."""
        self.paused = reason
        self.gaps.append((docid, None))

    def resume(self, docid: int, batch: int) -> None:
        """Ends the pause after a document, in a batch. A query with an absence begins anew: it does not know what came
        meanwhile."""
        self.paused, self.begun = None, batch
        low = self.gaps.pop()[0]
        self.gaps.append((-1 if self.waits else low, docid))

    @property
    def key(self) -> tuple[str | None, str]:
        """The PUBLISH name, if any, and the text. Queries with the same key are equal."""
        return (self.name if self.publishes else None), self.text


@dataclass(eq=False)
class HiddenStream:
    """The hidden stream of an inner join, whose tuples queries read.

    `reader_count` counts the conjunctive queries that read it, and `active_reader_count` those of them that are
    answered. `find` returns the inner join.
    """

    stream: str
    find: Callable[[], Hidden]
    since: int
    reader_count: int = 0
    active_reader_count: int = 0
    targets: list[Target] = field(default_factory=list)

    @lazy
    def hidden(self) -> Hidden:
        """The inner join."""
        return self.find()

    @lazy
    def mirror(self) -> Mirror | None:
        """What decides whether matches of the inner join have mirrors."""
        return mirror_of(self.hidden.alone) if self.hidden.alone else None

    @property
    def conjuncts(self) -> tuple[Conjunct, ...]:
        """Its conjunctive queries, one for each target."""
        return self.hidden.conjuncts

    @property
    def label(self) -> str:
        """The words "inner join" and the short name of the stream."""
        return f"inner join {short_name(self.stream)}"

    def readers(self, readers_of: ReadersOf) -> list[Subscription]:
        """Returns the queries that read its tuples."""
        return readers_of(self.stream)

    @property
    def active(self) -> bool:
        """Whether any active query reads its tuples."""
        return self.active_reader_count > 0

    def sees(self, docids: Iterable[int]) -> bool:
        """Returns whether its tuples may be made of these documents."""
        return min(docids) > self.since


class StoredTarget(NamedTuple):
    """A target as it is stored: conjunctive query number `disjunct` of its owner, counted from 0. `window` is in
    microseconds."""

    disjunct: int
    row: int
    template: int
    op: JoinOp | None
    window: int
    streams: tuple[str, ...]


@dataclass(eq=False, slots=True)
class Target:
    """A subscription to a row of R_T by one conjunctive query: number `disjunct` of its owner. `window` is in
    microseconds; `streams` has one stream per side."""

    owner: Owner
    catalog: Catalog
    disjunct: int
    row: int
    template: int
    op: JoinOp | None
    window: int
    streams: tuple[str, ...]
    _conjunct: Conjunct | None = field(default=None, init=False, repr=False)
    _placement: Placement | None = field(default=None, init=False, repr=False)

    @property
    def reach(self) -> int:
        """How far before the watermarks documents may begin that are still needed. A left document of NOT JOIN may wait
        for a window, and its partner may begin as much earlier."""
        return min(2 * self.window, INFINITE) if self.op == "NOT JOIN" else self.window

    @property
    def conjunct(self) -> Conjunct:
        """The conjunctive query."""
        if self._conjunct is None:
            self._conjunct = self.owner.conjuncts[self.disjunct]
        return self._conjunct

    @property
    def placement(self) -> Placement:
        """Where its nodes are in the row. Raises StoreError if the store's tables disagree."""
        if self._placement is None:
            found = self.catalog.place(self.conjunct)
            if found.row != self.row:
                raise StoreError("the store's tables do not agree: the stored row of a query belongs to another one")
            self._placement = found
        return self._placement


def has_absence(normal: NormalQuery | Hidden) -> bool:
    """Returns whether a query or an inner join has an absence, itself or in an inner join."""
    if normal.absent:
        return True
    sides = (side for conjunct in normal.conjuncts for side in conjunct.sides())
    return any(side.hidden is not None and has_absence(side.hidden) for side in sides)


def width_of(op: JoinOp | None, window: int | None) -> int:
    """Returns the window of a conjunctive query in microseconds: 0 for a filter, INFINITE for a join without a
    window."""
    return INFINITE if window is None and op is not None else window or 0
