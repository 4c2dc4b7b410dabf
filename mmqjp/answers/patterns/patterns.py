"""Event patterns in a batch: takes the events of its documents, and releases them to the statements in strata.

The statements run over the epochs between the old horizon and the new one. A stratum is what becomes complete with the
documents of the one before: XSCL answers these in between. What a batch that is rolled back has changed is read from
the store again: a snapshot, and the events since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from mmqjp.answers.patterns.kernels import Kernel, MakeKernel, no_events
from mmqjp.answers.patterns.order import Order
from mmqjp.answers.patterns.parts import Parts
from mmqjp.answers.patterns.results import FormResults, Late, Waiting, by_form, in_order
from mmqjp.answers.patterns.stored import Snapshot, StoredEvents, Taken, events_of, rows_of
from mmqjp.documents.record import Record
from mmqjp.queries.event_registry import EventForm, EventRegistry
from pattern_stage.assemble import MOST_EVENTS, Assembled, assemble
from pattern_stage.columns import Columns, Ints
from pattern_stage.horizon import START, Buffer, Settle, last_horizon, next_horizon
from pattern_stage.lineage import Lineage
from pattern_stage.values import Texts
from pattern_stage.witnessed import EdgesOf, Witnessed, event_chains, told_apart
from templates.catalog import Catalog
from templates.event_places import EventPlacement
from templates.witness import Witnesses

SNAPSHOT_EVERY = 50
"""After so many batches there is another snapshot."""

KeptEvents = Callable[[Mapping[str, EventPlacement], int, Texts], Iterator[tuple[str, Assembled]]]
"""Returns the events of definitions in stored documents that end at a time or later, in parts."""


class Patterns:
    """The events, the time and the kernel of a store. Without event statements it does nothing."""

    def __init__(
        self,
        statements: EventRegistry,
        catalog: Catalog,
        edges_of: EdgesOf,
        stored: StoredEvents,
        records: Mapping[int, Record] | object,
        make_kernel: MakeKernel,
        kept_events: KeptEvents,
        made_of: Callable[[str], Collection[str]],
        *,
        settle: Settle = None,
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> None:
        """`made_of` returns the streams that XSCL queries make a stream of."""
        self._statements, self._catalog, self._edges_of, self._stored = statements, catalog, edges_of, stored
        self._records, self._make_kernel, self._kept_events, self._made_of = records, make_kernel, kept_events, made_of
        self._settle, self._every = settle, snapshot_every
        self._since_snapshot = 0
        self._forget()

    def _forget(self) -> None:
        """Forgets all that can be read from the store again."""
        self._is_open = False
        self._time = self._stored.time()
        self._rows: list[pa.Table] = []
        self._late: dict[int, Late] = {}

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
        if not self._is_open:
            if not self._statements.forms and self._time.horizon == START:
                return
            self._open()
        if self._statements.changed:
            self._follow_forms(self._statements.changed)
        if self._time.horizon == START and self._statements.forms:
            self._time.horizon = min(form.since for form in self._statements.forms.values()) + 1
        self._follow_definitions()

    def first_since(self, greatest: Mapping[str, int], streams: Collection[str]) -> int:
        """Returns since when a new statement over some external streams sees events: from the horizon on. If there is
        none yet, documents that were there before are not for it."""
        if self._time.horizon > START:
            return self._time.horizon - 1
        known = {stream: greatest[stream] for stream in streams if stream in greatest}
        horizon = next_horizon(START, known, known, self._settle)
        return max(horizon, last_horizon(START, known, known, self._settle, lasts=True)) - 1

    def _follow_forms(self, changed: Iterable[str]) -> None:
        forms = self._statements.forms
        gone = []
        for form_id in changed:
            if form_id not in forms and form_id in self._numbers:
                gone.append(number := self._numbers.pop(form_id))
                del self._form_ids[number], self._known[form_id]
                self._order.remove(form_id)
        if gone:  # first, because what others read may be defined otherwise now
            self._kernel.remove(gone)
        for form_id in changed:
            if form_id in forms and self._known.get(form_id) is not forms[form_id]:
                self._add(form_id, forms[form_id])
        self._statements.changed.clear()

    def _add(self, form_id: str, form: EventForm) -> None:
        """Adds a form, or follows a change of its members, which the kernel does not know."""
        if form_id not in self._numbers:
            number = self._numbers[form_id] = self._next_form
            self._next_form += 1
            self._form_ids[number] = form_id
            self._kernel.add(number, form.stream, form.since)
        self._known[form_id] = form
        self._order.add(form)

    def _follow_definitions(self) -> None:
        """Takes the events of new definitions in kept documents, and drops those that nothing reads any more."""
        placements, taken, ids = self._statements.placements, self._time.taken, self._statements.ids
        if gone := [name for name, since in taken.items() if name not in placements or since.id != ids[name]]:
            self._buffer.drop(gone)
            for name in gone:
                del taken[name]
        if new := {name: placement for name, placement in placements.items() if name not in taken}:
            taken |= {name: Taken(ids[name], self._lineage.next) for name in new}
            for name, found in self._kept_events(new, self._time.horizon, self._texts):
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
        witnessed = Witnessed(events, self._edges_of, self._texts)
        for name, placement in placements.items():
            self._take(name, assemble(placement, witnessed, self._texts))
        return joins

    def _take(self, name: str, found: Assembled) -> None:
        """Takes events of a definition, but for those before the horizon."""
        for docid in found.crowded.tolist():
            self._refuse(docid, f"more than {MOST_EVENTS:,} events {name}, for patterns")
        late = found.t1 < self._time.horizon
        if late.any():
            for docid, t1 in dict(zip(found.docids[late].tolist(), found.t1[late].tolist(), strict=True)).items():
                behind = self._time.horizon - t1
                self._refuse(docid, f"late for patterns: {behind} µs behind what has been released")
            found = found.take(~late)
        if not len(found):
            return
        numbers = self._lineage.of_documents(name, found.docids, found.t0, found.t1, found.nodes)
        self._buffer.add(name, Columns(found.t0, found.t1, found.values, numbers.reshape(-1, 1)))
        self._rows.append(rows_of(name, found, numbers, self._texts))

    def _refuse(self, docid: int, reason: str) -> None:
        self._late.setdefault(docid, Late(docid, reason))

    def late(self) -> list[Late]:
        """Returns the documents of the batch whose events no statement gets, each once."""
        return list(self._late.values())

    # ------------------------------------------------------------ release

    def is_due(self, greatest: Mapping[str, int], clock: int | None = None) -> bool:
        """Returns whether anything would be released at these greatest times."""
        return self._is_open and self._buffer.is_due(self._next(greatest, clock))

    def release(
        self, greatest: Mapping[str, int], clock: int | None = None, *, lasts: bool | None = None
    ) -> Iterator[list[FormResults]]:
        """Moves the horizon, and yields the results of each stratum, which the caller answers before it goes on.

        `clock` is that of live streams. `lasts` says, at the end of a finite run, whether its state does.
        """
        if not self._is_open:
            return
        until = self._next(greatest, clock)
        if lasts is not None:
            until = last_horizon(until, self._time.greatest, self._outside(), self._settle, lasts=lasts)
        if until > self._time.horizon:
            # What comes of this stratum is compared with the horizon before, so that moves last.
            yield from self._run(until, self._buffer.release)
            self._time.horizon = until

    def _next(self, greatest: Mapping[str, int], clock: int | None) -> int:
        known = self._time.greatest
        for stream, time in greatest.items():
            known[stream] = max(time, known.get(stream, time))
        return next_horizon(self._time.horizon, known, self._outside(), self._settle, clock)

    def _outside(self) -> set[str]:
        return self._order.outside(self._statements.placements)

    def _run(
        self, until: int, release: Callable[[Sequence[str], int], dict[str, Columns]]
    ) -> Iterator[list[FormResults]]:
        """Runs the statements up to a time, over events that `release` returns."""
        placements = self._statements.placements
        published: dict[str, list[Columns]] = {}
        fed: set[str] = set()
        self._lineage.begin()
        self._kernel.begin(until)
        while ready := self._order.ready(fed, placements):
            events = release(ready, until)
            for name in ready:
                if composed := published.pop(name, None):
                    events[name] = in_order(composed)
            found = self._kernel.feed({name: events.get(name, no_events(self._order.schema(name))) for name in ready})
            fed.update(ready)
            results = by_form(found, self._form_ids)
            self._publish(results, published)
            yield results
        yield by_form(self._kernel.end(), self._form_ids)

    def _publish(self, results: Sequence[FormResults], published: dict[str, list[Columns]]) -> None:
        """Adds results as events of the streams that are read."""
        read = self._order.names()
        parts = Parts(self._lineage, self._records)
        for one in results:
            for publisher in self._known[one.form_id].publishers:
                if publisher.stream in read:
                    events = one.events.take(self._lineage.ends(one.events.parts[:, 0]) > publisher.since)
                    numbers = self._lineage.composed(
                        publisher.stream,
                        parts.digests(publisher.identity, events, self._texts),
                        events.t0,
                        events.t1,
                        events.parts,
                    )
                    composed = Columns(events.t0, events.t1, events.values, numbers.reshape(-1, 1))
                    published.setdefault(publisher.stream, []).append(composed)

    # ------------------------------------------------------------ lineage

    def appeared(self, events: Columns) -> Ints:
        """Returns when the first part of each result ended."""
        return self._lineage.ends(events.parts[:, 0])

    def parts(self) -> Parts:
        """Returns what names the parts of results."""
        return Parts(self._lineage, self._records)

    @property
    def texts(self) -> Texts:
        """The texts of the values of results."""
        return self._texts

    def waiting(self) -> Waiting | None:
        """Returns what waits; None if there is no event query."""
        if not self.is_begun or not self._statements.forms:
            return None
        if not self._is_open:
            self._open()
        _, partial = self._kernel.instances()
        return Waiting(self._time.horizon, len(self._buffer), int(partial.sum()))

    def oldest(self) -> int | None:
        """Returns when the earliest event begins that anything waits for; None if nothing does."""
        if not self._is_open:
            if not self.is_begun:
                return None
            self._open()
        self._compact()
        return self._lineage.oldest()

    def _compact(self) -> None:
        self._lineage.keep([*self._kernel.parts(), *self._buffer.parts()])
        self._texts.keep([*self._kernel.codes(), *self._buffer.codes()])

    # ------------------------------------------------------------ state

    def save(self) -> None:
        """Writes, within the batch, its events and the horizon, and from time to time a snapshot."""
        if not self._is_open:
            return
        self._stored.save_events(self._rows)
        self._rows = []
        self._time.next_number = self._lineage.next
        self._stored.save_time(self._time)
        self._since_snapshot += 1
        if self._since_snapshot >= self._every:
            self._compact()
            kernel = self._kernel.state()
            self._stored.save_snapshot(Snapshot(self._time.horizon, kernel, self._lineage.table()))

    def finish_batch(self, *, committed: bool) -> None:
        """Ends the batch. If it was not committed, all is read from the store again when it is next needed."""
        if not committed:
            self._forget()
            return
        self._late = {}
        if self._since_snapshot >= self._every:
            self._since_snapshot = 0
        if self._is_open and (self._lineage.crowded or self._texts.crowded):
            self._compact()

    def _open(self) -> None:
        """Reads the last snapshot, and runs the statements again over the events from there on."""
        self._texts, self._buffer = Texts(), Buffer()
        found = self._stored.snapshot()
        self._lineage = Lineage(self._time.next_number)
        self._lineage.restore(found.lineage)
        self._kernel: Kernel = self._make_kernel(self._texts, self._lineage)
        self._order = Order(self._made_of)
        self._numbers: dict[str, int] = {}
        self._form_ids: dict[int, str] = {}
        self._known: dict[str, EventForm] = {}
        self._next_form = 0
        self._is_open = True
        self._follow_forms(self._statements.forms)
        self._kernel.restore(found.kernel)
        schemas = {name: placement.schema for name, placement in self._statements.placements.items()}
        rows = self._stored.events_from(found.horizon)
        taken = {name: since for name, since in self._time.taken.items() if self._statements.ids.get(name) == since.id}
        for name, events in events_of(rows, schemas, self._lineage, self._texts, taken).items():
            self._buffer.add(name, events)
        if self._time.horizon > found.horizon:
            for _ in self._run(self._time.horizon, self._buffer.release):
                pass
