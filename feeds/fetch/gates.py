"""Politeness to hosts: few requests at once, a pause between them, and none while a host wants none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from feeds.fetch.clock import SECOND, Clock
from feeds.fetch.failures import HostPaused
from feeds.fetch.state import FetchStore, HostState


@dataclass(frozen=True, slots=True)
class Courtesy:
    """The most requests at once, in all and to one host, and the microseconds between requests to one host."""

    concurrency: int = 16
    per_host: int = 1
    spacing: int = SECOND


class HostGates:
    """Lets requests through to their hosts. The time of a request is noted before it is made, so that a process that
    takes over from a killed one keeps the pause too."""

    def __init__(self, store: FetchStore, clock: Clock, courtesy: Courtesy) -> None:
        self._store, self._clock, self._courtesy = store, clock, courtesy
        self._all = asyncio.Semaphore(courtesy.concurrency)
        self._hosts: dict[str, tuple[asyncio.Semaphore, asyncio.Lock]] = {}

    @asynccontextmanager
    async def turn(self, host: str, spacing: int = 0) -> AsyncIterator[None]:
        """A block in which one request may be made to a host: `spacing` microseconds, or what courtesy demands, after
        the last one ended, or began if it is under way. Raises HostPaused if the host wants none."""
        slots, order = self._hosts.setdefault(host, (asyncio.Semaphore(self._courtesy.per_host), asyncio.Lock()))
        async with slots:
            async with order:
                last = min(self._free(host).asked_at, self._clock.now())  # the clock may have been set back
                await self._clock.sleep_until(last + max(spacing, self._courtesy.spacing))
                await self._all.acquire()
                try:
                    self._store.save_host(replace(self._free(host), asked_at=self._clock.now()))
                except BaseException:
                    self._all.release()
                    raise
            try:
                yield
            finally:
                self._all.release()
                # The time that a request takes to reach the host must not shorten the pause.
                self._store.save_host(replace(self._store.host(host), asked_at=self._clock.now()))

    def _free(self, host: str) -> HostState:
        """The host's state. Raises HostPaused if it wants no request."""
        state = self._store.host(host)
        if state.paused_until > self._clock.now():
            raise HostPaused(state.paused_until)
        return state

    def pause(self, host: str, until: int) -> None:
        """Lets no request through to a host before a time."""
        state = self._store.host(host)
        self._store.save_host(replace(state, paused_until=max(until, state.paused_until)))
