"""A kernel that runs partitionable statements in parts, in other processes, and all else in this one. In each interval,
a worker runs a part's statements over the part's events, from its state on. Between intervals, the state of all parts
is in this process, so any worker, here or in a Spark task, can do any part."""

from __future__ import annotations

import hashlib
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from common.arrays import Ints, distinct
from common.bounds import Micros
from common.executors import Shipped, run_tasks, with_shipped
from common.limits import UNLIMITED, Quota
from pattern_stage.columns import Columns, bare_columns, joined, padded, sorted_flow
from pattern_stage.definition import StatementForm, StatementForms, needs_order
from pattern_stage.kernel import Kernel, Results, SavedState
from pattern_stage.lineage import Lineage
from pattern_stage.partition.keys import (
    FIRST,
    PartitionKeys,
    assign_partitions,
    find_partition_keys,
    new_sets,
    set_numbers,
)
from pattern_stage.values import Texts, flatten_lists, loaded, loaded_values, saved
from xscl.algebra.events import Aggregate, Fold, NearPattern, Next, Pattern, Schema
from xscl.algebra.events import Statement as AnyStatement

if TYPE_CHECKING:
    from pyspark import SparkContext


class NumberedStatement(NamedTuple):
    """See `Kernel.add`."""

    number: int
    stream: AnyStatement
    since: Micros


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The statements of all groups. Equal versions have equal content."""

    version: str
    groups: Mapping[str, Sequence[NumberedStatement]]


@dataclass(frozen=True, slots=True)
class GroupWork:
    """A part's events for a group, by stream, with attributes, in an interval that ends before `until`; the group's
    state there; the lineage of all; and the ids of their documents, if the statements need them."""

    group: str
    part: int
    until: int
    events: Mapping[str, tuple[Schema, pa.Table]]
    state: SavedState
    lineage: pa.Table
    ids: Mapping[int, Any]

    def __len__(self) -> int:
        return sum(len(table) for _, table in self.events.values())


class GroupResults(NamedTuple):
    """Results of statements of one schema: `statements[i]` has the event `at[i]`."""

    schema: Schema
    events: pa.Table
    at: Ints
    statements: Ints


@dataclass(frozen=True, slots=True)
class GroupDone:
    """A group's results and new state in a part: the number of waiting instances by statement, its new sets, and `due`,
    before which nothing becomes known without another event."""

    group: str
    part: int
    found: Sequence[GroupResults]
    state: SavedState
    waiting: tuple[Ints, Ints]
    due: int | None
    sets: pa.Table | None


@dataclass(slots=True)
class Worker:
    """Does the work of parts in turn. Kernels are reused, but not their state, so any worker can do any part."""

    _version: str = ""
    _kernels: dict[str, tuple[Kernel, Texts, Lineage]] = field(default_factory=dict)

    def work(self, plan: WorkerPlan, works: Sequence[GroupWork]) -> list[GroupDone]:
        if self._version != plan.version:
            self._version, self._kernels = plan.version, {}
        return [self._group(plan, one) for one in works]

    def _group(self, plan: WorkerPlan, work: GroupWork) -> GroupDone:
        # While it works, a kernel is not kept: an error would leave something in it.
        kept = self._kernels.pop(work.group, None)
        if kept is None:
            texts, lineage = Texts(), Lineage(FIRST)
            kept = _kernel_of(texts, lineage, plan.groups[work.group]), texts, lineage
        kernel, texts, lineage = kept
        kernel.forget()
        lineage.keep([])
        if texts.crowded:
            texts.keep(kernel.codes())
        lineage.restore(work.lineage)
        lineage.document_ids = lambda docids: work.ids
        lineage.begin()
        kernel.restore(work.state)
        events = {name: loaded(table, schema, texts, "") for name, (schema, table) in work.events.items()}
        found = [
            GroupResults(one.schema, pa.table(saved(one.events, one.schema, texts, "")), one.at, one.statements)
            for one in kernel.run(events, work.until)
        ]
        waiting, sets = kernel.instances(), new_sets(lineage)
        self._kernels[work.group] = kept
        return GroupDone(work.group, work.part, found, kernel.state(), waiting, kernel.due(), sets)


def _kernel_of(texts: Texts, lineage: Lineage, statements: Iterable[NumberedStatement]) -> Kernel:
    kernel = Kernel(texts, lineage)
    for statement in statements:
        kernel.add(*statement)
    return kernel


class Runner(Protocol):
    """Does the work of parts, in any process."""

    @property
    def parts(self) -> int: ...

    def run(self, plan: WorkerPlan, works: Sequence[Sequence[GroupWork]]) -> list[list[GroupDone]]:
        """Does the work of some parts, that of a part together; results come in any order."""


_Keeping = Next | Fold | Aggregate | Pattern | NearPattern  # operators with state


def split_state(kernel: Kernel, texts: Texts, parts: int) -> list[SavedState]:
    """Splits the state by parts. All statements of the kernel must be partitionable in one way."""
    state = kernel.state()
    tables = {name: [table] * parts for name, table in state.items()}
    names = kernel.names()
    for bound in kernel.statements.bound_forms.values():
        keys = find_partition_keys(bound.form)
        assert keys is not None, "only what can be parted is in such a kernel"
        for node, mop in zip(bound.form.nodes, bound.mops, strict=True):
            name, operator = names[mop.number], node.definition and node.definition.operator
            if name in state and isinstance(operator, _Keeping):
                of = assign_partitions(keys.of[node.inputs[0]], *_kept(operator, state[name], texts), texts, parts)
                tables[name] = [state[name].filter(pa.array(of == part)) for part in range(parts)]
    return [{name: some[part] for name, some in tables.items() if len(some[part])} for part in range(parts)]


def _kept(operator: _Keeping, table: pa.Table, texts: Texts) -> tuple[Columns, Schema]:
    """Returns the values of a state that its operator's key is computed of, and their schema."""
    match operator:
        case Next() | Fold():
            schema = operator.left.schema
            return loaded(table, schema, texts, "0_"), schema
        case Pattern() | NearPattern():
            of, names, prefix = next(iter(operator.streams.values())), operator.keys, "key_"
        case Aggregate():
            of, names, prefix = operator.source.schema, operator.by, ""
    schema = tuple((name, dict(of)[name]) for name in names)
    values = [loaded_values(table, f"{prefix}{at}", kind == "string", texts) for at, (_, kind) in enumerate(schema)]
    return bare_columns(values, len(table)), schema


MOST_REST = 20  # intervals without an event after which a part with state runs to drop what is too old


@dataclass(slots=True)
class _Part:
    """The state of a part of a group; see GroupDone."""

    state: SavedState
    waiting: tuple[Ints, Ints]
    due: int | None
    rested: int = 0  # number of intervals since it last ran


@dataclass(slots=True)
class _Group:
    """Statements with equal streams and keys, and their state by part."""

    keys: PartitionKeys
    statements: dict[int, NumberedStatement] = field(default_factory=dict)
    parts: dict[int, _Part] = field(default_factory=dict)

    def also(self, parts: Collection[int], until: int) -> list[int]:
        """Ends an interval with events in `parts`. Returns others to run: due ones, and those idle for MOST_REST."""
        for one in self.parts.values():
            one.rested += 1
        return [
            part
            for part, one in self.parts.items()
            if part not in parts
            and ((one.due is not None and one.due < until) or (one.rested >= MOST_REST and one.waiting[1].any()))
        ]


class PartitionedKernel(Kernel):
    """A kernel with the same results. Between intervals, it holds the state of all parts as process-independent tables.
    What is not partitionable runs here."""

    def __init__(self, texts: Texts, lineage: Lineage, runner: Runner, limits: Quota = UNLIMITED) -> None:
        """`runner` does the work of parts; `limits` are for statements that are not partitionable."""
        super().__init__(texts, lineage, limits=limits)
        self._runner = runner
        self._forms = StatementForms()
        self._keys: dict[int, tuple[StatementForm, PartitionKeys | None]] = {}
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[int, str] = {}
        self._plan: WorkerPlan | None = None
        self._fed: dict[str, Columns] = {}
        self._open: set[str] = set()

    def add(self, statement: int, stream: AnyStatement, since: Micros) -> None:
        form = self._forms.form(stream)[0]
        if id(form) not in self._keys:
            self._keys[id(form)] = form, find_partition_keys(form)
        keys = self._keys[id(form)][1]
        if keys is None:
            super().add(statement, stream, since)
            return
        name = hashlib.blake2b(repr(keys.streams).encode(), digest_size=8).hexdigest()
        self._groups.setdefault(name, _Group(keys)).statements[statement] = NumberedStatement(statement, stream, since)
        self._group_of[statement] = name
        self._plan = None

    def narrow(self, statement: int, since: Micros) -> None:
        if (name := self._group_of.get(statement)) is None:
            super().narrow(statement, since)
            return
        of = self._groups[name].statements
        of[statement] = of[statement]._replace(since=since)
        self._plan = None

    def remove(self, statements: Sequence[int]) -> None:
        others = [statement for statement in statements if statement not in self._group_of]
        for statement in set(statements).difference(others):
            self._plan, name = None, self._group_of.pop(statement)
            del self._groups[name].statements[statement]
            if not self._groups[name].statements:
                del self._groups[name]
        if others:
            super().remove(others)

    def begin(self, until: int) -> None:
        self._fed, self._open = {}, set(self._groups)
        super().begin(until)

    def feed(self, events: Mapping[str, Columns]) -> list[Results]:
        self._fed |= events
        ready = sorted(
            name for name in self._open if all(stream in self._fed for stream, _, _ in self._groups[name].keys.streams)
        )
        return [*super().feed(events), *self._run(ready)]

    def end(self) -> list[Results]:
        found = [*super().end(), *self._run(sorted(self._open))]
        self._fed = {}
        return found

    def _run(self, names: Sequence[str]) -> list[Results]:
        """Runs groups. Without events, a part runs only when due or idle for long."""
        self._open.difference_update(names)
        work = defaultdict[int, list[GroupWork]](list)
        for name in names:
            group = self._groups[name]
            parted = self._parted(group)
            for part in [*parted, *group.also(parted, self._until)]:
                work[part].append(self._group_work(name, part, parted.get(part, {})))
        if not work:
            return []
        if self._plan is None:
            groups = {name: list(group.statements.values()) for name, group in self._groups.items()}
            self._plan = WorkerPlan(uuid.uuid4().hex, groups)
        done = self._runner.run(self._plan, [some for _, some in sorted(work.items())])
        return self._taken(sorted(chain.from_iterable(done), key=lambda one: one.part))

    def _parted(self, group: _Group) -> dict[int, dict[str, tuple[Schema, Columns]]]:
        found: dict[int, dict[str, tuple[Schema, Columns]]] = {}
        for name, schema, key in group.keys.streams:
            if (events := self._fed.get(name)) is None or not len(events):
                continue
            of = assign_partitions(key, events, schema, self.texts, self._runner.parts)
            for part in distinct(of).tolist():
                found.setdefault(part, {})[name] = schema, events.take(of == part)
        return found

    def _group_work(self, name: str, part: int, events: Mapping[str, tuple[Schema, Columns]]) -> GroupWork:
        group = self._groups[name]
        state = group.parts[part].state if part in group.parts else {}
        sent = {of: (schema, pa.table(saved(some, schema, self.texts, ""))) for of, (schema, some) in events.items()}
        lineage = self._lineage.rows([*_parts_in(state), *(some.parts for _, some in events.values())])
        ids: Mapping[int, Any] = {}
        if any(needs_order(one.stream) for one in group.statements.values()):
            ids = self._lineage.document_ids({docid for docid in lineage["docid"].to_pylist() if docid >= 0})
        return GroupWork(name, part, self._until, sent, state, lineage, ids)

    def _taken(self, all_done: Sequence[GroupDone]) -> list[Results]:
        found: dict[Schema, list[tuple[Columns, Ints, Ints]]] = {}
        for done in all_done:
            numbers = set_numbers(done.sets, self._lineage)
            self._groups[done.group].parts[done.part] = _Part(numbers.in_state(done.state), done.waiting, done.due)
            for schema, table, at, statements in done.found:
                events = loaded(table, schema, self.texts, "")
                found.setdefault(schema, []).append((replace(events, parts=numbers.of(events.parts)), at, statements))
        return [_together(schema, some) for schema, some in found.items()]

    def state(self) -> dict[str, pa.Table]:
        state = super().state()
        for name, group in self._groups.items():
            for part, one in group.parts.items():
                state |= {f"{name}.{part} {key}": table for key, table in one.state.items()}
        return state

    def restore(self, state: Mapping[str, pa.Table]) -> None:
        """Restores state for statements that exist here, from any kernel. Raises ValueError for another version."""
        super().restore(state)
        if not state:
            return
        for group in self._groups.values():
            kernel = _kernel_of(self.texts, self._lineage, group.statements.values())
            kernel.restore(state)
            for part, its in enumerate(split_state(kernel, self.texts, self._runner.parts)):
                kernel.forget()
                kernel.restore(its)
                group.parts[part] = _Part(its, kernel.instances(), kernel.due())

    def parts(self) -> Iterable[Ints]:
        yield from super().parts()
        for part in self._parts():
            yield from _parts_in(part.state)

    def _parts(self) -> Iterator[_Part]:
        return (part for group in self._groups.values() for part in group.parts.values())

    def instances(self) -> tuple[Ints, Ints]:
        found = [super().instances(), *(part.waiting for part in self._parts())]
        statements, counts = (np.concatenate(column) for column in zip(*found, strict=True))
        numbers, at = np.unique(statements, return_inverse=True)
        sums = np.bincount(at, counts, len(numbers)).astype(np.int64)
        there = np.isin(numbers, list(self._group_of)) | np.isin(numbers, found[0][0])
        return numbers[there], sums[there]

    def due(self) -> int | None:
        times = [super().due(), *(part.due for part in self._parts())]
        return min((time for time in times if time is not None), default=None)


def _parts_in(state: SavedState) -> Iterator[Ints]:
    for table in state.values():
        for name in table.column_names:
            if name.endswith("parts"):
                yield flatten_lists(table, name)[0]


def _together(schema: Schema, found: Sequence[tuple[Columns, Ints, Ints]]) -> Results:
    parts, places, numbers = zip(*found, strict=True)
    width = max(events.parts.shape[1] for events in parts)
    starts = np.cumsum([0, *map(len, parts[:-1])])
    events = joined([padded(events, width) for events in parts])
    return Results(schema, sorted_flow(events, np.concatenate([*map(np.add, places, starts)]), np.concatenate(numbers)))


LEAST = 10_000  # minimum number of events for a Spark job: its overhead is what this process needs for as many

_WORKER = Worker()  # the worker of an executor process


class SparkRunner:
    """A `Runner` with a Spark task per part. Tasks are self-contained, so a repeated one has the same result."""

    def __init__(self, context: SparkContext, parts: int | None = None, *, least: int = LEAST) -> None:
        """Without `parts`, as many as parallel tasks. Work of fewer than `least` events is done in this process."""
        self._context, self._least = context, least
        self.parts = parts or context.defaultParallelism
        self._here = Worker()
        self._shipped = Shipped[WorkerPlan](context)

    def run(self, plan: WorkerPlan, works: Sequence[Sequence[GroupWork]]) -> list[list[GroupDone]]:
        if sum(map(len, chain.from_iterable(works))) < self._least:
            return [self._here.work(plan, work) for work in works]
        return run_tasks(self._context, with_shipped(_work, self._shipped.of(plan.version, lambda: plan)), works)


def _work(plan: WorkerPlan, works: Sequence[GroupWork]) -> list[GroupDone]:
    """Runs on executors."""
    return _WORKER.work(plan, works)
