"""Fetches feeds in a thread beside the loop of a service, and logs each visit. If fetching fails, the loop stops."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from feeds.fetch.feed_state import FeedState
from feeds.fetch.fetcher import Report, World
from feeds.fetch.job import Job
from feeds.fetch.visit import Outcome
from mmqjp.service.log import Log


class Fetching:
    """A context manager that runs a fetch job in a thread.

    The errors of single feeds are logged as events. An error of the job itself (such as a full disk, or a state that
    another process holds) sets `stop` and is raised at the end of the block.
    """

    def __init__(
        self, job: Job, log: Log, stop: threading.Event, *, watch: bool = True, world: World | None = None
    ) -> None:
        """With `watch`, feeds are fetched whenever they are due; without it, once."""
        self._job, self._log, self._stop, self._watch, self._world = job, log, stop, watch, world
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="fetch", daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> Fetching:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()
        if self._failure is not None and error is None:
            raise self._failure

    def wait(self) -> None:
        """Returns when all feeds are fetched, or when `stop` is set."""
        while self._thread.is_alive() and not self._stop.is_set():
            self._thread.join(0.1)  # in short steps, so that signals are handled between them

    def _work(self) -> None:
        try:
            self._loop.run_until_complete(self._fetch())
        except BaseException as error:
            self._failure = error
            self._log.event("fetch-failed", error=error)
            self._stop.set()

    async def _fetch(self) -> None:
        report, feeds = await self._job.run(watch=self._watch, stop=self._end, told=self._log_visit, world=self._world)
        counts = {outcome.value.replace(" ", "_"): report.counts[outcome] for outcome in Outcome}
        self._log.event("fetch-ended", feeds=len(feeds), visits=report.counts.total(), **counts)

    def _log_visit(self, report: Report, feed: FeedState, outcome: Outcome) -> None:
        why = {"reason": feed.last_error} if feed.last_error else {}
        self._log.event("fetch", feed=feed.shown, outcome=outcome.value, status=feed.status, **why)
