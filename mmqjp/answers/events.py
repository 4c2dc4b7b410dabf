"""Answers of event queries: output documents of results, and the documents that others read.

Event patterns within batches: events from documents, their time, and the results of event statements.

Backfill of event queries: new ones run over all that is kept, in a kernel of their own, up to the horizon.

What waits there then joins what waits for the others, so that they go on as if they had been there from the beginning.

The events of definitions in documents that are kept.

How the quota of queries limits event queries, and what is said of those that exceed it.

Event patterns in a batch: takes the events of its documents, and releases them to the statements in strata.

The statements run over the epochs between the old horizon and the new one. A stratum is what becomes complete with the
documents of the one before: XSCL answers these in between. What a batch that is rolled back has changed is read from
the store again: a snapshot, and the events since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from feeds.documents import iso_utc
from join_stage.protocol import JoinEngine
from mmqjp.answers.events_run import DefinitionCursor, KernelSnapshot, RunningForms, StoredEvents, event_rows, events_of
from mmqjp.answers.kernels import (
    LATE,
    FormResults,
    Late,
    MadeOf,
    MakeKernel,
    Parts,
    WaitingCounts,
    column_texts,
    ids_of,
)
from mmqjp.answers.operators import Pause
from mmqjp.answers.output import Answer, Body, PatternDocuments, element, json_nodes
from mmqjp.answers.quota import Quota
from mmqjp.documents.record import Record, Records, docid_batches, own_part_id
from mmqjp.queries.compile import read_by
from mmqjp.queries.registry import EventForm, EventRegistry, Registry, running_form_id, since_of
from mmqjp.state.eviction import arriving
from mmqjp.tables.ledger import Ledger
from pattern_stage.assemble import (
    END,
    MOST_EVENTS,
    START,
    Assembled,
    EdgesOf,
    Settle,
    Witnessed,
    assemble_events,
    event_chains,
    last_horizon,
    next_horizon,
    told_apart,
)
from pattern_stage.columns import Column
from pattern_stage.kernel import adopted
from pattern_stage.lineage import EventOrigin, Lineage
from pattern_stage.operators import NO_LIMITS, Excess, RowLimits
from pattern_stage.plan import NO_BOUND
from pattern_stage.values import Texts
from templates.catalog import Catalog, Change
from templates.events import EventPlacement, place_events
from templates.witness import Witnesses, plain_node
from xpath_stage.evaluator import XPathStage
from xscl.algebra.events import EventPattern, NearPattern, Pattern
from xscl.algebra.values import number_text


def limits_of(quota: Quota) -> RowLimits:
    """Returns what event queries may take."""
    return RowLimits(_bound(quota.partial), _bound(quota.matches))


def pause_reason(excess: Excess, quota: Quota) -> str:
    """Returns the reason to show to users why a query is paused."""
    if excess.bound == "partial":
        return f"more than {quota.partial:,} partial matches wait after {iso_utc(excess.time)} (max-partial)"
    return f"more than {quota.matches:,} matches at {iso_utc(excess.time)} (max-matches)"


def _bound(bound: int | None) -> int:
    return NO_BOUND if bound is None else bound


class EventOutput:
    """Makes answers and documents of the results of event queries."""

    def __init__(self, registry: Registry, records: Records, ledger: Ledger) -> None:
        self._registry, self._records, self._ledger = registry, records, ledger

    def answers(
        self, results: Sequence[FormResults], running: RunningForms, first_qid: int = 0
    ) -> tuple[list[Answer], list[Record]]:
        """Returns the answers that results are, and as documents those that queries over documents read. Only queries
        with at least `first_qid` get them. `running` found them."""
        answers: list[Answer] = []
        documents: list[Record] = []
        for found in results:
            made = self._answers(found, running, first_qid)
            answers += made
            documents += self._published(found.form_id, made, first_qid)
        return answers, documents

    def pauses(self, exceeded: Mapping[str, Excess], quota: Quota, horizon: int, first_qid: int = 0) -> Iterable[Pause]:
        """Yields the pauses of queries whose forms have exceeded a limit: of those with at least `first_qid`. What was
        released before the horizon they have got."""
        for form_id, excess in exceeded.items():
            for query in self._registry.events.members(form_id):
                if query.qid >= first_qid:
                    at = max(excess.time, horizon) - 1
                    yield Pause(query, at, self._ledger.next_arrival, pause_reason(excess, quota))

    def _answers(self, found: FormResults, running: RunningForms, first_qid: int) -> list[Answer]:
        events, parts = found.events, running.parts()
        parts.load(events.parts)
        self._records.load(parts.docids())
        form, withheld = running_form_id(found.form_id), self._registry.events.withheld(found.form_id)
        stream = self._registry.events.stream_of(form)
        pattern = PatternDocuments(stream) if isinstance(stream, Pattern | NearPattern) else None
        appeared = running.appeared(events)
        arrival, names = self._ledger.next_arrival - 1, [name for name, _ in found.schema]
        width = len(stream.schema)
        values = [column_texts(column, running.texts) for column in events.values[:width]]
        shown = [_shown(column, running.texts) for column in events.values]
        answers = []
        rows = zip(
            events.t0.tolist(),
            events.t1.tolist(),
            events.parts.tolist(),
            appeared.tolist(),
            zip(*values, strict=True) if values else [()] * len(events),
            zip(*shown, strict=True) if shown else [()] * len(events),
            strict=True,
        )
        for t0, t1, numbers, first, attributes, texts in rows:
            of = [number for number in numbers if number >= 0]
            if pattern is None:
                roots, ending = _roots(parts, of), _children(names, texts)
            else:
                roots, ending = list(pattern.roots(of, parts)), pattern.document(texts, of, parts)
            documents, streams, nodes = self._behind(sorted(roots, key=lambda root: parts.place(root[1])))
            answers.append(
                Answer(
                    t0,
                    t1,
                    documents,
                    streams,
                    nodes,
                    Body('<match query="', f'" t0="{t0}" t1="{t1}"{ending}'),
                    _choice(t0, t1, attributes, [parts.id(number) for number in of]),
                    form,
                    0,
                    first,
                    first_qid,
                    arrival,
                    tuple([qid for qid, since in withheld if since >= first]),
                )
            )
        return answers

    def _behind(self, roots: Sequence[tuple[str, EventOrigin]]) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """Returns the external documents behind events of documents, each once for each of these: their ids and
        streams; and the root nodes of these events as `Output.nodes`. `roots` has the events in the order of time, with
        names for their nodes, or "" for e1, e2, and so on."""
        origins = {(origin.docid, origin.nodes): origin for _, origin in roots}.values()
        sources = [source for origin in origins for source in self._records[origin.docid].sources]
        nodes = {name or f"e{place}": self._root(origin) for place, (name, origin) in enumerate(roots, 1)}
        return tuple([id for id, _ in sources]), tuple([stream for _, stream in sources]), json_nodes(nodes)

    def _root(self, origin: EventOrigin) -> int | str:
        element, place = plain_node(origin.nodes[0])
        if not place:
            return element
        return f"{element}/@{self._records[origin.docid].tree.attribute(element, place)[0]}"

    def _published(self, running_id: str, answers: Sequence[Answer], first_qid: int) -> list[Record]:
        """Returns answers as documents of the streams that their queries PUBLISH, if any query reads them."""
        events = self._registry.events
        publishers = [query for query in events.members(running_id) if query.publishes and query.qid >= first_qid]
        return [
            _document(query.name, query.identity.id(answer.choice.encode()), answer)
            for query in sorted(publishers, key=lambda query: (query.name, query.qid))
            if self._registry.is_read(query.name)
            for answer in answers
            if since_of(query) < answer.appeared
        ]


def _roots(parts: Parts, numbers: Iterable[int]) -> list[tuple[str, EventOrigin]]:
    """Returns the events of documents behind the parts of a result, each once, without names."""
    origins: dict[tuple[int, tuple[int, ...]], EventOrigin] = {}
    for number in numbers:
        for origin in parts.documents(number):
            origins.setdefault((origin.docid, origin.nodes), origin)
    return [("", origin) for origin in origins.values()]


def _document(stream: str, id: str, answer: Answer) -> Record:
    sources = tuple(zip(answer.documents, answer.streams, strict=True))
    xml = answer.body.xml(stream)
    own = (own_part_id(stream, id),)
    return Record(-1, id, stream, answer.t0, answer.t1, xml, "published", (), own, sources, arrival=answer.arrival)


def _children(names: Sequence[str], texts: Sequence[str | None]) -> str:
    """Returns the end of an output document: an element for each attribute that is not NULL."""
    children = "".join(element(name, text) for name, text in zip(names, texts, strict=True) if text is not None)
    return f">{children}</match>" if children else "/>"


def _choice(t0: int, t1: int, attributes: Sequence[str | None], parts: Sequence[str]) -> str:
    """Returns the part of the output's id that the outputs of all queries of the form share."""
    return f", {json.dumps([t0, t1, list(attributes), [json.loads(part) for part in parts]], ensure_ascii=False)}]"


def _shown(column: Column, texts: Texts) -> list[str | None]:
    """Returns the values of an attribute as they stand in output documents: numbers as XPath writes them."""
    if column.dtype == np.float64:
        return [None if value != value else number_text(value) for value in column.tolist()]
    return column_texts(column, texts)


NeedsOf = Callable[[str], Change]
"""Returns what a definition needs of stage 1, given its name."""


class StoredDocumentEvents:
    """The stored documents, as events of definitions."""

    def __init__(self, store: JoinEngine, records: Records) -> None:
        self._store, self._records = store, records

    def events(
        self, placements: Mapping[str, EventPlacement], needs_of: NeedsOf, ends: range, texts: Texts
    ) -> Iterator[tuple[str, Assembled]]:
        """Yields the events of definitions that end in a range of times, by the names of these, in parts. Those of
        documents that came too late for event queries are left out. Only these definitions are evaluated, in a stage 1
        of their own."""
        for name, placement in placements.items():
            stage = XPathStage()
            stage.add(needs_of(name))
            for docids in docid_batches(self._store, [placement.stream], ends=ends, refused=LATE):
                found = stage.evaluate(map(arriving, self._records.parsed(docids)))
                yield name, assemble_events(placement, Witnessed(found, stage.edges_of, texts), texts)
                self._records.release_trees()


class EventBackfill:
    """Forms in a kernel of their own. `told` are the ids of those that the backfill is for; the others publish what
    these read."""

    def __init__(
        self,
        forms: Mapping[str, EventForm],
        told: Collection[str],
        definitions: Mapping[str, EventPattern],
        own: RunningForms,
        kept: StoredDocumentEvents,
        horizon: int,
    ) -> None:
        self.running, self._told, self._horizon = own, told, horizon
        self._placements: dict[str, EventPlacement] = {}
        needs: dict[str, Change] = {}
        catalog = Catalog()
        for form in forms.values():
            for name in read_by(form.stream):
                if name in definitions and name not in needs:
                    self._placements[name], needs[name] = place_events(catalog, definitions[name])
        own.follow(forms, forms)
        for name, found in kept.events(self._placements, needs.__getitem__, range(START, horizon), own.texts):
            own.take(name, found)

    def take(self, name: str, found: Assembled) -> None:
        """Takes events in documents that are published meanwhile: those before the horizon."""
        if name in self._placements and (before := found.t1 < self._horizon).any():
            self.running.take(name, found.take(before))

    def release(self) -> Iterator[list[FormResults]]:
        """Yields the results of new queries, of a stratum each, which the caller answers before it goes on."""
        for results in self.running.run(self._horizon, self._placements):
            yield [found for found in results if found.form_id in self._told]

    def exceeded(self) -> dict[str, Excess]:
        """Returns the new forms that have exceeded a limit, and all of them if one behind them has."""
        found = self.running.exceeded
        behind = [excess for form_id, excess in found.items() if form_id not in self._told]
        return {
            form_id: min(known)
            for form_id in self._told
            if (known := [*behind, *([found[form_id]] if form_id in found else [])])
        }

    def join(self, others: RunningForms) -> None:
        """Lets what waits here wait among others, where the same queries are, too."""
        kernel = self.running.kernel
        state: Mapping[str, pa.Table] = others.kernel.state()
        others.take_over(adopted(state, kernel.state(), kernel.parts(), self.running.lineage, others.lineage))


SNAPSHOT_EVERY = 50
"""After so many batches there is another snapshot."""


class Patterns:
    """The events, the time and the kernel of a store. Without event statements it does nothing."""

    def __init__(
        self,
        statements: EventRegistry,
        catalog: Catalog,
        edges_of: EdgesOf,
        stored: StoredEvents,
        records: Records,
        make_kernel: MakeKernel,
        kept: StoredDocumentEvents,
        made_of: MadeOf,
        *,
        settle: Settle = None,
        snapshot_every: int = SNAPSHOT_EVERY,
        limits: RowLimits = NO_LIMITS,
    ) -> None:
        """`limits` are those of a form's results; kernels have their own."""
        self._statements, self._catalog, self._edges_of, self._stored = statements, catalog, edges_of, stored
        self._records, self._make_kernel, self._kept, self._made_of = records, make_kernel, kept, made_of
        self._ids = ids_of(records)
        self._settle, self._every, self._limits = settle, snapshot_every, limits
        self._since_snapshot = 0
        self._forget()

    def _forget(self) -> None:
        """Forgets all that can be read from the store again."""
        self._is_open = False
        self._time = self._stored.time()
        self._rows: list[pa.Table] = []
        self._late: dict[int, Late] = {}
        self._backfill: EventBackfill | None = None
        self.exceeded_before: Mapping[str, Excess] = {}
        """The forms that have exceeded a limit in the last backfill."""

    @property
    def horizon(self) -> int:
        """The horizon: what ended before has been released."""
        return self._time.horizon

    @property
    def is_begun(self) -> bool:
        """Whether there is a horizon: there was an event query before a batch."""
        return self._time.horizon > START

    # ------------------------------------------------------------ statements

    def follow(self) -> None:
        """Brings the kernel in step with the registered statements, before the documents of a batch enter."""
        if not self._is_open and not self._statements.forms and self._time.horizon == START:
            return
        self._follow_forms()
        self._pass_over(self._start())
        self._follow_definitions()

    def _follow_forms(self) -> None:
        """Brings the forms in the kernel in step."""
        if not self._is_open:
            self._open()
        elif self._statements.changed:
            self.running.follow(self._statements.forms, self._statements.changed)
            self._statements.changed.clear()

    def _start(self) -> int:
        """Returns from when on there is anything to find: the horizon, or later if all forms came later."""
        horizon, forms = self._time.horizon, self._statements.forms.values()
        if any(form.since < horizon for form in forms):  # mostly the first one, so that this takes no time
            return horizon
        return min((form.since + 1 for form in forms), default=horizon)

    def _pass_over(self, horizon: int) -> None:
        """Moves the horizon to a time before which there is nothing to find."""
        if horizon > self._time.horizon:
            self.running.buffer.pass_over(horizon)
            self._time.horizon = horizon

    @property
    def moves(self) -> bool:
        """Whether there is a horizon, and a form that is run moves it."""
        return self.is_begun and bool(self._statements.forms)

    def first_since(self, greatest: Mapping[str, int], streams: Collection[str]) -> int:
        """Returns since when a new or resumed statement over some external streams sees events: from the horizon on. If
        nothing moves that, documents that were there before are not for it: `greatest` has the greatest time of each
        stream."""
        if self.moves:
            return self._start() - 1
        return max(self._time.horizon, self._first_horizon(greatest, streams)) - 1

    def _first_horizon(self, greatest: Mapping[str, int], streams: Collection[str]) -> int:
        known = {stream: greatest[stream] for stream in streams if stream in greatest}
        horizon = next_horizon(START, known, known, self._settle)
        return max(horizon, last_horizon(START, known, known, self._settle, lasts=True))

    def _follow_definitions(self) -> None:
        """Takes the events of new definitions in kept documents, and drops those that nothing reads any more."""
        placements, taken, ids = self._statements.placements, self._time.taken, self._statements.ids
        if gone := [name for name, since in taken.items() if name not in placements or since.id != ids[name]]:
            self.running.buffer.drop(gone)
            for name in gone:
                del taken[name]
        if new := {name: placement for name, placement in placements.items() if name not in taken}:
            taken |= {name: DefinitionCursor(ids[name], self.running.lineage.next) for name in new}
            ends = range(self._time.horizon, END)
            for name, found in self._kept.events(new, self._statements.needs_of, ends, self.running.texts):
                self._take(name, found)

    # ------------------------------------------------------------ events

    def step(self, witnesses: Witnesses) -> Witnesses:
        """Takes the events of documents from their witnesses. Returns the witnesses that are for joins."""
        placements = self._statements.placements
        if not placements:
            return witnesses
        if not self._is_open:
            self.follow()
        joins, events = told_apart(witnesses, event_chains(self._catalog.chains))
        witnessed = Witnessed(events, self._edges_of, self.running.texts)
        for name, placement in placements.items():
            found = assemble_events(placement, witnessed, self.running.texts)
            if self._backfill is not None:
                self._backfill.take(name, found)
            self._take(name, found)
        return joins

    def _take(self, name: str, found: Assembled) -> None:
        """Takes events of a definition, but for those before the horizon."""
        for docid in found.crowded.tolist():
            self._refuse(docid, f"more than {MOST_EVENTS:,} events {name}, for patterns")
        late = found.t1 < self._time.horizon
        if late.any():
            for docid, t1 in dict(zip(found.docids[late].tolist(), found.t1[late].tolist(), strict=True)).items():
                behind = self._time.horizon - t1
                self._refuse(docid, f"{LATE}: {behind} µs behind what has been released")
            found = found.take(~late)
        if not len(found):
            return
        numbers = self.running.take(name, found)
        self._rows.append(event_rows(name, found, numbers, self.running.texts))

    def _refuse(self, docid: int, reason: str) -> None:
        self._late.setdefault(docid, Late(docid, reason))

    def late(self) -> list[Late]:
        """Returns the documents of the batch whose events no statement gets, each once."""
        return list(self._late.values())

    # ------------------------------------------------------------ release

    def is_due(self, greatest: Mapping[str, int], clock: int | None = None) -> bool:
        """Returns whether anything would be released at these greatest times."""
        if not self.is_begun or not self._statements.forms:
            return False
        if not self._is_open:
            self._open()
        return self.running.is_due(self._next(greatest, clock))

    def release(
        self, greatest: Mapping[str, int], clock: int | None = None, *, lasts: bool | None = None
    ) -> Iterator[list[FormResults]]:
        """Moves the horizon, and yields the results of each stratum, which the caller answers before it goes on.

        `clock` is that of live streams. `lasts` says, at the end of a finite run, whether its state does.
        """
        if not self._is_open:
            return
        while True:
            until = self._next(greatest, clock)
            if lasts is not None:
                until = last_horizon(until, self._time.greatest, self._outside(), self._settle, lasts=lasts)
            if until <= self._time.horizon:
                return
            # What comes of this stratum is compared with the horizon before, so that moves last.
            yield from self.running.run(until, self._statements.placements)
            self._time.horizon = until
            if not self.running.exceeded:
                return
            # What has exceeded a limit holds the others up no more, whichever batch this is noticed in.

    def _next(self, greatest: Mapping[str, int], clock: int | None) -> int:
        known = self._time.greatest
        for stream, time in greatest.items():
            known[stream] = max(time, known.get(stream, time))
        return next_horizon(self._time.horizon, known, self._outside(), self._settle, clock)

    def _outside(self) -> set[str]:
        return self.running.outside(self._statements.placements)

    def exceeded(self) -> Mapping[str, Excess]:
        """Returns the forms that have exceeded a limit, by their ids."""
        return self.running.exceeded if self._is_open else {}

    # ------------------------------------------------------------ backfill

    def begin_backfill(
        self, forms: Mapping[str, EventForm], told: Collection[str], greatest: Mapping[str, int]
    ) -> None:
        """Prepares a backfill of new forms, `told`, and of those behind them. Until `backfill`, it takes the events of
        documents that are published. `greatest` has the greatest time of each external stream."""
        self._follow_forms()
        if self._time.horizon == START:
            self._time.horizon = self._first_horizon(greatest, self._outside())
        self.follow()
        lineage = Lineage(0, self._ids)
        own = RunningForms(self._make_kernel, lineage, self._records, self._made_of, self.running.texts, self._limits)
        self._backfill = EventBackfill(forms, told, self._statements.definitions, own, self._kept, self._time.horizon)

    def backfill(self) -> Iterator[tuple[list[FormResults], RunningForms]]:
        """Yields the results of new forms up to the horizon, of a stratum each, and what found them. The caller answers
        them before it goes on. Then what waits for new forms joins what waits for others."""
        assert self._backfill is not None, "it has begun"
        self.exceeded_before = {}
        for results in self._backfill.release():
            yield results, self._backfill.running
        self.exceeded_before = self._backfill.exceeded()
        self._backfill.join(self.running)
        self._backfill = None
        self._since_snapshot = self._every  # nothing else has what has joined

    # ------------------------------------------------------------ what waits

    def waiting(self) -> WaitingCounts | None:
        """Returns what waits; None if there is no event query."""
        if not self.is_begun or not self._statements.forms:
            return None
        if not self._is_open:
            self._open()
        return WaitingCounts(self._time.horizon, len(self.running.buffer), self.running.waiting())

    def oldest(self) -> int | None:
        """Returns when the earliest event begins that anything waits for; None if nothing does."""
        if not self._is_open:
            if not self.is_begun:
                return None
            self._open()
        self.running.compact()
        return self.running.lineage.oldest()

    # ------------------------------------------------------------ state

    def save(self) -> None:
        """Writes, within the batch, its events and the horizon, and from time to time a snapshot."""
        if not self._is_open:
            return
        self._stored.save_events(self._rows)
        self._rows = []
        self._time.next_number = self.running.lineage.next
        self._stored.save_time(self._time)
        self._since_snapshot += 1
        if self._since_snapshot >= self._every:
            self.running.compact()
            kernel = self.running.kernel.state()
            self._stored.save_snapshot(KernelSnapshot(self._time.horizon, kernel, self.running.lineage.table()))

    def finish_batch(self, *, committed: bool) -> None:
        """Ends the batch. If it was not committed, all is read from the store again when it is next needed."""
        if not committed:
            self._forget()
            return
        self._late = {}
        if self._since_snapshot >= self._every:
            self._since_snapshot = 0
        if self._is_open and self.running.is_crowded:
            self.running.compact()

    def _open(self) -> None:
        """Reads the last snapshot, and runs the statements again over the events from there on. Those that came later
        come in again when they came, so that what waits is what waited before."""
        found = self._stored.snapshot()
        lineage = Lineage(self._time.next_number, self._ids)
        lineage.restore(found.lineage)
        self.running = running = RunningForms(
            self._make_kernel, lineage, self._records, self._made_of, limits=self._limits
        )
        self._is_open = True
        forms, later = self._statements.forms, dict[int, list[EventForm]]()
        for form in forms.values():
            if form.since + 1 < found.horizon:
                running.put(form)
            else:
                later.setdefault(form.since + 1, []).append(form)
        self._statements.changed.clear()
        running.kernel.restore(found.kernel)
        schemas = {name: placement.schema for name, placement in self._statements.placements.items()}
        rows = self._stored.events_from(found.horizon)
        taken = {name: since for name, since in self._time.taken.items() if self._statements.ids.get(name) == since.id}
        for name, events in events_of(rows, schemas, lineage, running.texts, taken).items():
            running.buffer.add(name, events)
        reached = found.horizon
        for start, new in sorted(later.items()):
            reached = self._run_again(reached, min(start, self._time.horizon))
            for form in new:
                running.put(form)
        self._run_again(reached, self._time.horizon)

    def _run_again(self, reached: int, until: int) -> int:
        """Runs the statements from one horizon to another, if that is later. Returns where they are."""
        if until <= reached:
            return reached
        for _ in self.running.run(until, self._statements.placements):
            pass
        self.running.buffer.pass_over(until)
        return until
