"""Stored documents: records, their rows in the table `documents`, and lookup by docid; and watermarks. A record is an
external document, a published output, or a tuple of a hidden stream. Records are cached by size, parsed trees only for
a batch. Stored ids are held as hashes, so the store is not queried about new ids. Watermarks say how far each stream
has come, which decides lateness and eviction (docs/semantics.md, section 16); `Progress` tells with which document of a
batch each stream reached a time."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from json.encoder import encode_basestring as json_text
from operator import attrgetter, itemgetter
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.arrays import distinct, merge_sorted, rows_of
from common.bounds import EARLIEST, NO_DOCUMENT, DocId, Micros
from common.tools import in_batches, lazy
from join_stage.plans import JoinEngine
from join_stage.store.protocol import TableStore
from mmqjp.tables import schema
from pattern_stage.assemble import EVENT_TIME, OTHER_STREAMS
from xpath_stage.binder import Node
from xpath_stage.documents import ParsedDocument, parse_document, parse_documents

WATERMARKS = "watermarks"  # setting with each stream's lateness and greatest time


SETTLE = 10 * 60 * 1_000_000  # default of `Timing.settle`, in microseconds

Lateness = int | None | Mapping[str, int | None]
"""Allowed lateness in microseconds, for all streams or by stream; None is unlimited."""


def lateness_of(lateness: Lateness, stream: str) -> int | None:
    return lateness.get(stream, lateness.get(OTHER_STREAMS)) if isinstance(lateness, Mapping) else lateness


def is_lateness_bounded(lateness: Lateness) -> bool:
    allowed = lateness.values() if isinstance(lateness, Mapping) else (lateness,)
    return any(one is not None for one in allowed)


@dataclass(frozen=True, slots=True)
class Timing:
    """Event-time rules, in microseconds; None is unlimited.

    `lateness` is a document's allowed distance behind its stream's greatest time as of the previous batch. A stream
    idle for `idle_after` follows the clock at that distance. `max_ahead` limits how far a document may be ahead of the
    clock. `settle` is how long events wait for earlier ones; None means until the end of a finite run.
    """

    lateness: Lateness = None
    idle_after: int | None = None
    max_ahead: int | None = None
    settle: Lateness = SETTLE


class Watermarks:
    """Greatest time of each external stream. `greatest` are those at `opened`, when idle times begin."""

    def __init__(self, timing: Timing, greatest: Mapping[str, int], opened: int) -> None:
        self.timing = timing
        self.greatest: Mapping[str, int] = dict(greatest)
        self._opened = opened
        self._arrived: dict[str, int] = {}
        self.released: Callable[[], Micros] = lambda: EARLIEST
        """Returns the horizon of events, the watermark of streams that event queries publish."""
        self.newest: int | None = None  # the greatest document time since `opened`

    def of(self, streams: Iterable[str], greatest: Mapping[str, int] | None = None) -> Micros:
        """Returns the least watermark of external streams: earlier documents are late on what derives from them."""
        lateness = self.timing.lateness
        if not is_lateness_bounded(lateness):
            return EARLIEST
        known = self.greatest if greatest is None else greatest

        def watermark(stream: str) -> Micros:
            return self.released() if stream == EVENT_TIME else _watermark(lateness, stream, known.get(stream))

        return max(min(map(watermark, streams), default=EARLIEST), EARLIEST)

    def after(self, arrived: Mapping[str, int], streams: Iterable[str], now: int) -> dict[str, int]:
        """Returns the greatest times after a batch, which has those in `arrived`; queries wait for `streams`."""
        greatest = dict(self.greatest)
        for stream, time in arrived.items():
            greatest[stream] = max(greatest.get(stream, EARLIEST), time)
        if self.timing.idle_after is not None:
            for stream in {*greatest, *streams} - arrived.keys() - {EVENT_TIME}:
                if now - self._arrived.get(stream, self._opened) >= self.timing.idle_after:
                    greatest[stream] = max(greatest.get(stream, EARLIEST), now - self.timing.idle_after)
        return greatest

    def advance(self, greatest: Mapping[str, int], arrived: Mapping[str, int], now: int) -> None:
        self.greatest = dict(greatest)
        times = [*arrived.values()] if self.newest is None else [*arrived.values(), self.newest]
        self.newest = max(times, default=None)
        self._arrived |= dict.fromkeys(arrived, now)


def by_stream(lateness: Lateness, greatest: Mapping[str, int]) -> dict[str, int]:
    known = ((stream, _watermark(lateness, stream, time)) for stream, time in sorted(greatest.items()))
    return {stream: watermark for stream, watermark in known if watermark > EARLIEST}


def _watermark(lateness: Lateness, stream: str, greatest: int | None) -> Micros:
    late = lateness_of(lateness, stream)
    return EARLIEST if greatest is None or late is None else Micros(greatest - late)


def saved_watermarks(ledger: schema.Ledger) -> tuple[Lateness, dict[str, int]]:
    if (value := ledger.setting(WATERMARKS)) is None:
        return None, {}
    noted = json.loads(value)
    return noted["lateness"], noted["greatest"]


def latest_stream_times(store: JoinEngine, ledger: schema.Ledger) -> dict[str, int]:
    greatest = saved_watermarks(ledger)[1]
    found = store.select("SELECT stream, max(t1) AS t1 FROM documents WHERE kind = 'external' GROUP BY stream")
    for stream, time in zip(found["stream"].to_pylist(), found["t1"].to_pylist(), strict=True):
        greatest[stream] = max(time, greatest.get(stream, time))
    return greatest


def save_watermarks(ledger: schema.Ledger, lateness: Lateness, greatest: Mapping[str, int]) -> None:
    allowed = dict(lateness) if isinstance(lateness, Mapping) else lateness
    noted = json.dumps({"lateness": allowed, "greatest": dict(greatest)}, ensure_ascii=False)
    ledger.save_settings({WATERMARKS: noted})


class Progress:
    """Progress of streams within a batch. Arrivals run from `first` to `last`; of an empty batch, both are the last."""

    def __init__(self, records: Sequence[Record], next_arrival: int) -> None:
        """`records` are the batch's numbered external documents; `next_arrival` follows the last of them."""
        self.last = max(next_arrival - 1, 0)
        self.first = records[0].arrival if records else self.last
        self._times, self._arrivals = dict[str, list[int]](), dict[str, list[int]]()
        for record in records:
            times = self._times.setdefault(record.stream, [])
            if not times or times[-1] < record.t1:
                times.append(record.t1)
                self._arrivals.setdefault(record.stream, []).append(record.arrival)

    def came_to(self, watermark: int, streams: Iterable[str], watermarks: Watermarks) -> int:
        """Returns the arrival at which the least watermark of streams, given those before the batch, came to a time."""
        found = self.first
        for stream in streams:
            if stream == EVENT_TIME:
                return self.last
            time = watermark + (lateness_of(watermarks.timing.lateness, stream) or 0)
            place = bisect_left(times := self._times.get(stream, ()), time)
            if place < len(times) and watermarks.greatest.get(stream, EARLIEST) < time:
                found = max(found, self._arrivals[stream][place])
        return found


DocumentKind = Literal["external", "published", "hidden"]


@dataclass
class Record:
    """A stored document. Times are UTC microseconds; `xml` excludes comments and PIs.

    `parts` identify the documents behind a chain's outputs: the document itself or, for a hidden tuple, those of its
    blocks. Parallel to it, `part_ids` are their ids with streams, and `appeared` the docid of the external document
    that completed each, or its own if a backfill published it. `sources` are the external documents as (id, stream),
    left to right. A tuple's `bound` has (docid, node) per variable. `arrival` is the latest behind the record.
    `watermark` is that of its stream when it arrived, if it is belated, so that it ends before it.
    """

    docid: DocId
    id: str
    stream: str
    t0: int
    t1: int
    xml: str
    kind: DocumentKind
    parts: tuple[DocId, ...]
    part_ids: tuple[str, ...]
    sources: tuple[tuple[str, str], ...]
    bound: tuple[tuple[DocId, Node], ...] = ()
    arrival: int = -1
    appeared: tuple[DocId, ...] = ()
    watermark: Micros | None = None

    @lazy
    def tree(self) -> ParsedDocument:
        return parse_document(self.xml.encode(), trusted=True)

    @property
    def has_namespaces(self) -> bool:
        return "xmlns" in self.xml

    @lazy
    def fragments(self) -> dict[int, str]:
        """Serialized elements by number; they live as long as the tree."""
        return {}

    def number(self, docid: DocId, arrival: int) -> None:
        """Numbers the document on entry; `arrival` applies to external ones. Repeatable when a batch restarts."""
        self.docid = docid
        if self.kind != "hidden":
            self.parts = (docid,)
        if self.kind == "external":
            self.arrival = arrival
        if self.kind == "external" or not self.appeared:
            self.appeared = (docid,)


def own_part_id(stream: str, document_id: str) -> str:
    return f"[{json_text(stream)}, {json_text(document_id)}]"  # in a tenth of the time that `json.dumps` takes


class Inputs(tuple[Record, ...]):
    """A match's documents in the query's order, with derived values computed once for all subscribers.

    `t0` is the earliest start, `t1` the latest end, `arrival` the latest arrival; `appeared` is that of the first part.
    """

    # Lists are faster than generators here: there are one or two documents, and mostly one source of each.

    def __init__(self, records: Sequence[Record]) -> None:
        first, last = records[0], records[-1]
        self.t0 = first.t0 if first.t0 <= last.t0 else last.t0
        self.t1 = first.t1 if first.t1 >= last.t1 else last.t1
        self.arrival = first.arrival if first.arrival >= last.arrival else last.arrival
        self.appeared = min(first.appeared + last.appeared)

    def are_seen_by(self, sees: Callable[[Iterable[DocId]], bool]) -> bool:
        return all(sees(record.appeared) for record in self)

    @lazy
    def parts(self) -> tuple[DocId, ...]:
        return self[0].parts if len(self) == 1 else self[0].parts + self[1].parts

    @lazy
    def part_ids(self) -> tuple[str, ...]:
        return self[0].part_ids if len(self) == 1 else self[0].part_ids + self[1].part_ids

    @lazy
    def sources(self) -> tuple[tuple[str, str], ...]:
        return self[0].sources if len(self) == 1 else self[0].sources + self[1].sources

    @lazy
    def documents(self) -> tuple[str, ...]:
        return tuple([source[0] for source in self.sources])

    @lazy
    def streams(self) -> tuple[str, ...]:
        return tuple([source[1] for source in self.sources])


def published_record(stream: str, inputs: Inputs, xml: str, id: str, *, within: bool) -> Record:
    """Returns an output as a document, without a docid. `within`: it appears with its latest document, else now."""
    appeared = (max(at for record in inputs for at in record.appeared),) if within else ()
    t0, t1, own, sources = inputs.t0, inputs.t1, (own_part_id(stream, id),), inputs.sources
    return Record(NO_DOCUMENT, id, stream, t0, t1, xml, "published", (), own, sources, (), inputs.arrival, appeared)


def tuple_record(stream: str, inputs: Inputs, xml: str, bound: tuple[tuple[DocId, Node], ...]) -> Record:
    """Returns a tuple as a document of a hidden stream, without a docid. `bound` has the (docid, node) per variable."""
    appeared = tuple(at for record in inputs for at in record.appeared)
    t0, t1, parts, ids, sources = inputs.t0, inputs.t1, inputs.parts, inputs.part_ids, inputs.sources
    return Record(NO_DOCUMENT, "", stream, t0, t1, xml, "hidden", parts, ids, sources, bound, inputs.arrival, appeared)


_EXTERNAL = ("docid", "id", "stream", "t0", "t1", "xml", "kind", "arrival")
"""The columns of external documents; all others are null."""


def records_table(records: Sequence[Record]) -> pa.Table:
    if len(records) <= schema.FEW_ROWS:
        return schema.rows_table([_row(record) for record in records], schema.DOCUMENTS)
    external = [record for record in records if record.kind == "external"]
    others = [_row(record) for record in records if record.kind != "external"]
    values = zip(*map(attrgetter(*_EXTERNAL), external), strict=True) if external else [()] * len(_EXTERNAL)
    columns: dict[str, Any] = dict(zip(_EXTERNAL, values, strict=True))
    columns |= {name: pa.nulls(len(external), schema.DOCUMENTS.field(name).type) for name in schema.OWN}
    return pa.concat_tables([pa.table(columns, schema.DOCUMENTS), schema.rows_table(others, schema.DOCUMENTS)])


def _row(record: Record) -> tuple[object, ...]:
    lists: list[object] = [None] * 6
    appeared = None
    if record.kind != "external":
        ids, streams = zip(*record.sources, strict=True) if record.sources else ((), ())
        bound = [docid for docid, _ in record.bound], [element | place << 32 for _, (element, place) in record.bound]
        lists, appeared = [record.parts, record.part_ids, ids, streams, *bound], record.appeared
    *known, arrival = (getattr(record, name) for name in _EXTERNAL)
    return (*known, *lists, arrival, appeared)


def record_of(row: dict[str, Any]) -> Record:
    docid, id, stream, t0, t1, xml = (row[name] for name in ("docid", "id", "stream", "t0", "t1", "xml"))
    # Documents of stores without arrivals come first, by docid.
    arrival = docid - schema.BEFORE_ARRIVALS if row["arrival"] is None else row["arrival"]
    if row["parts"] is None:
        ids, source = (own_part_id(stream, id),), ((id, stream),)
        return Record(docid, id, stream, t0, t1, xml, "external", (docid,), ids, source, (), arrival, (docid,))
    sources = tuple(zip(row["source_ids"], row["source_streams"], strict=True))
    nodes = zip(row["bound_docids"], row["bound_nodes"], strict=True)
    bound = tuple((docid, (node & 0xFFFFFFFF, node >> 32)) for docid, node in nodes)
    parts, ids = tuple(row["parts"]), tuple(row["part_ids"])
    appeared = parts if row["appeared"] is None else tuple(row["appeared"])
    return Record(docid, id, stream, t0, t1, xml, row["kind"], parts, ids, sources, bound, arrival, appeared)


READ_IDS = 200_000  # docids whose ids are read at a time
RECENT_IDS = 10_000  # minimum number of new hashes that are buffered before merging

DocumentKey = tuple[str, str]


class StoredIds:
    """Hashes of ids of stored documents, and of retained ids. A new hash means a new id; else the store is asked."""

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self._sorted: NDArray[np.int64] | None = None
        self._recent: set[int] = set()

    def add(self, stream: str, id: str) -> None:
        self._recent.add(hash((stream, id)))

    def forget(self) -> None:
        self._sorted = None
        self._recent.clear()

    def among(self, keys: Iterable[DocumentKey]) -> set[DocumentKey]:
        asked = list(keys)
        hashes = np.fromiter(map(hash, asked), np.int64, len(asked))
        known = self._hashes()
        place = np.searchsorted(known, hashes)
        place[place == len(known)] = 0
        possible = known[place] == hashes if len(known) else np.zeros(len(asked), np.bool_)
        numbers = hashes.tolist()
        maybe = self._recent.intersection(numbers).union(hashes[possible].tolist())
        if not maybe:
            return set()
        possible_keys = [key for key, number in zip(asked, numbers, strict=True) if number in maybe]
        return schema.known_ids(self._store, possible_keys)

    def _hashes(self) -> NDArray[np.int64]:
        if self._sorted is None:
            self._sorted = self._read()
        elif len(self._recent) > max(RECENT_IDS, len(self._sorted) // 8):
            self._sorted = merge_sorted(self._sorted, np.fromiter(self._recent, np.int64, len(self._recent)))
            self._recent.clear()
        return self._sorted

    def _read(self) -> NDArray[np.int64]:
        firsts = range(0, self._store.highest("documents", "docid") + 1, READ_IDS)
        tables = (schema.ids_between(self._store, first, first + READ_IDS) for first in firsts)
        found = chain([self._store.read("dropped_ids", ["stream", "id"])], tables)
        hashes = [np.fromiter(map(hash, rows_of(keys, "stream", "id")), np.int64, len(keys)) for keys in found]
        return distinct(np.concatenate(hashes))


READ_DOCUMENTS, READ_CHARACTERS = 5_000, 16 << 20
"""Maximum batch of stored documents, and characters of XML, since a batch is in memory parsed."""


class StoredRecords:
    """LRU cache of stored records, of `cached` characters of XML. Parsed trees, far larger, live for a batch."""

    def __init__(self, store: schema.HasDocuments, cached: int = 16 << 20) -> None:
        self._documents, self._cached = store, cached
        self._size = 0
        self._records: OrderedDict[int, Record] = OrderedDict()
        self._used: dict[int, Record] = {}  # those that may have a tree

    def __getitem__(self, docid: int) -> Record:
        found = self._records.get(docid)
        if found is None:
            self.load([docid])
            found = self._records[docid]
        self._used[docid] = found
        return found

    def load(self, docids: Iterable[int]) -> None:
        requested = set(docids)
        for docid in requested & self._records.keys():
            self._records.move_to_end(docid)
        missing = sorted(requested - self._records.keys())
        if not missing:
            return
        rows = self._documents.find("documents", "docid", pa.array(missing, pa.int64()))
        for record in map(record_of, rows.to_pylist()):
            self._records[record.docid] = record
            self._size += len(record.xml)
        self._shrink(len(requested))

    def found(self, docids: Collection[int]) -> dict[int, Record]:
        self.load(docids)
        return {docid: self[docid] for docid in docids if docid in self._records}

    def release_trees(self) -> None:
        """Frees the parsed trees and shrinks the cache to its limit."""
        self._shrink(0)
        _release_trees(self._used.values())
        self._used.clear()

    def _shrink(self, needed: int) -> None:
        while self._size > self._cached and len(self._records) > needed:
            docid, record = self._records.popitem(last=False)
            self._size -= len(record.xml)
            self._used.pop(docid, None)


class Records(StoredRecords):
    def __init__(self, store: JoinEngine, cached: int = 16 << 20) -> None:
        super().__init__(store, cached)
        self._store, self.ids = store, StoredIds(store)
        self._fresh: dict[int, Record] = {}
        self._written = -1  # the last docid of the running batch that is in the store

    def add(self, record: Record) -> None:
        self._fresh[record.docid] = record
        if record.kind != "hidden":
            self.ids.add(record.stream, record.id)

    def __getitem__(self, docid: int) -> Record:
        found = self._fresh.get(docid)
        return super().__getitem__(docid) if found is None else found

    def load(self, docids: Iterable[int]) -> None:
        super().load(docid for docid in docids if docid not in self._fresh)

    def parsed(self, docids: Sequence[int]) -> list[Record]:
        """Returns documents with parsed trees; batched parsing is faster."""
        self.load(docids)
        records = [self[docid] for docid in docids]
        waiting = [record for record in records if "tree" not in record.__dict__]
        trees = parse_documents((record.xml.encode() for record in waiting), trusted=True)
        for record, tree in zip(waiting, trees, strict=True):
            if isinstance(tree, ParsedDocument):  # otherwise whoever reads it gets the error
                record.tree = tree
        return records

    def write(self) -> None:
        new = [record for docid, record in self._fresh.items() if docid > self._written]
        self._store.append("documents", records_table(new))
        self._written = max(self._fresh, default=-1)

    def flush(self) -> None:
        """Writes the batch's documents, and frees what only the batch needed."""
        self.write()
        self._records.update(self._fresh)
        self._size += sum([len(record.xml) for record in self._fresh.values()])
        _release_trees(self._fresh.values())
        self._fresh.clear()
        self._written = -1
        self.release_trees()

    def forget(self, first: int) -> None:
        self._fresh.clear()
        self._written = -1
        for docid in [docid for docid in self._records if docid >= first]:
            self._size -= len(self._records.pop(docid).xml)
            self._used.pop(docid, None)


def _release_trees(records: Iterable[Record]) -> None:
    for record in records:
        record.__dict__.pop("tree", None)
        record.__dict__.pop("fragments", None)


def docid_batches(
    store: JoinEngine,
    streams: Collection[str],
    *,
    starts: range | None = None,
    ends: range | None = None,
    joined: bool = False,
    refused: str = "",
) -> Iterator[list[int]]:
    """Yields docids of stored documents in batches, oldest first; the filters are those of `document_sizes`."""
    rows = schema.document_sizes(store, streams, starts=starts, ends=ends, joined=joined, refused=refused).to_pylist()
    for batch in in_batches(rows, READ_DOCUMENTS, READ_CHARACTERS, itemgetter("size")):
        yield [row["docid"] for row in batch]
