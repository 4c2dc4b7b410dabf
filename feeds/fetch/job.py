"""A fetch job: which feeds are fetched, where to, and how."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from feeds.fetch.archive import Archive
from feeds.fetch.changes import ChangesOf
from feeds.fetch.drop_archive import DropArchive
from feeds.fetch.feed_state import FeedState
from feeds.fetch.fetcher import Report, Told, World, fetch, nobody_told
from feeds.fetch.gates import Courtesy
from feeds.fetch.state import STATE_FILE, FetchStore
from feeds.fetch.visit import Settings
from feeds.fetch.warc_archive import WarcArchive


@dataclass(frozen=True, slots=True)
class Job:
    """Fetches `feeds`, or all that the state knows if there are none, into the directory `out`. `state` is the file
    with what is known of them, by default in that directory."""

    feeds: Sequence[FeedState]
    out: Path
    settings: Settings
    courtesy: Courtesy = Courtesy()
    allow_private: bool = False
    warc: bool = False
    state: Path | None = None

    async def run(
        self,
        *,
        watch: bool = False,
        stop: asyncio.Event | None = None,
        told: Told = nobody_told,
        world: World | None = None,
    ) -> tuple[Report, list[FeedState]]:
        """Fetches as `fetch` does. Returns what was done, and the feeds as they were before. Raises SourceError if the
        state cannot be used, OSError if a version cannot be written."""
        state = self.state or self.out / STATE_FILE
        changes = ChangesOf(state)
        with FetchStore(state, write=True) as store:
            store.add(self.feeds)
            changes.take(store)
            known = store.feeds()
            if self.feeds:
                wanted = {feed.url for feed in self.feeds}
                known = [feed for feed in known if feed.url in wanted]
            with closing(self._archive(store)) as archive:
                report = await fetch(
                    known, store, archive, self.settings, self.courtesy,
                    allow_private=self.allow_private, watch=watch,
                    changes=changes if watch else None, stop=stop, told=told, world=world,
                )  # fmt: skip
                archive.finish()
            return report, known

    def _archive(self, store: FetchStore) -> Archive:
        if self.warc:
            return WarcArchive(self.out, store.archive_mark(), store.save_mark)
        return DropArchive(self.out)
