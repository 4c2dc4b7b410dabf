"""Stored documents: records, their rows in the table `documents`, and lookup by docid; and watermarks. A record is an
external document, a published output, or a tuple of a hidden stream. Records are cached by size, parsed trees only for
a batch. Stored ids are held as hashes, so the store is not queried about new ids."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, starmap
from json.encoder import encode_basestring as json_text
from operator import attrgetter, itemgetter
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.arrays import distinct, merge_sorted, rows_of
from common.bounds import NO_DOCUMENT, DocId, Micros
from common.tools import in_batches, lazy
from join_stage.plans import JoinEngine
from join_stage.store.protocol import TableStore
from mmqjp.tables import schema
from xpath_stage.binder import Node
from xpath_stage.documents import DocumentOutline, ParsedDocument, parse_document, parse_documents

DocumentKind = Literal["external", "published", "hidden"]


@dataclass
class Record:
    """A stored document. Times are UTC microseconds; `xml` excludes comments and PIs.

    `parts` identify the documents behind a chain's outputs: the document itself or, for a hidden tuple, those of its
    blocks. Parallel to it, `part_ids` are their ids with streams, and `appeared` the docid of the external document
    that completed each, or its own if a backfill published it. `sources` are the external documents as (id, stream),
    left to right. A tuple's `bound` has (docid, node) per variable. `arrival` is the latest behind the record.
    `watermark` is that of its stream when it arrived, if the record is belated: it ends before that. `taken_at` is
    when an external document arrived, unless it did before format 13.
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
    taken_at: Micros | None = None
    outline: DocumentOutline | None = field(default=None, compare=False, repr=False)
    """That of its tree, which outlives it."""

    @lazy
    def tree(self) -> ParsedDocument:
        if self.outline is None:
            return parse_document(self.xml.encode(), trusted=True)
        tree = ParsedDocument(None, len(self.xml), self.xml)
        tree.outline = self.outline
        return tree

    def release_tree(self) -> None:
        if (tree := self.__dict__.pop("tree", None)) is not None:
            self.outline = tree.outline if tree.text == self.xml else None
            self.__dict__.pop("fragments", None)

    @lazy
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

    @property
    def watermark(self) -> Micros | None:
        """That of the document that came last, if it is belated and so is what derives from it."""
        found = [r.watermark for r in self if r.watermark is not None and r.arrival == self.arrival]
        return max((one for one in found if one > self.t1), default=None)

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
    of = NO_DOCUMENT, id, stream, t0, t1, xml
    return Record(*of, "published", (), own, sources, (), inputs.arrival, appeared, inputs.watermark)


def tuple_record(stream: str, inputs: Inputs, xml: str, bound: tuple[tuple[DocId, Node], ...]) -> Record:
    """Returns a tuple as a document of a hidden stream, without a docid. `bound` has the (docid, node) per variable."""
    appeared = tuple(at for record in inputs for at in record.appeared)
    parts, ids, sources, arrival = inputs.parts, inputs.part_ids, inputs.sources, inputs.arrival
    of = NO_DOCUMENT, "", stream, inputs.t0, inputs.t1, xml
    return Record(*of, "hidden", parts, ids, sources, bound, arrival, appeared, inputs.watermark)


_EXTERNAL = ("docid", "id", "stream", "t0", "t1", "xml", "kind", "arrival", "watermark", "taken_at")
"""The columns of external documents; all others are null."""


def records_table(records: Sequence[Record]) -> pa.Table:
    if len(records) <= schema.FEW_ROWS:
        return schema.rows_table([_row(record) for record in records], schema.DOCUMENTS)
    external = [record for record in records if record.kind == "external"]
    others = [_row(record) for record in records if record.kind != "external"]
    columns: dict[str, Any] = {name: [*map(attrgetter(name), external)] for name in _EXTERNAL}
    columns |= {name: pa.nulls(len(external), schema.DOCUMENTS.field(name).type) for name in schema.OWN}
    return pa.concat_tables([pa.table(columns, schema.DOCUMENTS), schema.rows_table(others, schema.DOCUMENTS)])


def _row(record: Record) -> tuple[object, ...]:
    lists: list[object] = [None] * 6
    appeared = None
    if record.kind != "external":
        ids, streams = zip(*record.sources, strict=True) if record.sources else ((), ())
        bound = [docid for docid, _ in record.bound], [element | place << 32 for _, (element, place) in record.bound]
        lists, appeared = [record.parts, record.part_ids, ids, streams, *bound], record.appeared
    *known, arrival, watermark, taken_at = (getattr(record, name) for name in _EXTERNAL)
    return (*known, *lists, arrival, appeared, watermark, taken_at)


def _arrival(docid: DocId, arrival: int | None) -> int:
    """Documents of stores without arrivals come first, by docid."""
    return docid - schema.BEFORE_ARRIVALS if arrival is None else arrival


def _external(
    docid: DocId, id: str, stream: str, t0: Micros, t1: Micros, xml: str, came: int | None, *late: Micros | None
) -> Record:
    watermark, taken_at = late
    own, arrival = (own_part_id(stream, id),), _arrival(docid, came)
    of = docid, id, stream, t0, t1, xml
    return Record(*of, "external", (docid,), own, ((id, stream),), (), arrival, (docid,), watermark, taken_at)


def record_of(row: dict[str, Any]) -> Record:
    docid, id, stream = row["docid"], row["id"], row["stream"]
    of = docid, id, stream, row["t0"], row["t1"], row["xml"]
    if row["parts"] is None:
        return _external(*of, row["arrival"], row["watermark"], row["taken_at"])
    arrival = _arrival(docid, row["arrival"])
    sources = tuple(zip(row["source_ids"], row["source_streams"], strict=True))
    nodes = zip(row["bound_docids"], row["bound_nodes"], strict=True)
    bound = tuple((docid, (node & 0xFFFFFFFF, node >> 32)) for docid, node in nodes)
    parts, ids = tuple(row["parts"]), tuple(row["part_ids"])
    appeared = parts if row["appeared"] is None else tuple(row["appeared"])
    return Record(*of, row["kind"], parts, ids, sources, bound, arrival, appeared, row["watermark"])


def find_records(documents: schema.HasDocuments, docids: Sequence[int]) -> list[Record]:
    """Stored records. Only derived ones are read with their lists, which would take half the time."""
    rows = documents.find("documents", "docid", pa.array(docids, pa.int64()), _EXTERNAL)
    is_external = pc.equal(rows["kind"], "external")
    columns = [rows[name].filter(is_external).to_pylist() for name in _EXTERNAL if name != "kind"]
    found = list(starmap(_external, zip(*columns, strict=True)))
    if len(found) < len(rows):
        others = rows["docid"].filter(pc.invert(is_external)).combine_chunks()
        found += map(record_of, documents.find("documents", "docid", others).to_pylist())
    return found


READ_IDS = 200_000  # docids whose ids are read at a time
RECENT_IDS = 10_000  # minimum number of new hashes that are buffered before merging

DocumentKey = tuple[str, str]


class StoredIds:
    """Hashes of ids of stored documents, and of retained ids. A new hash means a new id; else the store is asked."""

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self._sorted: NDArray[np.int64] | None = None
        self._recent: set[int] = set()

    def add(self, keys: Iterable[DocumentKey]) -> None:
        self._recent.update(map(hash, keys))

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
        known = requested & self._records.keys()
        for docid in known:
            self._records.move_to_end(docid)
        missing = sorted(requested - known)  # to subtract the keys would pass over all of them
        if not missing:
            return
        for record in find_records(self._documents, missing):
            self._records[record.docid] = record
            self._size += len(record.xml)
        self._shrink(len(requested))

    def found(self, docids: Collection[int]) -> dict[int, Record]:
        self.load(docids)
        return {docid: self[docid] for docid in docids if docid in self._records}

    def release_trees(self) -> None:
        """Frees the parsed trees and shrinks the cache to its limit."""
        self._shrink(0)
        for record in self._used.values():
            record.release_tree()
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

    def add(self, records: Collection[Record]) -> None:
        self._fresh.update((record.docid, record) for record in records)
        self.ids.add((record.stream, record.id) for record in records if record.kind != "hidden")

    def __getitem__(self, docid: int) -> Record:
        found = self._fresh.get(docid)
        return super().__getitem__(docid) if found is None else found

    def load(self, docids: Iterable[int]) -> None:
        super().load(docid for docid in docids if docid not in self._fresh)

    def parsed(self, docids: Sequence[int]) -> list[Record]:
        """Returns documents with parsed trees; batched parsing is faster."""
        self.load(docids)
        records = [self[docid] for docid in docids]
        parse_trees(records)
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
        for record in self._fresh.values():
            record.release_tree()
        self._fresh.clear()
        self._written = -1
        self.release_trees()

    def forget(self, first: int) -> None:
        self._fresh.clear()
        self._written = -1
        for docid in [docid for docid in self._records if docid >= first]:
            self._size -= len(self._records.pop(docid).xml)
            self._used.pop(docid, None)


def parse_trees(records: Iterable[Record]) -> None:
    """Parses those without a tree together, which is faster. What cannot be parsed is an error of whoever reads it.
    Documents with an outline are parsed where their trees are needed."""
    waiting = [record for record in records if record.outline is None and "tree" not in record.__dict__]
    trees = parse_documents((record.xml.encode() for record in waiting), trusted=True)
    for record, tree in zip(waiting, trees, strict=True):
        if isinstance(tree, ParsedDocument):
            record.tree = tree


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
