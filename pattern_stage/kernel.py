"""Runs the plan of all event statements over events, an interval at a time, and keeps what waits for later ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from pattern_stage import snapshot
from pattern_stage.columns import Column, Columns, Ints, Mask
from pattern_stage.fan_out import FanOut
from pattern_stage.flow import Flow, whole
from pattern_stage.limits import NO_LIMITS, Excess, Limits, Meter
from pattern_stage.making import due, make_operator
from pattern_stage.operators import Lineage as Together
from pattern_stage.operators import Operator
from pattern_stage.partition.apart import states
from pattern_stage.plan import Changes, MOp, Plan
from pattern_stage.rules import RULE_NAMES, Key, Placement, RuleName
from pattern_stage.simultaneous import Simultaneous
from pattern_stage.statements import Statements
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import Statement
from xscl.algebra.events import Schema


class Lineage(Together, Protocol):
    """Knows what the numbers of parts stand for."""

    def ends(self, numbers: Ints) -> Ints:
        """Returns the t1 of the events with these numbers."""


@dataclass(frozen=True, slots=True)
class Results:
    """Results of statements of one schema: statement `statements[i]` has the event `events[at[i]]`."""

    schema: Schema
    flow: Flow
    """Its rows are the numbers of statements."""

    def __len__(self) -> int:
        return len(self.flow)

    @property
    def events(self) -> Columns:
        """The events, which are sorted by t1."""
        return self.flow.events

    @property
    def at(self) -> Ints:
        """The event of each result."""
        return self.flow.at

    @property
    def statements(self) -> Ints:
        """The statement of each result."""
        return self.flow.rows


class Kernel:
    """All event statements, and the instances that wait for them.

    A statement has a number, and `since`: it sees only events whose first part has a t1 after it. The events of an
    interval are given stream by stream: an m-op runs as soon as all streams that it depends on are there.
    """

    def __init__(
        self,
        texts: Texts,
        lineage: Lineage,
        *,
        rules: Iterable[RuleName] = RULE_NAMES,
        hashed: bool = True,
        merged: bool = True,
        limits: Limits = NO_LIMITS,
    ) -> None:
        """`rules` are those of `pattern_stage.rules` that are on. `hashed`: one dynamic equality of a condition is
        hashed. `merged`: runs of a PATTERN that remember the same are one. A statement that exceeds one of the `limits`
        is in `exceeded`."""
        self.texts = texts
        self.plan = Plan(texts, rules)
        self.statements = Statements(self.plan)
        self._lineage, self._hashed, self._merged, self._limits = lineage, hashed, merged, limits
        self._operators: dict[int, Operator] = {}
        self._meters: dict[int, Meter] = {}
        self._shared: dict[Key, Simultaneous] = {}
        self._exceeded: dict[int, Excess] = {}
        self._readers: dict[int, FanOut] = {}
        self._flows: dict[int, Flow] = {}
        self._due: tuple[int | None] | None = None
        self._ran: set[int] = set()
        self._order: list[MOp] = []

    # ------------------------------------------------------------ statements

    def add(self, statement: int, stream: Statement, since: int) -> None:
        """Adds a statement. It sees what comes from the next interval on, and after `since`."""
        self.statements.add(statement, stream, since)

    def narrow(self, statement: int, since: int) -> None:
        """Lets a statement see less: only events whose first part has a t1 after `since`."""
        self._settle()
        self.statements.narrow(statement, since)

    def remove(self, statements: Sequence[int]) -> None:
        """Removes statements, and whatever waits for them alone."""
        self._settle()
        for statement in statements:
            self._exceeded.pop(statement, None)
        removed = self.statements.remove(statements)
        for number, slots in removed.slots.items():
            self._readers[number].remove(slots)
        self._follow_removed(removed.rows)
        for mop in removed.mops:
            if mop.number in self._operators:
                self._stop_sharing(mop)
            self._operators.pop(mop.number, None)
            self._meters.pop(mop.number, None)
            self._readers.pop(mop.number, None)

    def _follow_removed(self, rows: Changes) -> None:
        for number, gone in rows.items():
            self._operators[number].remove_rows(gone)
            self.plan.mops[number].rows.free(gone)

    def _settle(self) -> None:
        """Brings statements that were added into the plan, and their rows to the operators."""
        added = self.statements.settle()
        for number, (slots, rows) in added.slots.items():
            self._readers.setdefault(number, FanOut()).add(slots, rows)
        self._make_operators()
        for number, new in added.rows.items():
            self._operators[number].add_rows(new)

    def _make_operators(self) -> None:
        for mop in self.plan:
            if mop.placement is not None and mop.number not in self._operators:
                meter = self._meters[mop.number] = Meter(self._limits)
                self._operators[mop.number] = make_operator(
                    mop.definitions,
                    mop.rows,
                    self.texts,
                    self._lineage,
                    meter,
                    partial(self._sees, mop.number),
                    self._sharing(mop, mop.placement),
                    hashed=self._hashed,
                    indexed=mop.placement.hashed,
                    merged=self._merged,
                )

    def _sharing(self, mop: MOp, placement: Placement) -> Simultaneous | None:
        """Returns what an m-op has in common with others."""
        key = placement.partial
        if key is None:
            return None
        if key not in self._shared:
            self._shared[key] = Simultaneous(self.plan.mops[mop.inputs[0]].schema, self.texts, self._lineage)
        self._shared[key].add(mop.number, mop.definitions[0])  # type: ignore[arg-type]  # it is an AGGREGATE
        return self._shared[key]

    def _stop_sharing(self, mop: MOp) -> None:
        key = mop.placement.partial if mop.placement else None
        if key is not None:
            self._shared[key].remove(mop.number)
            if not len(self._shared[key]):
                del self._shared[key]

    # ------------------------------------------------------------ running

    def run(self, events: Mapping[str, Columns], until: int) -> list[Results]:
        """Runs an interval as a whole: `events` has the events of all streams with t1 before `until`, from the last
        `until` on, sorted by t1. A stream that is not there had none. Returns the results."""
        self.begin(until)
        found = self.feed(events)
        return found + self.end()

    @property
    def exceeded(self) -> Mapping[int, Excess]:
        """The statements that have exceeded a limit, which have no results from then on, until they are removed."""
        return self._exceeded

    def begin(self, until: int) -> None:
        """Begins an interval, which ends before `until`."""
        self._settle()
        self._until, self._order, self._due = until, list(self.plan), None
        self._flows, self._ran = {}, set()

    def feed(self, events: Mapping[str, Columns]) -> list[Results]:
        """Takes all events of some streams in this interval. Returns the results of all statements that no longer
        depend on a stream that is lacking."""
        return self._advance(events, last=False)

    def end(self) -> list[Results]:
        """Ends the interval: streams that are lacking had no events. Returns the results of what depends on them."""
        found = self._advance({}, last=True)
        self._flows, self._order = {}, []
        for shared in self._shared.values():
            shared.forget()
        return found

    def _advance(self, events: Mapping[str, Columns], *, last: bool) -> list[Results]:
        found: list[Results] = []
        for mop in self._order:
            if mop.number in self._ran:
                continue
            if mop.placement is None:
                if mop.stream not in events and not last:
                    continue
                flow = whole(events[mop.stream] if mop.stream in events else no_events(mop.schema))
            elif all(number in self._ran for number in mop.inputs):
                inputs = [self._flows[number] for number in mop.inputs]
                flow = self._operators[mop.number].run(inputs, self._until)
                if exceeded := self._meters[mop.number].taken():
                    self._exceed(mop, exceeded)
            else:
                continue
            self._flows[mop.number] = flow
            self._ran.add(mop.number)
            readers = self._readers.get(mop.number)
            if readers is not None and len(flow):
                found += self._results(mop, flow, readers)
        return found

    def _sees(self, mop: int, row: int, firsts: Ints) -> Mask:
        """Returns which events any statement of a row sees, given their first parts."""
        statements, _ = self.statements.of_rows(mop, np.array([row]))
        seen: Mask = self._lineage.ends(firsts) > min(map(self.statements.since_of, statements), default=1 << 62)
        return seen

    def _exceed(self, mop: MOp, rows: Mapping[int, Excess]) -> None:
        """Follows that rows exceed a limit."""
        for statement, row in zip(*self.statements.of_rows(mop.number, np.array(sorted(rows), np.int64)), strict=True):
            self._exceeded[statement] = min(self._exceeded.get(statement, rows[row]), rows[row])

    def _results(self, mop: MOp, flow: Flow, readers: FanOut) -> list[Results]:
        read = self._read(flow, readers)
        return [Results(mop.schema, read)] if len(read) else []

    def _read(self, flow: Flow, readers: FanOut) -> Flow:
        """Returns events of rows as those of the statements that read them."""
        ids = self.statements.ids
        all_see = self.statements.newest < int(flow.events.t0.min())
        if all_see and flow.stretches is not None and not self._exceeded:
            places, slots = readers.of(flow.stretches.rows)
            return Flow.of(flow.events, flow.stretches.through(places, ids[slots]))
        places, slots = readers.of(flow.rows)
        at = flow.at[places]
        if self._exceeded:
            kept = self._before_excess(ids[slots], flow.events.t1[at])
            at, slots = at[kept], slots[kept]
        if all_see:
            return Flow(flow.events, at, ids[slots])
        since = self.statements.since[slots]
        seen = flow.events.t0[at] > since
        # An event may have begun before, as long as its first part ended after.
        unclear = np.flatnonzero(~seen & (flow.events.t1[at] > since))
        if len(unclear):
            seen[unclear] = self._lineage.ends(flow.events.parts[at[unclear], 0]) > since[unclear]
        return Flow(flow.events, at[seen], ids[slots[seen]])

    def _before_excess(self, statements: Ints, times: Ints) -> Mask:
        """Returns which results of these times come before their statements exceed a limit, if they do."""
        over = np.array(sorted(self._exceeded), np.int64)
        ends = np.array([self._exceeded[one].time for one in over.tolist()], np.int64)
        place = np.minimum(np.searchsorted(over, statements), len(over) - 1)
        before: Mask = (over[place] != statements) | (times < ends[place])
        return before

    # ------------------------------------------------------------ upkeep

    def state(self) -> dict[str, pa.Table]:
        """Returns what waits, as tables by name. Between intervals only."""
        self._settle()
        return snapshot.save(self.plan, self._operators)

    def restore(self, state: Mapping[str, pa.Table]) -> None:
        """Takes over what waited for statements that are here too, whatever their numbers, in a kernel or in the parts
        of one.

        Raises:
            ValueError: if another version has saved it.
        """
        self._settle()
        self._due = None
        for one in states(state):
            snapshot.restore(self.plan, self._operators, one)

    def forget(self) -> None:
        """Forgets all that waits. Between intervals only."""
        self._settle()
        self._due = None
        self._operators.clear()
        self._make_operators()
        for number, operator in self._operators.items():
            operator.add_rows(self.plan.mops[number].rows.numbers())

    def names(self) -> dict[int, str]:
        """Returns the names of the m-ops in a state, by their numbers."""
        self._settle()
        keys = snapshot.Keys(self.plan)
        return {mop.number: keys.name(mop) for mop in self.plan}

    def parts(self) -> Iterable[Ints]:
        """Returns the numbers of all events that something which waits was made of, for `Lineage.keep`."""
        return snapshot.parts(self._operators)

    def instances(self) -> tuple[Ints, Ints]:
        """Returns statements and how many instances wait for each; those for several count for each."""
        self._settle()
        return self.statements.sums({number: one.waiting() for number, one in self._operators.items()})

    def due(self) -> int | None:
        """Returns a time: no statement has a result with t1 before it without another event. None if nothing waits for
        time alone. Between intervals only."""
        if self._due is None:
            times = map(due, self._operators.values())
            self._due = (min((time for time in times if time is not None), default=None),)
        return self._due[0]

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all texts in use here, for `Texts.keep`."""
        self._settle()
        for mop in self.plan:
            for column in mop.rows.parameters:
                if column.dtype == np.int64:
                    yield column[mop.rows.numbers()].astype(np.int64)
        for operator in self._operators.values():
            yield from operator.codes()


def no_events(schema: Schema) -> Columns:
    """Returns no events of a schema."""
    none = np.zeros(0, np.int64)
    values: tuple[Column, ...] = tuple(np.zeros(0, np.int64) if kind == "string" else np.zeros(0) for _, kind in schema)
    return Columns(none, none, values, np.zeros((0, 1), np.int64))
