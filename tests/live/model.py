"""A model of live use: what an engine must answer to each operation, computed by brute force over what each query sees.

It follows docs/semantics.md, sections 16 and 17, and knows nothing of how an engine works. At each step, the oracle
evaluates all that each query sees again, and earlier outputs are left out. The model evicts nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import count as count_from
from math import inf

from lxml import etree

from feeds.documents import Visit
from tests.live.events import BEGINNING, EventModel, EventRow, EventStanding, event_row, parsed_events, streams_read
from tests.live.operations import Batch, Change, Doc, Pause, Prune, Reopen, Resume, Subscribe, Unsubscribe
from tests.oracle.bindings import OutputRow, Stored
from tests.oracle.course import Course, of_stream
from tests.oracle.evaluation import external
from tests.oracle.match import Tree
from tests.oracle.query_answers import Decisions, QueryAnswers, Telling, absences_in, without_brackets
from xscl.check_expressions import blocks
from xscl.parser import parse_script
from xscl.syntax import EventDefinition, EventQuery, Input, Join, Query, Script, SubQuery, names_read

parsed = cache(parse_script)
"""A parsed script, cached: unlike the engine's caches, this one outlives simulated processes."""

EVENTS = "events"
"""Stands, among external streams, for what the horizon of event statements holds back."""


@dataclass(frozen=True)
class Expected:
    """The result of an operation: outputs, dead letters as (stream, id, kind), and names."""

    outputs: list[OutputRow | EventRow] = field(default_factory=list)
    dead_letters: list[tuple[str, str, str]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


class LiveModel:
    """The state of a store, and of the engine that has opened it. `now` is the clock, in microseconds."""

    def __init__(self, now: int, opened: Reopen) -> None:
        self.now = now
        self.queries: list[Standing] = []
        self.documents: list[Kept] = []
        self.dropped: dict[tuple[str, str], int] = {}
        self.statements: list[EventStanding] = []
        self.event_names: set[str] = set()
        """The names that event statements have had."""
        self.course = self._stored = Course()
        self.events = EventModel(
            lambda: [d.stored for d in self.documents if d.outside],
            lambda: self.statements,
            lambda: self.course.progress(),
        )
        self.undelivered: list[OutputRow | EventRow] = []
        self.dead_letters: list[tuple[int, tuple[str, str, str]]] = []
        self._told: dict[object, int] = {}
        """What is kept of outputs, each with its end: no backfill outputs it again."""
        self._inner = InnerAbsences(self)
        self._step = 0
        self._highest = 0
        self.reopen(opened)

    # ------------------------------------------------------------ operations

    def change(self, change: Change) -> Expected:
        """The result of a change that is committed. Raises Refused."""
        match change:
            case Batch():
                return self._batch(change.documents)
            case Subscribe():
                return self._subscribe(change)
            case Unsubscribe():
                gone = self._named(change.name)
                self.queries = [query for query in self.queries if query not in gone]
                self.statements = [one for one in self.statements if one not in gone]
                self._inner.forget()
                return Expected()
            case Pause() | Resume():
                return self._pause(change)
            case Prune():
                return self._prune(change)

    def reopen(self, opened: Reopen) -> None:
        """Another process opens the store."""
        self._opened = opened
        self._opened_at = self.now
        self._arrived: dict[str, int] = {}
        self.course = deepcopy(self._stored)
        self.course.reopen(opened.lateness, opened.idle_after, opened.belated)

    def pass_time(self, by: int) -> None:
        """Advances the clock, and silent streams with it."""
        self.now += by
        if self._opened.idle_after is not None and self._bounded:
            self._go_on(())
            self._settle(None)

    def noted(self) -> None:
        """Stores how far streams have come."""
        self._stored = deepcopy(self.course)

    def delivered(self) -> None:
        """Notes that all outputs so far have reached their reader."""
        self.undelivered.clear()

    def _subscribe(self, change: Subscribe) -> Expected:
        script = parsed_events(change.text)
        changed = self._changed(script)
        since = BEGINNING if change.backfill else self._first_seen(script)
        met: Counter[object] = Counter()
        fresh: list[Standing | EventStanding] = []
        kept: list[Standing | EventStanding] = []
        names: list[str] = []
        highest = self._highest
        self._step += 1
        for place, query in enumerate(script.all_queries, 1):
            one: Standing | EventStanding
            if isinstance(query, EventQuery):
                one = EventStanding("", query, 0, since, self._defined(script, query))
                is_other = not changed.isdisjoint(streams_read(one.statement))
                same: list[Standing | EventStanding] = [other for other in self.statements if other.key == one.key]
            else:
                after = -1 if change.backfill else self._step
                one, is_other = Standing("", query, script.namespaces, 0, self._step, after), False
                same = [other for other in self.queries if other.key == one.key]
            count = met[one.key]
            met[one.key] += 1
            joins = change.how == "add" or (change.how == "replace" and query.publish is None)
            replaces = is_other or (change.how == "replace" and change.backfill)
            if not joins and not replaces and count < len(same):
                kept.append(same[count])
                names.append(same[count].name)
                continue
            one.occurrence = count + (len(same) if joins else 0)
            if query.publish is None:
                published = {other.publish for other in script.all_queries}
                highest = next(n for n in count_from(max(place, highest + 1)) if f"q{n}" not in published)
            one.name = query.publish or f"q{highest}"
            if isinstance(one, Standing):
                one.answers = QueryAnswers(one.query, one.name, script.namespaces, one.occurrence)
                one.telling = Telling(one.query.once)
            fresh.append(one)
            names.append(one.name)
        replaced = (
            {query.publish for query in script.all_queries if query.publish} if change.how == "replace" else set()
        )
        before: list[Standing | EventStanding] = [*self.queries, *self.statements]
        staying = [q for q in before if q in kept or q.query.publish not in replaced]
        if any(one.query.publish == q.name for one in fresh for q in staying if q.query.publish is None):
            raise Refused(ValueError)
        in_order([*staying, *fresh])
        self._refuse_changes(script, [one for one in staying if isinstance(one, EventStanding)])
        self._highest = max([highest, *(int(one.name[1:]) for one in fresh if re.fullmatch("q[0-9]+", one.name))])
        self.queries = [one for one in [*staying, *fresh] if isinstance(one, Standing)]
        self.statements = [one for one in [*staying, *fresh] if isinstance(one, EventStanding)]
        self.event_names |= {one.name for one in self.statements}
        self.events.definitions |= {one.name: one for one in script.definitions}
        self._inner.forget()
        if change.backfill and any(isinstance(one, EventStanding) for one in fresh):
            self.events.begin_backfill(fresh)
        return Expected(self._settle(fresh if change.backfill else None) if change.backfill else [], names=names)

    def _first_seen(self, script: Script) -> int:
        """The time from which the event statements of a script see events."""
        defined = {**self.events.definitions, **{one.name: one for one in script.definitions}}
        read = {name.name for query in script.event_queries for name in names_read(query.stream)}
        return self.events.first_seen({defined[name].block.stream for name in read if name in defined})

    def _changed(self, script: Script) -> set[str]:
        """The names whose events a script changes: defined otherwise, or made of such. Raises Refused for a name that
        is none."""
        known = self.events.definitions
        found = {one.name for one in script.definitions if known.get(one.name, one) != one}
        published = {one.query.publish for one in self.statements} | {one.publish for one in script.event_queries}
        defined = {*known, *(one.name for one in script.definitions)}
        waiting = list(script.event_queries)
        if any(name.name not in {*published, *defined} for one in waiting for name in names_read(one.stream)):
            raise Refused(ValueError)
        while ready := [one for one in waiting if any(name.name in found for name in names_read(one.stream))]:
            waiting = [one for one in waiting if one not in ready]
            found |= {one.publish for one in ready if one.publish is not None}
        return found

    def _defined(self, script: Script, query: EventQuery) -> dict[str, EventDefinition]:
        defined = {**self.events.definitions, **{one.name: one for one in script.definitions}}
        return {name.name: defined[name.name] for name in names_read(query.stream) if name.name in defined}

    def _refuse_changes(self, script: Script, staying: Iterable[EventStanding]) -> None:
        """Raises Refused if something that stays reads what is defined otherwise."""
        for one in script.definitions:
            if any(of.defined.get(one.name, one) != one for of in staying):
                raise Refused(ValueError)

    def _pause(self, change: Pause | Resume) -> Expected:
        named, pauses = self._named(change.name), isinstance(change, Pause)
        changing = [one for one in named if (one.paused is None) == pauses]
        statements = [one for one in changing if isinstance(one, EventStanding)]
        at = self.events.first_seen(self.events.streams(statements))
        for query in changing:
            if isinstance(query, EventStanding):
                query.pause(at) if pauses else query.resume(at)
            elif isinstance(change, Pause):
                query.paused = self._step
            elif query.paused is not None:
                # What waits for something not to come begins anew.
                query.gaps.append((-1 if any(absences_in(query.query.source)) else query.paused, self._step))
                query.paused = None
        return Expected()

    def _named(self, name: str) -> list[Standing | EventStanding]:
        every: list[Standing | EventStanding] = [*self.queries, *self.statements]
        found = [query for query in every if query.name == name]
        if not found:
            raise Refused(KeyError)
        return found

    def _batch(self, items: Iterable[Doc | Visit]) -> Expected:
        self._step += 1
        known = {(d.stream, d.identity) for d in self.documents} | self.dropped.keys()
        dead: list[tuple[str, str, str]] = []
        arrived: set[str] = set()
        self._move_horizon(self.events.follow)
        for item in items:
            if isinstance(item, Visit):
                if not self._is_ahead(item.time):
                    self.course.visit(item)
                    self._move_horizon(self.events.advance)
                continue
            key = item.stream, item.id
            if key in known:
                continue
            if refusal := self._refusal(item):
                dead.append((*key, refusal))
                continue
            known.add(key)
            arrived.add(item.stream)
            self.course.take(item, self._sources(item.stream))
            stored = external(item, self.course)
            self.documents.append(Kept(stored, item.stream, item.id, True, self._step))
            if self.events.is_late(stored):
                self.events.missed.add(stored)
                if of_stream(self._opened.belated, item.stream) == "drop":
                    self.events.refused.add(stored)
                    dead.append((*key, "late for patterns"))
            self._move_horizon(self.events.advance)
        self.dead_letters += [(self.now, letter) for letter in dead]
        if self._opened.idle_after is not None:
            self._go_on(arrived)
        outputs = self._settle(None)
        self._arrived |= dict.fromkeys(arrived, self.now)
        self.noted()
        return Expected(outputs, dead)

    def _prune(self, change: Prune) -> Expected:
        self._step += 1
        self.delivered()
        if change.keep is None:
            return Expected()
        since = self.now - change.keep
        self.dead_letters = [(at, letter) for at, letter in self.dead_letters if at >= since]
        horizon = self.watermark(self._streams())
        if horizon is None:
            return Expected()
        self._told = {one: t1 for one, t1 in self._told.items() if t1 >= horizon - change.keep}
        widest = [window for query in self.queries for window in windows_of(query.query.source)]
        if None not in widest:
            needed = horizon - max((window for window in widest if window is not None), default=0)
            before = min(horizon - change.keep, needed)
            gone = [document for document in self.documents if document.stored.t0 < before]
            for query in self.queries:
                query.telling.forget(before)
            self.documents = [document for document in self.documents if document.stored.t0 >= before]
            self.dropped |= {(d.stream, str(d.identity)): d.stored.t1 for d in gone if d.outside}
        if change.keep_ids is not None:
            oldest = horizon - change.keep_ids
            self.dropped = {key: t1 for key, t1 in self.dropped.items() if t1 >= oldest}
        return Expected()

    # ------------------------------------------------------------ answers

    def _settle(self, backfilled: Sequence[Standing | EventStanding] | None) -> list[OutputRow | EventRow]:
        """The new outputs of all queries, publishers before readers. A backfill does not publish again what is
        there."""
        outputs: list[OutputRow | EventRow] = []
        known = {(d.stream, d.identity) for d in self.documents} if backfilled is not None else set()
        read = self._streams()
        for query in in_order([*self.queries, *self.statements]):
            if query.paused is not None:
                continue
            if isinstance(query, EventStanding):
                if backfilled is None or query in backfilled:
                    new_ones = [one for one in backfilled or () if isinstance(one, EventStanding)]
                    outputs += self._of_events(query, new_ones, read, known)
                continue
            seen: dict[str, list[Stored]] = {}
            by_stored: dict[Stored, Kept] = {}
            for document in self.documents:
                if query.sees(document):
                    seen.setdefault(document.stream, []).append(document.stored)
                    by_stored[document.stored] = document
            new = [
                one
                for one in query.answers.over(
                    seen, self.course, self._sources, self._inner, backfill=backfilled is not None
                )
                if (one.inputs, one.nodes) not in query.given
            ]
            query.given |= {(one.inputs, one.nodes) for one in new}
            for answer in query.telling.told(new):
                parts = tuple((by_stored[one].stream, by_stored[one].identity) for one in answer.inputs)
                identity = (query.key, query.occurrence, parts, answer.nodes)
                if (query.name, identity) not in self._told:
                    self._told[query.name, identity] = answer.row.t1
                    outputs.append(answer.row)
                if query.query.publish in read and (query.name, identity) not in known:
                    self.documents.append(Kept(answer.stored, query.name, identity, False, self._step))
        self.undelivered += outputs
        return outputs

    def _of_events(
        self, one: EventStanding, new: Sequence[EventStanding], read: Collection[str], known: Collection[object]
    ) -> list[OutputRow | EventRow]:
        """What an event statement tells, and its documents for readers."""
        outputs: list[OutputRow | EventRow] = []
        for made in self.events.told(one, new):
            identity, stored = one.identity(made), self.events.stored(one, made)
            if one not in new or identity not in self._told:
                self._told[identity] = made.t1
                ids = [id for id, _ in stored.externals]
                outputs.append(event_row(one.name, made.t0, made.t1, stored.xml, ids))
            if one.query.publish in read and (one.name, identity) not in known:
                self.documents.append(Kept(stored, one.name, identity, False, self._step))
        return outputs

    def _streams(self) -> set[str]:
        """The streams that registered queries read."""
        return {stream for query in self.queries for stream in streams_of(query.query.source)}

    # ------------------------------------------------------------ time

    @property
    def _bounded(self) -> bool:
        """Whether a stream has a watermark, or can get one."""
        lateness = self._opened.lateness
        limits = lateness.values() if isinstance(lateness, Mapping) else (lateness,)
        return any(late is not None for late in limits) or any(s.steps for s in self.course.streams.values())

    def watermark(self, streams: Iterable[str]) -> int | None:
        """The least watermark of the external streams that some streams derive from; None if one has none."""
        watermark = self.course.as_of({source for stream in streams for source in self._sources(stream)})
        return None if watermark == -inf else int(watermark)

    def _move_horizon(self, move: Callable[[], None]) -> None:
        """Moves that of event statements, which is the watermark of what they publish."""
        move()
        if self.events.horizon > BEGINNING:
            self.course.reach(EVENTS, self.events.horizon)

    def _sources(self, stream: str) -> set[str]:
        makers = [query for query in self.queries if query.query.publish == stream]
        if any(one.query.publish == stream for one in self.statements):
            return {EVENTS, *self.events.behind(stream)}
        if not makers:
            return {stream}
        return {s for maker in makers for read in streams_of(maker.query.source) for s in self._sources(read)}

    def _go_on(self, arrived: Iterable[str]) -> None:
        """Advances the silent streams with the clock."""
        assert self._opened.idle_after is not None
        waited_for = {source for stream in self._streams() for source in self._sources(stream)}
        for stream in (self.course.streams.keys() | waited_for) - set(arrived):
            if self.now - self._arrived.get(stream, self._opened_at) >= self._opened.idle_after:
                self.course.pass_clock(stream, self.now - self._opened.idle_after)

    def _is_ahead(self, time: int) -> bool:
        return self._opened.max_ahead is not None and time - self.now > self._opened.max_ahead

    def _refusal(self, document: Doc) -> str | None:
        if self._is_ahead(document.t1):
            return "from the future"
        try:
            Tree(document.xml)
        except etree.XMLSyntaxError:
            return "unreadable"
        return "late" if self.course.drops(document, self._sources(document.stream)) else None


class InnerAbsences:
    """What is decided once for all queries that have it: a partner counts that the earliest of them has seen."""

    def __init__(self, model: LiveModel) -> None:
        self._model = model
        self._decided: dict[object, Decisions] = {}

    def decided(self, absence: object) -> Decisions:
        return self._decided.setdefault(absence, {})

    def seen(self, absence: object) -> dict[str, list[Stored]]:
        after = min(query.sees_after for query in self._having(absence) if query.paused is None)
        found: dict[str, list[Stored]] = {}
        for document in self._model.documents:
            if document.arrived > after:
                found.setdefault(document.stream, []).append(document.stored)
        return found

    def forget(self) -> None:
        """Forgets what no query has any more."""
        self._decided = {absence: some for absence, some in self._decided.items() if self._having(absence)}

    def _having(self, absence: object) -> list[Standing]:
        return [query for query in self._model.queries if absence in query.inner_absences]


@dataclass(frozen=True, eq=False)
class Kept:
    """A document that queries may read: an external one, or an output of a query for the readers of its name.

    `identity` is its id, or what distinguishes it from the other outputs of its name. `arrived` is the step of its
    arrival.
    """

    stored: Stored
    stream: str
    identity: object
    outside: bool
    arrived: int


@dataclass(eq=False)
class Standing:
    """A query registered at a step. It sees the documents that arrived after the step `since`, except in its `gaps`,
    when it was paused: after the first step of a gap, and up to the second."""

    name: str
    query: Query
    namespaces: tuple[tuple[str, str], ...]
    occurrence: int
    step: int
    since: int
    paused: int | None = None
    gaps: list[tuple[int, int]] = field(default_factory=list)
    given: set[object] = field(default_factory=set)
    answers: QueryAnswers = field(init=False)
    telling: Telling = field(init=False)

    @property
    def key(self) -> object:
        """What two equal queries have in common."""
        return self.query.publish, self.query.source, self.query.select, self.namespaces, self.query.once

    @cached_property
    def inner_absences(self) -> set[object]:
        """What tells apart its absences that more is made of."""
        return self.answers.inner_absences()

    @property
    def sees_after(self) -> int:
        """The step after which it sees all documents."""
        return max([self.since, *(high for _, high in self.gaps)])

    def sees(self, document: Kept) -> bool:
        """Whether the query is answered for a document."""
        at = document.arrived
        resting = self.paused is not None and at > self.paused
        return at > self.since and not resting and not any(low < at <= high for low, high in self.gaps)


class Refused(Exception):
    """An operation is refused with an error of this kind, and changes nothing."""

    def __init__(self, kind: type[Exception]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


def streams_of(source: Input) -> set[str]:
    """The streams of an input's blocks."""
    return {block.stream for block in blocks(source)}


def windows_of(source: Input) -> Iterator[int | None]:
    """The windows of an input's joins; None for an infinite one. What waits for a window, with partners as much
    earlier, counts twice."""
    match source:
        case Join():
            us = source.window.us
            yield 2 * us if us is not None and source.op == "NOT JOIN" else us
            yield from windows_of(source.left)
            yield from windows_of(source.right)
        case SubQuery():
            yield from windows_of(source.source)


def has_inner_absence(source: Input) -> bool:
    """Whether an input has an absence that more is made of."""
    return any(join is not without_brackets(source) for join in absences_in(source))


def in_order(queries: Sequence[Standing | EventStanding]) -> list[Standing | EventStanding]:
    """The queries, each after those whose outputs it reads. Raises Refused if there is no such order."""
    ordered: list[Standing | EventStanding] = []
    waiting = list(queries)
    while waiting:
        made = {query.query.publish for query in waiting} - {None}
        ready = [query for query in waiting if not _read_by(query) & made]
        if not ready:
            raise Refused(ValueError)
        ordered += ready
        waiting = [query for query in waiting if query not in ready]
    return ordered


def _read_by(query: Standing | EventStanding) -> set[str]:
    return streams_of(query.query.source) if isinstance(query, Standing) else streams_read(query.statement)
