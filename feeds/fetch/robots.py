"""Politeness to hosts: robots.txt, limited concurrency, a delay between requests, and pauses that a host demands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import httpx
from protego import Protego

from feeds.confined import ConfinedError, confined_aside
from feeds.fetch.http import DAY, HOUR, MINUTE, SECOND, Clock, FetchError, HostPaused, Reply
from feeds.fetch.state import FetchStore, HostState


@dataclass(frozen=True, slots=True)
class Courtesy:
    """Maximum concurrent requests, in all and per host, and the microseconds between requests to one host."""

    concurrency: int = 16
    per_host: int = 1
    spacing: int = SECOND


class HostGates:
    """Admits requests to hosts, saving their times first, so that a process after a killed one keeps the delay."""

    def __init__(self, store: FetchStore, clock: Clock, courtesy: Courtesy) -> None:
        self._store, self._clock, self._courtesy = store, clock, courtesy
        self._all = asyncio.Semaphore(courtesy.concurrency)
        self._hosts: dict[str, tuple[asyncio.Semaphore, asyncio.Lock]] = {}

    @asynccontextmanager
    async def turn(self, host: str, spacing: int = 0) -> AsyncIterator[None]:
        """A block in which one request to a host may be made: `spacing` microseconds, or the courtesy's, after the last
        one ended, or began if it is under way. Raises HostPaused."""
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
        state = self._store.host(host)
        if state.paused_until > self._clock.now():
            raise HostPaused(state.paused_until)
        return state

    def pause(self, host: str, until: int) -> None:
        state = self._store.host(host)
        self._store.save_host(replace(state, paused_until=max(until, state.paused_until)))


LONGEST = 512 * 1024
"""Bytes read of a robots.txt, as RFC 9309 allows."""
LONGEST_DELAY = MINUTE
"""Maximum `Crawl-delay`."""

_AGENT = "mmqjp"


def crawl_delay(rules: str, url: str) -> float | None:
    """Seconds between our requests; None if disallowed. Hostile rules may take long: see `feeds.confined`."""
    parsed = Protego.parse(rules)
    return float(parsed.crawl_delay(_AGENT) or 0) if parsed.can_fetch(url, _AGENT) else None


class Robots:
    """The rules of hosts, fetched once a day with `get` and stored in the state."""

    def __init__(self, store: FetchStore, clock: Clock, get: Callable[[httpx.URL], Awaitable[Reply]]) -> None:
        self._store, self._clock, self._get = store, clock, get
        self._asking: dict[str, asyncio.Lock] = {}

    async def delay(self, url: httpx.URL, host: str) -> int:
        """Microseconds that the rules demand between requests, 0 if none. Raises FetchError if the address is
        disallowed, or the rules are unavailable (RFC 9309: then everything is)."""
        text = await self._rules(url, host)
        later = self._clock.now() + DAY
        try:
            seconds = await confined_aside(crawl_delay, text, str(url), size=len(text)) if text else 0
        except ConfinedError as error:
            raise FetchError(f"its robots.txt: {error}", not_before=later) from None
        if seconds is None:
            raise FetchError(f"robots.txt of {host} does not allow it", not_before=later)
        return min(int(seconds * SECOND), LONGEST_DELAY)

    async def _rules(self, url: httpx.URL, host: str) -> str:
        async with self._asking.setdefault(host, asyncio.Lock()):
            state = self._store.host(host)
            if state.robots is None or state.robots_at + DAY <= self._clock.now():
                state = await self._asked(url, host)
        return state.robots or ""

    async def _asked(self, url: httpx.URL, host: str) -> HostState:
        try:
            reply = await self._get(url.copy_with(path="/robots.txt", query=None, fragment=None))
        except FetchError as error:
            later = self._clock.now() + HOUR
            raise FetchError(f"its robots.txt cannot be fetched: {error}", error.status, later) from None
        if reply.status >= 500 or reply.status == 429:
            cause = f"its robots.txt cannot be fetched: the server answered {reply.status}"
            raise FetchError(cause, reply.status, self._clock.now() + HOUR)
        text = reply.body[:LONGEST].decode("utf-8", "replace") if reply.status == 200 else ""
        state = replace(self._store.host(host), robots=text, robots_at=self._clock.now())
        self._store.save_host(state)
        return state
