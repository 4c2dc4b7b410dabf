"""The documents of a back-test, in the order of their arrival: those that a store keeps, or some that are just read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter

import pyarrow as pa

from common.batches import in_batches
from feeds.document import Document, Reject
from mmqjp.backtest.trial import DOCUMENTS

MOST_DOCUMENTS, MOST_CHARACTERS = 100_000, 256 << 20
"""How many documents, and characters of XML, of a store are tried: the newest ones."""

PAGE_DOCUMENTS, PAGE_CHARACTERS = 1_000, 4 << 20
"""So many are read and sent together."""

MOST_STREAMS = 100
"""Documents of more streams are read whatever their stream."""

_PLAIN = re.compile(r"[\w.-]+")
"""Names that are written the same in every dialect of SQL."""

Ask = Callable[[str], pa.Table]
"""Answers a question in SQL."""


@dataclass(frozen=True, slots=True)
class KeptDocuments:
    """Documents of a store. `total` counts those of the streams, of which `batches` yields the newest `chosen`."""

    total: int
    chosen: int
    batches: Iterator[pa.RecordBatch]


def kept_documents(
    ask: Ask, streams: Collection[str], most: int = MOST_DOCUMENTS, most_characters: int = MOST_CHARACTERS
) -> KeptDocuments:
    """Returns the external documents of some streams that a store keeps: the newest `most`, up to so many characters.

    Each batch is read when it is asked for: what is dropped meanwhile is missing. Raises what `ask` does.
    """
    wanted = "kind = 'external'"
    if len(streams) <= MOST_STREAMS and all(map(_PLAIN.fullmatch, streams)):
        names = ", ".join(f"'{stream}'" for stream in sorted(streams))
        wanted += f" AND stream IN ({names or 'NULL'})"
    (total,) = ask(f"SELECT count(*) AS n FROM documents WHERE {wanted}")["n"].to_pylist()
    (first,) = ask(
        f"SELECT min(docid) AS first FROM (SELECT docid FROM documents WHERE {wanted} ORDER BY docid DESC LIMIT {most})"
    )["first"].to_pylist()
    if first is None:
        return KeptDocuments(total, 0, iter(()))
    rows = ask(
        f"SELECT docid, length(xml) AS size FROM documents WHERE {wanted} AND docid >= {first} ORDER BY docid DESC"
    )
    chosen = next(in_batches(rows.to_pylist(), most, most_characters, itemgetter("size")), [])
    pages = in_batches(reversed(chosen), PAGE_DOCUMENTS, PAGE_CHARACTERS, itemgetter("size"))
    return KeptDocuments(
        total, len(chosen), _read(ask, wanted, ((page[0]["docid"], page[-1]["docid"]) for page in pages))
    )


def _read(ask: Ask, wanted: str, pages: Iterable[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
    # The docids of external documents are in the order of their arrival.
    for first, last in pages:
        found = ask(
            f"SELECT {', '.join(DOCUMENTS.names)} FROM documents "
            f"WHERE {wanted} AND docid >= {first} AND docid <= {last} ORDER BY docid"
        )
        yield from found.cast(DOCUMENTS).to_batches()


def read_batches(
    documents: Iterable[Document | Reject], streams: Collection[str], refuse: Callable[[], object]
) -> Iterator[pa.RecordBatch]:
    """Yields the documents of some streams. Calls `refuse` for each reject."""

    def wanted() -> Iterator[Document]:
        for document in documents:
            if isinstance(document, Reject):
                refuse()
            elif document.stream in streams:
                yield document

    for batch in in_batches(wanted(), PAGE_DOCUMENTS, PAGE_CHARACTERS, lambda document: len(document.xml)):
        rows = ((one.id, one.stream, one.t0, one.t1, one.xml_bytes()) for one in batch)
        columns = zip(*rows, strict=True)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, DOCUMENTS, strict=True)], schema=DOCUMENTS
        )
