"""The documents that a store keeps, the newest first, read by SELECTs some at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from common.batches import in_batches
from mmqjp.documents.record import Record
from mmqjp.documents.record_rows import record_of
from mmqjp.tables.lookup import Select, documents_by_docid, newest_documents

AT_ONCE, CHARACTERS_AT_ONCE = 500, 8 << 20
"""So many documents, with so many characters of XML, are read together."""

MOST_CHARACTERS, MOST_CHARACTERS_OF_ONE = 64 << 20, 4 << 20
"""No more characters of XML are read in all, and larger documents are left out."""


@dataclass
class Kept:
    """The newest `most` documents of some streams. After `records`, `read` says how many were read, and `left_out` how
    many are too large, or are not read because all together are."""

    select: Select
    streams: Collection[str]
    most: int
    read: int = 0
    left_out: int = 0

    def records(self) -> Iterator[Record]:
        """Yields them, the newest first."""
        sizes = newest_documents(self.select, self.streams, self.most)
        wanted = affordable(sizes)
        self.left_out = len(sizes) - len(wanted)
        for some in in_batches(wanted, AT_ONCE, CHARACTERS_AT_ONCE, lambda one: one[1]):
            rows = documents_by_docid(self.select, [docid for docid, _ in some])
            for row in sorted(rows, key=lambda row: row["docid"], reverse=True):
                self.read += 1
                yield record_of(row)


def affordable(sizes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns those of some documents that can be read, the first ones first; each is a docid and a size in
    characters."""
    room, wanted = MOST_CHARACTERS, list[tuple[int, int]]()
    for docid, size in sizes:
        if size <= MOST_CHARACTERS_OF_ONE and size <= room:
            room -= size
            wanted.append((docid, size))
    return wanted
