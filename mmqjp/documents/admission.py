"""Admission: splits a batch into accepted records and dead letters (docs/semantics.md, section 16).
Malformed, future and oversized documents are refused, duplicates skipped, and belated ones marked, as of their arrival.
Also cuts a stream of documents into batches by count and bytes. Documents may have been parsed and evaluated on
Spark's executors."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.bounds import EARLIEST, LATEST, NO_DOCUMENT, Micros
from common.tools import in_batches
from feeds.documents import Document, Now, Reject, SourceItem, Visit, as_bytes, with_visit_documents
from feeds.history import size_of
from mmqjp.documents.record import Record, StoredIds, own_part_id
from mmqjp.documents.watermarks import Progress, Timing
from mmqjp.process import printable_line
from mmqjp.tables.schema import DEAD_LETTERS, DUPLICATE, rows_table
from templates.catalog import StepEdge
from templates.witness import Witnesses
from xpath_stage.documents import DocumentError, Outlines, ParsedDocument
from xpath_stage.spark import SparkStage, TaskReads, collect_edge_groups
from xscl.algebra.joins import is_hidden

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_DOCUMENTS = 5_000
BATCH_BYTES = 16 * 1024 * 1024  # of XML


def size_refusal(document: Document, max_bytes: int | None) -> str | None:
    if max_bytes is None or (size := len(document.xml)) <= max_bytes:
        return None
    return f"{size:,} bytes, and {max_bytes:,} are allowed"


def batches(
    items: Iterable[SourceItem], max_documents: int = BATCH_DOCUMENTS, max_bytes: int = BATCH_BYTES
) -> Iterator[list[SourceItem]]:
    """Yields batches of at most `max_documents`, ending early with the document that reaches `max_bytes` of XML."""
    return in_batches(items, max_documents, max_bytes, size_of)


_LOG = logging.getLogger("mmqjp")


OF_VISIT = -1  # the index of a document that came with a visit


@dataclass(frozen=True, slots=True)
class Admitted:
    """Result of admission: accepted `records`, not numbered yet, with parallel batch `indexes`, OF_VISIT for documents
    about visits; `dead_letters` with the columns of DEAD_LETTERS; the number of known `duplicates`; and the `fates` of
    all items, as for `MetadataOf`."""

    records: list[Record]
    indexes: list[int]
    dead_letters: pa.Table
    duplicates: int
    fates: Sequence[str | None]


@dataclass
class Admission:
    """`max_document` is in bytes, `max_nodes` in elements and attributes; None is unlimited."""

    ids: StoredIds
    outlines: Outlines
    timing: Timing
    now: Now
    max_document: int | None = None
    max_nodes: int | None = None

    def admit(
        self, items: Sequence[SourceItem], progress: Progress, evaluated: EvaluatedDocuments | None = None
    ) -> Admitted:
        """Splits a batch, and moves `progress` with it. With `evaluated`, documents were parsed, and oversized ones
        refused, elsewhere. Documents about visits are admitted if a query reads them."""
        places: Sequence[int] = range(len(items))
        fates: list[str | None] = [None] * (len(items) + 1)  # at OF_VISIT, that of documents about visits
        if progress.reads_visits and any(isinstance(item, Visit) and item.documents for item in items):
            of_each = [list(with_visit_documents([item])) for item in items]
            places = [place if one is some[-1] else OF_VISIT for place, some in enumerate(of_each) for one in some]
            items = [one for some in of_each for one in some]
        dead: list[tuple[object, ...]] = []
        keys = [(item.stream, "" if isinstance(item, Visit) else item.id) for item in items]
        met = self.ids.among({key for key, item in zip(keys, items, strict=True) if isinstance(item, Document)})
        both = enumerate(zip(keys, items, strict=True))
        new = {index: item for index, (key, item) in both if isinstance(item, Document) and key not in met}
        trees = self._read(new, places, evaluated)
        records, indexes, now = list[Record](), list[int](), self.now()
        for index, (key, item) in enumerate(zip(keys, items, strict=True)):
            if isinstance(item, Reject):
                fates[places[index]] = item.reason
                dead.append((item.id, item.stream, item.time, item.reason, as_bytes(item.raw), now))
            elif isinstance(item, Visit):
                progress.visit(item, now)
            elif key in met:
                fates[places[index]] = DUPLICATE
            elif isinstance(tree := trees[index], DocumentError):
                fates[places[index]] = str(tree)
                dead.append((item.id, item.stream, item.t0, str(tree), as_bytes(item.xml), now))
            elif (watermark := progress.belated(item.stream, item.t1)) is not None and self.timing.drops(item.stream):
                late = f"late: {watermark - item.t1} µs behind the watermark of {item.stream}"
                fates[places[index]] = late
                dead.append((item.id, item.stream, item.t0, late, as_bytes(item.xml), now))
            else:
                progress.enter(item.stream, item.t1, by_feed=item.feed != "")
                records.append(_record(item, tree, watermark, now))
                indexes.append(places[index])
                met.add(key)
        return Admitted(records, indexes, rows_table(dead, DEAD_LETTERS), fates.count(DUPLICATE), fates[:-1])

    def fresh(self, records: list[Record]) -> list[Record]:
        met = self.ids.among({(r.stream, r.id) for r in records if r.kind == "published"})
        return [r for r in records if r.kind != "published" or (r.stream, r.id) not in met]

    def _read(
        self, documents: Mapping[int, Document], places: Sequence[int], evaluated: EvaluatedDocuments | None
    ) -> dict[int, ParsedDocument | str | DocumentError]:
        read: dict[int, ParsedDocument | str | DocumentError] = {}
        waiting: dict[int, Document] = {}
        most, max_ahead = self.max_document, self.timing.max_ahead
        latest = LATEST if max_ahead is None else min(LATEST, self.now() + max_ahead + 1)
        for index, item in documents.items():
            in_time = EARLIEST < item.t0 <= item.t1 < latest
            if (not in_time or is_hidden(item.stream)) and (refusal := self._refusal(item)):
                read[index] = refusal
            elif evaluated is not None and places[index] != OF_VISIT:
                read[index] = evaluated.read(places[index])
            elif most is not None and (too_large := size_refusal(item, most)):
                read[index] = DocumentError(too_large)
            else:
                waiting[index] = item
        xmls = ((document.stream, document.xml_bytes()) for document in waiting.values())
        return read | dict(zip(waiting, self.outlines.parsed(xmls, self.max_nodes), strict=True))

    def _refusal(self, document: Document) -> DocumentError | None:
        """Returns why a document is refused whatever its content, or None."""
        if is_hidden(document.stream):
            return DocumentError("stream names that begin with # are reserved")
        if not EARLIEST < document.t0 <= document.t1 < LATEST:
            return DocumentError("the time is out of range")
        max_ahead = self.timing.max_ahead
        if max_ahead is not None and (ahead := document.t1 - self.now()) > max_ahead:
            return DocumentError(f"from the future: {ahead} µs ahead of the clock, {max_ahead} are allowed")
        return None


def warn_of(dead_letters: Sequence[Mapping[str, Any]]) -> None:
    if dead_letters:
        first = printable_line(f"{dead_letters[0]['id']}: {dead_letters[0]['reason']}")
        count = "a document is a dead letter" if len(dead_letters) == 1 else f"{len(dead_letters):,} dead letters"
        _LOG.warning("%s, %s; Engine.last_dead_letters() has each", count, first)


def _record(document: Document, tree: ParsedDocument | str, watermark: Micros | None, now: int) -> Record:
    id, stream, xml = document.id, document.stream, tree if isinstance(tree, str) else tree.xml()
    ids, sources = (own_part_id(stream, id),), ((id, stream),)
    times = document.t0, document.t1
    own = NO_DOCUMENT, id, stream, *times, xml
    record = Record(*own, "external", (), ids, sources, watermark=watermark, taken_at=Micros(now))
    if isinstance(tree, ParsedDocument):
        record.tree = tree  # saves parsing `xml` again
    return record


class EvaluatedRows:
    """Data frame rows with stage 1 results: its columns but `xml`, those of `xpath_stage.spark.FOUND`, and `TEXTS`."""

    def __init__(self, stage: SparkStage, documents: DataFrame | TaskReads) -> None:
        self._stage = stage
        self.rows = stage.read(documents)
        self._groups = collect_edge_groups(self.rows) if len(self.rows) else {}

    def of(self, rows: pa.Table) -> EvaluatedDocuments:
        return EvaluatedDocuments(self._stage, rows, self._groups)


class EvaluatedDocuments:
    """Stage 1 results of a batch evaluated on executors, by index in the batch."""

    def __init__(self, stage: SparkStage, rows: pa.Table, groups: Mapping[int, Collection[StepEdge]]) -> None:
        self._stage, self._rows, self._groups = stage, rows, groups
        self._texts, self._errors = rows["text"].to_pylist(), rows["error"].to_pylist()

    def read(self, index: int) -> str | DocumentError:
        text = self._texts[index]
        return DocumentError(self._errors[index]) if text is None else text

    def witnesses(self, indexes: Sequence[int], first_docid: int) -> Witnesses | None:
        """Returns these documents' witnesses, with consecutive docids from `first_docid`; None if a pattern failed, or
        if some came with visits, and so were not evaluated."""
        if OF_VISIT in indexes:
            return None
        is_all = np.array_equal(indexes, np.arange(len(self._rows)))
        chosen = self._rows if is_all else self._rows.take(pa.array(indexes, pa.int64()))
        if pc.any(chosen["failed"]).as_py():
            return None
        docids = pa.array(np.arange(first_docid, first_docid + len(indexes)), pa.int64())
        return self._stage.witnesses(chosen.append_column("docid", docids), self._groups)
