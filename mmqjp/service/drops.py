"""The drop directory of a state into which a service fetches: as a source, and rid of what is read."""

from __future__ import annotations

from pathlib import Path

from feeds.document import Clock, now_us
from feeds.entries import EntryForm
from feeds.fetch.drop_archive import remove_read
from feeds.offsets import ALL_READ
from feeds.tail import Tail
from mmqjp.session import Session

FETCHED = "#fetched"
"""What the source is called in offsets, so that these hold wherever the state directory is moved. Stores have it; a
source that is named by its path never begins with #, for the path is absolute."""

HOUR = 3600 * 1_000_000


class Drops:
    """A directory of fetched versions, which it makes. They are kept for `keep` microseconds, None: for ever."""

    def __init__(self, directory: Path, keep: int | None, now: Clock = now_us) -> None:
        self.directory, self._keep, self._now = directory, keep, now
        self._swept: int | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def tail(self, feeds: EntryForm) -> Tail:
        """The directory as a source."""
        return Tail(self.directory, feeds=feeds, name=FETCHED)

    def sweep(self, engine: Session) -> None:
        """Removes versions that were fetched long enough ago, if they are read to the end and that is committed, but
        never the newest of a feed, by which a fetch knows what is new. Once an hour at the most."""
        now = self._now()
        if self._keep is None or (self._swept is not None and now - self._swept < min(self._keep, HOUR)):
            return
        self._swept = now
        offsets = engine.offsets().items()
        read = {file for (source, file), offset in offsets if source == FETCHED and offset.position == ALL_READ}
        remove_read(self.directory, read, now - self._keep)
