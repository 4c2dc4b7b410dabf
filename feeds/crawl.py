"""Feed files of a directory or a crawl, each with what a sidecar beside it says of its fetch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from feeds.dates import parse_iso
from feeds.document import DEFAULT_STREAM, Document, Reject
from feeds.entries import EntryForm, read_entries
from feeds.files import TooLargeError, modified_us, read_file
from feeds.item import Origin
from feeds.json_feed import is_json_feed
from feeds.text import one_line

FEED_SUFFIXES = frozenset({".xml", ".rss", ".atom", ".rdf", ".feed", ".json"})
_SIDECAR = ".json"


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What a crawl notes beside a fetched file: the feed's URL (else its name in the crawl) and when it was fetched."""

    source: str
    fetched: int | None


def read_sidecar(path: Path) -> Sidecar | None:
    """The notes in a JSON file; None where it is a feed itself. ValueError, OSError where it cannot be read."""
    try:
        notes = json.loads(read_file(path))
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if is_json_feed(notes):
        return None
    if not isinstance(notes, dict):
        raise ValueError("a sidecar is a JSON object")
    named = (notes.get(key) for key in ("url", "feed_url", "source"))
    source = next((one_line(name) for name in named if isinstance(name, str) and name.strip()), "")
    fetched = notes.get("fetched_at")
    return Sidecar(source, parse_iso(fetched) if isinstance(fetched, str) else None)


def read_feed_file(
    path: Path, name: str, form: EntryForm, archive: Callable[[str, int], int | None] = lambda source, fetched: None
) -> Iterator[Document | Reject]:
    """The entries of a feed file; nothing for a file that is another feed's sidecar.

    `archive` says of a feed, by its URL or name and when it was fetched, which entries are an archive (see `Origin`).
    """
    try:
        if path.suffix.lower() == _SIDECAR and _has_feed_beside(path) and not _is_feed(path):
            return
        data, modified = read_file(path), modified_us(path)
    except TooLargeError as error:
        yield Reject(name, DEFAULT_STREAM, None, f"{name}: the feed is {error}", error.head)
        return
    except OSError as error:
        yield Reject(name, DEFAULT_STREAM, None, f"{name}: cannot be read: {error.strerror or error}", b"")
        return
    sidecar = Sidecar("", None)
    beside = path.with_suffix(_SIDECAR)
    if beside != path and beside.is_file():
        try:
            sidecar = read_sidecar(beside) or sidecar
        except (ValueError, OSError) as error:
            reason = f"{name}: its sidecar {beside.name} cannot be used: {error}"
            yield Reject(name, DEFAULT_STREAM, modified, reason, b"")
    fetched = modified if sidecar.fetched is None else sidecar.fetched
    old = archive(sidecar.source or name, fetched)
    yield from read_entries(data, Origin(name, modified, sidecar.source, sidecar.fetched, old), form)


def _has_feed_beside(path: Path) -> bool:
    return any(path.with_suffix(suffix).is_file() for suffix in FEED_SUFFIXES if suffix != _SIDECAR)


def _is_feed(path: Path) -> bool:
    try:
        return read_sidecar(path) is None
    except ValueError:
        return False
