"""Looks up documents by docid: those of the running batch, and stored ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter

from common.batches import in_batches
from join_stage.joiner import JoinEngine
from mmqjp.documents.record import Record
from mmqjp.documents.record_rows import record_of, records_table
from mmqjp.documents.stored_ids import StoredIds
from mmqjp.tables.documents import HasDocuments, document_rows, document_sizes
from xpath_stage.parse import ParsedDocument
from xpath_stage.parse_many import parse_documents

READ_DOCUMENTS, READ_CHARACTERS = 5_000, 16 << 20
"""Stored documents are read in batches of at most this many documents and characters of XML, because all of a batch are
in memory, parsed."""


class StoredRecords:
    """Looks up stored records by docid.

    They are cached, up to `cached` characters of XML; the least recently used go first. A parsed tree takes far more
    memory than its text and lives only as long as its batch.
    """

    def __init__(self, store: HasDocuments, cached: int = 16 << 20) -> None:
        self._documents, self._cached = store, cached
        self._size = 0
        self._records: OrderedDict[int, Record] = OrderedDict()
        self._used: dict[int, Record] = {}
        """The stored records that may have a tree."""

    def __getitem__(self, docid: int) -> Record:
        found = self._records.get(docid)
        if found is None:
            self.load([docid])
            found = self._records[docid]
        self._used[docid] = found
        return found

    def load(self, docids: Iterable[int]) -> None:
        """Loads documents into the cache, the missing ones together."""
        requested = set(docids)
        for docid in requested & self._records.keys():
            self._records.move_to_end(docid)
        missing = sorted(requested - self._records.keys())
        if not missing:
            return
        for row in document_rows(self._documents, missing).to_pylist():
            self._keep(record_of(row))
        self._shrink(len(requested))

    def found(self, docids: Collection[int]) -> dict[int, Record]:
        """Returns the documents that are stored among some, by docid."""
        self.load(docids)
        return {docid: self[docid] for docid in docids if docid in self._records}

    def release_trees(self) -> None:
        """Frees the parsed trees of stored documents, and shrinks the cache to its limit."""
        self._shrink(0)
        _release_trees(self._used.values())
        self._used.clear()

    def _keep(self, record: Record) -> None:
        self._records[record.docid] = record
        self._size += len(record.xml)

    def _shrink(self, needed: int) -> None:
        """Evicts the least recently used records, but not the last `needed` ones."""
        while self._size > self._cached and len(self._records) > needed:
            docid, record = self._records.popitem(last=False)
            self._size -= len(record.xml)
            self._used.pop(docid, None)


class Records(StoredRecords):
    """Looks up records by docid: those of the running batch, and earlier ones from the store."""

    def __init__(self, store: JoinEngine, cached: int = 16 << 20) -> None:
        super().__init__(store, cached)
        self._store, self.ids = store, StoredIds(store)
        self._fresh: dict[int, Record] = {}
        self._written = -1
        """The last document of the running batch that was written to the store."""

    def add(self, record: Record) -> None:
        """Adds a document of the running batch."""
        self._fresh[record.docid] = record
        if record.kind != "hidden":
            self.ids.add(record.stream, record.id)

    def __getitem__(self, docid: int) -> Record:
        found = self._fresh.get(docid)
        return super().__getitem__(docid) if found is None else found

    def load(self, docids: Iterable[int]) -> None:
        """Loads documents into the cache, the missing ones together."""
        super().load(docid for docid in docids if docid not in self._fresh)

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

    def write(self) -> None:
        """Writes the documents of the running batch to the store."""
        new = [record for docid, record in self._fresh.items() if docid > self._written]
        self._store.append("documents", records_table(new))
        self._written = max(self._fresh, default=-1)

    def flush(self) -> None:
        """Does the same, and frees what only the batch needed."""
        self.write()
        self._records.update(self._fresh)
        self._size += sum([len(record.xml) for record in self._fresh.values()])
        _release_trees(self._fresh.values())
        self._fresh.clear()
        self._written = -1
        self.release_trees()

    def forget(self, first: int) -> None:
        """Drops the documents from docid `first` on: their batch was rolled back."""
        self._fresh.clear()
        self._written = -1
        for docid in [docid for docid in self._records if docid >= first]:
            self._size -= len(self._records.pop(docid).xml)
            self._used.pop(docid, None)


def _release_trees(records: Iterable[Record]) -> None:
    for record in records:
        parsed = record.__dict__
        parsed.pop("tree", None)
        parsed.pop("fragments", None)


def kept_documents(
    store: JoinEngine,
    streams: Collection[str],
    *,
    starts: range | None = None,
    ends: range | None = None,
    joined: bool = False,
    refused: str = "",
) -> Iterator[list[int]]:
    """Yields the docids of stored documents of some streams in batches, oldest first: all, or those that
    `mmqjp.tables.documents.document_sizes` chooses."""
    rows = document_sizes(store, streams, starts=starts, ends=ends, joined=joined, refused=refused).to_pylist()
    for batch in in_batches(rows, READ_DOCUMENTS, READ_CHARACTERS, itemgetter("size")):
        yield [row["docid"] for row in batch]
