"""Limits the size of documents and batches, and cuts a stream of documents into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from common.batches import in_batches
from feeds.document import Document, Reject
from feeds.sightings import size_of

BATCH_DOCUMENTS = 5_000
"""The default size of a batch, in documents."""

BATCH_BYTES = 16 * 1024 * 1024
"""The default size of a batch, in bytes of XML."""


def size_refusal(document: Document, max_bytes: int | None) -> str | None:
    """Returns why a document is refused if it has more than `max_bytes`, or None if it has not."""
    if max_bytes is None or (size := len(document.xml)) <= max_bytes:
        return None
    return f"{size:,} bytes, and {max_bytes:,} are allowed"


def batches(
    documents: Iterable[Document | Reject], max_documents: int = BATCH_DOCUMENTS, max_bytes: int = BATCH_BYTES
) -> Iterator[list[Document | Reject]]:
    """Yields batches of at most `max_documents` documents.

    A batch ends early with the document that brings it to `max_bytes` of XML.
    """
    return in_batches(documents, max_documents, max_bytes, size_of)
