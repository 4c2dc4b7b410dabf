"""Admission: which documents of a batch enter the system, and why the others become dead letters (section 7)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import pyarrow as pa

from feeds.document import Clock, Document, Reject
from join_stage.joiner import JoinEngine
from mmqjp.documents.batches import size_refusal
from mmqjp.documents.records import Record, own_part_id
from mmqjp.documents.watermarks import EARLIEST, LATEST, Watermarks
from mmqjp.tables.dead_letters import DEAD_LETTERS
from mmqjp.tables.documents import known
from mmqjp.tables.table_rows import rows_table
from mmqjp.text import one_line
from templates.witness import Witnesses
from xpath_stage.parse import DocumentError, ParsedDocument
from xpath_stage.parse_many import parse_documents
from xscl.algebra.system_names import is_hidden

_LOG = logging.getLogger("mmqjp")


@dataclass(frozen=True, slots=True)
class Text:
    """A document that was parsed elsewhere, as it was read."""

    text: str

    @property
    def size(self) -> int:
        return len(self.text)

    def xml(self) -> str:
        return self.text


class Found(Protocol):
    """What stage 1 found elsewhere in the documents of a batch, by their places in it."""

    def read(self, place: int) -> Text | DocumentError:
        """A document as it was read, or why it cannot be."""

    def witnesses(self, places: Sequence[int], first_docid: int) -> Witnesses:
        """The witnesses of the documents at these places, which get docids from `first_docid` on."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The documents of a batch that enter, not yet numbered, and their places in it; the dead letters; how many were
    met before."""

    records: list[Record]
    places: list[int]
    dead_letters: pa.Table
    duplicates: int

    def greatest(self) -> dict[str, int]:
        """The greatest time of each stream that documents came on."""
        found: dict[str, int] = {}
        for record in self.records:
            found[record.stream] = max(found.get(record.stream, record.t1), record.t1)
        return found


class Admission:
    """Parses documents, refuses malformed and late ones and those from the future, passes over those met before."""

    def __init__(
        self,
        store: JoinEngine,
        watermarks: Watermarks,
        sources: Callable[[str], Iterable[str]],
        behind: Callable[[str, int], int],
        now: Clock,
        max_document: int | None = None,
        max_nodes: int | None = None,
    ) -> None:
        """`sources` tells of which streams from outside a stream is made; `behind` by how many microseconds a document
        of a stream that ends at a time is too old for what is still kept, 0 if it is not. A document has at most
        `max_document` bytes, and `max_nodes` elements and attributes; None: as many as can be parsed."""
        self._store, self._watermarks, self._sources, self._behind = store, watermarks, sources, behind
        self._now = now
        self._most, self._most_nodes = max_document, max_nodes

    def admit(self, documents: Iterable[Document | Reject], found: Found | None = None) -> Admitted:
        """Sorts a batch into records and dead letters. With `found` its documents were read elsewhere, and those that
        were too large, or had too many nodes, refused."""
        dead: list[tuple[object, ...]] = []
        items = list(documents)
        met = known(self._store, {(item.stream, item.id) for item in items if isinstance(item, Document)})
        trees = self._read(items, met, found)
        records: list[Record] = []
        places: list[int] = []
        duplicates, now = 0, self._now()
        for place, item in enumerate(items):
            if isinstance(item, Reject):
                dead.append((item.id, item.stream, item.time, item.reason, _bytes(item.raw), now))
            elif (item.stream, item.id) in met:
                duplicates += 1
            elif isinstance(tree := trees[place], DocumentError):
                dead.append((item.id, item.stream, item.t0, str(tree), _bytes(item.xml), now))
            else:
                records.append(_record(item, tree))
                places.append(place)
                met.add((item.stream, item.id))
        return Admitted(records, places, rows_table(dead, DEAD_LETTERS), duplicates)

    def fresh(self, records: list[Record]) -> list[Record]:
        """Those of records of our own making that are not in the store: not those of a published stream and a known
        id."""
        met = known(self._store, {(r.stream, r.id) for r in records if r.kind == "published"})
        return [r for r in records if r.kind != "published" or (r.stream, r.id) not in met]

    def _read(
        self, items: Iterable[Document | Reject], met: Container[tuple[str, str]], found: Found | None
    ) -> dict[int, ParsedDocument | Text | DocumentError]:
        """The documents that were not met, by their places: parsed, or why they do not enter."""
        read: dict[int, ParsedDocument | Text | DocumentError] = {}
        waiting: dict[int, Document] = {}
        watermark = cache(lambda stream: self._watermarks.of(self._sources(stream)))
        for place, item in enumerate(items):
            if isinstance(item, Document) and (item.stream, item.id) not in met:
                if refusal := self._refusal(item, watermark):
                    read[place] = refusal
                elif found is not None:
                    read[place] = found.read(place)
                elif too_large := size_refusal(item, self._most):
                    read[place] = DocumentError(too_large)
                else:
                    waiting[place] = item
        xmls = (document.xml_bytes() for document in waiting.values())
        return read | dict(zip(waiting, parse_documents(xmls, max_nodes=self._most_nodes), strict=True))

    def _refusal(self, document: Document, watermark: Callable[[str], int]) -> DocumentError | None:
        """Why a document does not enter, whatever is in it, given the watermarks of streams."""
        if is_hidden(document.stream):
            return DocumentError("names of streams that begin with # are the system's own")
        if not EARLIEST < document.t0 <= document.t1 < LATEST:
            return DocumentError("the time is out of range")
        if (behind := watermark(document.stream) - document.t1) > 0:
            return DocumentError(f"late: {behind} µs behind the watermark of {document.stream}")
        if (behind := self._behind(document.stream, document.t1)) > 0:
            return DocumentError(f"late: {behind} µs behind what is still kept to be joined with it")
        max_ahead = self._watermarks.timing.max_ahead
        if max_ahead is not None and (ahead := document.t1 - self._now()) > max_ahead:
            return DocumentError(f"from the future: {ahead} µs ahead of the clock, {max_ahead} are allowed")
        return None


def warn_of(dead_letters: Sequence[Mapping[str, Any]]) -> None:
    """Tells the log that documents could not be taken in, and why the first was not."""
    if dead_letters:
        first = one_line(f"{dead_letters[0]['id']}: {dead_letters[0]['reason']}")
        found = "a document is a dead letter" if len(dead_letters) == 1 else f"{len(dead_letters):,} dead letters"
        _LOG.warning("%s, %s; Engine.last_dead_letters() has each", found, first)


def _record(document: Document, tree: ParsedDocument | Text) -> Record:
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
    if isinstance(tree, ParsedDocument):
        record.tree = tree  # not to be parsed again from `xml`
    return record


def _bytes(raw: bytes | str) -> bytes:
    return raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass")
