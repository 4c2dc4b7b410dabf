"""Event queries at work: a kernel with their forms, the events that wait for it, and a run over these in strata.

A stratum is what becomes complete with the documents of the one before: XSCL answers these in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from mmqjp.answers.patterns.kernels import Kernel, MakeKernel, no_events
from mmqjp.answers.patterns.order import MadeOf, Order
from mmqjp.answers.patterns.parts import Parts
from mmqjp.answers.patterns.results import FormResults, by_form, in_order
from mmqjp.documents.records import Records
from mmqjp.queries.event_registry import EventForm, Publisher
from mmqjp.queries.pattern_items import told
from pattern_stage.assemble import Assembled
from pattern_stage.columns import Columns, Ints
from pattern_stage.horizon import Buffer
from pattern_stage.limits import NO_LIMITS, Excess, Limits
from pattern_stage.lineage import Lineage
from pattern_stage.values import Texts
from templates.event_places import EventPlacement
from xscl.algebra.event_sequences import NearPattern, Pattern, Statement


class Running:
    """Forms of event queries in a kernel. `lineage` and `texts` say what its numbers and codes stand for."""

    def __init__(
        self,
        make_kernel: MakeKernel,
        lineage: Lineage,
        records: Records,
        made_of: MadeOf,
        texts: Texts | None = None,
        limits: Limits = NO_LIMITS,
    ) -> None:
        """With `texts`, others use them, too. Of `limits`, the kernel knows its own."""
        self.lineage, self.texts, self.buffer = lineage, Texts() if texts is None else texts, Buffer()
        self._make_kernel, self._records = make_kernel, records
        self.kernel: Kernel = make_kernel(self.texts, lineage)
        self._most = limits.matches
        self.exceeded: dict[str, Excess] = {}
        """The forms that have exceeded a limit: when, and which one. They have no results from then on, until they are
        followed again."""
        self._order = Order(made_of)
        self._numbers: dict[str, int] = {}
        self._form_ids: dict[int, str] = {}
        self._known: dict[str, EventForm] = {}
        self._next_form = 0

    # ------------------------------------------------------------ forms

    def follow(self, forms: Mapping[str, EventForm], changed: Iterable[str]) -> None:
        """Brings the kernel in step with forms, of which some have come, changed or gone."""
        gone = []
        changed = dict.fromkeys([*changed, *self.exceeded])
        for form_id in changed:
            if (form_id not in forms or form_id in self.exceeded) and form_id in self._numbers:
                gone.append(number := self._numbers.pop(form_id))
                del self._form_ids[number], self._known[form_id]
                self._order.remove(form_id)
        if gone:  # first, because what others read may be defined otherwise now
            self.kernel.remove(gone)
        self.exceeded = {}
        for form_id in changed:
            if form_id in forms and self._known.get(form_id) is not forms[form_id]:
                self.put(forms[form_id])

    def put(self, form: EventForm) -> None:
        """Adds a form, or follows a change of its members. The kernel knows nothing of these but the least `since`."""
        form_id = form.id
        known = self._known.get(form_id)
        if known is None or form.since < known.since:
            before = self._numbers.get(form_id)
            number = self._numbers[form_id] = self._next_form
            self._next_form += 1
            self._form_ids[number] = form_id
            self.kernel.add(number, told(form.stream), form.since)
            if before is not None:  # only now, so that what waits for its rows stays
                del self._form_ids[before]
                self.kernel.remove([before])
        elif form.since > known.since:
            self.kernel.narrow(self._numbers[form_id], form.since)
        self._known[form_id] = form
        self._order.add(form)

    def take_over(self, state: Mapping[str, pa.Table]) -> None:
        """Puts a state in the place of all that waits in the kernel, in a new one."""
        self.kernel = self._make_kernel(self.texts, self.lineage)
        for form_id, number in self._numbers.items():
            form = self._known[form_id]
            self.kernel.add(number, told(form.stream), form.since)
        self.kernel.restore(state)

    def outside(self, placements: Mapping[str, EventPlacement]) -> set[str]:
        """Returns the external streams behind any form that has not exceeded a limit."""
        return self._order.outside(placements, self.exceeded)

    # ------------------------------------------------------------ events

    def take(self, name: str, found: Assembled) -> Ints:
        """Takes events of a definition, which wait from now on. Returns their numbers."""
        numbers = self.lineage.of_documents(name, found.docids, found.t0, found.t1, found.nodes)
        self.buffer.add(name, Columns(found.t0, found.t1, found.values, numbers.reshape(-1, 1)))
        return numbers

    def run(self, until: int, placements: Mapping[str, EventPlacement]) -> Iterator[list[FormResults]]:
        """Runs the forms over the events that wait and end before a time. Yields the results of each stratum, which
        the caller answers before it goes on."""
        published: dict[str, list[Columns]] = {}
        fed: set[str] = set()
        self.lineage.begin()
        self.kernel.begin(until)
        while ready := self._order.ready(fed, placements):
            events = self.buffer.release(ready, until)
            for name in ready:
                if composed := published.pop(name, None):
                    events[name] = in_order(composed)
            found = self.kernel.feed({name: events.get(name, no_events(self._order.schema(name))) for name in ready})
            fed.update(ready)
            results = self._in_limits(by_form(found, self._form_ids))
            self._publish(results, published)
            yield results
        yield self._in_limits(by_form(self.kernel.end(), self._form_ids))

    def _in_limits(self, results: Iterable[FormResults]) -> list[FormResults]:
        """Returns what forms have before they exceed a limit."""
        for number, excess in self.kernel.exceeded.items():
            self._exceed(self._form_ids[number], excess)
        kept = []
        for one in results:
            if len(one.events) > self._most:
                times, counts = np.unique(one.events.t1, return_counts=True)
                for time in times[counts > self._most][:1].tolist():
                    self._exceed(one.form_id, Excess(time, "matches"))
            if (known := self.exceeded.get(one.form_id)) is not None:
                one = replace(one, events=one.events.take(one.events.t1 < known.time))
            if len(one.events):
                kept.append(one)
        return kept

    def _exceed(self, form_id: str, excess: Excess) -> None:
        self.exceeded[form_id] = min(self.exceeded.get(form_id, excess), excess)

    def _publish(self, results: Sequence[FormResults], published: dict[str, list[Columns]]) -> None:
        """Adds results as events of the streams that are read."""
        read = self._order.names()
        for one in results:
            form = self._known[one.form_id]
            for publisher in form.publishers:
                if publisher.stream in read:
                    began = self.lineage.ends(one.events.parts[:, 0])
                    places = (began > publisher.since) & (one.events.t1 <= publisher.until)
                    events = replace(one.events, values=one.events.values[: len(form.stream.schema)]).take(places)
                    published.setdefault(publisher.stream, []).append(self._composed(publisher, form.stream, events))

    def _composed(self, publisher: Publisher, statement: Statement, events: Columns) -> Columns:
        """Returns results as events. Of a PATTERN, matches of the same events with the same values are one event."""
        is_pattern = isinstance(statement, Pattern | NearPattern)
        digests = self.parts().digests(publisher.identity, events, self.texts, ordered=not is_pattern)
        if is_pattern:
            first = {digest: place for place, digest in reversed([*enumerate(digests)])}
            if len(first) < len(digests):
                places = sorted(first.values())
                digests, events = [digests[place] for place in places], events.take(np.array(places, np.int64))
        numbers = self.lineage.composed(publisher.stream, digests, events.t0, events.t1, events.parts)
        return Columns(events.t0, events.t1, events.values, numbers.reshape(-1, 1))

    # ------------------------------------------------------------ what results are made of

    def appeared(self, events: Columns) -> Ints:
        """Returns when the first part of each result ended."""
        return self.lineage.ends(events.parts[:, 0])

    def parts(self) -> Parts:
        """Returns what names the parts of results."""
        return Parts(self.lineage, self._records)

    # ------------------------------------------------------------ upkeep

    def is_due(self, until: int) -> bool:
        """Returns whether anything would be told by a run until a time: there are events before, or something becomes
        known by then."""
        due = self.kernel.due()
        return self.buffer.is_due(until) or (due is not None and due < until)

    def waiting(self) -> int:
        """Returns how many partial matches wait for a partner, those of several forms for each."""
        _, partial = self.kernel.instances()
        return int(partial.sum())

    def compact(self) -> None:
        """Forgets the numbers and texts that nothing which waits has."""
        self.lineage.keep([*self.kernel.parts(), *self.buffer.parts()])
        self.texts.keep([*self.kernel.codes(), *self.buffer.codes()])

    @property
    def is_crowded(self) -> bool:
        """Whether it is time for that."""
        return self.lineage.crowded or self.texts.crowded
