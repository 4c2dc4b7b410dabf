"""Remembers documents that pages show, so that each is read once while it is shown, and the newest documents."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

from mmqjp.documents.record import Record
from mmqjp.documents.record_rows import record_of
from mmqjp.present.item import Item, item_of
from mmqjp.present.recent_rows import Block, RecentRows
from mmqjp.tables.lookup import Select, documents_by_docid

KEPT_CHARACTERS = 64 << 20
"""Documents are remembered until they have so many characters; then the oldest ones go."""

NEWEST_BYTES = 64 << 20
"""So much is kept of the newest documents before anybody wants to see them."""

LARGEST = 1 << 20
"""Larger documents are not remembered, in characters."""

OVERHEAD, TREE = 500, 6
"""A document counts as so many characters more, and as so many times its XML: its tree is kept, too."""


class RememberedDocuments:
    """Documents by docid. Methods may be called in any thread, and raise what `select` raises."""

    def __init__(self, select: Select, most: int = KEPT_CHARACTERS) -> None:
        self._select, self._most = select, most
        self._lock = Lock()
        self._kept: OrderedDict[int, Record] = OrderedDict()
        self._items: dict[int, Item] = {}
        self._size = 0
        self._newest = RecentRows(NEWEST_BYTES)

    def add(self, rows: Iterable[Block]) -> None:
        """Adds rows of newer documents, which need not be asked for then."""
        with self._lock:
            self._newest.add(rows)

    def records(self, docids: Iterable[int]) -> dict[int, Record]:
        """Returns those of some documents that are stored, by docid."""
        wanted = set(docids)
        with self._lock:
            found = {docid: self._kept[docid] for docid in wanted if docid in self._kept}
            for docid in found:
                self._kept.move_to_end(docid)
            read = {docid: record_of(row) for docid, row in self._newest.rows(wanted - found.keys()).items()}
        self._keep(read.values())
        found |= read
        if missing := wanted - found.keys():
            read = {record.docid: record for record in map(record_of, documents_by_docid(self._select, missing))}
            self._keep(read.values())
            found |= read
        return found

    def with_parts(self, docids: Iterable[int]) -> dict[int, Record]:
        """Returns the same, with the documents that they are made of."""
        found = self.records(docids)
        parts = {part for record in found.values() for part in record.parts} - found.keys()
        return found | self.records(parts) if parts else found

    def item(self, record: Record) -> Item:
        """Returns what is shown of a document. It is made once while the document is remembered."""
        with self._lock:
            if (known := self._items.get(record.docid)) is not None:
                return known
        made = item_of(record.id, record.stream, record.t0, record.xml)
        with self._lock:
            if record.docid in self._kept:
                self._items[record.docid] = made
        return made

    def forget(self) -> None:
        """Forgets all: some may have been dropped."""
        with self._lock:
            self._kept.clear()
            self._items.clear()
            self._size = 0
            self._newest.clear()

    def _keep(self, records: Iterable[Record]) -> None:
        with self._lock:
            for record in records:
                if record.docid not in self._kept and _size(record) <= LARGEST:
                    self._kept[record.docid] = record
                    self._size += _size(record)
            while self._size > self._most:
                docid, record = self._kept.popitem(last=False)
                self._items.pop(docid, None)
                self._size -= _size(record)


def _size(record: Record) -> int:
    return OVERHEAD + TREE * len(record.xml)
