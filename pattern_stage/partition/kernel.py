"""A kernel whose work is done in parts, in other processes: what can be parted there, and all else here."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from common.distinct import distinct
from pattern_stage.columns import Columns, Ints, joined
from pattern_stage.definition import Form, Forms
from pattern_stage.flow import padded, sorted_flow
from pattern_stage.kernel import Kernel, Results
from pattern_stage.limits import NO_LIMITS, Excess, Limits
from pattern_stage.lineage import Lineage
from pattern_stage.matching.template import needs_order
from pattern_stage.partition.apart import named
from pattern_stage.partition.keys import Keys, keys_of, part_of
from pattern_stage.partition.runner import Runner
from pattern_stage.partition.sets import set_numbers
from pattern_stage.partition.split import split
from pattern_stage.partition.work import Done, GroupWork, State, Statement, Told, Work, as_columns, as_table
from pattern_stage.rules import RULE_NAMES, RuleName
from pattern_stage.saved import flat
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import Statement as AnyStatement
from xscl.algebra.events import Schema

MOST_REST = 20
"""After so many intervals without an event for it, a part with anything that waits has work: to let go of what is too
old."""

_NONE = np.zeros(0, np.int64)


@dataclass(slots=True)
class _Group:
    """Statements that read the same streams, parted by the same keys, and what waits for them in each part."""

    keys: Keys
    statements: dict[int, Statement] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)
    waiting: dict[int, tuple[Ints, Ints]] = field(default_factory=dict)
    due: dict[int, int | None] = field(default_factory=dict)
    """For each part a time: nothing becomes known before without another event."""
    rested: dict[int, int] = field(default_factory=dict)
    """How many intervals ago each part that something waits in had work."""

    def also(self, parts: Collection[int], until: int) -> list[int]:
        """Ends an interval, in which some parts have events. Returns those that have work without: something may become
        known there, or they have rested long enough."""
        rested = {part: self.rested.get(part, 0) + 1 for part in self.states if part not in parts}
        found = [
            part
            for part, count in rested.items()
            if _is_before(self.due[part], until) or (count >= MOST_REST and self.waiting[part][1].any())
        ]
        self.rested = {part: count for part, count in rested.items() if part not in found}
        return found

    @property
    def streams(self) -> frozenset[str]:
        """The streams that it reads."""
        return frozenset(name for name, _, _ in self.keys.streams)


class PartitionedKernel:
    """Has the methods of `pattern_stage.kernel.Kernel`, and finds the same.

    Between intervals, what waits in the parts is here, as tables that any process can take over.
    """

    def __init__(
        self,
        texts: Texts,
        lineage: Lineage,
        runner: Runner,
        *,
        rules: Iterable[RuleName] = RULE_NAMES,
        hashed: bool = True,
        limits: Limits = NO_LIMITS,
    ) -> None:
        """`runner` does the work of parts. `rules` and `hashed` are those of `Kernel`. `limits` are for statements that
        cannot be parted."""
        self._texts, self._lineage, self._runner = texts, lineage, runner
        self._rules, self._hashed = tuple(rules), hashed
        self._others = Kernel(texts, lineage, rules=self._rules, hashed=hashed, limits=limits)
        self._forms = Forms()
        self._keys: dict[int, tuple[Form, Keys | None]] = {}
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[int, str] = {}
        self._told: Told | None = None
        self._fed: dict[str, Columns] = {}
        self._open: set[str] = set()

    # ------------------------------------------------------------ statements

    def add(self, statement: int, stream: AnyStatement, since: int) -> None:
        """Adds a statement. It sees what comes from the next interval on, and after `since`."""
        keys = self._keys_of(stream)
        if keys is None:
            self._others.add(statement, stream, since)
            return
        name = hashlib.blake2b(repr(keys.streams).encode(), digest_size=8).hexdigest()
        self._groups.setdefault(name, _Group(keys)).statements[statement] = Statement(statement, stream, since)
        self._group_of[statement] = name
        self._told = None

    def _keys_of(self, stream: AnyStatement) -> Keys | None:
        form = self._forms.form(stream)[0]
        if id(form) not in self._keys:
            self._keys[id(form)] = form, keys_of(form)
        return self._keys[id(form)][1]

    def narrow(self, statement: int, since: int) -> None:
        """Lets a statement see less: only events whose first part has a t1 after `since`."""
        name = self._group_of.get(statement)
        if name is None:
            self._others.narrow(statement, since)
            return
        of = self._groups[name].statements
        of[statement] = of[statement]._replace(since=since)
        self._told = None

    def remove(self, statements: Sequence[int]) -> None:
        """Removes statements, and whatever waits for them alone."""
        others = []
        for statement in statements:
            name = self._group_of.pop(statement, None)
            if name is None:
                others.append(statement)
                continue
            self._told = None
            del self._groups[name].statements[statement]
            if not self._groups[name].statements:
                del self._groups[name]
        if others:
            self._others.remove(others)

    # ------------------------------------------------------------ running

    @property
    def exceeded(self) -> Mapping[int, Excess]:
        """The statements that have exceeded a limit."""
        return self._others.exceeded

    def begin(self, until: int) -> None:
        """Begins an interval, which ends before `until`."""
        self._until, self._fed, self._open = until, {}, set(self._groups)
        self._others.begin(until)

    def feed(self, events: Mapping[str, Columns]) -> list[Results]:
        """Takes all events of some streams in this interval. Returns the results of all statements that no longer
        depend on a stream that is lacking."""
        self._fed |= events
        ready = sorted(name for name in self._open if self._groups[name].streams <= self._fed.keys())
        return [*self._others.feed(events), *self._run(ready)]

    def end(self) -> list[Results]:
        """Ends the interval: streams that are lacking had no events."""
        found = [*self._others.end(), *self._run(sorted(self._open))]
        self._fed = {}
        return found

    def _run(self, names: Sequence[str]) -> list[Results]:
        """Runs groups. A part without events of a group has work there only if something becomes known, and from time
        to time."""
        self._open.difference_update(names)
        work: dict[int, list[GroupWork]] = {}
        for name in names:
            group = self._groups[name]
            parted = self._parted(group)
            for part, events in (parted | {part: {} for part in group.also(parted, self._until)}).items():
                work.setdefault(part, []).append(self._group_work(name, part, events))
        if not work:
            return []
        return self._taken(
            self._runner.run(self._tell(), [Work(part, self._until, some) for part, some in sorted(work.items())])
        )

    def _parted(self, group: _Group) -> dict[int, dict[str, tuple[Schema, Columns]]]:
        found: dict[int, dict[str, tuple[Schema, Columns]]] = {}
        for name, schema, key in group.keys.streams:
            events = self._fed.get(name)
            if events is None or not len(events):
                continue
            of = part_of(key, events, schema, self._texts, self._runner.parts)
            for part in distinct(of).tolist():
                found.setdefault(part, {})[name] = schema, events.take(of == part)
        return found

    def _group_work(self, name: str, part: int, events: Mapping[str, tuple[Schema, Columns]]) -> GroupWork:
        state = self._groups[name].states.get(part, {})
        used = [*_parts_in(state), *(some.parts for _, some in events.values())]
        sent = {stream: (schema, as_table(schema, some, self._texts)) for stream, (schema, some) in events.items()}
        lineage = self._lineage.rows(used)
        ids: Mapping[int, Any] = {}
        if any(needs_order(one.stream) for one in self._groups[name].statements.values()):
            ids = self._lineage.document_ids({docid for docid in lineage["docid"].to_pylist() if docid >= 0})
        return GroupWork(name, sent, state, lineage, ids)

    def _tell(self) -> Told:
        if self._told is None:
            groups = {name: list(group.statements.values()) for name, group in self._groups.items()}
            self._told = Told(uuid.uuid4().hex, groups, self._rules, self._hashed)
        return self._told

    def _taken(self, all_done: Sequence[Done]) -> list[Results]:
        """Takes what was done. Returns the results, those of one schema together."""
        found: dict[Schema, list[tuple[Columns, Ints, Ints]]] = {}
        for done in sorted(all_done, key=lambda one: one.part):
            for one in done.groups:
                numbers, group = set_numbers(one.sets, self._lineage), self._groups[one.group]
                group.states[done.part], group.waiting[done.part] = numbers.in_state(one.state), one.waiting
                group.due[done.part] = one.due
                for schema, table, at, statements in one.found:
                    events = as_columns(schema, table, self._texts)
                    made = Columns(events.t0, events.t1, events.values, numbers.of(events.parts))
                    found.setdefault(schema, []).append((made, at, statements))
        return [_together(schema, some) for schema, some in found.items()]

    # ------------------------------------------------------------ upkeep

    def state(self) -> dict[str, pa.Table]:
        """Returns what waits, as tables by name. Between intervals only."""
        state = self._others.state()
        for name, group in self._groups.items():
            for part, its in group.states.items():
                state |= named(name, part, its)
        return state

    def restore(self, state: Mapping[str, pa.Table]) -> None:
        """Takes over what waited for statements that are here too, whatever their numbers, in this kernel or another,
        with as many parts or others.

        Raises:
            ValueError: if another version has saved it.
        """
        self._others.restore(state)
        if not state:
            return
        for group in self._groups.values():
            kernel = Kernel(self._texts, self._lineage, rules=self._rules, hashed=self._hashed)
            for statement in group.statements.values():
                kernel.add(*statement)
            kernel.restore(state)
            group.states = dict(enumerate(split(kernel, self._texts, self._runner.parts)))
            for part, its in group.states.items():
                kernel.forget()
                kernel.restore(its)
                group.waiting[part], group.due[part] = kernel.instances(), kernel.due()

    def parts(self) -> Iterable[Ints]:
        """Returns the numbers of all events that something which waits was made of, for `Lineage.keep`."""
        yield from self._others.parts()
        for group in self._groups.values():
            for state in group.states.values():
                yield from _parts_in(state)

    def instances(self) -> tuple[Ints, Ints]:
        """Returns statements and how many instances wait for each; those for several count for each."""
        found = [self._others.instances()]
        found += [one for group in self._groups.values() for one in group.waiting.values()]
        statements, counts = (np.concatenate(column) for column in zip(*found, strict=True))
        numbers, at = np.unique(statements, return_inverse=True)
        sums = np.bincount(at, counts, len(numbers)).astype(np.int64)
        there = np.isin(numbers, list(self._group_of)) | np.isin(numbers, found[0][0])
        return numbers[there], sums[there]

    def due(self) -> int | None:
        """Returns a time: nothing becomes known before without another event. None if nothing waits for time alone."""
        times = [self._others.due(), *(time for group in self._groups.values() for time in group.due.values())]
        return min((time for time in times if time is not None), default=None)

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all texts in use here, for `Texts.keep`."""
        return self._others.codes()


def _is_before(time: int | None, until: int) -> bool:
    return time is not None and time < until


def _parts_in(state: State) -> Iterator[Ints]:
    for table in state.values():
        for name in table.column_names:
            if name.endswith("parts"):
                yield flat(table, name)[0]


def _together(schema: Schema, found: Sequence[tuple[Columns, Ints, Ints]]) -> Results:
    """Returns results of several parts as those of one: a statement has all of its own in one place."""
    places = max(events.parts.shape[1] for events, _, _ in found)
    starts = np.cumsum([0, *(len(events) for events, _, _ in found)])
    events = joined([padded(events, places) for events, _, _ in found])
    at = np.concatenate([_NONE, *(at + start for (_, at, _), start in zip(found, starts, strict=False))])
    numbers = np.concatenate([_NONE, *(statements for _, _, statements in found)])
    return Results(schema, sorted_flow(events, at, numbers))
