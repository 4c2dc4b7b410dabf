"""The drop directory into which a service fetches feeds: it is a source, and is cleared of what has been read."""

from __future__ import annotations

from pathlib import Path

from feeds.entries import EntryForm
from feeds.fetch.drop_archive import remove_read
from feeds.offsets import ALL_READ
from feeds.tail import Tail
from feeds.times import Now, now_us
from mmqjp.session import Session

FETCHED = "#fetched"
"""The source's name in stored offsets, which stay valid when the state directory is moved. No other source has this
name: the others are named by their absolute paths."""

HOUR = 3600 * 1_000_000


class DropDirectory:
    """A directory of fetched versions of feeds, created if needed.

    Versions that were read are kept for `keep` microseconds (None: for ever).
    """

    def __init__(self, directory: Path, keep: int | None, now: Now = now_us) -> None:
        self.directory, self._keep, self._now = directory, keep, now
        self._swept: int | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def tail(self, feeds: EntryForm) -> Tail:
        """The directory as a source of documents."""
        return Tail(self.directory, feeds=feeds, name=FETCHED)

    def sweep(self, engine: Session) -> None:
        """Removes old versions that were read to the end, once that is committed. Does so at most once an hour.

        The newest version of each feed stays: a fetch compares with it to see whether a feed has changed.
        """
        now = self._now()
        if self._keep is None or (self._swept is not None and now - self._swept < min(self._keep, HOUR)):
            return
        self._swept = now
        offsets = engine.offsets().items()
        read = {file for (source, file), offset in offsets if source == FETCHED and offset.position == ALL_READ}
        remove_read(self.directory, read, now - self._keep)
