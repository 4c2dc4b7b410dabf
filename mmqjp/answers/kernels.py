"""What surrounds the kernels that run event statements: evaluation order, naming, results. The order says which event
names are complete once others are. Parts of an event have names that are the same in every store and process: documents
with nodes, or digests of published events. Results are grouped by form."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from common.arrays import Ints
from common.tools import reachable
from mmqjp.documents.record import Records
from mmqjp.queries.registry import EventForm, published_name
from pattern_stage.columns import Column, Columns, joined
from pattern_stage.lineage import COMPOSED, TOGETHER, DocumentIds, EventOrigin, Lineage
from pattern_stage.values import Texts
from templates.events import EventPlacement
from templates.witness import plain_node
from xscl.algebra.events import Schema, read_by

if TYPE_CHECKING:
    from pattern_stage.kernel import PatternKernel, Results

MakeKernel = Callable[[Texts, Lineage], "PatternKernel"]


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
        self._schemas: dict[str, Schema] = {}

    def add(self, form: EventForm) -> None:
        self.remove(form.id)
        read = read_by(form.stream)
        self._schemas |= read
        shape = _Shape(frozenset(read), frozenset(publisher.stream for publisher in form.publishers))
        self._shape_of[form.id] = shape
        self._shapes[shape] += 1

    def remove(self, form_id: str) -> None:
        shape = self._shape_of.pop(form_id, None)
        if shape is not None:
            self._shapes[shape] -= 1
            if not self._shapes[shape]:
                del self._shapes[shape]

    def names(self) -> set[str]:
        return set().union(*(shape.reads for shape in self._shapes))

    def names_of(self) -> dict[str, list[str]]:
        """Returns the names under which forms read what is published, by the published name."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.names()):
            found.setdefault(published_name(name), []).append(name)
        return found

    def schema(self, name: str) -> Schema:
        return self._schemas[name]

    def outside(self, placements: Mapping[str, EventPlacement], without: Collection[str] = ()) -> set[str]:
        shapes = self._shapes - Counter(self._shape_of[form_id] for form_id in without)
        names = set[str]().union(*(shape.reads for shape in shapes))
        streams = (placements[name].stream for name in names if name in placements)
        return {stream for stream in self._behind(streams) if self._made_of(stream) is None}

    def ready(self, fed: Collection[str], placements: Mapping[str, EventPlacement]) -> list[str]:
        """Returns the names, not yet `fed`, whose events are complete once those fed are answered."""
        return [name for name in sorted(self.names().difference(fed)) if self._is_complete(name, fed, placements)]

    def _is_complete(self, name: str, fed: Collection[str], placements: Mapping[str, EventPlacement]) -> bool:
        streams = self._behind([placements[name].stream]) if name in placements else {published_name(name)}
        return all(shape.reads.issubset(fed) for stream in streams for shape in self._makers(stream))

    def _makers(self, stream: str) -> list[_Shape]:
        return [shape for shape in self._shapes if stream in shape.publishes]

    def _behind(self, streams: Iterable[str]) -> set[str]:
        return set(reachable(streams, lambda stream: self._made_of(stream) or ()))


DIGEST_SIZE = 16
"""Bytes in a published event's digest."""


class Parts:
    """Names the parts of events and finds the documents behind them."""

    def __init__(self, lineage: Lineage, records: Records) -> None:
        self._lineage, self._records = lineage, records
        self._origins: dict[int, EventOrigin] = {}

    def load(self, numbers: Ints) -> None:
        self._origins = self._lineage.origins(self._lineage.with_parts([numbers]))

    def docids(self) -> set[int]:
        return {origin.docid for origin in self._origins.values() if origin.docid >= 0}

    def origin(self, number: int) -> EventOrigin:
        return self._origins[number]

    def id(self, number: int) -> str:
        """Returns a part's name as JSON, the same in every store."""
        return json.dumps(self._named(number), ensure_ascii=False)

    def _named(self, number: int) -> object:
        origin = self._origins[number]
        if origin.docid == COMPOSED:
            return [origin.stream, origin.digest.hex()]
        if origin.docid == TOGETHER:
            return sorted((self._named(part) for part in origin.parts), key=str)
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
        """Returns each event's digest as published under `identity`. Unless `ordered`, permuting parts does not change
        it."""
        self.load(events.parts)
        values = [column_texts(column, texts) for column in events.values]
        rows = zip(events.t0.tolist(), events.t1.tolist(), events.parts.tolist(), *values, strict=True)
        found = []
        for t0, t1, parts, *attributes in rows:
            numbers = [part for part in parts if part >= 0]
            if not ordered:
                numbers = [member for number in numbers for member in self.members(number)]
            named = [self._named(number) for number in numbers]
            whole = [identity, t0, t1, attributes, named if ordered else sorted(named, key=str)]
            text = json.dumps(whole, ensure_ascii=False).encode("utf-8", "surrogatepass")
            found.append(blake2b(text, digest_size=DIGEST_SIZE).digest())
        return found


def ids_of(records: Records) -> DocumentIds:
    def found(docids: Collection[int]) -> Mapping[int, str]:
        records.load(docids)
        return {docid: records[docid].id for docid in docids}

    return found


def column_texts(column: Column, texts: Texts) -> list[str | None]:
    """Returns an attribute's values as texts: numbers as Python writes them."""
    if column.dtype == np.float64:
        return [None if value != value else repr(value) for value in column.tolist()]
    return texts.texts(column.astype(np.int64, copy=False))


LATE = "late for patterns"
"""Prefix of the reason given for a document whose events came too late."""


@dataclass(frozen=True, slots=True)
class FormResults:
    """A form's id, and its results as events with attributes."""

    form_id: str
    schema: Schema
    events: Columns


@dataclass(frozen=True, slots=True)
class WaitingCounts:
    """`events` that end at the `horizon` or later, and `partial` matches, counted per form."""

    horizon: int
    events: int
    partial: int


def by_form(found: Sequence[Results], form_ids: Mapping[int, str]) -> list[FormResults]:
    results = []
    for one in found:
        order = np.argsort(one.statements, kind="stable")
        numbers, starts = np.unique(one.statements[order], return_index=True)
        for number, places in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            results.append(FormResults(form_ids[number], one.schema, one.events.take(one.at[places])))
    return results


def concat_by_time(composed: Sequence[Columns]) -> Columns:
    """Concatenates events of one schema by t1. Statements may place parts differently."""
    events = joined(composed)
    order: Ints = np.argsort(events.t1, kind="stable")
    return events.take(order)
