"""A fetch in a process of its own that kills itself at a named point: `python -m tests.processes.fetch`."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import feeds.fetch.fetcher
from feeds.fetch.archive import DropArchive, WarcArchive
from feeds.fetch.http import ReplyLimits
from feeds.fetch.lists import read_feed_lists
from feeds.fetch.robots import HostGates
from feeds.fetch.state import FetchStore
from tests.support.faults import Point, arm, kill
from tests.support.feed_server import Fetching, Hours

POINTS: dict[str, Point] = {
    "exchange": (feeds.fetch.fetcher, "exchange"),
    "keep": (DropArchive, "keep"),
    "keep-warc": (WarcArchive, "keep"),
    "rename": (Path, "replace"),
    "commit": (FetchStore, "commit"),
    "save-host": (FetchStore, "save_host"),
}
"""What a process may be killed before or after: `before commit`, `after rename`, and so on."""


def kill_at(point: str, calls: int) -> None:
    """Has this process killed with SIGKILL at a point, when it has been passed so many times."""
    when, _, name = point.partition(" ")
    arm(POINTS[name], kill, calls + 1, after=when == "after")


def note_starts(trail: Path, clock: Hours) -> None:
    """Writes down when each request began by the clock of the test."""
    turn = HostGates.turn

    @asynccontextmanager
    async def noted(gates: HostGates, host: str, spacing: int = 0) -> AsyncIterator[None]:
        async with turn(gates, host, spacing):
            with trail.open("a") as file:
                file.write(f"{clock.now()} {host}\n")
            yield

    HostGates.turn = noted  # type: ignore


def main(directory: str, opml: str, layout: str, agent: str, start: str, point: str, calls: str) -> None:
    """Fetches, as `agent`, what is due at `start`, in microseconds, and is killed at `point`; "never" is none."""
    clock = Hours(int(start))
    note_starts(Path(directory).with_suffix(".trail"), clock)
    if point != "never":
        kill_at(point, int(calls))
    fetching = Fetching(Path(directory), clock, ReplyLimits(), robots=True, agent=agent)
    if layout == "warc":
        fetching.archive = lambda out, store: WarcArchive(out, store.archive_mark(), store.save_mark, file_bytes=20_000)
    fetching.run(*(feed.url for feed in read_feed_lists([opml])[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
