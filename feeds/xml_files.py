"""Reads an XML file as one document, whose time is in the document or the file's."""

from __future__ import annotations

from pathlib import Path

from feeds.document import Document, Reject
from feeds.files import RAW_KEPT, TooLargeError, modified_us, read_file
from feeds.times import TimeReader


def read_xml_file(path: Path, id: str, stream: str, time: TimeReader | None) -> Document | Reject:
    """The document in the file; a Reject if it is too large or its time cannot be told. Raises OSError if it cannot be
    read."""
    raw = b""
    try:
        raw = read_file(path)
        return Document(id, raw, stream, time(raw) if time else modified_us(path))
    except TooLargeError as error:
        return Reject(id, stream, None, f"{id}: the file is {error}", error.head)
    except ValueError as error:
        return Reject(id, stream, None, f"{id}: {error}", raw[:RAW_KEPT])
