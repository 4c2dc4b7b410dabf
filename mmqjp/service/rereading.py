"""Reads files again that an earlier run may have read, and passes over those that have not changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from time import time_ns

from common.batches import in_batches
from feeds.document import Document, Reject
from feeds.history import History
from feeds.listing import SourceFile
from feeds.offsets import ALL_READ, Offset
from feeds.sightings import Item, Sighting, size_of
from feeds.stamps import Stamp, is_still, stamp_of
from feeds.tail import Tail
from feeds.unreadable import or_reject
from mmqjp.documents.batching import BATCH_BYTES
from mmqjp.session import Session
from mmqjp.tables.commit_metadata import CommitMetadata, MetadataOf

FILES, HISTORY = "files ", "documents-history "
"""Prefixes of the names of sources, and of the settings with what is known of the entries of each feed. What follows
depends on how files are read: otherwise they would give other documents."""


def reading_of(*options: object) -> str:
    """A short name for a way to read files, given the options that it depends on."""
    return blake2b(repr(options).encode(), digest_size=6).hexdigest() + " "


@dataclass(frozen=True, slots=True)
class _Read:
    """An item, and what it was before it was judged; None at the end of the file."""

    item: Document | Reject | None
    source: str
    file: str
    seen: Item | None = None


class Rereading:
    """The documents of tails whose names begin with FILES. The stamp of a file is stored after the batch with its last
    document. A file of which something became a dead letter gets none: each run reads it, and tries the entries that
    were refused again. Nor does a file that changed between its stamp and its end, or that shares its name, as text,
    with another.

    `unchanged` counts the files that were passed over, `read` those that were read, of `waiting` files.
    """

    def __init__(
        self,
        engine: Session,
        tails: Sequence[Tail],
        history: History,
        reading: str,
        batch_size: int,
    ) -> None:
        """`reading` is that of `reading_of`. `history` is loaded here."""
        self._engine, self._tails, self._history = engine, tails, history
        self._prefix, self._batch_size = HISTORY + reading, batch_size
        self._kept = engine.offsets()
        self._stamps: dict[tuple[str, str], tuple[Path, Stamp | None]] = {}
        self._bad: set[tuple[str, str]] = set()
        self._ready: list[Offset] = []
        self.unchanged = self.read = self.waiting = 0
        self.told: Callable[[], object] = lambda: None
        """Is called before each file."""
        history.load(engine.settings(self._prefix))

    def batches(self) -> Iterator[tuple[Sequence[Document | Reject], MetadataOf]]:
        """Batches of what is new. Each must be committed before the next is taken."""
        for batch in in_batches(self._items(), self._batch_size, BATCH_BYTES, _size):
            yield [read.item for read in batch if read.item is not None], partial(self._metadata, batch)
            self._committed(batch)
        if self._ready:
            self._engine.commit_metadata(CommitMetadata(tuple(self._ready)))
            self._ready.clear()

    def listing(self) -> tuple[list[str], set[tuple[str, str]]]:
        """The names of the sources that can be listed now, and the files in them, as (source, file)."""
        names = {tail.name: tail.names() for tail in self._tails}
        files = {(source, file) for source, found in names.items() for file in found or ()}
        return [source for source, found in names.items() if found is not None], files

    def _items(self) -> Iterator[_Read]:
        for tail in self._tails:
            for file, items in tail.drain(partial(self._is_new, tail)):
                self.told()
                self.read += 1
                self._compare((tail.name, file))  # another file may have been there when the stamp was taken
                for item in or_reject(items, file):
                    if (settled := self._history.judge(item)) is not None:
                        yield _Read(settled, tail.name, file, item)
                self._compare((tail.name, file))
                yield _Read(None, tail.name, file)

    def _is_new(self, tail: Tail, file: SourceFile) -> bool:
        """Whether a file is not known as it is now."""
        key = tail.name, file.name
        kept, path = self._kept.get(key), file.path.absolute()
        stamp = stamp_of(path, "" if kept is None else kept.fingerprint, time_ns())
        if self._stamps.setdefault(key, (path, stamp))[0] != path:
            self._bad.add(key)  # their names differ in bytes that no text can hold
        if stamp is not None and kept is not None and kept.fingerprint.endswith(f" {stamp.digest}"):
            self.unchanged += 1
            if kept.fingerprint != str(stamp):
                self._ready.append(_note(key, stamp))
            return False
        self.waiting += 1
        return True

    def _compare(self, key: tuple[str, str]) -> None:
        """Lets a file have no stamp if it is not now what it was when the stamp was taken."""
        path, stamp = self._stamps[key]
        if stamp is None or not is_still(path, stamp, time_ns()):
            self._bad.add(key)

    def _metadata(self, batch: Sequence[_Read], refused: Collection[tuple[str, str]]) -> CommitMetadata:
        """What to commit with a batch of which these documents were refused."""
        for read in batch:
            if read.item is not None and (read.item.stream, read.item.id) in refused:
                self._bad.add((read.source, read.file))
                if isinstance(read.item, Document) and isinstance(read.seen, Sighting):
                    self._history.refuse(read.seen, read.item.t0)
        known = {self._prefix + feed: text for feed, text in self._history.changed().items()}
        metadata = CommitMetadata(tuple(self._ready), known)
        self._ready.clear()
        return metadata

    def _committed(self, batch: Sequence[_Read]) -> None:
        """Notes the files that were read to their ends in a committed batch."""
        for read in batch:
            key = read.source, read.file
            stamp = self._stamps[key][1]
            if read.item is None and key not in self._bad and stamp is not None:
                self._ready.append(_note(key, stamp))


def _note(key: tuple[str, str], stamp: Stamp) -> Offset:
    return Offset(*key, ALL_READ, str(stamp))


def _size(read: _Read) -> int | None:
    return None if read.item is None else size_of(read.item)
