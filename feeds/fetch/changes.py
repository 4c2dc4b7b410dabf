"""Changes to the feeds of a fetch, by anyone: a fetch that runs takes them in; if none does, they are made at once.

A change is a file in a directory beside the state of the fetch. Names begin with the time, so changes are made in the
order in which they were asked for. Files appear by a rename, so they are always whole.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

from common.private import keep_private
from common.whole_file import write_whole
from feeds.fetch.feed_state import FeedState, source_name
from feeds.fetch.state import FetchIsRunning, FetchStore
from feeds.times import Now, now_us

DIRECTORY = ".{}.changes"
"""The name of the directory, made of that of the state file. Who reads drops passes over names with a dot before."""

POLL = 0.05
"""Seconds between two looks whether a change was made."""


@dataclass(frozen=True, slots=True)
class Added:
    """A feed to add, by the address as it is requested. A title or folder that is "" stays as it is."""

    url: str
    title: str = ""
    folder: str = ""


@dataclass(frozen=True, slots=True)
class FeedChange:
    """Feeds to add; addresses of feeds to remove; and of those to make due now, also if they have stopped."""

    add: tuple[Added, ...] = ()
    remove: tuple[str, ...] = ()
    retry: tuple[str, ...] = ()

    @property
    def urls(self) -> frozenset[str]:
        """The addresses of the feeds that it concerns."""
        return frozenset((*(feed.url for feed in self.add), *self.remove, *self.retry))

    def make(self, store: FetchStore) -> list[FeedState]:
        """Makes the change. Returns the feeds that were added or are due now. Raises SourceError."""
        known = {feed.url: feed for feed in store.feeds()}
        added = [
            FeedState(one.url, source_name(one.url), one.title, one.folder or (before.folder if before else ""))
            for one in self.add
            for before in [known.get(one.url)]
        ]
        store.add(added)
        store.remove(self.remove)
        for url in self.retry:
            if url in known and url not in self.remove:
                store.commit(replace(known[url], next_check=0, stopped=False))
        wanted = self.urls.difference(self.remove)
        return [feed for feed in store.feeds() if feed.url in wanted]


def change_feeds(
    state: Path, change: FeedChange, wait: float = 0.0, now: Now = now_us, sleep: Callable[[float], object] = time.sleep
) -> bool:
    """Changes the feeds of a state file, which is made if it is missing. Returns whether that is done.

    If a fetch is running on it, it is asked to, and this waits up to so many seconds for it. Raises SourceError,
    OSError.
    """
    waiting = ChangesOf(state)
    try:
        with FetchStore(state, write=True) as store:
            waiting.take(store)
            change.make(store)
            return True
    except FetchIsRunning:
        path = waiting.ask(change, now)
    for _ in range(int(wait / POLL)):
        if not path.exists():
            return True
        sleep(POLL)
    return not path.exists()


class ChangesOf:
    """The changes that wait for the fetch of a state file."""

    def __init__(self, state: Path) -> None:
        self._directory = state.with_name(DIRECTORY.format(state.name))

    def ask(self, change: FeedChange, now: Now = now_us) -> Path:
        """Leaves a change for the fetch that is running. The file goes when it is made. Raises OSError."""
        with suppress(FileExistsError):
            self._directory.mkdir(0o700)
        keep_private(self._directory)  # addresses may have passwords
        path = self._directory / f"{now():019d}-{uuid4().hex}.json"
        write_whole(path, json.dumps(asdict(change)))
        return path

    def take(self, store: FetchStore, busy: Collection[str] = ()) -> tuple[list[FeedState], set[str]]:
        """Makes the changes that wait, oldest first, up to one of a feed that is `busy`. Returns the feeds that are new
        or due now, and the addresses of those that were removed. Raises SourceError."""
        changed: dict[str, FeedState] = {}
        removed: set[str] = set()
        for path in self._paths():
            if (change := _read(path)) is not None:
                if not change.urls.isdisjoint(busy):
                    break
                made = {feed.url: feed for feed in change.make(store)}
                removed = removed.union(change.remove).difference(made)
                changed = {url: feed for url, feed in (changed | made).items() if url not in removed}
            path.unlink(missing_ok=True)
        return list(changed.values()), removed

    def _paths(self) -> Iterable[Path]:
        try:
            names = sorted(entry.name for entry in os.scandir(self._directory) if entry.name.endswith(".json"))
        except FileNotFoundError:
            return []
        return [self._directory / name for name in names if not name.startswith(".")]


def _read(path: Path) -> FeedChange | None:
    """The change in a file; None if it is no change."""
    try:
        found = json.loads(path.read_bytes())
        texts = tuple(map(str, found["remove"])), tuple(map(str, found["retry"]))
        return FeedChange(tuple(Added(**one) for one in found["add"]), *texts)
    except (OSError, ValueError, KeyError, TypeError):
        return None
