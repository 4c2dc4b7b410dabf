"""A store with definitions and event statements over it, run by batches, and what they would give by brute force."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from common.arrays import Ints
from join_stage.duckdb import DuckDBEngine
from mmqjp.answers.events import Patterns, StoredDocumentEvents
from mmqjp.answers.events_run import StoredEvents
from mmqjp.answers.kernels import FormResults
from mmqjp.documents.record import Record, Records, own_part_id
from mmqjp.queries.registry import EventForm, EventRegistry, Publisher
from mmqjp.queries.stored import StoredQueries
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.schema import SCHEMA
from pattern_stage.assemble import Settle
from pattern_stage.columns import Column, Columns
from pattern_stage.kernel import Kernel as RunsStatements
from pattern_stage.lineage import Lineage
from pattern_stage.operators import Excess
from pattern_stage.values import Texts
from templates.witness import plain_node
from tests.oracle.event_schemas import schema_of
from tests.oracle.event_syntax import Cel, reads
from tests.oracle.events import Event, World, event
from tests.oracle.pattern_syntax import Statement
from tests.oracle.pattern_world import PatternWorld
from tests.pattern_stage.defined import defined_events
from xpath_stage.evaluator import XPathStage
from xscl.algebra.events import Schema
from xscl.algebra.events import Statement as Lowered
from xscl.event_lower import lower_definition, lower_event_query
from xscl.parser import parse_script
from xscl.syntax import EventDefinition, EventStreams


class Doc(NamedTuple):
    id: str
    stream: str
    t0: int
    t1: int
    xml: bytes


class Result(NamedTuple):
    """A result of a statement, by values and by what its parts are, in any process."""

    statement: str
    values: frozenset[tuple[str, object]]
    t0: int
    t1: int
    documents: frozenset[tuple[object, ...]]


class OracleKernel:
    """Runs statements by the oracle, over all events that there ever were. Nothing is limited."""

    exceeded: Mapping[int, Excess] = MappingProxyType({})

    def __init__(
        self, texts: Texts, lineage: Lineage, cels: Mapping[Lowered, Cel], schemas: Mapping[str, Schema]
    ) -> None:
        self._texts, self._lineage, self._cels, self._schemas = texts, lineage, cels, schemas
        self._statements: dict[int, tuple[Cel, int]] = {}
        self._events: dict[str, list[Event]] = {}
        self._from = -(2**62)

    def add(self, statement: int, stream: Lowered, since: int) -> None:
        self._statements[statement] = self._cels[stream], since

    def narrow(self, statement: int, since: int) -> None:
        self._statements[statement] = self._statements[statement][0], since

    def remove(self, statements: Sequence[int]) -> None:
        for statement in statements:
            del self._statements[statement]

    def begin(self, until: int) -> None:
        self._until, self._fed, self._ran = until, set[str](), set[int]()

    def feed(self, events: Mapping[str, Columns]) -> list[_Results]:
        assert not self._fed & events.keys()
        self._fed |= events.keys()
        for name, columns in events.items():
            assert columns.t1.tolist() == sorted(columns.t1.tolist())
            assert all(self._from <= t1 < self._until for t1 in columns.t1.tolist())
            self._events.setdefault(name, []).extend(self._read(name, columns))
        return self._run(last=False)

    def end(self) -> list[_Results]:
        found = self._run(last=True)
        self._from = self._until
        return found

    def _run(self, *, last: bool) -> list[_Results]:
        found = []
        schemas = {name: dict(schema) for name, schema in self._schemas.items()}
        for number, (cel, since) in self._statements.items():
            if number in self._ran or not (last or self._fed.issuperset(reads(cel))):
                continue
            self._ran.add(number)
            given = {name: self._events.get(name, []) for name in schemas}
            unpublished = Cel(cel.stream, cel.select, cel.within)
            results = World(schemas, given, [unpublished]).results(0, since + 1)
            own = [one for one in results if self._from <= one.t1 < self._until]
            if own:
                schema = tuple(schema_of(cel, schemas).items())
                found.append(
                    _Results(schema, self._columns(schema, own), np.arange(len(own)), np.full(len(own), number))
                )
        return found

    def _read(self, name: str, columns: Columns) -> Iterable[Event]:
        values = [
            [None if math.isnan(x) else x for x in column.tolist()]
            if column.dtype == np.float64
            else self._texts.texts(column.astype(np.int64))
            for column in columns.values
        ]
        names = [attribute for attribute, _ in self._schemas[name]]
        for t0, t1, parts, *row in zip(
            columns.t0.tolist(), columns.t1.tolist(), columns.parts.tolist(), *values, strict=True
        ):
            yield event(dict(zip(names, row, strict=True)), t0, t1, [part for part in parts if part >= 0])

    def _columns(self, schema: Schema, events: Sequence[Event]) -> Columns:
        events = sorted(events, key=lambda one: one.t1)
        ordered = [self._ordered(one.parts) for one in events]
        parts = np.full((len(events), max(map(len, ordered))), -1, np.int64)
        for row, numbers in zip(parts, ordered, strict=True):
            row[: len(numbers)] = numbers
        values: list[Column] = []
        for name, kind in schema:
            column = [one.values[name] for one in events]
            if kind == "string":
                values.append(self._texts.codes(column))  # type: ignore[arg-type]  # of texts
            else:
                values.append(np.array([math.nan if x is None else x for x in column], np.float64))
        t0, t1 = (np.array([getattr(one, time) for one in events], np.int64) for time in ("t0", "t1"))
        return Columns(t0, t1, tuple(values), parts)

    def _ordered(self, parts: Iterable[Hashable]) -> list[int]:
        numbers = np.array(sorted(parts), np.int64)  # type: ignore[type-var]  # they are numbers
        return [int(number) for _, number in sorted(zip(self._lineage.ends(numbers).tolist(), numbers, strict=True))]

    def parts(self) -> Iterable[Ints]:
        for events in self._events.values():
            yield np.array([part for one in events for part in one.parts], np.int64)

    def codes(self) -> Iterable[Ints]:
        return ()

    def due(self) -> int | None:
        raise AssertionError("nobody asks")

    def instances(self) -> tuple[Ints, Ints]:
        raise AssertionError("nobody asks")

    def state(self) -> dict[str, pa.Table]:
        rows = [
            (n, str(sorted(e.attributes, key=str)), e.t0, e.t1, sorted(e.parts))  # type: ignore[type-var]  # numbers
            for n, events in self._events.items()
            for e in events
        ]
        columns = list(zip(*rows, strict=True)) or [()] * 5
        names = ["stream", "values", "t0", "t1", "parts"]
        table = pa.table(dict(zip(names, map(list, columns), strict=True)))
        return {"events": table, "at": pa.table({"at": [self._from]})}

    def restore(self, state: Mapping[str, pa.Table]) -> None:
        if state:
            self._from = state["at"]["at"][0].as_py()
            for row in state["events"].to_pylist():
                values = dict(eval(row["values"], {"nan": math.nan}))
                self._events.setdefault(row["stream"], []).append(event(values, row["t0"], row["t1"], row["parts"]))


class RealKernel(RunsStatements):
    """The kernel, which cannot be saved: a store with it takes no snapshots."""

    def __init__(
        self, texts: Texts, lineage: Lineage, cels: Mapping[Lowered, Cel], schemas: Mapping[str, Schema]
    ) -> None:
        super().__init__(texts, lineage)

    def parts(self) -> Iterable[Ints]:
        raise AssertionError("nothing is forgotten")

    def state(self) -> dict[str, pa.Table]:
        raise AssertionError("there are no snapshots")

    def restore(self, state: Mapping[str, pa.Table]) -> None:
        assert not state


class _Results(NamedTuple):
    schema: Schema
    events: Columns
    at: Ints
    statements: Ints


class Store:
    """A store with statements, which may be closed and opened again."""

    def __init__(
        self,
        directory: Path,
        definitions: Sequence[EventDefinition],
        *,
        settle: Settle,
        snapshot_every: int,
        kernel: type[OracleKernel] | type[RealKernel] = OracleKernel,
    ) -> None:
        self._kernel = kernel
        self._directory, self._definitions = directory, {one.name: one for one in definitions}
        self._settle, self._every = settle, snapshot_every
        self.schemas: dict[str, Schema] = {one.name: lower_definition(one, {}).schema for one in definitions}
        self._cels: dict[Lowered, Cel] = {}
        self._added: dict[str, tuple[Cel, int]] = {}
        self.results: list[Result] = []
        self.late: list[tuple[str, str]] = []
        self.open()

    def open(self) -> None:
        self.store = DuckDBEngine(self._directory, schema=SCHEMA)
        self.ledger = Ledger(self.store)
        self._stored = StoredQueries(self.store)
        self._catalog, self._stage1 = self._stored.catalog(), XPathStage()
        self._records = Records(self.store)
        self._statements = EventRegistry(self._catalog, self._stage1)
        for name, definition in self._definitions.items():
            self._statements.define(name, lower_definition(definition, {}))
        self.patterns = Patterns(
            self._statements,
            self._catalog,
            self._stage1.edges_of,
            StoredEvents(self.store, self.ledger),
            self._records,
            lambda texts, lineage: self._kernel(texts, lineage, self._cels, self.schemas),
            StoredDocumentEvents(self.store, self._records),
            lambda stream: () if any(cel.publish == stream for cel, _ in self._added.values()) else None,
            settle=self._settle,
            snapshot_every=self._every,
        )
        for name, (cel, since) in self._added.items():
            self._register(name, cel, since)

    def close(self) -> None:
        self.store.close()

    def add(self, name: str, cel: Cel, greatest: Mapping[str, int]) -> int:
        """Adds a statement; returns since when it sees events."""
        since = self.patterns.first_since(greatest, [self._definitions[n].block.stream for n in self._sources(cel)])
        self._added[name] = cel, since
        if cel.publish is not None:
            own = {n: dict(schema) for n, schema in self.schemas.items()}
            self.schemas[cel.publish] = tuple(schema_of(cel, own).items())
        self._register(name, cel, since)
        return since

    def _sources(self, cel: Cel) -> set[str]:
        published = {other.publish: other for other, _ in self._added.values()}
        return set().union(*(self._sources(published[n]) if n in published else {n} for n in reads(cel)))

    def _register(self, name: str, cel: Cel, since: int) -> None:
        (query,) = parse_script(cel.text(), events=self._streams(cel.publish)).event_queries
        stream = lower_event_query(query, self.schemas)
        self._cels[stream] = cel
        publishers = (Publisher(cel.publish, name, since),) if cel.publish else ()
        self._statements.put(EventForm(name, stream, since, publishers))

    def _streams(self, without: str | None) -> EventStreams:
        """The event streams that a statement may read which publishes as `without`."""
        known = {name: schema for name, schema in self.schemas.items() if name != without}
        defined = {name: known[name] for name in self._definitions}
        return EventStreams(defined, {name: schema for name, schema in known.items() if name not in defined})

    def batch(self, documents: Sequence[Doc], *, fails: bool = False, lasts: bool | None = None) -> None:
        """Processes documents. If it `fails`, it is rolled back."""
        numbers = self.ledger.next_ids()
        found: list[Result] = []
        self.store.begin()
        self.patterns.follow()
        records = [_record(document) for document in documents]
        for record in records:
            record.number(self.ledger.next_docid, self.ledger.next_arrival)
            self.ledger.next_docid += 1
            self.ledger.next_arrival += 1
            self._records.add(record)
        witnesses = self._stage1.evaluate((r.docid, r.stream, r.t0, r.t1, r.tree) for r in records)
        joins = self.patterns.step(witnesses)
        assert not len(joins.r_bin) and not len(joins.r_doc)
        greatest: dict[str, int] = {}
        for record in records:
            greatest[record.stream] = max(record.t1, greatest.get(record.stream, record.t1))
        for results in self.patterns.release(greatest, lasts=lasts):
            found += [one for form in results for one in self._named(form)]
        late = [(self._records[one.docid].id, one.reason) for one in self.patterns.late()]
        self._records.flush()
        self._stored.save_catalog(self._catalog)
        self.patterns.save()
        self.ledger.save_next_ids()
        if fails:
            self.store.rollback()
            self.ledger.restore_next_ids(numbers)
            self._records.forget(self.ledger.next_docid)
        else:
            self.store.commit()
            self._stored.committed((), self._catalog)
            self.ledger.batch += 1
            self.results += found
            self.late += late
        self._stage1.finish_batch(committed=not fails)
        self.patterns.finish_batch(committed=not fails)

    def _named(self, found: FormResults) -> Iterable[Result]:
        parts = self.patterns.running.parts()
        parts.load(found.events.parts)
        texts = self.patterns.running.texts
        values = [
            [None if math.isnan(x) else x for x in column.tolist()]
            if column.dtype == np.float64
            else texts.texts(column.astype(np.int64))
            for column in found.events.values
        ]
        names = [name for name, _ in found.schema]
        events = found.events
        for t0, t1, numbers, *row in zip(
            events.t0.tolist(), events.t1.tolist(), events.parts.tolist(), *values, strict=True
        ):
            behind = {
                (one.stream, self._records[one.docid].id, *map(plain_node, one.nodes))
                for number in numbers
                if number >= 0
                for one in parts.documents(number)
            }
            yield Result(found.form_id, frozenset(zip(names, row, strict=True)), t0, t1, frozenset(behind))


def _record(document: Doc) -> Record:
    own = (own_part_id(document.stream, document.id),)
    source = ((document.id, document.stream),)
    return Record(
        -1, document.id, document.stream, document.t0, document.t1, document.xml.decode(), "external", (), own, source
    )


def expected(
    definitions: Sequence[EventDefinition], statements: Mapping[str, tuple[Statement, int]], documents: Iterable[Doc]
) -> set[Result]:
    """The results of statements, each with the time since when it sees events, over documents that are not late."""
    given: dict[str, list[Event]] = {one.name: [] for one in definitions}
    schemas = {one.name: dict(lower_definition(one, {}).schema) for one in definitions}
    for document in documents:
        for one in definitions:
            if one.block.stream == document.stream:
                for nodes, values in defined_events(one, document.xml):
                    named = dict(zip(schemas[one.name], values, strict=True))
                    part = (one.name, document.id, *nodes)
                    given[one.name].append(event(named, document.t0, document.t1, [part]))
    world = PatternWorld(schemas, given, [one for one, _ in statements.values()])
    return {
        Result(name, one.attributes, one.t0, one.t1, frozenset(_behind(one.parts)))
        for place, (name, (_, since)) in enumerate(statements.items())
        for one in world.results(place, since + 1)
    }


def _behind(parts: Iterable[Hashable]) -> Iterable[tuple[object, ...]]:
    for part in parts:
        assert isinstance(part, tuple)
        if isinstance(part[-1], Event):
            yield from _behind(part[-1].parts)
        else:
            yield part
