"""Event statements in a kernel: their order, buffered events, runs in strata, naming, results, and their persistence.
The kernel runs in the driver, on Spark's executors, or as SQL. A stratum is what becomes complete once the previous one
is answered; XSCL queries answer in between. Parts of an event have names that are the same in every store and process:
documents with nodes, or digests of published events. Events, the horizon and snapshots are written within batches, so a
restart replays the events since the last snapshot."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from common import limits
from common.arrays import Ints, packed, unpacked
from common.bounds import BEGINNING, Micros
from common.errors import InvalidValue
from common.limits import UNLIMITED, Excess, Quota, first_excess, note_excess, sums_in_blocks
from common.tools import from_json, reachable
from join_stage.plans import JoinEngine
from join_stage.store.protocol import TableStore
from mmqjp.answers.output import with_output_attributes
from mmqjp.answers.quota import XML_CHARACTERS_PER_STEP
from mmqjp.documents.record import Records
from mmqjp.queries.registry import EventForm, Publisher, published_name
from mmqjp.tables.schema import EVENTS, SNAPSHOTS, Ledger, rows_table
from pattern_stage.assemble import Assembled, Buffer, Settle
from pattern_stage.columns import Column, Columns, joined, no_events
from pattern_stage.index import each_shape
from pattern_stage.lineage import COMPOSED, LINEAGE, TOGETHER, DocumentIds, EventOrigin, Lineage
from pattern_stage.values import Texts, lists, plain_values
from templates.catalog import EventPlacement
from templates.witness import plain_node
from xscl.algebra.events import NearPattern, Pattern, Schema, Statement, Stories, read_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pattern_stage.kernel import Kernel, Results
    from xscl.syntax import Script

MakeKernel = Callable[[Texts, Lineage], "Kernel"]


MadeOf = Callable[[str], Collection[str] | None]
"""Maps a stream to the document streams that XSCL queries derive it from; None if it is external. Streams that only
event queries publish, including paused ones, derive from none."""


class _Shape(NamedTuple):
    reads: frozenset[str]
    publishes: frozenset[str]


class FormOrder:
    """Forms by what they read and publish; forms that share both count once."""

    def __init__(self, made_of: MadeOf) -> None:
        self._made_of = made_of
        self._shapes: Counter[_Shape] = Counter()
        self._shape_of: dict[str, _Shape] = {}
        self.schemas: dict[str, Schema] = {}  # of all names that were ever read

    def add(self, form: EventForm) -> None:
        self.remove(form.id)
        read = read_by(form.stream)
        self.schemas |= read
        shape = _Shape(frozenset(read), frozenset(publisher.stream for publisher in form.publishers))
        self._shape_of[form.id] = shape
        self._shapes[shape] += 1

    def remove(self, form_id: str) -> None:
        if (shape := self._shape_of.pop(form_id, None)) is not None:
            self._shapes[shape] -= 1
            if not self._shapes[shape]:
                del self._shapes[shape]

    def names(self) -> set[str]:
        return set().union(*(shape.reads for shape in self._shapes))

    def outside(self, placements: Mapping[str, EventPlacement], without: Collection[str] = ()) -> set[str]:
        shapes = self._shapes - Counter(self._shape_of[form_id] for form_id in without)
        names = set[str]().union(*(shape.reads for shape in shapes))
        streams = (placements[name].stream for name in names if name in placements)
        return {stream for stream in self._behind(streams) if self._made_of(stream) is None}

    def ready(self, fed: Collection[str], placements: Mapping[str, EventPlacement]) -> list[str]:
        """Returns the names, not yet `fed`, whose events are complete once those fed are answered."""
        found = []
        for name in sorted(self.names().difference(fed)):
            streams = self._behind([placements[name].stream]) if name in placements else {published_name(name)}
            if all(shape.reads.issubset(fed) for shape in self._shapes if not streams.isdisjoint(shape.publishes)):
                found.append(name)
        return found

    def _behind(self, streams: Iterable[str]) -> set[str]:
        return set(reachable(streams, lambda stream: self._made_of(stream) or ()))


DIGEST_SIZE = 16  # bytes in a published event's digest


class Parts:
    """Names the parts of events and finds the documents behind them."""

    def __init__(self, lineage: Lineage, records: Records, events: Columns) -> None:
        self._records = records
        self._origins = lineage.origins(lineage.with_parts([events.parts]))

    def docids(self) -> set[int]:
        return {origin.docid for origin in self._origins.values() if origin.docid >= 0}

    def origin(self, number: int) -> EventOrigin:
        return self._origins[number]

    def named(self, number: int) -> object:
        """Returns a part's name, the same in every store, for JSON."""
        origin = self._origins[number]
        if origin.docid == COMPOSED:
            return [origin.stream, origin.digest.hex()]
        if origin.docid == TOGETHER:
            return sorted((self.named(part) for part in origin.parts), key=str)
        record = self._records[origin.docid]
        return [origin.stream, record.stream, record.id, *map(plain_node, origin.nodes)]

    def members(self, number: int) -> list[int]:
        """Returns the numbers of a part's events in order: those of a set, or its own."""
        origin = self._origins[number]
        if origin.docid != TOGETHER:
            return [number]
        return sorted(origin.parts, key=lambda part: self._origins[part].t1)

    def documents(self, number: int) -> list[EventOrigin]:
        """Returns the document events behind a part, by time."""
        origins = self._origins
        found = reachable([number], lambda part: origins[part].parts if origins[part].docid < 0 else ())
        return sorted((origins[part] for part in found if origins[part].docid >= 0), key=self.place)

    def place(self, origin: EventOrigin) -> tuple[object, ...]:
        """Sort key of a document event in time, the same in every store."""
        record = self._records[origin.docid]
        nodes = [plain_node(node) for node in origin.nodes]
        return origin.t1, origin.t0, record.stream, record.id, nodes, origin.stream

    def digests(self, identity: str, events: Columns, texts: Texts, *, ordered: bool) -> list[bytes]:
        """Returns each event's digest as published under `identity`; unless `ordered`, parts may be permuted."""
        values = [column_texts(column, texts) for column in events.values]
        rows = zip(events.t0.tolist(), events.t1.tolist(), events.parts.tolist(), *values, strict=True)
        found = []
        for t0, t1, parts, *attributes in rows:
            numbers = [part for part in parts if part >= 0]
            if not ordered:
                numbers = [member for number in numbers for member in self.members(number)]
            named = [self.named(number) for number in numbers]
            whole = [identity, t0, t1, attributes, named if ordered else sorted(named, key=str)]
            text = json.dumps(whole, ensure_ascii=False).encode("utf-8", "surrogatepass")
            found.append(blake2b(text, digest_size=DIGEST_SIZE).digest())
        return found


def ids_of(records: Records) -> DocumentIds:
    def found(docids: Collection[int]) -> Mapping[int, str]:
        records.load(docids)
        return {docid: records[docid].id for docid in docids}

    return found


def column_texts(column: Column, texts: Texts, written: Callable[[float], str] = repr) -> list[str | None]:
    """Returns an attribute's values as texts: numbers as Python writes them, or as `written`."""
    values = plain_values(column, texts)
    if column.dtype != np.float64:
        return values
    return [None if value is None else written(value) for value in values]


LATE = "late for patterns"  # prefix of the reason given for a document whose events came too late


@dataclass(frozen=True, slots=True)
class FormResults:
    form_id: str
    schema: Schema
    events: Columns


@dataclass(frozen=True, slots=True)
class WaitingCounts:
    """`events` that end at the `horizon` (None: there is none yet) or later, and `partial` matches, per form. The
    first of the events is processed once `stream`, the one that is furthest behind, has passed `until` (None: at the
    end); `feed` holds it up, if feeds fill it."""

    horizon: Micros | None
    events: int
    partial: int
    until: Micros | None = None
    stream: str | None = None
    feed: str | None = None


DRIVER, EXECUTORS, SQL = "driver", "executors", "sql"

PLACES = (DRIVER, EXECUTORS, SQL)


def check_place(place: str, *, on_spark: bool, lasts: bool, settle: Settle) -> None:
    """Checks that event queries can run in a place; `lasts`: the state persists. Raises InvalidValue otherwise."""
    if place not in PLACES:
        raise InvalidValue(f"event queries are answered by one of {', '.join(PLACES)}, not {place!r}")
    if place == EXECUTORS and not on_spark:
        raise InvalidValue("only Spark has executors: answer event queries in the driver, or take the engine spark")
    if place == SQL and (lasts or settle is not None):
        cause = "SQL answers event queries once, at the end of a run that keeps no state"
        raise InvalidValue(f"{cause}: leave out the state, and let settle be INF")


def check_backfill(place: str, script: Script, *, backfill: bool) -> None:
    """Raises InvalidValue if a script has event queries that cannot be registered there: no backfill."""
    if backfill and script.event_queries and place == SQL:
        cause = "SQL answers event queries at the end of a run, and has no backfill"
        raise InvalidValue(f"{cause}: answer them in the driver")


def kernels(place: str, session: SparkSession | None, limits: Quota = UNLIMITED) -> MakeKernel:
    """Returns a factory of kernels for a place. In the driver they are limited."""
    from pattern_stage.kernel import Kernel

    in_driver: MakeKernel = partial(Kernel, limits=limits)
    if place == DRIVER or (place == EXECUTORS and session is None):
        return in_driver
    from pattern_stage.in_sql import ReplayKernel, asking_spark

    if session is None:
        return partial(ReplayKernel, ask=_ask_duckdb, matching=in_driver, limits=limits)
    from join_stage.store.spark.session import telling_loss
    from pattern_stage.partition.kernel import GroupDone, GroupWork, PartitionedKernel, SparkRunner, WorkerPlan

    @telling_loss
    class Runner(SparkRunner):
        def run(self, plan: WorkerPlan, works: Sequence[Sequence[GroupWork]]) -> list[list[GroupDone]]:
            return super().run(plan, works)

    on_executors: MakeKernel = partial(PartitionedKernel, runner=Runner(session.sparkContext), limits=limits)
    if place == EXECUTORS:
        return on_executors
    ask = telling_loss(telling_loss(asking_spark)(session))
    return partial(ReplayKernel, ask=ask, matching=on_executors, limits=limits)


def _ask_duckdb(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    import duckdb

    from join_stage.store.duckdb import set_up
    from join_stage.store.protocol import OutOfMemory
    from pattern_stage.in_sql import ask_duckdb

    try:
        return ask_duckdb(sql, tables, set_up)
    except duckdb.OutOfMemoryException as error:
        raise OutOfMemory(f"event queries as SQL take too much memory: {error}; use the driver") from error


class BlockCounts(NamedTuple):
    """The number of times of a block, and of outputs and steps at them."""

    times: int = 0
    told: int = 0
    steps: int = 0


class OutputCounts:
    """What forms tell: at each time, and at BLOCK times in a row at which they tell anything."""

    def __init__(self, quota: Quota, texts: Texts) -> None:
        self._quota, self._texts = quota, texts
        self._blocks: dict[str, BlockCounts] = {}

    def add(self, form_id: str, found: Sequence[Columns]) -> Iterator[Excess]:
        """Counts all that a form tells in an interval, and yields how it exceeds its quota."""
        quota, before = self._quota, self._blocks.get(form_id, BlockCounts())
        t1, steps = (np.concatenate(each) for each in ([one.t1 for one in found], list(map(self._steps, found))))
        count, taken = len(t1), int(steps.sum())
        if before.times + count < limits.BLOCK and count <= quota.matches and taken <= quota.work:
            outputs, work = before.told + count, before.steps + taken
            if outputs <= quota.outputs and work <= quota.work_of_block:
                self._blocks[form_id] = BlockCounts(before.times + len(set(t1.tolist())), outputs, work)
                return
        times, which, counts = np.unique(t1, return_inverse=True, return_counts=True)
        at_once = np.bincount(which, steps, len(times)).astype(np.int64)
        yield from first_excess(times, counts, quota, "matches")
        yield from first_excess(times, at_once, quota, "work")
        blocks, each = (before.times + np.arange(len(times))) // limits.BLOCK, (np.ones_like(counts), counts, at_once)
        sums = [sums_in_blocks(blocks, amounts, so_far, 0) for amounts, so_far in zip(each, before, strict=True)]
        yield from first_excess(times, sums[1], quota, "outputs")
        yield from first_excess(times, sums[2], quota, "work_of_block")
        self._blocks[form_id] = BlockCounts(*(int(amounts[-1]) for amounts in sums))

    def _steps(self, events: Columns) -> Ints:
        lengths = (self._texts.lengths(column) for column in events.values if column.dtype == np.int64)
        return 1 + sum(lengths, np.zeros(len(events), np.int64)) // XML_CHARACTERS_PER_STEP

    def forget(self, form_id: str) -> None:
        self._blocks.pop(form_id, None)

    def adopt(self, others: OutputCounts, form_ids: Iterable[str]) -> None:
        self._blocks |= {form_id: others._blocks[form_id] for form_id in form_ids if form_id in others._blocks}

    def table(self) -> pa.Table:
        counts = zip(*self._blocks.values(), strict=True) if self._blocks else ((), (), ())
        columns = dict(zip(BlockCounts._fields, (pa.array(one, pa.int64()) for one in counts), strict=True))
        return pa.table({"form": pa.array(self._blocks, pa.string())} | columns)

    def restore(self, table: pa.Table, form_ids: Collection[str]) -> None:
        for row in table.to_pylist():
            if row["form"] in form_ids:
                steps = row.get("steps", 0)  # stores before had none
                self._blocks[row["form"]] = BlockCounts(row["times"], row["told"], steps)


class RunningForms:
    """Forms of event queries in a kernel. `lineage` and `texts` resolve its numbers and codes."""

    def __init__(
        self,
        make_kernel: MakeKernel,
        lineage: Lineage,
        records: Records,
        made_of: MadeOf,
        texts: Texts | None = None,
        limits: Quota = UNLIMITED,
    ) -> None:
        """`texts` may be shared. The kernel has limits of its own beside `limits`."""
        self.lineage, self.texts, self.buffer = lineage, Texts() if texts is None else texts, Buffer()
        self._make_kernel, self._records = make_kernel, records
        self.kernel = make_kernel(self.texts, lineage)
        self.counts = OutputCounts(limits, self.texts)
        self.exceeded: dict[str, Excess] = {}
        """Forms over a limit: when, and which. They have no results until `follow` adds them again."""
        self._order = FormOrder(made_of)
        self._numbers, self._form_ids, self._next_form = dict[str, int](), dict[int, str](), 0
        self._known: dict[str, EventForm] = {}

    # ------------------------------------------------------------ forms

    def follow(self, forms: Mapping[str, EventForm], changed: Iterable[str]) -> None:
        """Applies added, changed and removed forms to the kernel."""
        gone = []
        changed = dict.fromkeys([*changed, *self.exceeded])
        for form_id in [one for one in changed if one in self._numbers]:
            form = forms.get(form_id)
            # What waits is not for statements that are all new: what they read may be defined or published otherwise.
            if form is None or form.oldest > self._known[form_id].newest or form_id in self.exceeded:
                gone.append(number := self._numbers.pop(form_id))
                del self._form_ids[number], self._known[form_id]
                self._order.remove(form_id)
                self.counts.forget(form_id)
        if gone:  # first, because what others read may be defined otherwise now
            self.kernel.remove(gone)
        self.exceeded = {}
        for form_id in changed:
            if form_id in forms and self._known.get(form_id) is not forms[form_id]:
                self.put(forms[form_id])

    def put(self, form: EventForm) -> None:
        """Adds or updates a form. Of its members, the kernel reads only the least `since`."""
        form_id = form.id
        known = self._known.get(form_id)
        if known is None or form.since < known.since:
            before = self._numbers.get(form_id)
            number = self._numbers[form_id] = self._next_form
            self._next_form += 1
            self._form_ids[number] = form_id
            self.kernel.add(number, with_output_attributes(form.stream), form.since)
            if before is not None:  # only now, so that what waits for its rows stays
                del self._form_ids[before]
                self.kernel.remove([before])
        elif form.since > known.since:
            self.kernel.narrow(self._numbers[form_id], form.since)
        self._known[form_id] = form
        self._order.add(form)

    def take_over(self, state: Mapping[str, pa.Table]) -> None:
        """Replaces the kernel by a new one with this state."""
        self.kernel = self._make_kernel(self.texts, self.lineage)
        for form_id, form in self._known.items():
            self.kernel.add(self._numbers[form_id], with_output_attributes(form.stream), form.since)
        self.kernel.restore(state)

    def outside(self, placements: Mapping[str, EventPlacement]) -> set[str]:
        return self._order.outside(placements, self.exceeded)

    # ------------------------------------------------------------ events

    def take(self, name: str, found: Assembled) -> Ints:
        """Buffers events of a definition and returns their numbers."""
        numbers = self.lineage.of_documents(name, found.docids, found.t0, found.t1, found.nodes)
        self.buffer.add(name, Columns(found.t0, found.t1, found.values, numbers.reshape(-1, 1)))
        return numbers

    def run(self, until: int, placements: Mapping[str, EventPlacement]) -> Iterator[list[FormResults]]:
        """Runs the forms over events before `until`. Yields results by stratum; answer each before advancing."""
        published: dict[str, list[Columns]] = {}
        fed: set[str] = set()
        self.lineage.begin()
        self.kernel.begin(until)
        while ready := self._order.ready(fed, placements):
            events = self.buffer.release(ready, until)
            for name in ready:
                if composed := published.pop(name, None):
                    all_composed = joined(composed)
                    events[name] = all_composed.take(np.argsort(all_composed.t1, kind="stable"))
            found = self.kernel.feed({name: events.get(name, no_events(self._order.schemas[name])) for name in ready})
            fed.update(ready)
            results = self._in_limits(found)
            self._publish(results, published)
            yield results
        yield self._in_limits(self.kernel.end())

    def _in_limits(self, found: Sequence[Results]) -> list[FormResults]:
        for number, excess in self.kernel.exceeded.items():
            note_excess(self.exceeded, self._form_ids[number], excess)
        of_form: dict[str, list[FormResults]] = {}
        for one in found:
            for number, places in each_shape(one.statements):
                form_id, events = self._form_ids[number], one.events.take(one.at[places])
                of_form.setdefault(form_id, []).append(FormResults(form_id, one.schema, events))
        kept: list[FormResults] = []
        for form_id, results in of_form.items():
            for excess in self.counts.add(form_id, [one.events for one in results]):
                note_excess(self.exceeded, form_id, excess)
            if (known := self.exceeded.get(form_id)) is not None:
                results = [replace(one, events=one.events.take(one.events.t1 < known.at)) for one in results]
            kept += [one for one in results if len(one.events)]
        return kept

    def _publish(self, results: Sequence[FormResults], published: dict[str, list[Columns]]) -> None:
        read: dict[str, list[str]] = {}  # the names under which forms read what is published
        for name in sorted(self._order.names()):
            read.setdefault(published_name(name), []).append(name)
        for one in results:
            form = self._known[one.form_id]
            for publisher in form.publishers:
                if names := read.get(publisher.stream):
                    places = (self.appeared(one.events) > publisher.since) & (one.events.t1 <= publisher.until)
                    events = replace(one.events, values=one.events.values[: len(form.stream.schema)]).take(places)
                    made = self._composed(publisher, form.stream, events)
                    for name in names:
                        published.setdefault(name, []).append(made)

    def _composed(self, publisher: Publisher, statement: Statement, events: Columns) -> Columns:
        """Returns results as events. A PATTERN's matches of the same events with equal values are one event, and so are
        equal changes of a story, whichever of several pairs brought its documents together."""
        is_pattern = isinstance(statement, Pattern | NearPattern)
        named = replace(events, parts=events.parts[:, :0]) if isinstance(statement, Stories) else events
        digests = self.parts(named).digests(publisher.identity, named, self.texts, ordered=not is_pattern)
        if is_pattern:
            first = {digest: place for place, digest in reversed([*enumerate(digests)])}
            if len(first) < len(digests):
                places = sorted(first.values())
                digests, events = [digests[place] for place in places], events.take(np.array(places, np.int64))
        numbers = self.lineage.composed(publisher.stream, digests, events.t0, events.t1, events.parts)
        return Columns(events.t0, events.t1, events.values, numbers.reshape(-1, 1))

    # ------------------------------------------------------------ what results are made of

    def appeared(self, events: Columns) -> Ints:
        return self.lineage.ends(events.parts[:, 0])

    def parts(self, events: Columns) -> Parts:
        return Parts(self.lineage, self._records, events)

    # ------------------------------------------------------------ upkeep

    def is_due(self, until: int) -> bool:
        """Whether a run until this time has events to process or a deadline to reach."""
        due = self.kernel.due()
        return self.buffer.is_due(until) or (due is not None and due < until)

    def compact(self) -> None:
        """Drops the numbers and texts that no waiting state refers to."""
        self.lineage.keep([*self.kernel.parts(), *self.buffer.parts()])
        self.texts.keep([*self.kernel.codes(), *self.buffer.codes()])


PATTERNS = "patterns"  # setting that holds the `PatternTime`

_LINEAGE, _HORIZON, _COUNTS = "lineage", "horizon", "counts"  # parts of a snapshot that are not the kernel's


class DefinitionCursor(NamedTuple):
    """A definition's id, and the number of the first event taken from it."""

    id: int
    first: int


@dataclass(slots=True)
class PatternTime:
    """The horizon, each external stream's greatest time, the next event number, and a cursor per definition name,
    including definitions first read when their documents were already stored."""

    horizon: Micros = BEGINNING
    greatest: dict[str, int] = field(default_factory=dict)
    next: int = 0
    taken: dict[str, DefinitionCursor] = field(default_factory=dict)

    @staticmethod
    def from_setting(text: str | None) -> PatternTime:
        """Parses a setting; None means a store without events."""
        return from_json(PatternTime, json.loads(text or "{}"))


@dataclass(frozen=True, slots=True)
class KernelSnapshot:
    """Waiting state at a horizon: the kernel's tables by name, and the lineage of its numbers."""

    horizon: Micros
    kernel: dict[str, pa.Table]
    lineage: pa.Table
    counts: pa.Table


def stored_snapshot(store: TableStore) -> KernelSnapshot:
    rows = store.read("pattern_state", SNAPSHOTS.names).to_pylist()
    latest = max((row["batch"] for row in rows), default=0)
    parts = {row["name"]: unpacked(row["state"]) for row in rows if row["batch"] == latest}
    if not parts:
        return KernelSnapshot(BEGINNING, {}, LINEAGE.empty_table(), pa.table({}))
    kernel = {name.removeprefix("op "): table for name, table in parts.items() if name.startswith("op ")}
    counts = parts.get(_COUNTS, pa.table({}))  # stores written before have none
    return KernelSnapshot(parts[_HORIZON]["horizon"][0].as_py(), kernel, parts[_LINEAGE], counts)


def save_events(store: JoinEngine, ledger: Ledger, time: PatternTime, rows: Sequence[pa.Table]) -> None:
    if rows:
        table = pa.concat_tables(rows)
        batch = pa.repeat(ledger.batch, len(table))
        store.append("events", table.append_column("batch", batch).select(EVENTS.names).cast(EVENTS))
    ledger.save_settings({PATTERNS: json.dumps(asdict(time), ensure_ascii=False)})


def save_snapshot(store: JoinEngine, batch: int, found: KernelSnapshot) -> None:
    """Replaces the snapshot, and drops the events before its horizon."""
    parts = {_HORIZON: pa.table({"horizon": [found.horizon]}), _LINEAGE: found.lineage, _COUNTS: found.counts}
    parts |= {f"op {name}": table for name, table in found.kernel.items()}
    store.drop_before("pattern_state", "batch", batch + 1)
    rows = [(batch, name, bytes(packed(part, "zstd"))) for name, part in parts.items()]
    store.append("pattern_state", rows_table(rows, SNAPSHOTS))
    store.drop_before("events", "t1", found.horizon)


def event_rows(name: str, found: Assembled, numbers: Ints, texts: Texts) -> pa.Table:
    columns = [column_texts(column, texts) for column in found.values]
    rows = list(zip(*columns, strict=True)) if columns else [()] * len(found)
    stream, attributes = pa.repeat(name, len(found)), pa.array(rows, EVENTS.field("attributes").type)
    nodes = lists(found.nodes.ravel(), np.full(len(found), found.nodes.shape[1]))
    values = [numbers, stream, found.docids, nodes, found.t0, found.t1, attributes]
    return pa.table(dict(zip(EVENTS.names[:-1], values, strict=True)))  # without the batch


def events_of(
    rows: pa.Table, schemas: Mapping[str, Schema], lineage: Lineage, texts: Texts, taken: Mapping[str, DefinitionCursor]
) -> dict[str, Columns]:
    """Returns rows of the events table as events by stream, and registers their numbers in the lineage. Skips streams
    that are not `taken` and rows from before the cursor, when the definition may have differed."""
    found: dict[str, Columns] = {}
    streams = rows["stream"].combine_chunks().dictionary_encode()
    names, at = streams.dictionary.to_pylist(), streams.indices.to_numpy()
    for place, name in enumerate(names):
        schema = schemas.get(name)
        if schema is None or name not in taken:
            continue
        numbers = rows["number"].to_numpy()
        own = rows.take(np.flatnonzero((at == place) & (numbers >= taken[name].first))).combine_chunks()
        values = own["attributes"].combine_chunks().flatten().to_pylist()
        columns: list[Column] = []
        for place_of, (_, kind) in enumerate(schema):
            some = values[place_of :: len(schema)]
            columns.append(texts.codes(some) if kind == "string" else np.array(some, np.float64))
        number, t0, t1 = (own[column].to_numpy().astype(np.int64) for column in ("number", "t0", "t1"))
        found[name] = Columns(t0, t1, tuple(columns), number.reshape(-1, 1))
        lineage.restore(own.select(["number", "stream", "docid", "t0", "t1", "nodes"]).rename_columns(LINEAGE.names))
    return found
