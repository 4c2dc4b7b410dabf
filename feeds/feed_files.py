"""Reads feed files, each with its sidecar's notes on the fetch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from feeds.document import DEFAULT_STREAM, Reject
from feeds.drop_directory import Sidecar, read_sidecar, read_stem, sidecar_of
from feeds.entries import EntryForm, read_entries
from feeds.files import TooLargeError, modified_us, read_file
from feeds.item import Origin
from feeds.kinds import FEED_SUFFIXES, SIDECAR_SUFFIX
from feeds.sightings import Item


def read_feed_file(path: Path, name: str, form: EntryForm) -> Iterator[Item]:
    """What `read_entries` gives of a feed file; nothing if the file is another feed's sidecar. Raises OSError if it or
    its sidecar cannot be read: without the sidecar it would be taken for another feed."""
    try:
        if path.suffix.lower() == SIDECAR_SUFFIX and _is_sidecar(path):
            return
        data, modified = read_file(path), modified_us(path)
    except TooLargeError as error:
        yield Reject(name, DEFAULT_STREAM, None, f"{name}: the feed is {error}", error.head)
        return
    sidecar = Sidecar()
    try:
        sidecar = sidecar_of(path) or sidecar
    except ValueError as error:
        reason = f"{name}: its sidecar {path.with_suffix(SIDECAR_SUFFIX).name} cannot be used: {error}"
        yield Reject(name, DEFAULT_STREAM, modified, reason, b"")
    fetched = sidecar.fetched
    if fetched is None and (named := read_stem(path.stem)):
        fetched = named[0]
    answer = sidecar.final_url, sidecar.content_type
    origin = Origin(name, modified, sidecar.url, fetched, *answer, sidecar.title, sidecar.folders)
    yield from read_entries(data, origin, form)


def _is_sidecar(path: Path) -> bool:
    """Whether a JSON file is a sidecar: its name says so (its feed may not be there yet), or the feed beside it and its
    content do."""
    if read_stem(path.stem) is not None:
        return True
    if not any(path.with_suffix(suffix).is_file() for suffix in FEED_SUFFIXES if suffix != SIDECAR_SUFFIX):
        return False
    try:
        return read_sidecar(path) is not None
    except ValueError:
        return True
