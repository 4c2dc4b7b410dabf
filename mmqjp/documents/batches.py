"""How large documents and batches may be, and the batches of a run, which are processed and committed together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from common.batches import in_batches
from feeds.document import Document, Reject
from feeds.sightings import size_of

DOCUMENTS = 5_000
BYTES = 16 * 1024 * 1024


def size_refusal(document: Document, most: int | None) -> str | None:
    """Why a document does not enter where one may have `most` bytes; None: it may enter."""
    if most is None or (size := len(document.xml)) <= most:
        return None
    return f"{size:,} bytes, and {most:,} are allowed"


def batches(
    documents: Iterable[Document | Reject], most: int = DOCUMENTS, most_bytes: int = BYTES
) -> Iterator[list[Document | Reject]]:
    """Lists of at most `most` documents; a list ends early with the document that brings it to `most_bytes` of XML."""
    return in_batches(documents, most, most_bytes, size_of)
