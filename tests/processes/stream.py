"""`mmqjp stream --fetch` in a process that kills itself at a named point: `python -m tests.processes.stream`."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import feeds.fetch.fetcher
from feeds.fetch.fetcher import World
from feeds.fetch.http import HOUR
from feeds.fetch.state import FetchStore
from mmqjp.cli import main as command
from mmqjp.engine import Session
from mmqjp.service.drops import DropDirectory
from mmqjp.sinks.files import GrowingFile
from tests.processes.fetch import POINTS, kill_at, note_starts
from tests.support.feed_server import Hours, to_loopback

POINTS |= {"process": (Session, "process"), "write": (GrowingFile, "write"), "sweep": (DropDirectory, "sweep")}


class OneHour(Hours):
    """A clock that jumps to what is waited for within the hour; what is later never comes."""

    def __init__(self, now: int, start: int) -> None:
        super().__init__(now)
        self.end = start + HOUR

    async def sleep_until(self, moment: int) -> None:
        if moment >= self.end:
            await asyncio.Event().wait()
        await super().sleep_until(moment)


def end_when_all_is_fetched(start: int) -> None:
    """Asks this process to end when no feed is left that was not fetched since a time."""
    commit = FetchStore.commit

    def committing(store: FetchStore, *arguments: object) -> None:
        commit(store, *arguments)  # type: ignore[arg-type]
        if all(feed.checked_at >= start for feed in store.feeds()):
            os.kill(os.getpid(), signal.SIGTERM)

    FetchStore.commit = committing  # type: ignore


def main(directory: str, trigger: str, agent: str, start: str, now: str, point: str, calls: str) -> None:
    """Streams what is due at `start`, from `now` on (microseconds), as `agent`; killed at `point`, "never" is none."""
    place = Path(directory)
    clock = OneHour(int(now), int(start))
    feeds.fetch.fetcher.World = lambda: World(clock, lambda: 0.0, to_loopback)  # type: ignore
    note_starts(place.with_suffix(".trail"), clock)
    if trigger != "available-now":
        end_when_all_is_fetched(int(start))
    if point != "never":
        kill_at(point, int(calls))
    lists = ["--fetch", place.parent / "feeds.opml", "--user-agent", agent, "--allow-private", "--robots"]
    lists += ["--concurrency", "2"]  # who is killed has not fetched them all
    kept = ["--state", place / "state", "--output", place / "out.jsonl", "--keep-drops", "0s"]
    times = ["--trigger", trigger, "--lateness", "INF", "--idle-after", "INF", "--batch-size", "20"]
    queries = ["--queries", place.parent / "queries.xscl", "--engine", "duckdb", "--log", "json"]
    command(["stream", *map(str, [*lists, *kept, *times, *queries])])


if __name__ == "__main__":
    main(*sys.argv[1:])
