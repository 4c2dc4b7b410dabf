"""Plan nodes, queries and hidden streams, with their targets in R_T and the columns that decide who gets an answer.
Members are the queries of a form as columns; an audience has the active ones and is updated incrementally. Also the
digests that identify outputs and forms everywhere, and compact sets for the many keys with one item."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from json.encoder import encode_basestring
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from common.arrays import Ints, bisect_ranges
from common.bounds import INFINITE, NO_DOCUMENT, DocId, Micros
from common.tools import Few, each, lazy, with_item, without_item
from join_stage.store.protocol import StoreError
from templates.catalog import Catalog, Placement
from xscl.algebra.joins import Conjunct, Hidden, JoinOp, Mirror, NormalQuery, mirror_of, short_name

T = TypeVar("T")


class CompactSet(Generic[T]):
    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: Few[T] = None

    def __len__(self) -> int:
        return len(each(self._items))

    def __iter__(self) -> Iterator[T]:
        return iter(each(self._items))

    def __contains__(self, item: object) -> bool:
        return item in each(self._items)

    def add(self, item: T) -> None:
        self._items = with_item(self._items, item)

    def discard(self, item: T) -> None:
        self._items = without_item(self._items, item)


class Identity:
    """What the ids of a query's outputs share: a JSON list of name, text and occurrence, without its end."""

    __slots__ = ("_encoded", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._encoded: bytes | None = None

    @classmethod
    def of(cls, name: str, text: str, occurrence: int) -> Identity:
        return cls(f"[{encode_basestring(name)}, {encode_basestring(text)}, {occurrence}")

    def __reduce__(self) -> tuple[type[Identity], tuple[str]]:
        return Identity, (self.text,)

    @property
    def encoded(self) -> bytes:
        if self._encoded is None:  # very many queries have no output
            self._encoded = self.text.encode()
        return self._encoded

    def id(self, choice: bytes) -> str:
        """Returns an output's id. `choice` is the encoded result of `choice_of`."""
        return output_ids([self.encoded], [choice])[0]


def output_ids(identities: Iterable[bytes], choices: Iterable[bytes]) -> list[str]:
    """Returns digests of 32 hex digits, given the encoded identity and choice of each output."""
    # This is faster than to copy a digest of the identity, if that is short.
    both = zip(identities, choices, strict=True)
    return [_sha256(identity + choice).hexdigest()[:32] for identity, choice in both]


_sha256 = hashlib.sha256


class Identities(Sequence[Identity]):
    """The identities of some queries, created on demand: most queries have no output."""

    def __init__(self, queries: Sequence[Subscription]) -> None:
        self.queries = queries

    @overload
    def __getitem__(self, at: int) -> Identity: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Identity]: ...
    def __getitem__(self, at: int | slice) -> Identity | Sequence[Identity]:
        return Identities(self.queries[at]) if isinstance(at, slice) else self.queries[at].identity

    def __len__(self) -> int:
        return len(self.queries)

    def __reduce__(self) -> tuple[type[list[Identity]], tuple[list[Identity]]]:
        return list, ([*self],)


def choice_of(part_ids: str, nodes: str) -> str:
    """Returns the end of that list, shared by equal outputs of all queries. Both parameters are JSON lists."""
    return f", {part_ids}, {nodes}]"


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


GIVEN = ("width", "appeared", "first_qid", "batch", "arrival")
"""The columns of `answers` that decide which members get an answer, as `Members.get` takes them."""

_Given = Ints | int


@dataclass(frozen=True, eq=False)
class Members:
    """Members of one form by name and qid, as parallel columns.

    `windows` are in microseconds; `sinces` are the last documents not seen. A member gets the answers of batches from
    `begun` on; in batch `ended` only those of arrivals before `ended_at`; and none later.
    """

    names: Sequence[str]
    identities: Sequence[Identity]
    qids: Ints
    windows: Ints
    sinces: Ints
    begun: Ints
    ended: Ints
    ended_at: Ints

    @classmethod
    def active(cls, names: Sequence[str], identities: Sequence[Identity], columns: Sequence[Ints]) -> Members:
        ended = np.full(len(names), INFINITE)
        return cls(names, identities, columns[0], columns[1], columns[2], columns[3], ended, ended)

    def __len__(self) -> int:
        return len(self.names)

    def get(
        self, of: Ints | slice, width: _Given, appeared: _Given, first_qid: _Given, batch: _Given, arrival: _Given
    ) -> NDArray[np.bool_]:
        """Returns a mask of members that get answers, as `RECEIVES` does in SQL. `of` has positions of members; the
        rest are columns of `answers`, in shapes that broadcast."""
        found: NDArray[np.bool_] = (self.windows[of] >= width) & (self.sinces[of] < appeared)
        found &= (self.qids[of] >= first_qid) & (self.begun[of] <= batch)
        ended = self.ended[of]
        found &= (batch < ended) | ((batch == ended) & (arrival < self.ended_at[of]))
        return found

    def receiving(
        self, answers: Ints, low: Ints, high: Ints, columns: Mapping[str, Ints], withheld: Mapping[int, Collection[int]]
    ) -> tuple[Ints, Ints]:
        """Returns the recipients of answers as pairs of positions (answer, member), sorted. `answers` are indexes into
        `columns`, columns of the table `answers`; the members considered for each are those from `low` to `high`.
        `withheld` has excluded qids by answer."""
        sizes = high - low
        answer = np.repeat(answers, sizes)
        starts = np.cumsum(sizes) - sizes
        member = np.arange(len(answer)) + np.repeat(low - starts, sizes)
        gets = self.get(member, *(columns[name][answer] for name in GIVEN))
        if withheld:
            numbers = columns["answer"][answers].tolist()
            for number, start, size in zip(numbers, starts.tolist(), sizes.tolist(), strict=True):
                if (gone := withheld.get(number)) is not None:
                    of_one = slice(start, start + size)
                    gets[of_one] &= ~np.isin(self.qids[member[of_one]], list(gone))
        return answer[gets], member[gets]

    @cached_property
    def sorted_windows(self) -> Ints:
        return np.sort(self.windows)

    @cached_property
    def sorted_sinces(self) -> Ints:
        return np.sort(self.sinces)

    @cached_property
    def earliest_since(self) -> Ints:
        """The least `since` of the members with one of the `sorted_windows` or a later one."""
        by_window = self.sinces[np.argsort(self.windows, kind="stable")]
        return np.minimum.accumulate(by_window[::-1])[::-1]

    @cached_property
    def narrowest(self) -> int:
        return int(self.windows.min(initial=INFINITE))

    @cached_property
    def latest_since(self) -> int:
        """Document after which all members see everything."""
        return int(self.sinces.max(initial=-INFINITE))

    @cached_property
    def bounds(self) -> tuple[int, int, int]:
        """The document after which all members see everything, the least qid, and the batch in which the first ends."""
        return self.latest_since, int(self.qids.min(initial=INFINITE)), int(self.ended.min(initial=INFINITE))

    @cached_property
    def name_ranks(self) -> Ints:
        """Rank of each member's name; equal names share a rank."""
        new = (name != before for before, name in pairwise(chain(self.names[:1], self.names)))
        return np.cumsum(np.fromiter(new, np.int64, len(self.names)))


def count_receiving(
    members: Sequence[Members], of: Ints, width: Ints, appeared: Ints, first_qid: Ints, batch: int, arrival: Ints
) -> Ints:
    """Returns the number of members that get each of some answers, each `of` some members."""
    ends = np.cumsum([len(one) for one in members])
    windows = np.concatenate([one.sorted_windows for one in members])
    found = ends[of] - bisect_ranges(windows, np.append(0, ends)[of], ends[of], width)
    # Where members see everything and have not ended, only windows matter.
    latest_since, qid, ended = np.array([one.bounds for one in members], np.int64).T[:, of]
    one_by_one = (appeared <= latest_since) | (first_qid > qid) | (ended < INFINITE)
    for place in np.flatnonzero(one_by_one).tolist():
        given = int(width[place]), int(appeared[place]), int(first_qid[place]), batch, int(arrival[place])
        found[place] = np.count_nonzero(members[of[place]].get(slice(None), *given))
    return found


def concatenated(found: Sequence[Members]) -> Members:
    if len(found) == 1:
        return found[0]
    names = [name for members in found for name in members.names]
    identities = _concatenated([members.identities for members in found])
    columns = ("qids", "windows", "sinces", "begun", "ended", "ended_at")
    joined = (np.concatenate([getattr(members, name) for members in found]) for name in columns)
    return Members(names, identities, *joined)


def _concatenated(found: Sequence[Sequence[Identity]]) -> Sequence[Identity]:
    not_made = [one.queries for one in found if isinstance(one, Identities)]
    if len(not_made) == len(found):
        return Identities(list(chain.from_iterable(not_made)))
    return [identity for one in found for identity in one]


EVENT_FORM = "events-"  # prefix of the form ids of event queries


def is_event_form(form_id: str) -> bool:
    return form_id.startswith(EVENT_FORM)


HIDDEN_FORM = "hidden-"  # prefix of the form ids of hidden queries, for event queries after EVENT_FORM


def is_hidden_form(form_id: str | None) -> bool:
    """Whether the queries of a form PUBLISH for other queries only."""
    return (form_id or "").removeprefix(EVENT_FORM).startswith(HIDDEN_FORM)


_BARE = re.compile(r"(?:SELECT [^;]+ )?FROM [A-Za-z_]\w*(?: WITHIN [\w ]+)?(?: PUBLISH \S+(?: HIDDEN)?)?")


def is_bare(text: str) -> bool:
    """Whether a registered query is an event query that consists of a bare stream name; queries over documents have a
    path.

    >>> is_bare("FROM Post PUBLISH posts"), is_bare("FROM S/* PUBLISH posts"), is_bare("FROM A NEXT B")
    (True, False, False)
    """
    return _BARE.fullmatch(text) is not None


GENERATED_NAME = "q[1-9][0-9]{0,999}"
_NUMBERED = re.compile(GENERATED_NAME)


def generated_name_number(name: str) -> int:
    """Returns the number in a generated name (`q` and a number, for queries without PUBLISH); 0 for other names."""
    return int(name[1:]) if name.startswith("q") and _NUMBERED.fullmatch(name) else 0


def can_be_replaced(name: str, texts: Iterable[str]) -> bool:
    """Whether the queries with a name PUBLISH it. Scripts cannot replace the others, whose names are generated.

    >>> [can_be_replaced("q1", [text]) for text in ("FROM S//a->x", "FROM S//a->x PUBLISH q1")]
    [False, True]
    """
    return not generated_name_number(name) or any(f" PUBLISH {name}" in text for text in texts)


NOT_REPLACED = "its queries do not PUBLISH it, so another text would add a query; mmqjp subscribe adds one"


CANNOT_READ = "this version cannot read"  # begins the reason for the pause of an unreadable query


class UnreadableQuery(StoreError):
    """A stored query or definition has a text that this version cannot read."""

    def __init__(self, mistake: str, what: str = "query") -> None:
        super().__init__(mistake, what)
        self.mistake, self.what = mistake, what

    def __str__(self) -> str:
        return f"{CANNOT_READ} the {self.what}: {self.mistake}; subscribe to it in the current syntax"


class HasNormalForm(Protocol):
    @property
    def normal(self) -> NormalQuery: ...

    @property
    def form_id(self) -> str: ...


Mark = TypeVar("Mark", DocId, Micros)


@dataclass(eq=False, slots=True)
class Registered(Generic[Mark]):
    """A registered query. Its input is ordered: it sees what comes after `since`, a mark in this order.

    `occurrence` numbers equal queries from 0. `window` is in microseconds, None for INF. `form_id` names its form (see
    `mmqjp.queries.forms`). `begun` is the batch that registered or last resumed it. `paused` is the reason for the
    current pause, if any; `removed` is true during removal. `gaps` are pauses: the last mark before each, and its last
    mark, None for the current one.
    """

    is_events: ClassVar[bool]

    qid: int
    name: str
    text: str
    occurrence: int
    since: Mark
    window: int | None
    form_id: str
    begun: int
    compiled: HasNormalForm
    paused: str | None = None
    removed: bool = False
    gaps: tuple[tuple[Mark, Mark | None], ...] = ()
    targets: tuple[Target, ...] = ()
    _identity: Identity | None = field(default=None, init=False, repr=False)

    @property
    def identity(self) -> Identity:
        if self._identity is None:
            self._identity = self.new_identity()
        return self._identity

    def new_identity(self) -> Identity:
        """Uncached, because it is as long as the text."""
        return Identity.of(self.name, self.text, self.occurrence)

    @property
    def width(self) -> int:
        return INFINITE if self.window is None else self.window

    @property
    def normal(self) -> NormalQuery:
        """For a query of an earlier run, computed on first use."""
        return self.compiled.normal

    @property
    def conjuncts(self) -> tuple[Conjunct, ...]:
        return self.normal.conjuncts

    @property
    def label(self) -> str:
        return self.name

    @property
    def publishes(self) -> bool:
        """Whether it has a PUBLISH name. Derived from the end of the text: stores have no column for it."""
        if not generated_name_number(self.name) or self.is_hidden or self.text.endswith(f" PUBLISH {self.name}"):
            return True
        return f" PUBLISH {self.name} ONCE PER (" in self.text and self.normal.once is not None

    @property
    def is_hidden(self) -> bool:
        """Whether only other queries get its outputs, which are stored, numbered and counted, but not delivered."""
        return is_hidden_form(self.form_id)

    @property
    def active(self) -> bool:
        return self.paused is None and not self.removed

    def sees(self, marks: Iterable[Mark]) -> bool:
        """Whether it gets everything that appeared with these documents, or at these times."""
        if not self.gaps:
            return min(marks) > self.since
        return all(
            mark > self.since and not any(low < mark <= (mark if high is None else high) for low, high in self.gaps)
            for mark in marks
        )

    @property
    def sees_after(self) -> Mark:
        """The last mark that it does not see."""
        last = self.since
        for _, resumed in self.gaps:
            last = last if resumed is None else max(last, resumed)
        return last

    def set_paused(self, last: Mark, reason: str | None, batch: int) -> None:
        """Pauses it for a reason after a mark, or resumes it there."""
        self.paused = reason
        if reason is not None:
            self.gaps += ((last, None),)
        else:
            low, _ = self.gaps[-1]
            self.begun, self.gaps = batch, self.gaps[:-1]
            self.gaps += ((self._missed_after(low), last),)

    def _missed_after(self, paused: Mark) -> Mark:
        return paused

    def replay(self, pauses: Iterable[tuple[Mark, str | None]], batch: int) -> None:
        """Repeats stored pauses and resumptions."""
        for last, reason in pauses:
            self.set_paused(last, reason, batch)


class JoinSubscription(Registered[DocId]):
    """A query over documents."""

    __slots__ = ()
    is_events = False

    @property
    def waits(self) -> bool:
        """Whether it has an absence, directly or in an inner join, and can be read."""
        if " NOT " not in self.text:  # avoids parsing a stored query
            return False
        with suppress(StoreError):
            return has_absence(self.normal)
        return False

    def _missed_after(self, paused: DocId) -> DocId:
        """A query with an absence starts over, since it missed documents."""
        return NO_DOCUMENT if self.waits else paused


class EventSubscription(Registered[Micros]):
    """An event query."""

    __slots__ = ()
    is_events = True
    waits = False


Subscription: TypeAlias = JoinSubscription | EventSubscription


class Pause(NamedTuple):
    """A query to pause for a reason, or to resume if that is None: its last mark before, and the arrival from which a
    paused query gets nothing in this batch."""

    query: Subscription
    last: Any  # a document for a query over documents, a time for one over events
    arrival: int
    reason: str | None


@dataclass(eq=False)
class HiddenStream:
    """The hidden stream of an inner join.

    `reader_count` counts the conjunctive queries that read it, `active_reader_count` the active ones. Each of `finds`
    returns the inner join, or raises StoreError if the text of its query cannot be read.
    """

    stream: str
    finds: list[Callable[[], Hidden]]
    since: DocId
    reader_count: int = 0
    active_reader_count: int = 0
    targets: tuple[Target, ...] = ()

    @lazy
    def hidden(self) -> Hidden:
        for find in self.finds[:-1]:
            with suppress(StoreError):
                return find()
        return self.finds[-1]()

    @lazy
    def mirror(self) -> Mirror | None:
        return mirror_of(self.hidden.alone) if self.hidden.alone else None

    @property
    def conjuncts(self) -> tuple[Conjunct, ...]:
        return self.hidden.conjuncts

    @property
    def label(self) -> str:
        return f"inner join {short_name(self.stream)}"

    @property
    def active(self) -> bool:
        return self.active_reader_count > 0


Owner: TypeAlias = Subscription | HiddenStream
"""A plan node that subscribes to rows of R_T; see `mmqjp.answers.operators` and `mmqjp.answers.absence`."""


@dataclass(eq=False, slots=True)
class Placed:
    """A conjunctive query on a row of R_T, shared by the targets of all queries that have it with the same window.

    `disjunct` is its number in its owners, from 0, and `window` in microseconds.
    """

    catalog: Catalog
    disjunct: int
    row: int
    template: int
    op: JoinOp | None
    window: int
    streams: tuple[str, ...]
    _conjunct: Conjunct | None = field(default=None, init=False, repr=False)
    _placement: Placement | None = field(default=None, init=False, repr=False)

    def conjunct(self, owner: Owner) -> Conjunct:
        if self._conjunct is None:
            self._conjunct = owner.conjuncts[self.disjunct]
        return self._conjunct

    def placement(self, owner: Owner) -> Placement:
        if self._placement is None:
            found = self.catalog.place(self.conjunct(owner))
            if found.row != self.row:
                raise StoreError(
                    "the store's tables contradict each other: the stored row of a query belongs to another one"
                )
            self._placement = found
        return self._placement


@dataclass(eq=False, slots=True)
class Target:
    """Subscription of an owner's conjunctive query to a row of R_T."""

    owner: Owner
    placed: Placed

    @property
    def disjunct(self) -> int:
        return self.placed.disjunct

    @property
    def row(self) -> int:
        return self.placed.row

    @property
    def template(self) -> int:
        return self.placed.template

    @property
    def op(self) -> JoinOp | None:
        return self.placed.op

    @property
    def window(self) -> int:
        return self.placed.window

    @property
    def streams(self) -> tuple[str, ...]:
        return self.placed.streams

    @property
    def reach(self) -> int:
        """How far behind the watermarks documents are still needed. A left document of NOT JOIN waits for one window,
        and its partner may begin as much earlier."""
        return min(2 * self.window, INFINITE) if self.op == "NOT JOIN" else self.window

    @property
    def conjunct(self) -> Conjunct:
        return self.placed.conjunct(self.owner)

    @property
    def placement(self) -> Placement:
        """Positions of its nodes in the row. Raises StoreError if the store's tables disagree."""
        return self.placed.placement(self.owner)


def has_absence(normal: NormalQuery | Hidden) -> bool:
    if normal.absent:
        return True
    sides = (side for conjunct in normal.conjuncts for side in conjunct.sides())
    return any(side.hidden is not None and has_absence(side.hidden) for side in sides)


def width_of(op: JoinOp | None, window: int | None) -> int:
    """Returns a conjunctive query's window in microseconds: 0 for a filter, INFINITE for a join without one."""
    return INFINITE if window is None and op is not None else window or 0


FEW = 32  # up to this many changes, or an eighth of the members, update an audience in place; more rebuild it

MANY = 1_000  # audiences of at least this many queries are built in advance


@dataclass(frozen=True, eq=False)
class Audience:
    """Parallel `members` and active `queries` of a set. `latest_gap` is the last document of any ended pause."""

    queries: Sequence[Subscription]
    members: Members
    latest_gap: int

    @classmethod
    def of(cls, queries: Collection[Subscription]) -> Audience:
        ordered = sorted(queries, key=_order)
        columns = [np.array([getattr(query, name) for query in ordered], np.int64) for name in _COLUMNS]
        members = Members.active([query.name for query in ordered], Identities(ordered), columns)
        return cls(ordered, members, _latest_gap(ordered))

    def changed(self, gone: Collection[Subscription], new: Collection[Subscription]) -> Audience:
        """Returns an updated audience, much faster than a rebuild."""
        members, ordered = self.members, sorted(new, key=_order)
        without = sorted(self.place_of(query) for query in gone)
        queries, names = list(self.queries), list(members.names)
        for place in reversed(without):
            del queries[place], names[place]
        places = [bisect_left(queries, _order(query), key=_order) for query in ordered]
        for shift, (place, query) in enumerate(zip(places, ordered, strict=True)):
            queries.insert(place + shift, query)
            names.insert(place + shift, query.name)
        columns = [
            np.insert(np.delete(getattr(members, column), without), places, [getattr(one, name) for one in ordered])
            for name, column in zip(_COLUMNS, _MEMBER_COLUMNS, strict=True)
        ]
        members = Members.active(names, Identities(queries), columns)
        return Audience(queries, members, max(self.latest_gap, _latest_gap(ordered)))

    @cached_property
    def latest_begun(self) -> int:
        return int(self.members.begun.max())

    @cached_property
    def bounds(self) -> tuple[int, int, int, int]:
        """The narrowest window, the latest `since` and gap, and the latest batch in which a member began."""
        return self.members.narrowest, self.members.latest_since, self.latest_gap, self.latest_begun

    @cached_property
    def gapped(self) -> tuple[Subscription, ...]:
        return tuple(query for query in self.queries if query.gaps)

    def place_of(self, query: Subscription) -> int:
        return bisect_left(self.queries, _order(query), key=_order)

    def has(self, query: Subscription) -> bool:
        place = self.place_of(query)
        return place < len(self.queries) and self.queries[place] is query


def _latest_gap(queries: Iterable[Subscription]) -> int:
    return max((high for query in queries for _, high in query.gaps if high is not None), default=-1)


def _order(query: Subscription) -> tuple[str, int]:
    return query.name, query.qid


_COLUMNS, _MEMBER_COLUMNS = ("qid", "width", "since", "begun"), ("qids", "windows", "sinces", "begun")
"""Query attributes, and the columns of members that hold them."""


class QuerySet:
    """Queries answered together, and their audience. `id` names the set in stores."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._queries: CompactSet[Subscription] = CompactSet()
        # The audience, once built, and the queries that have changed since.
        self._audience: Audience | None = None
        self._changed: set[Subscription]

    def __len__(self) -> int:
        return len(self._queries)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._queries)

    def __contains__(self, query: Subscription) -> bool:
        return query in self._queries

    def add(self, query: Subscription) -> None:
        self._queries.add(query)
        self.note(query)

    def remove(self, query: Subscription) -> None:
        self._queries.discard(query)
        self.note(query)

    def note(self, query: Subscription) -> None:
        if self._audience is not None:
            self._changed.add(query)

    @property
    def audience(self) -> Audience:
        """The active queries, cached until queries change."""
        known = self._audience
        if known is None or len(self._changed) > FEW + len(known.queries) // 8:
            known = Audience.of([query for query in self._queries if query.active])
        elif self._changed:
            gone = {query for query in self._changed if known.has(query)}
            new = {query for query in self._changed if query in self._queries and query.active}
            known = known.changed(gone, new)
        self._audience, self._changed = known, set()
        return known


class ByKey:
    """Queries by key, in order of addition."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[Hashable, Few[Subscription]] = {}

    def get(self, key: Hashable) -> Collection[Subscription]:
        return each(self._found.get(key))

    def add(self, key: Hashable, query: Subscription) -> None:
        self._found[key] = with_item(self._found.get(key), query)

    def remove(self, key: Hashable, query: Subscription) -> None:
        if (left := without_item(self._found.pop(key), query)) is not None:
            self._found[key] = left
