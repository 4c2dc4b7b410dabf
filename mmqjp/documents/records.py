"""Stored documents: external ones, published outputs, and tuples of hidden streams."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring as json_text
from operator import itemgetter
from typing import Any, Literal

from common.batches import in_batches
from common.lazy import lazy
from join_stage.joiner import JoinEngine
from mmqjp.documents.stored_ids import StoredIds
from mmqjp.tables.documents import BEFORE_ARRIVALS, DOCUMENTS, document_rows, document_sizes
from mmqjp.tables.table_rows import rows_table
from xpath_stage.binder import Node
from xpath_stage.parse import ParsedDocument, parse_document
from xpath_stage.parse_many import parse_documents

READ_DOCUMENTS, READ_CHARACTERS = 5_000, 16 << 20
"""Stored documents are read in batches of at most this many documents and characters of XML, because all of a batch are
in memory, parsed."""

DocumentKind = Literal["external", "published", "hidden"]


@dataclass
class Record:
    """A stored document. Times are UTC microseconds; `xml` is the document without comments and PIs.

    `parts` identify the documents behind a chain's outputs: the document itself, or for a tuple of a hidden stream the
    documents of its blocks. `part_ids` are their ids with their streams, and `appeared` says when each of them
    appeared: the docid of the external document that completed it, or its own docid if a backfill published it. These
    three have one length. `sources` are the external documents behind the record as (id, stream), left to right. For a
    tuple, `bound` has the (docid, node) of each variable. `arrival` is the latest arrival behind the record (see
    `mmqjp.answers.quota`).
    """

    docid: int
    id: str
    stream: str
    t0: int
    t1: int
    xml: str
    kind: DocumentKind
    parts: tuple[int, ...]
    part_ids: tuple[str, ...]
    sources: tuple[tuple[str, str], ...]
    bound: tuple[tuple[int, Node], ...] = ()
    arrival: int = -1
    appeared: tuple[int, ...] = ()

    @lazy
    def tree(self) -> ParsedDocument:
        return parse_document(self.xml.encode(), trusted=True)

    @property
    def has_namespaces(self) -> bool:
        """Whether the document may declare namespaces."""
        return "xmlns" in self.xml

    @lazy
    def fragments(self) -> dict[int, str]:
        """The elements that were serialized so far, by number. They live as long as the tree."""
        return {}

    def number(self, docid: int, arrival: int) -> None:
        """Numbers the document as it enters; `arrival` applies to external ones. May be called again if the batch is
        begun again."""
        self.docid = docid
        if self.kind != "hidden":
            self.parts = (docid,)
        if self.kind == "external":
            self.arrival, self.appeared = arrival, (docid,)
        elif not self.appeared:
            self.appeared = (docid,)


def own_part_id(stream: str, document_id: str) -> str:
    """Returns the part id of a document: its stream and id as JSON."""
    return json.dumps([stream, document_id], ensure_ascii=False)


class Inputs(tuple[Record, ...]):
    """The documents of a match, in the query's order, and what everybody who gets the match needs of them: computed
    once for all subscribers."""

    @lazy
    def t0(self) -> int:
        """The earliest start, in microseconds."""
        return min(record.t0 for record in self)

    @lazy
    def t1(self) -> int:
        """The latest end, in microseconds."""
        return max(record.t1 for record in self)

    @lazy
    def arrival(self) -> int:
        """The latest arrival."""
        return max(record.arrival for record in self)

    def are_seen_by(self, sees: Callable[[Iterable[int]], bool]) -> bool:
        """Returns whether all documents are seen. `sees` is told when the parts of one appeared."""
        return all(sees(record.appeared) for record in self)

    @lazy
    def appeared(self) -> int:
        """When the first part appeared."""
        return min(at for record in self for at in record.appeared)

    @lazy
    def parts(self) -> tuple[int, ...]:
        """The docids of all parts."""
        return tuple(part for record in self for part in record.parts)

    @lazy
    def part_ids(self) -> tuple[str, ...]:
        """The ids of all parts: one for each of `parts`."""
        return tuple(part for record in self for part in record.part_ids)

    @lazy
    def part_ids_json(self) -> str:
        """The ids of all parts as a JSON list."""
        return f"[{', '.join(map(json_text, self.part_ids))}]"

    @lazy
    def sources(self) -> tuple[tuple[str, str], ...]:
        """The external documents, as pairs of id and stream."""
        return tuple(source for record in self for source in record.sources)

    @lazy
    def documents(self) -> tuple[str, ...]:
        """The ids of the external documents: one for each of `sources`."""
        return tuple(source[0] for source in self.sources)

    @lazy
    def streams(self) -> tuple[str, ...]:
        """The streams of the external documents: one for each of `sources`."""
        return tuple(source[1] for source in self.sources)


def published_record(stream: str, inputs: Inputs, xml: str, id: str, *, within: bool) -> Record:
    """Returns an output over some documents as a document of a stream, without a docid.

    With `within`, it appears when the latest of these documents did; otherwise it appears now.
    """
    appeared = (max(at for record in inputs for at in record.appeared),) if within else ()
    return _record_over(inputs, id, stream, xml, "published", (), (own_part_id(stream, id),), (), appeared)


def tuple_record(stream: str, inputs: Inputs, xml: str, bound: tuple[tuple[int, Node], ...]) -> Record:
    """Returns a tuple over some documents as a document of a hidden stream, without a docid. `bound` has the (docid,
    node) of each variable."""
    appeared = tuple(at for record in inputs for at in record.appeared)
    return _record_over(inputs, "", stream, xml, "hidden", inputs.parts, inputs.part_ids, bound, appeared)


def _record_over(
    inputs: Inputs,
    id: str,
    stream: str,
    xml: str,
    kind: DocumentKind,
    parts: tuple[int, ...],
    part_ids: tuple[str, ...],
    bound: tuple[tuple[int, Node], ...],
    appeared: tuple[int, ...],
) -> Record:
    return Record(
        -1,
        id,
        stream,
        inputs.t0,
        inputs.t1,
        xml,
        kind,
        parts,
        part_ids,
        inputs.sources,
        bound,
        inputs.arrival,
        appeared,
    )


class Records:
    """Looks up records by docid: those of the running batch, and earlier ones from the store.

    Earlier records are cached, up to `cached` characters of XML; the least recently used go first. A parsed tree takes
    far more memory than its text and lives only as long as its batch.
    """

    def __init__(self, store: JoinEngine, cached: int = 16 << 20) -> None:
        self._store, self.ids = store, StoredIds(store)
        self._cached = cached
        self._size = 0
        self._records: OrderedDict[int, Record] = OrderedDict()
        self._fresh: dict[int, Record] = {}
        self._used: set[int] = set()
        """The records that may have a tree."""

    def add(self, record: Record) -> None:
        """Adds a document of the running batch."""
        self._fresh[record.docid] = record
        if record.kind != "hidden":
            self.ids.add(record.stream, record.id)

    def __getitem__(self, docid: int) -> Record:
        found = self._fresh.get(docid) or self._records.get(docid)
        self._used.add(docid)
        if found is None:
            self.load([docid])
            found = self._records[docid]
        return found

    def load(self, docids: Iterable[int]) -> None:
        """Loads documents into the cache, the missing ones with one query."""
        requested = {docid for docid in docids if docid not in self._fresh}
        for docid in requested & self._records.keys():
            self._records.move_to_end(docid)
        missing = sorted(requested - self._records.keys())
        if not missing:
            return
        for row in document_rows(self._store, missing).to_pylist():
            self._keep(_record(row))
        self._shrink(len(requested))

    def parsed(self, docids: Sequence[int]) -> list[Record]:
        """Returns documents whose trees are parsed: many take less time together than one by one."""
        self.load(docids)
        records = [self[docid] for docid in docids]
        waiting = [record for record in records if "tree" not in record.__dict__]
        trees = parse_documents((record.xml.encode() for record in waiting), trusted=True)
        for record, tree in zip(waiting, trees, strict=True):
            if isinstance(tree, ParsedDocument):  # otherwise whoever reads it gets the error
                record.tree = tree
        return records

    def flush(self) -> None:
        """Writes the documents of the running batch to the store, and frees what only the batch needed."""
        rows = [_row(record) for record in self._fresh.values()]
        self._store.append("documents", rows_table(rows, DOCUMENTS))
        for record in self._fresh.values():
            self._keep(record)
        self._used |= self._fresh.keys()
        self._fresh.clear()
        self.release_trees()

    def release_trees(self) -> None:
        """Frees the parsed trees, and shrinks the cache to its limit."""
        self._shrink(0)
        for docid in self._used & self._records.keys():
            parsed = self._records[docid].__dict__
            parsed.pop("tree", None)
            parsed.pop("fragments", None)
        self._used.clear()

    def forget(self, first: int) -> None:
        """Drops the documents from docid `first` on: their batch was rolled back."""
        self._fresh.clear()
        for docid in [docid for docid in self._records if docid >= first]:
            self._size -= len(self._records.pop(docid).xml)

    def _keep(self, record: Record) -> None:
        self._records[record.docid] = record
        self._size += len(record.xml)

    def _shrink(self, needed: int) -> None:
        """Evicts the least recently used records, but not the last `needed` ones."""
        while self._size > self._cached and len(self._records) > needed:
            self._size -= len(self._records.popitem(last=False)[1].xml)


def kept_documents(
    store: JoinEngine, streams: Collection[str], *, starts: range | None = None, joined: bool = False
) -> Iterator[list[int]]:
    """Yields the docids of stored documents of some streams in batches, oldest first.

    With `starts`, only documents that begin in this range of times; with `joined`, only those in the join state.
    """
    rows = document_sizes(store, streams, starts=starts, joined=joined).to_pylist()
    for batch in in_batches(rows, READ_DOCUMENTS, READ_CHARACTERS, itemgetter("size")):
        yield [row["docid"] for row in batch]


def _row(record: Record) -> tuple[object, ...]:
    """Returns a record as a row of DOCUMENTS."""
    return (
        record.docid,
        record.id,
        record.stream,
        record.t0,
        record.t1,
        record.xml,
        record.kind,
        record.parts,
        record.part_ids,
        [source[0] for source in record.sources],
        [source[1] for source in record.sources],
        [docid for docid, _ in record.bound],
        [element | place << 32 for _, (element, place) in record.bound],
        record.arrival,
        record.appeared,
    )


def _record(row: dict[str, Any]) -> Record:
    bound = zip(row["bound_docids"], row["bound_nodes"], strict=True)
    return Record(
        row["docid"],
        row["id"],
        row["stream"],
        row["t0"],
        row["t1"],
        row["xml"],
        row["kind"],
        tuple(row["parts"]),
        tuple(row["part_ids"]),
        tuple(zip(row["source_ids"], row["source_streams"], strict=True)),
        tuple((docid, (node & 0xFFFFFFFF, node >> 32)) for docid, node in bound),
        arrival_of(row["docid"], row["arrival"]),
        tuple(row["parts"] if row["appeared"] is None else row["appeared"]),
    )


def arrival_of(docid: int, arrival: int | None) -> int:
    """Returns the arrival of a stored document.

    A store without arrivals has None. Such documents come before all others, in the order of their docids.
    """
    return docid - BEFORE_ARRIVALS if arrival is None else arrival
