"""The kernel: runs the plan of all event statements over events, an interval at a time, with state between intervals.
State is saved as tables that any process can restore: rows have keys, digests of what they are. A saved state may
consist of several parts, whose groups may share rows. A kernel can also adopt another's state, whose events were
numbered separately: known events keep their numbers, and shared state is kept once."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from common.arrays import Ints, Mask, distinct
from common.bounds import END, Micros
from common.limits import UNLIMITED, Excess, Quota, note_excess
from pattern_stage.aggregate import Aggregating, SessionAggregating, Simultaneous
from pattern_stage.columns import Columns, Flow, no_events, whole
from pattern_stage.fan_out import RowReaders
from pattern_stage.lineage import COMPOSED, DIGEST_NUMBERS, LINEAGE, TOGETHER, Lineage
from pattern_stage.operators import Filtering, Meter, MOpContext, PatternOp, Renumber, Selecting, Uniting
from pattern_stage.partition.keys import Numbers
from pattern_stage.pattern.host import is_keyed
from pattern_stage.pattern.runs import RunMatching
from pattern_stage.pattern.sets import SetMatching
from pattern_stage.pattern.together import SumMatching
from pattern_stage.pattern.with_errors import NearMatching
from pattern_stage.plan import RULE_NAMES, EventPlan, MOp, MOpKey, RuleName, extra_columns, is_aggregate
from pattern_stage.sequence import Folding, Preceding, Sequencing
from pattern_stage.statements import Statements
from pattern_stage.stories import StoryTelling
from pattern_stage.values import Texts, flatten_lists, ints, lists
from xscl.algebra.events import (
    Aggregate,
    Filter,
    Fold,
    Latest,
    NearPattern,
    Next,
    Pattern,
    Schema,
    Select,
    Sessions,
    Statement,
    Stories,
    Together,
    Union,
)

_ROWS = "/rows"

_NUMBERS = frozenset(("rows", "row", "event", "origin"))  # columns with numbers in a state

SavedState = Mapping[str, pa.Table]


def states(saved: SavedState) -> Iterator[SavedState]:
    """Yields the states saved as one, deduplicated across groups. Parts of a group are disjoint; groups may overlap. A
    part's tables are named `GROUP.PART NAME`."""
    states_of: dict[str, dict[str, pa.Table]] = {}
    for key in sorted(saved):
        part, _, name = key.rpartition(" ")
        states_of.setdefault(part, {})[name] = saved[key]
    groups = [list(parts) for _, parts in groupby(states_of.items(), key=lambda one: one[0].rpartition(".")[0])]
    held = Counter(name for parts in groups for name in {name for _, state in parts for name in state})
    common = {name for name, count in held.items() if count > 1 and name + _ROWS in held}
    seen: dict[str, set[Hashable]] = {name: set() for name in common}
    for parts in groups:
        new: dict[str, Counter[Hashable]] = {name: Counter() for name in common}
        for _, state in parts:
            mine = dict(state)
            for name in common & state.keys():
                mine[name] = _unseen(state[name], state[name + _ROWS], seen[name], new[name])
            yield mine
        for name in common:
            seen[name].update(new[name])


def _unseen(table: pa.Table, rows: pa.Table, seen: set[Hashable], new: Counter[Hashable]) -> pa.Table:
    """Returns a table of state without what other groups have, and counts all of it in `new`. Equal events in windows
    are counted as a multiset: the maximum over groups remains."""
    keys = dict(zip(ints(rows, "row").tolist(), rows["key"].to_pylist(), strict=True))
    columns = [table[name].to_pylist() for name in table.column_names if name not in _NUMBERS]
    instances = [repr(values) for values in zip(*columns, strict=True)]
    if is_keyed(table):
        instances = [""] * len(table)  # runs of a row are those of the first group that has any
    if "rows" not in table.column_names:  # windows of AGGREGATE
        kept = []
        for row, instance in zip(ints(table, "row").tolist(), instances, strict=True):
            new[keys[row], instance] += 1
            numbered = keys[row], instance, new[keys[row], instance]
            new[numbered] = 1
            kept.append(numbered not in seen)
        return table.filter(pa.array(kept, pa.bool_()))
    numbers, sizes = flatten_lists(table, "rows")
    of = np.repeat(np.arange(len(sizes)), sizes)
    pairs = [(keys[row], instances[at]) for row, at in zip(numbers.tolist(), of.tolist(), strict=True)]
    new.update(pairs)
    there = np.array([pair not in seen for pair in pairs], np.bool_)
    counts: Ints = np.bincount(of[there], minlength=len(sizes))
    place = table.column_names.index("rows")
    return table.set_column(place, "rows", lists(numbers[there], counts)).filter(pa.array(counts > 0))


def adopted(
    state: SavedState, others: SavedState, parts: Iterable[Ints], theirs: Lineage, ours: Lineage
) -> dict[str, pa.Table]:
    """Returns a state merged with `others`, which have seen all that it has; their `parts`, numbered in `theirs`, are
    renumbered in `ours`. Both may be saved in parts, and are groups now."""
    found: dict[str, pa.Table] = {}
    for number, one in enumerate([_numbers(theirs.rows(parts), ours).in_state(others), state]):
        for key, table in one.items():
            group, _, name = key.rpartition(" ")
            group, _, part = group.rpartition(".")
            found[f"{number}-{group}.{part or 0} {name}"] = table
    return found


def _numbers(rows: pa.Table, ours: Lineage) -> Numbers:
    known = {_key(row, row["refers"]): row["number"] for row in ours.table().to_pylist()}
    number_of: dict[int, int] = {-1: -1}
    new: list[dict[str, object]] = []
    for row in sorted(rows.to_pylist(), key=lambda row: row["number"]):  # what a set or an event is made of is less
        digits = {TOGETHER: 0, COMPOSED: DIGEST_NUMBERS}.get(row["docid"], len(row["refers"]))
        refers = [*row["refers"][:digits], *map(number_of.__getitem__, row["refers"][digits:])]
        key = _key(row, refers)
        if (number := known.get(key)) is None:
            number = known[key] = ours.next + len(new)
            new.append(row | {"number": number, "refers": refers})
        number_of[row["number"]] = number
    ours.restore(pa.Table.from_pylist(new, LINEAGE))
    theirs = np.array(sorted(number_of), np.int64)
    return Numbers(theirs, np.array([number_of[number] for number in theirs.tolist()], np.int64))


def _key(row: Mapping[str, Any], refers: list[int]) -> Hashable:
    if row["docid"] == TOGETHER:
        return frozenset(refers) - {-1}
    if row["docid"] == COMPOSED:
        return row["stream"], tuple(refers[:DIGEST_NUMBERS])
    return row["stream"], row["docid"], tuple(node for node in refers if node >= 0)


_OPERATORS: Mapping[type, Callable[[MOpContext], PatternOp]] = {
    Filter: Filtering,
    Select: Selecting,
    Union: Uniting,
    Next: Sequencing,
    Latest: Preceding,
    Fold: Folding,
    NearPattern: NearMatching,
    Stories: StoryTelling,
}


def make_operator(context: MOpContext, shared: Simultaneous | None) -> PatternOp:
    """Creates the operator of an m-op; `shared` is the state shared by AGGREGATEs."""
    match context.definitions[0]:
        case Sessions():
            return SessionAggregating(context, shared)
        case Aggregate():
            return Aggregating(context, shared)
        case Together():
            return SumMatching(context)
        case Pattern(has_sets=has_sets, maximal=maximal):
            return SetMatching(context) if has_sets or maximal else RunMatching(context)
        case first:
            return _OPERATORS[type(first)](context)


FORMAT = 1  # version of the saved format

_FORMAT = "format"


class SnapshotKeys:
    """Names of m-ops and keys of rows: digests that are the same in every process."""

    def __init__(self, plan: EventPlan) -> None:
        self._plan = plan
        self._names: dict[int, str] = {}
        self._definitions = {
            mop.number: {shape: (definition.name, places) for definition, (shape, places) in mop.shapes.items()}
            for mop in plan
        }

    def name(self, mop: MOp) -> str:
        if (found := self._names.get(mop.number)) is None:
            inputs = [self.name(self._plan.mops[number]) for number in mop.inputs]
            kind = "source" if mop.placement is None else repr(mop.placement.key[:-1])
            found = self._names[mop.number] = _digest((kind, mop.stream, mop.schema, inputs)).hex()
        return found

    def of(self, mop: MOp, rows: Ints, *, stored: bool = False) -> list[bytes]:
        """Returns the keys of an m-op's rows. `stored`: rows that share a store get the same key."""
        if mop.placement is None:
            return [mop.stream.encode()] * len(rows)
        sides = []
        for column, number in zip((mop.rows.left, mop.rows.right), mop.inputs, strict=False):
            distinct, at = np.unique(column[rows], return_inverse=True)
            keys = self.of(self._plan.mops[number], distinct)
            sides.append([keys[place] for place in at.tolist()])
        texts = self._plan.texts
        columns = [
            texts.texts(column[rows].astype(np.int64)) if column.dtype == np.int64 else column[rows].tolist()
            for column in mop.rows.parameters
        ]
        windows = zip(mop.rows.within[rows].tolist(), mop.rows.apart[rows].tolist(), strict=True)
        together = stored and is_aggregate(mop.placement) and not mop.placement.own_since
        own = is_aggregate(mop.placement) and mop.placement.own_rows
        shapes = mop.rows.shape[rows].tolist()
        found = []
        for row, (shape, window) in enumerate(zip(shapes, windows, strict=True)):
            name, places = self._definitions[mop.number][shape]
            kinds = len(places) - len(extra_columns(mop.placement))
            vector = [columns[place][row] for place in (*places[:kinds], *places[-1:] * own)]
            found.append(_digest((name, [side[row] for side in sides], vector, None if together else window)))
        return found


def _digest(value: object) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=16).digest()


def _renumbering(saved: pa.Table, keys: SnapshotKeys, mop: MOp) -> Renumber:
    there = mop.rows.numbers()
    row_of = dict(zip(keys.of(mop, there, stored=True), there.tolist(), strict=True))
    before = ints(saved, "row")
    now = np.array([row_of.get(key, -1) for key in saved["key"].to_pylist()], np.int64)
    return lambda rows: now[np.searchsorted(before, rows)]


@dataclass(frozen=True, slots=True)
class Results:
    """Results of statements of one schema: `statements[i]` has the event `events[at[i]]`."""

    schema: Schema
    flow: Flow  # its rows are statement numbers

    def __len__(self) -> int:
        return len(self.flow)

    @property
    def events(self) -> Columns:
        return self.flow.events

    @property
    def at(self) -> Ints:
        return self.flow.at

    @property
    def statements(self) -> Ints:
        return self.flow.rows


class Kernel:
    """All event statements, and their waiting instances. A statement has a number and `since`: it sees only events
    whose first part has a t1 after that. An m-op runs in an interval once all its streams are there."""

    def __init__(
        self,
        texts: Texts,
        lineage: Lineage,
        *,
        rules: Iterable[RuleName] = RULE_NAMES,
        hashed: bool = True,
        merged: bool = True,
        limits: Quota = UNLIMITED,
    ) -> None:
        """`rules` are the enabled ones of `pattern_stage.plan`. `hashed`: hash one dynamic equality of a condition.
        `merged`: merge runs with the same memory. Statements past one of the `limits` are in `exceeded`."""
        self.texts = texts
        self.plan = EventPlan(texts, rules)
        self.statements = Statements(self.plan)
        self._lineage, self._hashed, self._merged, self._limits = lineage, hashed, merged, limits
        self._operators: dict[int, PatternOp] = {}
        self._meters: dict[int, Meter] = {}
        self._shared: dict[MOpKey, Simultaneous] = {}
        self.exceeded: dict[int, Excess] = {}
        """Statements that exceeded a limit. They have no results until they are removed."""
        self._readers: dict[int, RowReaders] = {}
        self._flows: dict[int, Flow] = {}
        self._due: tuple[int | None] | None = None

    # ------------------------------------------------------------ statements

    def add(self, statement: int, stream: Statement, since: Micros) -> None:
        """Adds a statement. It sees events from the next interval on and after `since`."""
        self.statements.add(statement, stream, since)

    def narrow(self, statement: int, since: Micros) -> None:
        """Raises `since` of a statement: it sees only events whose first part has a t1 after it."""
        self._settle()
        self.statements.narrow(statement, since)

    def remove(self, statements: Sequence[int]) -> None:
        """Removes statements and state that belongs to them alone."""
        self._settle()
        for statement in statements:
            self.exceeded.pop(statement, None)
        slots_of, rows, mops = self.statements.remove(statements)
        for number, slots in slots_of:
            self._readers[number].remove(slots)
        for number, gone in rows.items():
            self._operators[number].remove_rows(gone)
            self.plan.mops[number].rows.free(gone)
        for mop in mops:
            if mop.number in self._operators and mop.placement and (key := mop.placement.partial) is not None:
                self._shared[key].remove(mop.number)
                if not len(self._shared[key]):
                    del self._shared[key]
            for of_mops in (self._operators, self._meters, self._readers):
                of_mops.pop(mop.number, None)

    def _settle(self) -> None:
        slots_of, rows = self.statements.settle()
        if not slots_of:
            return
        for number, (slots, of) in slots_of.items():
            self._readers.setdefault(number, RowReaders()).add(slots, of)
        self._make_operators()
        for number, new in rows.items():
            self._operators[number].add_rows(new)

    def _make_operators(self) -> None:
        for mop in self.plan:
            if mop.placement is not None and mop.number not in self._operators:
                meter = self._meters[mop.number] = Meter(self._limits)
                sees, parts = partial(self._sees, mop), (mop.definitions, mop.rows, self.texts, self._lineage)
                context = MOpContext(*parts, meter, sees, mop.placement.hashed, self._hashed, self._merged)
                shared = None
                if (key := mop.placement.partial) is not None:
                    if key not in self._shared:
                        source = self.plan.mops[mop.inputs[0]]
                        self._shared[key] = Simultaneous(source.schema, self.texts, self._lineage)
                    shared = self._shared[key]
                    shared.add(mop.number, mop.definitions[0])  # type: ignore[arg-type]  # it is an AGGREGATE
                self._operators[mop.number] = make_operator(context, shared)

    # ------------------------------------------------------------ running

    def run(self, events: Mapping[str, Columns], until: int) -> list[Results]:
        """Runs a whole interval and returns its results. `events` has, by stream and sorted by t1, the events from the
        last `until` up to before this one; missing streams are empty."""
        self.begin(until)
        return self.feed(events) + self.end()

    def begin(self, until: int) -> None:
        """Begins an interval that ends before `until`."""
        self._settle()
        self._until, self._flows, self._due = until, {}, None

    def feed(self, events: Mapping[str, Columns]) -> list[Results]:
        """Takes all events of some streams in this interval. Returns results of statements with complete streams."""
        return self._advance(events, last=False)

    def end(self) -> list[Results]:
        """Ends the interval: missing streams had no events. Returns the remaining results."""
        found = self._advance({}, last=True)
        self._flows = {}
        for shared in self._shared.values():
            shared.forget()
        return found

    def _advance(self, events: Mapping[str, Columns], *, last: bool) -> list[Results]:
        found: list[Results] = []
        for mop in self.plan:
            if mop.number in self._flows:
                continue
            if mop.placement is None:
                if mop.stream not in events and not last:
                    continue
                flow = whole(events[mop.stream] if mop.stream in events else no_events(mop.schema))
            elif self._flows.keys() >= set(mop.inputs):
                flow = self._operators[mop.number].run([self._flows[number] for number in mop.inputs], self._until)
                if exceeded := self._meters[mop.number].taken():
                    slots, rows = self.statements.of_rows(mop, np.array(sorted(exceeded), np.int64))
                    for statement, row in zip(self.statements.ids[slots].tolist(), rows.tolist(), strict=True):
                        note_excess(self.exceeded, statement, exceeded[row])
            else:
                continue
            self._flows[mop.number] = flow
            readers = self._readers.get(mop.number)
            if readers is not None and len(flow) and len(read := self._read(flow, readers)):
                found.append(Results(mop.schema, read))
        return found

    def _sees(self, mop: MOp, row: int, firsts: Ints) -> Mask:
        slots, _ = self.statements.of_rows(mop, np.array([row]))
        seen: Mask = self._lineage.ends(firsts) > self.statements.since[slots].min(initial=END)
        return seen

    def _read(self, flow: Flow, readers: RowReaders) -> Flow:
        ids = self.statements.ids
        all_see = self.statements.newest < int(flow.events.t0.min())
        if all_see and flow.stretches is not None and not self.exceeded:
            places, slots = readers.of(flow.stretches.rows)
            return Flow.of(flow.events, flow.stretches.through(places, ids[slots]))
        places, slots = readers.of(flow.rows)
        at = flow.at[places]
        if self.exceeded:
            over = np.array(sorted(self.exceeded), np.int64)
            ends = np.array([self.exceeded[one].at for one in over.tolist()], np.int64)
            place = np.minimum(np.searchsorted(over, ids[slots]), len(over) - 1)
            kept = (over[place] != ids[slots]) | (flow.events.t1[at] < ends[place])
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

    # ------------------------------------------------------------ upkeep

    def state(self) -> dict[str, pa.Table]:
        """Returns the state of m-ops as tables by name, with keys of rows. Between intervals only."""
        self._settle()
        keys = SnapshotKeys(self.plan)
        saved = {_FORMAT: pa.table({"version": [FORMAT]})}
        for number, operator in self._operators.items():
            state, mop = operator.state(), self.plan.mops[number]
            if len(state):
                rows = distinct(flatten_lists(state, "rows")[0] if "rows" in state.column_names else ints(state, "row"))
                saved[keys.name(mop)] = state
                keys_of_rows = pa.array(keys.of(mop, rows, stored=True), pa.binary())
                saved[keys.name(mop) + _ROWS] = pa.table({"row": rows, "key": keys_of_rows})
        return saved

    def restore(self, state: Mapping[str, pa.Table]) -> None:
        """Restores the state of statements that exist here, whatever their numbers, from a kernel or its parts; state
        of missing rows is dropped. Raises ValueError for another version."""
        self._settle()
        self._due = None
        for one in filter(None, states(state)):
            version = one[_FORMAT]["version"][0].as_py()
            if version != FORMAT:
                raise ValueError(f"the state of event patterns has format {version}; this version reads {FORMAT}")
            keys = SnapshotKeys(self.plan)
            for number, operator in self._operators.items():
                mop = self.plan.mops[number]
                if (name := keys.name(mop)) in one:
                    operator.restore(one[name], _renumbering(one[name + _ROWS], keys, mop))

    def forget(self) -> None:
        """Drops all state. Between intervals only."""
        self._settle()
        self._due = None
        self._operators.clear()
        self._make_operators()
        for number, operator in self._operators.items():
            operator.add_rows(self.plan.mops[number].rows.numbers())

    def names(self) -> dict[int, str]:
        self._settle()
        keys = SnapshotKeys(self.plan)
        return {mop.number: keys.name(mop) for mop in self.plan}

    def parts(self) -> Iterable[Ints]:
        """Returns the numbers of all events that the state refers to, for `Lineage.keep`."""
        return [numbers.ravel() for operator in self._operators.values() for numbers in operator.parts()]

    def instances(self) -> tuple[Ints, Ints]:
        """Returns statements and their numbers of waiting instances; shared ones count for each."""
        self._settle()
        return self.statements.sums({number: one.waiting() for number, one in self._operators.items()})

    def due(self) -> int | None:
        """Returns the time before which nothing results without another event, or None. Between intervals only."""
        if self._due is None:
            times = (operator.due() for operator in self._operators.values())
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
