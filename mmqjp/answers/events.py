"""Event queries within batches: feeds documents' events to the kernel, moves the horizon, and turns results into
answers. Events are released in strata: a stratum is what becomes complete once the previous one is answered, with XSCL
queries answering in between. New queries are backfilled over the retained events in a kernel of their own, whose state
then joins the others'. After a rollback the state is restored from the last snapshot plus the events since."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from common.arrays import Ints, distinct
from common.bounds import BEGINNING, END, NO_DOCUMENT, Micros
from common.dates import iso_utc
from common.limits import BLOCK, Excess, Quota, excess_text
from join_stage.plans import JoinEngine
from mmqjp.answers import events_run
from mmqjp.answers.bindings import BoundValue, json_nodes
from mmqjp.answers.output import STORY_HEAD, Answer, AnswerColumns, Body, PatternDocuments, StoryDocuments, end_of_match
from mmqjp.documents.record import Record, Records, docid_batches, own_part_id
from mmqjp.documents.watermarks import Progress, Timing
from mmqjp.queries.forms import element
from mmqjp.queries.model import EventSubscription, Pause, Subscription
from mmqjp.queries.registry import EventForm, RegisteredDefinition, Registry, running_form_id, since_of
from mmqjp.state.eviction import arriving
from mmqjp.tables.schema import EVENTS, Ledger
from pattern_stage import assemble
from pattern_stage.lineage import EventOrigin, Lineage
from pattern_stage.values import CHARACTERS, Texts
from templates.catalog import Catalog, Change, EventPlacement, place_events
from templates.witness import Witnesses, plain_node
from xpath_stage.evaluator import XPathStage
from xscl.algebra.events import Fold, NearPattern, Pattern, Statement, Stories, made_texts, read_by, sources_of
from xscl.algebra.values import number_text


def pause_reason(excess: Excess, quota: Quota, statement: Statement) -> str:
    where = f"at {iso_utc(excess.at)}"
    if excess.bound in ("outputs", "work_of_block"):
        where = f"at {BLOCK:,} times in a row, with {iso_utc(excess.at)}"
    elif excess.bound == "partial":
        where = f"after {iso_utc(excess.at)}"
    if excess.bound == "matches" and (later := _chosen_by(statement)):
        where += f", before {', '.join(later)}"
    elif excess.bound in ("matches", "partial") and _makes_texts(statement, by_fold=excess.bound == "matches"):
        maker = "FOLD" if excess.bound == "matches" else "a function"
        where += f", with 1 for each {CHARACTERS} characters of a text that {maker} makes"
    return excess_text(quota, excess.bound, where)


def _chosen_by(statement: Statement) -> list[str]:
    """Returns what chooses among matches of a PATTERN after they are found, and counted."""
    if isinstance(statement, NearPattern):
        return ["NON OVERLAPPING"] if statement.apart else []
    if not isinstance(statement, Pattern):
        return []
    runs = not (statement.has_sets or statement.maximal)
    found = [
        ("HAVING", runs and bool(statement.having_names)),
        ("~", runs and any(one.negated for one in statement.variables)),
        ("EARLIEST MAXIMAL", statement.maximal),
        ("NON OVERLAPPING", statement.apart),
    ]
    return [name for name, there in found if there]


def _makes_texts(statement: Statement, *, by_fold: bool) -> bool:
    if isinstance(statement, Pattern | NearPattern):
        return False
    if made_texts(statement) and (isinstance(statement, Fold) or not by_fold):
        return True
    return any(_makes_texts(source, by_fold=by_fold) for source in sources_of(statement))


class EventOutput:
    def __init__(self, registry: Registry, records: Records, ledger: Ledger) -> None:
        self._registry, self._records, self._ledger = registry, records, ledger

    def add(
        self,
        results: Sequence[events_run.FormResults],
        running: events_run.RunningForms,
        answers: AnswerColumns,
        first_qid: int = 0,
        passed_by: Callable[[int], int] | None = None,
    ) -> list[Record]:
        """Adds answers, and returns those that other queries read as documents. Only queries with at least `first_qid`
        receive them; `running` found the results. `passed_by` returns the arrival that brings what ends at a time."""
        documents: list[Record] = []
        events = self._registry.events
        for found in results:
            made = self._answers(found, running, first_qid)
            for answer in made:
                answers.append(answer)
            publishers = [one for one in events.members(found.form_id) if one.publishes and one.qid >= first_qid]
            for query in sorted(publishers, key=lambda query: (query.name, query.qid)):
                if self._registry.is_read(query.name):
                    for one in (answer for answer in made if since_of(query) < answer.appeared):
                        documents.append(_document(query, one, passed_by(one.t1) if passed_by else one.arrival))
        return documents

    def missed(
        self, missed: Mapping[str, Collection[int]]
    ) -> Iterator[tuple[list[EventSubscription], Iterable[Record]]]:
        """Yields the active queries of each form that reads definitions, and the documents, given by definition."""
        readers, docids = defaultdict[str, dict[EventSubscription, None]](dict), defaultdict[str, set[int]](set)
        for name, some in missed.items():
            for query in self._registry.events.readers(name):
                if query.active:
                    readers[query.form_id][query] = None
                    docids[query.form_id].update(some)
        for form_id, queries in readers.items():
            yield list(queries), [self._records[docid] for docid in sorted(docids[form_id])]

    def pauses(self, exceeded: Mapping[str, Excess], quota: Quota, horizon: int, first_qid: int = 0) -> Iterable[Pause]:
        """Yields a pause at the horizon for each query with at least `first_qid` whose form exceeded a limit."""
        for form_id, excess in exceeded.items():
            statement = self._registry.events.form(running_form_id(form_id)).stream
            for query in self._registry.events.members(form_id):
                if query.qid >= first_qid:
                    at = Micros(max(excess.at, horizon) - 1)
                    yield Pause(query, at, self._ledger.next_arrival, pause_reason(excess, quota, statement))

    def _answers(self, found: events_run.FormResults, running: events_run.RunningForms, first_qid: int) -> list[Answer]:
        events, parts = found.events, running.parts(found.events)
        self._records.load(parts.docids())
        form, withheld = running_form_id(found.form_id), self._registry.events.withheld(found.form_id)
        stream = self._registry.events.form(form).stream
        pattern = PatternDocuments(stream) if isinstance(stream, Pattern | NearPattern) else None
        stories = StoryDocuments(stream) if isinstance(stream, Stories) else None
        arrival, names = self._ledger.next_arrival - 1, [name for name, _ in found.schema]
        values = [events_run.column_texts(column, running.texts) for column in events.values[: len(stream.schema)]]
        shown = [events_run.column_texts(column, running.texts, number_text) for column in events.values]
        columns = [column.tolist() for column in (events.t0, events.t1, events.parts, running.appeared(events))]
        answers = []
        for place, (t0, t1, numbers, first) in enumerate(zip(*columns, strict=True)):
            of, texts = [number for number in numbers if number >= 0], [column[place] for column in shown]
            if stories is not None:
                pairs = [[self._records[one.docid] for one in parts.documents(number)] for number in numbers[1:]]
                ending, documents, streams = stories.document(texts, *pairs)
                nodes, body = "{}", Body(STORY_HEAD, f'" t0="{t0}" t1="{t1}"{ending}')
            elif pattern is None:
                children = (element(name, text) for name, text in zip(names, texts, strict=True) if text is not None)
                origins = {(origin.docid, origin.nodes): origin for one in of for origin in parts.documents(one)}
                roots, ending = [("", origin) for origin in origins.values()], end_of_match("".join(children))
            else:
                roots, ending = list(pattern.roots(of, parts)), pattern.document(texts, of, parts)
            if stories is None:
                documents, streams, nodes = self._behind(sorted(roots, key=lambda root: parts.place(root[1])))
                body = Body('<match query="', f'" t0="{t0}" t1="{t1}"{ending}')
            behind = [parts.named(number) for number in of] if stories is None else []
            told_apart_by = [t0, t1, [column[place] for column in values], behind]
            choice = f", {json.dumps(told_apart_by, ensure_ascii=False)}]"
            withheld_from = tuple([qid for qid, since in withheld if since >= first])
            given = t0, t1, documents, streams, nodes, body, choice
            answers.append(Answer(*given, form, 0, first, first_qid, arrival, withheld_from))
        return answers

    def _behind(self, roots: Sequence[tuple[str, EventOrigin]]) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """Returns the distinct external documents (ids and streams) behind events, and their root nodes as
        `Output.nodes`. `roots` has the events by time, each with a name for its node, or "" for e1, e2, ..."""
        origins = {(origin.docid, origin.nodes): origin for _, origin in roots}.values()
        sources = [source for origin in origins for source in self._records[origin.docid].sources]
        nodes = {
            name or f"e{place}": BoundValue(self._records[origin.docid], plain_node(origin.nodes[0])).json_id()
            for place, (name, origin) in enumerate(roots, 1)
        }
        return tuple([id for id, _ in sources]), tuple([stream for _, stream in sources]), json_nodes(nodes)


def _document(query: Subscription, answer: Answer, arrival: int) -> Record:
    id, sources = query.identity.id(answer.choice.encode()), tuple(zip(answer.documents, answer.streams, strict=True))
    own, xml = (own_part_id(query.name, id),), answer.body.xml(query.name)
    times = answer.t0, answer.t1
    return Record(NO_DOCUMENT, id, query.name, *times, xml, "published", (), own, sources, arrival=arrival)


def events_of_documents(
    store: JoinEngine,
    records: Records,
    placements: Mapping[str, EventPlacement],
    needs_of: Callable[[str], Change],
    ends: range,
    texts: Texts,
) -> Iterator[tuple[str, assemble.Assembled, Ints]]:
    """Yields the definitions' events that end within `ends`, in parts, as `assemble_events` does, without those of
    documents that came too late. Evaluates only these definitions, in a stage 1 of their own."""
    for name, placement in placements.items():
        stage = XPathStage()
        stage.add(needs_of(name))
        for docids in docid_batches(store, [placement.stream], ends=ends, refused=events_run.LATE):
            found = stage.evaluate(map(arriving, records.parsed(docids)))
            witnessed = assemble.Witnessed(found, stage.groups.edges_of, texts)
            yield name, *assemble.assemble_events(placement, witnessed, texts)
            records.release_trees()


class EventBackfill:
    """Forms in a kernel of their own. Those with ids `backfilled` are backfilled; the others publish what they read."""

    def __init__(
        self,
        forms: Mapping[str, EventForm],
        backfilled: Collection[str],
        definitions: Mapping[str, RegisteredDefinition],
        own: events_run.RunningForms,
        stored: Callable[..., Iterator[tuple[str, assemble.Assembled, Ints]]],
        horizon: int,
    ) -> None:
        """`stored` is `events_of_documents` of the store."""
        self.running, self._backfilled, self._horizon = own, backfilled, horizon
        self._placements: dict[str, EventPlacement] = {}
        needs: dict[str, Change] = {}
        catalog = Catalog()
        for form in forms.values():
            for name in read_by(form.stream):
                if name in definitions and name not in needs:
                    self._placements[name], needs[name] = place_events(catalog, definitions[name].pattern)
        own.follow(forms, forms)
        for name, found, _ in stored(self._placements, needs.__getitem__, range(BEGINNING, horizon), own.texts):
            own.take(name, found)

    def take(self, name: str, found: assemble.Assembled) -> None:
        if name in self._placements and (before := found.t1 < self._horizon).any():
            self.running.take(name, found.take(before))

    def release(self) -> Iterator[list[events_run.FormResults]]:
        """Yields the new queries' results, one stratum at a time; answer each before advancing."""
        for results in self.running.run(self._horizon, self._placements):
            yield [found for found in results if found.form_id in self._backfilled]

    def exceeded(self) -> dict[str, Excess]:
        """Returns the new forms over a limit, or all of them if one that they depend on is."""
        found = self.running.exceeded
        behind = [excess for form_id, excess in found.items() if form_id not in self._backfilled]
        known = {form_id: [*behind, *filter(None, [found.get(form_id)])] for form_id in self._backfilled}
        return {form_id: min(several) for form_id, several in known.items() if several}

    def join(self, others: events_run.RunningForms) -> None:
        """Merges the waiting state into that of the other forms."""
        from pattern_stage.kernel import adopted  # loaded once there is a kernel

        kernel = self.running.kernel
        others.counts.adopt(self.running.counts, self._backfilled)
        state: Mapping[str, pa.Table] = others.kernel.state()
        others.take_over(adopted(state, kernel.state(), kernel.parts(), self.running.lineage, others.lineage))


SNAPSHOT_EVERY = 50  # batches between two snapshots


class Patterns:
    """Events, time and kernel of a store. Does nothing without event statements."""

    def __init__(
        self,
        store: JoinEngine,
        ledger: Ledger,
        registry: Registry,
        records: Records,
        make_kernel: events_run.MakeKernel,
        made_of: events_run.MadeOf,
        timing: Timing,
        limits: Quota,
    ) -> None:
        """`limits` bound a form's results; kernels have their own."""
        self._statements, self._catalog = registry.events, registry.catalog
        self._edges_of = registry.stage1.groups.edges_of
        self._store, self._ledger = store, ledger
        self._events_of_documents = partial(events_of_documents, store, records)
        self._forms = partial(events_run.RunningForms, make_kernel, records=records, made_of=made_of, limits=limits)
        self._ids, self._records, self._timing, self._settle = (
            events_run.ids_of(records),
            records,
            timing,
            timing.settle,
        )
        self._since_snapshot = 0
        self._clock: int | None = None
        self._forget()

    def _forget(self) -> None:
        self._running: events_run.RunningForms | None = None
        self._time = events_run.PatternTime.from_setting(self._ledger.setting(events_run.PATTERNS))
        self._rows: list[pa.Table] = []
        self._progress: Progress | None = None  # of the running batch, until it releases events
        self._passed: list[tuple[int, int]] = []
        """The horizons of the running batch, each with the arrival that moved it there, up to that of the release."""
        self.refused: dict[int, str] = {}
        """Documents of the batch whose events no statement receives, and that are dead letters, with reasons."""
        self.missed: dict[str, set[int]] = {}
        """By definition, documents of the batch whose events came too late for statements."""
        self._backfill: EventBackfill | None = None
        self.exceeded_before: Mapping[str, Excess] = {}  # forms that exceeded a limit in the last backfill

    @property
    def running(self) -> events_run.RunningForms:
        return self._running or self._open()

    @property
    def horizon(self) -> Micros:
        return self._time.horizon

    def horizon_at(self, progress: Progress | None, arrival: int) -> Micros:
        """Returns the horizon as of an arrival of the running batch, before it moved anything."""
        if progress is None or progress is not self._progress or self._running is None:
            return self._time.horizon
        known, streams = self._time.greatest, self._outside()
        times = ((stream, (known.get(stream), progress.at(stream, arrival))) for stream in streams)
        at = {stream: max(found) for stream, both in times if (found := [time for time in both if time is not None])}
        return assemble.next_horizon(self._time.horizon, at, streams, self._settle, self._clock)

    def passed_by(self, time: int) -> int:
        """Returns the arrival of the running batch that moved the horizon past a time."""
        return self._passed[bisect_right(self._passed, (time, END))][1]

    @property
    def is_begun(self) -> bool:
        """Whether an event query existed before some batch, so that there is a horizon."""
        return self._time.horizon > BEGINNING

    # ------------------------------------------------------------ statements

    def begin(self, progress: Progress, clock: int | None) -> None:
        """Begins a batch. `clock` is that of live streams."""
        self._progress, self._clock = progress, clock
        self._passed = [(self.horizon, progress.first - 1), (END, progress.last)]
        self.follow()

    def follow(self) -> None:
        if self._running or self._statements.running or self.is_begun:
            self._follow_forms()
            self._pass_over(self._start())
            self._follow_definitions()

    def _follow_forms(self) -> None:
        running = self.running
        if self._statements.changed:
            running.follow(self._statements.running, self._statements.changed)
            self._statements.changed.clear()

    def _start(self) -> Micros:
        """Returns the time from which there is anything to find: the horizon, or later if every form is newer."""
        horizon, forms = self._time.horizon, self._statements.running.values()
        seen = max(horizon, BEGINNING + 1)  # a backfilled form is not newer, even if nothing has moved the horizon
        if any(form.since < seen for form in forms):  # mostly the first one, so that this takes no time
            return horizon
        return min((Micros(form.since + 1) for form in forms), default=horizon)

    def _pass_over(self, horizon: Micros) -> None:
        if horizon > self._time.horizon:
            self.running.buffer.pass_over(horizon)
            self._time.horizon = horizon

    @property
    def moves(self) -> bool:
        return self.is_begun and bool(self._statements.running)

    def first_since(self, greatest: Mapping[str, int], streams: Collection[str]) -> Micros:
        """Returns from when a new statement sees events: the horizon, or after `greatest` times if nothing moves it."""
        if self.moves:
            return Micros(self._start() - 1)
        return Micros(max(self._time.horizon, self._first_horizon(greatest, streams)) - 1)

    def _first_horizon(self, greatest: Mapping[str, int], streams: Collection[str]) -> Micros:
        known = {stream: greatest[stream] for stream in streams if stream in greatest}
        horizon = assemble.next_horizon(BEGINNING, known, known, self._settle)
        return max(horizon, assemble.last_horizon(BEGINNING, known, known, self._settle, lasts=True))

    def _follow_definitions(self) -> None:
        placements, taken, defined = self._statements.placements, self._time.taken, self._statements.definitions
        if gone := [name for name, since in taken.items() if name not in placements or since.id != defined[name].id]:
            self.running.buffer.drop(gone)
            for name in gone:
                del taken[name]
        if new := {name: placement for name, placement in placements.items() if name not in taken}:
            taken |= {name: events_run.DefinitionCursor(defined[name].id, self.running.lineage.next) for name in new}
            ends = range(self._time.horizon, END)
            needs_of, texts = self._statements.needs_of, self.running.texts
            for name, found, crowded in self._events_of_documents(new, needs_of, ends, texts):
                self._take(name, found, crowded)

    # ------------------------------------------------------------ events

    def step(self, witnesses: Witnesses) -> Witnesses:
        placements = self._statements.placements
        if not placements:
            return witnesses
        if self._running is None:
            self.follow()
        joins, events = assemble.told_apart(witnesses, self._catalog.chains)
        witnessed = assemble.Witnessed(events, self._edges_of, self.running.texts)
        for name, placement in placements.items():
            found, crowded = assemble.assemble_events(placement, witnessed, self.running.texts)
            if self._backfill is not None:
                self._backfill.take(name, found)
            self._take(name, found, crowded)
        return joins

    def _take(self, name: str, found: assemble.Assembled, crowded: Ints) -> None:
        for docid in crowded.tolist():
            self.refused.setdefault(docid, f"more than {assemble.MOST_EVENTS:,} events {name}, for patterns")
        if (early := found.t1 < self.horizon_at(self._progress, END)).any():
            late = np.zeros(len(found), np.bool_)
            for docid in distinct(found.docids[early]).tolist():
                record = self._records[docid]
                if (behind := self.horizon_at(self._progress, record.arrival) - record.t1) > 0:
                    late |= found.docids == docid
                    if self._timing.drops(record.stream):
                        self.refused.setdefault(docid, f"{events_run.LATE}: {behind} µs behind what has been released")
                    else:
                        self.missed.setdefault(name, set()).add(docid)
            found = found.take(~late)
        if len(found):
            self._rows.append(events_run.event_rows(name, found, self.running.take(name, found), self.running.texts))

    # ------------------------------------------------------------ release

    def is_due(self, greatest: Mapping[str, int], clock: int | None = None) -> bool:
        return self.moves and self.running.is_due(self._next(greatest, clock))

    def release(self, *, lasts: bool | None = None) -> Iterator[list[events_run.FormResults]]:
        """Advances the horizon to where the batch has come, and yields the results of each stratum; answer each before
        advancing. `lasts` says, at the end of a finite run, whether its state persists."""
        progress = self._progress
        if self._running is None or progress is None:
            return
        moves = ((self.horizon_at(progress, at + 1), at) for at in progress.moves(self._outside()))
        self._passed[1:1] = moves
        self._progress = None  # what comes of that is late for nothing
        while True:
            until = self._next(progress.greatest, self._clock)
            if lasts is not None:
                known = until, self._time.greatest, self._outside(), self._settle
                until = assemble.last_horizon(*known, lasts=lasts, fed=progress.fed)
            if until <= self._time.horizon:
                return
            # What comes of this stratum is compared with the horizon before, so that moves last.
            yield from self.running.run(until, self._statements.placements)
            self._time.horizon = until
            if not self.running.exceeded:
                return
            # What has exceeded a limit holds the others up no more, whichever batch this is noticed in.

    def _next(self, greatest: Mapping[str, int], clock: int | None) -> Micros:
        known = self._time.greatest
        for stream, time in greatest.items():
            known[stream] = max(time, known.get(stream, time))
        return assemble.next_horizon(self._time.horizon, known, self._outside(), self._settle, clock)

    def _outside(self) -> set[str]:
        return self.running.outside(self._statements.placements)

    def exceeded(self) -> Mapping[str, Excess]:
        return self._running.exceeded if self._running else {}

    # ------------------------------------------------------------ backfill

    def begin_backfill(
        self, forms: Mapping[str, EventForm], backfilled: Collection[str], first_new: int, greatest: Mapping[str, int]
    ) -> None:
        """Prepares the backfill of new forms, `backfilled`, and of their sources. Queries from `first_new` on are new.
        Until `backfill`, it collects the events of published documents."""
        self._follow_forms()
        others = self._statements.running
        # What waits in the buffer is for others, if there are any: then all go on together once time moves.
        if self._time.horizon == BEGINNING and all(form.oldest >= first_new for form in others.values()):
            self._pass_over(self._first_horizon(greatest, self._outside()))
        self.follow()
        own = self._forms(Lineage(0, self._ids), texts=self.running.texts)
        definitions, stored = self._statements.definitions, self._events_of_documents
        self._backfill = EventBackfill(forms, backfilled, definitions, own, stored, self._time.horizon)

    def backfill(self) -> Iterator[tuple[list[events_run.FormResults], events_run.RunningForms]]:
        """Yields the new forms' results up to the horizon by stratum, with the forms that found them; answer each
        before advancing. Then merges the new state into the others'."""
        assert self._backfill is not None, "it has begun"
        self.exceeded_before = {}
        for results in self._backfill.release():
            yield results, self._backfill.running
        self.exceeded_before = self._backfill.exceeded()
        self._backfill.join(self.running)
        self._backfill = None
        self._since_snapshot = SNAPSHOT_EVERY  # nothing else has what has joined

    # ------------------------------------------------------------ what waits

    def waiting(self) -> events_run.WaitingCounts | None:
        if not self._statements.running or not (self.is_begun or (self._running and len(self._running.buffer))):
            return None
        _, partials = self.running.kernel.instances()
        first, known = self.running.buffer.first, self._time.greatest
        held = None if first is None else assemble.released_at(first, known, self._outside(), self._settle)
        stream, until = held or (None, None)
        return events_run.WaitingCounts(
            self._time.horizon if self.is_begun else None, len(self.running.buffer), int(partials.sum()), until, stream
        )

    def oldest(self) -> Micros | None:
        """Returns the start of the earliest event that anything waits for, or None."""
        if self._running is None and not self.is_begun:
            return None
        self.running.compact()
        return self.running.lineage.oldest()

    # ------------------------------------------------------------ state

    def keep(self) -> None:
        """Writes, within a batch, what waits now, so that it is restored whatever the statements are then."""
        self.follow()
        self.save(snapshot=True)

    def save(self, *, snapshot: bool = False) -> None:
        """Writes, within the batch, its events, the horizon, and a snapshot, periodically or if it is asked for."""
        running = self._running
        if running is None:
            return
        if running.lineage.crowded or running.texts.crowded:
            running.compact()  # before answers, which have their texts by now, are copied to be stored
        self._time.next = running.lineage.next
        events_run.save_events(self._store, self._ledger, self._time, self._rows)
        self._rows = []
        self._since_snapshot += 1
        if snapshot or self._since_snapshot >= SNAPSHOT_EVERY:
            running.compact()
            parts = running.kernel.state(), running.lineage.table(), running.counts.table()
            waiting = events_run.KernelSnapshot(self._time.horizon, *parts)
            events_run.save_snapshot(self._store, self._ledger.batch, waiting)

    def finish_batch(self, *, committed: bool) -> None:
        """Without a commit, discards the state, to be restored when next needed."""
        if not committed:
            self._forget()
            return
        self.refused, self.missed = {}, {}
        if self._since_snapshot >= SNAPSHOT_EVERY:
            self._since_snapshot = 0

    def _open(self) -> events_run.RunningForms:
        """Restores the last snapshot and replays the events since. Forms and definitions are added at the points where
        they first were, so the waiting state is identical."""
        found = events_run.stored_snapshot(self._store)
        lineage = Lineage(self._time.next, self._ids)
        lineage.restore(found.lineage)
        self._running = running = self._forms(lineage)
        forms, later = self._statements.running, dict[int, list[EventForm]]()
        for form in forms.values():
            if form.since + 1 < found.horizon:
                running.put(form)
            else:
                later.setdefault(form.since + 1, []).append(form)
        self._statements.changed.clear()
        running.kernel.restore(found.kernel)
        running.counts.restore(found.counts, {form.id for form in forms.values() if form.since + 1 < found.horizon})
        schemas = {name: placement.schema for name, placement in self._statements.placements.items()}
        sql = f"SELECT {', '.join(EVENTS.names)} FROM events WHERE t1 >= {found.horizon} ORDER BY number"
        rows = self._store.select(sql).cast(EVENTS)
        ids = {name: definition.id for name, definition in self._statements.definitions.items()}
        taken = {name: since for name, since in self._time.taken.items() if ids.get(name) == since.id}
        for name, events in events_run.events_of(rows, schemas, lineage, running.texts, taken).items():
            running.buffer.add(name, events)
        reached: int = found.horizon
        for start, new in [*sorted(later.items()), (END, [])]:
            if (until := min(start, self._time.horizon)) > reached:
                for _ in running.run(until, self._statements.placements):
                    pass
                running.buffer.pass_over(until)
                reached = until
            for form in new:
                running.put(form)
        return running
