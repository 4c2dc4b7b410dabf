"""Admission: which documents of a batch enter the system, and why the others become dead letters (section 7)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from feeds.document import Document, Reject
from join_stage.engine import JoinEngine
from join_stage.tables import TABLES
from mmqjp.ledger import rows_table
from mmqjp.records import Record, own_part_id
from xpath_stage.parse import DocumentError, ParsedDocument
from xpath_stage.parse_many import parse_documents

EARLIEST, LATEST = -(2**61), 2**61
"""Times further away, microseconds, would overflow in the arithmetic of windows."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The documents of a batch that enter, not yet numbered; the dead letters; how many were met before."""

    records: list[Record]
    dead_letters: pa.Table
    duplicates: int


class Admission:
    """Parses documents, refuses malformed and late ones, passes over those met before.

    `lateness` in microseconds is how far a document may be behind its stream's greatest time as of the previous batch;
    None is without limit. `sources` gives the streams from outside that a stream is made of.
    """

    def __init__(self, store: JoinEngine, lateness: int | None, sources: Callable[[str], Iterable[str]]) -> None:
        self._store, self._lateness, self._sources = store, lateness, sources
        self._greatest: dict[str, int] = {}
        if lateness is not None:
            tops = store.select("SELECT stream, max(t1) AS t1 FROM documents WHERE kind = 'external' GROUP BY stream")
            self._greatest = {row["stream"]: row["t1"] for row in tops.to_pylist()}

    def admit(self, documents: Iterable[Document | Reject]) -> Admitted:
        """Sorts a batch into records and dead letters."""
        dead: list[tuple[object, ...]] = []
        items = list(documents)
        known = self._known({(item.stream, item.id) for item in items if isinstance(item, Document)})
        trees = self._read(items, known)
        records: list[Record] = []
        duplicates = 0
        for place, item in enumerate(items):
            if isinstance(item, Reject):
                dead.append((item.id, item.stream, item.time, item.reason, _bytes(item.raw)))
            elif (item.stream, item.id) in known:
                duplicates += 1
            elif isinstance(tree := trees[place], DocumentError):
                dead.append((item.id, item.stream, item.t0, str(tree), _bytes(item.xml)))
            else:
                records.append(_record(item, tree))
                known.add((item.stream, item.id))
        return Admitted(records, rows_table(dead, TABLES["dead_letters"]), duplicates)

    def fresh(self, records: list[Record]) -> list[Record]:
        """Those of records of our own making that are not in the store: not those of a published stream and a known
        id."""
        known = self._known({(r.stream, r.id) for r in records if r.kind == "published"})
        return [r for r in records if r.kind != "published" or (r.stream, r.id) not in known]

    def advance(self, admitted: Admitted) -> None:
        """Moves the watermarks past a batch."""
        self._greatest = self._greatest_with(admitted)

    def horizon(self, streams: Iterable[str], admitted: Admitted) -> int:
        """The time before which, after a batch, no document can come on any of `streams` without being late."""
        return self._watermark(streams, self._greatest_with(admitted))

    def _watermark(self, streams: Iterable[str], greatest: Mapping[str, int]) -> int:
        """The least watermark of streams; a PUBLISHed one's is the least of those of the streams behind it."""
        if self._lateness is None:
            return EARLIEST
        behind = {source for stream in streams for source in self._sources(stream)}
        return min((greatest.get(stream, EARLIEST) for stream in behind), default=EARLIEST) - self._lateness

    def _greatest_with(self, admitted: Admitted) -> dict[str, int]:
        greatest = dict(self._greatest)
        for record in admitted.records:
            greatest[record.stream] = max(greatest.get(record.stream, EARLIEST), record.t1)
        return greatest

    def _known(self, arrived: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """Those of the pairs (stream, id) that the store has."""
        pairs = list(arrived)
        if not pairs:
            return set()
        arriving = pa.table({"stream": [s for s, _ in pairs], "id": [i for _, i in pairs]})
        sql = "SELECT d.stream, d.id FROM documents d JOIN arriving a ON d.stream = a.stream AND d.id = a.id"
        found = self._store.select(sql, {"arriving": arriving})
        return set(zip(found["stream"].to_pylist(), found["id"].to_pylist(), strict=True))

    def _read(
        self, items: Iterable[Document | Reject], known: Container[tuple[str, str]]
    ) -> dict[int, ParsedDocument | DocumentError]:
        """The documents that are not known, by their places: parsed, or why they do not enter."""
        read: dict[int, ParsedDocument | DocumentError] = {}
        waiting: dict[int, Document] = {}
        for place, item in enumerate(items):
            if isinstance(item, Document) and (item.stream, item.id) not in known:
                if refusal := self._refusal(item):
                    read[place] = refusal
                else:
                    waiting[place] = item
        parsed = parse_documents(document.xml_bytes() for document in waiting.values())
        return read | dict(zip(waiting, parsed, strict=True))

    def _refusal(self, document: Document) -> DocumentError | None:
        """Why a document does not enter, whatever is in it."""
        if document.stream.startswith("#"):
            return DocumentError("names of streams that begin with # are the system's own")
        if not EARLIEST < document.t0 <= document.t1 < LATEST:
            return DocumentError("the time is out of range")
        if self._lateness is not None:
            behind = self._watermark({document.stream}, self._greatest) - document.t1
            if behind > 0:
                return DocumentError(f"late: {behind} µs behind the watermark of {document.stream}")
        return None


def _record(document: Document, tree: ParsedDocument) -> Record:
    record = Record(
        -1,
        document.id,
        document.stream,
        document.t0,
        document.t1,
        tree.xml(),
        "external",
        (),
        (own_part_id(document.stream, document.id),),
        ((document.id, document.stream),),
    )
    record.tree = tree  # not to be parsed again from `xml`
    return record


def _bytes(raw: bytes | str) -> bytes:
    return raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass")
