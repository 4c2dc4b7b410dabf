"""Event patterns in a batch: takes the events of its documents, and releases them to the statements in strata.

The statements run over the epochs between the old horizon and the new one. A stratum is what becomes complete with the
documents of the one before: XSCL answers these in between. What a batch that is rolled back has changed is read from
the store again: a snapshot, and the events since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa

from mmqjp.answers.patterns.backfill import EventBackfill
from mmqjp.answers.patterns.kept import KeptDocuments
from mmqjp.answers.patterns.kernels import MakeKernel
from mmqjp.answers.patterns.order import MadeOf
from mmqjp.answers.patterns.parts import ids_of
from mmqjp.answers.patterns.results import LATE, FormResults, Late, Waiting
from mmqjp.answers.patterns.running import Running
from mmqjp.answers.patterns.stored import Snapshot, StoredEvents, Taken, events_of, rows_of
from mmqjp.documents.records import Records
from mmqjp.queries.event_registry import EventForm, EventRegistry
from pattern_stage.assemble import MOST_EVENTS, Assembled, assemble
from pattern_stage.horizon import END, START, Settle, last_horizon, next_horizon
from pattern_stage.limits import NO_LIMITS, Excess, Limits
from pattern_stage.lineage import Lineage
from pattern_stage.witnessed import EdgesOf, Witnessed, event_chains, told_apart
from templates.catalog import Catalog
from templates.witness import Witnesses

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
        kept: KeptDocuments,
        made_of: MadeOf,
        *,
        settle: Settle = None,
        snapshot_every: int = SNAPSHOT_EVERY,
        limits: Limits = NO_LIMITS,
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
        """Returns the first horizon: what the documents of some streams that are there have passed."""
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
            taken |= {name: Taken(ids[name], self.running.lineage.next) for name in new}
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
            found = assemble(placement, witnessed, self.running.texts)
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
        self._rows.append(rows_of(name, found, numbers, self.running.texts))

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
        own = Running(self._make_kernel, lineage, self._records, self._made_of, self.running.texts, self._limits)
        self._backfill = EventBackfill(forms, told, self._statements.definitions, own, self._kept, self._time.horizon)

    def backfill(self) -> Iterator[tuple[list[FormResults], Running]]:
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

    def waiting(self) -> Waiting | None:
        """Returns what waits; None if there is no event query."""
        if not self.is_begun or not self._statements.forms:
            return None
        if not self._is_open:
            self._open()
        return Waiting(self._time.horizon, len(self.running.buffer), self.running.waiting())

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
            self._stored.save_snapshot(Snapshot(self._time.horizon, kernel, self.running.lineage.table()))

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
        self.running = running = Running(self._make_kernel, lineage, self._records, self._made_of, limits=self._limits)
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
