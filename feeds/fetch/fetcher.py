"""Fetches the feeds that are due, once or continually."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from feeds.fetch.archive import Archive
from feeds.fetch.changes import ChangesOf
from feeds.fetch.claims import AddressClaims
from feeds.fetch.clock import Clock, SystemClock
from feeds.fetch.feed_state import FeedState
from feeds.fetch.gates import Courtesy, HostGates
from feeds.fetch.network import Resolve, open_client, resolve
from feeds.fetch.state import FetchStore
from feeds.fetch.visit import Outcome, Settings, Visitor


@dataclass(frozen=True, slots=True)
class World:
    """What fetching takes from outside, so that tests can replace it: the clock, random numbers, the resolver."""

    clock: Clock = field(default_factory=SystemClock)
    random: Callable[[], float] = field(default_factory=lambda: Random().random)
    resolve: Resolve = resolve


@dataclass(slots=True)
class Report:
    """How many visits had which outcome, and the feeds whose last visit failed."""

    counts: Counter[Outcome] = field(default_factory=Counter)
    failures: dict[str, FeedState] = field(default_factory=dict)

    def add(self, feed: FeedState, outcome: Outcome) -> None:
        self.counts[outcome] += 1
        if outcome in (Outcome.FAILED, Outcome.STOPPED):
            self.failures[feed.url] = feed
        else:
            self.failures.pop(feed.url, None)


LOOK = 1.0
"""Seconds between two looks for changes that others ask for."""

Told = Callable[[Report, FeedState, Outcome], None]
"""Hears of each visit: the report so far, the feed as it is now, and the outcome."""


def nobody_told(report: Report, feed: FeedState, outcome: Outcome) -> None:
    """Nothing."""


async def fetch(
    feeds: Iterable[FeedState],
    store: FetchStore,
    archive: Archive,
    settings: Settings,
    courtesy: Courtesy,
    *,
    allow_private: bool = False,
    watch: bool = False,
    changes: ChangesOf | None = None,
    stop: asyncio.Event | None = None,
    told: Told = nobody_told,
    world: World | None = None,
) -> Report:
    """Visits each feed that is due once; with `watch`, visits feeds whenever they are due, until `stop` is set.

    Then visits under way are given up: each has been committed or has not happened. `told` hears of every visit.
    With `changes`, for a watch alone, takes in what others change, and goes on although there is no feed yet.
    """
    world = world or World()
    stop = stop or asyncio.Event()
    report = Report()
    known = list(feeds)
    waiting = {feed.url: feed for feed in known if not feed.stopped}
    client = open_client(allow_private, courtesy.concurrency, world.resolve)
    gates = HostGates(store, world.clock, courtesy)
    claims = AddressClaims(known)
    visitor = Visitor(client, store, archive, gates, claims, world.clock, world.random, settings)
    busy: set[str] = set()

    async def visit(feed: FeedState) -> None:
        try:
            after, outcome = await visitor.visit(feed)
        finally:
            busy.discard(feed.url)
        report.add(after, outcome)
        told(report, after, outcome)
        if watch and not after.stopped:
            waiting[after.url] = after

    def take_changes() -> None:
        if changes is None:
            return
        changed, removed = changes.take(store, busy)
        for url in removed:
            claims.remove(url)
            waiting.pop(url, None)
            report.failures.pop(url, None)
        for feed in changed:
            claims.update(feed)
            waiting[feed.url] = feed

    under_way: set[asyncio.Task[Any]] = set()
    stopped: asyncio.Task[Any] = asyncio.create_task(stop.wait())
    async with client:
        try:
            while True:
                take_changes()
                now = world.clock.now()
                # The longest overdue first: a killed process left them.
                due = sorted((f for f in waiting.values() if f.next_check <= now), key=lambda f: f.next_check)
                for feed in due:
                    busy.add(feed.url)
                    under_way.add(asyncio.create_task(visit(waiting.pop(feed.url))))
                if not watch:
                    waiting.clear()
                if not under_way and not waiting and changes is None:
                    return report
                alarm = {_alarm(world.clock, waiting)} if waiting else set()
                done, _ = await asyncio.wait(
                    under_way | alarm | {stopped},
                    timeout=None if changes is None else LOOK, return_when=asyncio.FIRST_COMPLETED,
                )  # fmt: skip
                await _ended(alarm)
                for finished in done & under_way:
                    under_way.discard(finished)
                    finished.result()  # an error that is not of one feed ends the fetch
                if stopped in done:
                    return report
        finally:
            await _ended(under_way | {stopped})


def _alarm(clock: Clock, waiting: dict[str, FeedState]) -> asyncio.Task[Any]:
    return asyncio.create_task(clock.sleep_until(min(feed.next_check for feed in waiting.values())))


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
