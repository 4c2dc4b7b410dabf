"""One visit to a feed: asks, politely, judges the answer, keeps what is new; every outcome is committed as one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from importlib.metadata import version

import httpx

from feeds.bad_input import SourceError
from feeds.confined import ConfinedError, confined_aside
from feeds.credentials import without_credentials
from feeds.fetch.archive import Archive, Capture
from feeds.fetch.clock import DAY, Clock
from feeds.fetch.exchange import Limits, Reply, exchange
from feeds.fetch.failures import FetchedAlready, FetchError, Gone, HostPaused
from feeds.fetch.feed_state import FeedState, Success, failed, put_aside, succeeded
from feeds.fetch.follow import Answer, follow
from feeds.fetch.gates import HostGates
from feeds.fetch.hints import fresh_for, retry_after
from feeds.fetch.look import Look, look
from feeds.fetch.places import Places
from feeds.fetch.robots import Robots
from feeds.fetch.schedule import Pace
from feeds.fetch.state import FetchStore
from feeds.text import one_line

LOST = 3
"""After so many failures running, a feed that has moved is looked for where it was again."""

LONGEST_VALIDATOR = 1000
"""Characters of an ETag or a Last-Modified."""


class Outcome(Enum):
    """What became of a visit."""

    NEW = "new"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    STOPPED = "stopped"
    PUT_OFF = "put off"


def own_agent() -> str:
    """The User-Agent of those who give none."""
    return f"mmqjp/{version('mmqjp')} (feed fetcher)"


@dataclass(frozen=True, slots=True)
class Settings:
    """How feeds are visited; `agent` is the User-Agent."""

    agent: str
    limits: Limits = Limits()
    pace: Pace = Pace()
    robots: bool = False


class Visitor:
    """Visits feeds. `random` gives numbers in [0, 1), for the jitter."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        store: FetchStore,
        archive: Archive,
        gates: HostGates,
        places: Places,
        clock: Clock,
        random: Callable[[], float],
        settings: Settings,
    ) -> None:
        self._client, self._store, self._archive = client, store, archive
        self._gates, self._places, self._clock = gates, places, clock
        self._random, self._settings = random, settings
        self._robots = Robots(store, clock, self._get_robots) if settings.robots else None

    async def visit(self, feed: FeedState) -> tuple[FeedState, Outcome]:
        """Fetches a feed once and commits what came of it. Nothing is awaited between the answer and the commit, so a
        visit that is cancelled has either happened or not."""
        try:
            with self._places.visited(feed), _failures_of_the_feed():
                answer, seen = await self._ask(feed)
                finding = _judged(feed, answer, seen, self._clock.now())
            after, outcome = self._settle(feed, answer, finding)
        except HostPaused as pause:
            after, outcome = replace(feed, next_check=max(feed.next_check, pause.until)), Outcome.PUT_OFF
        except FetchedAlready as already:
            after = put_aside(feed, already, self._clock.now(), self._settings.pace, self._random())
            outcome = Outcome.PUT_OFF
        except FetchError as error:
            after = failed(feed, error, self._clock.now(), self._settings.pace, self._random())
            outcome = Outcome.STOPPED if after.stopped else Outcome.FAILED
        self._store.commit(after, self._archive.mark)
        self._places.update(after)
        return after, outcome

    async def _ask(self, feed: FeedState) -> tuple[Answer, Look | None]:
        """The answer with a feed, or with none that is newer; the feed of a page that names one. And what its body is,
        if it has one."""
        sent: dict[str, str] = {}
        # Where it once led may be dead, and what it is subscribed to may lead elsewhere by now.
        address = feed.url if feed.errors >= LOST else feed.address or feed.url
        # After a kill the archive may be ahead of the state, whose validators are then those of an older version.
        if self._archive.newest(feed.source) in (None, feed.sha256):
            validators = {"If-None-Match": feed.etag, "If-Modified-Since": feed.last_modified}
            sent = {name: value for name, value in validators.items() if value}
        answer = await self._followed(feed, address, sent)
        seen = await _looked_at(answer.reply)
        if seen is not None and seen.kind == "page":
            if not seen.feeds:
                raise FetchError("it is a page, and names no feed", 200)
            answer = await self._followed(feed, seen.feeds[0], {})
            seen = await _looked_at(answer.reply)
        return answer, seen

    async def _followed(self, feed: FeedState, address: str, headers: dict[str, str]) -> Answer:
        def moved(place: str) -> None:
            self._places.claim(feed, place)

        answer = await follow(lambda url: self._get(url, headers), address, self._settings.limits.hops, moved)
        reply = answer.reply
        if reply.status == 410:
            raise Gone("the server says that it is gone for good (410)", 410)
        if reply.status != 200 and not (reply.status == 304 and headers):
            raise FetchError(f"the server answered {reply.status}", reply.status, self._pause(reply))
        return answer

    def _pause(self, reply: Reply) -> int | None:
        """When a server that is overloaded wants to be asked again; its other feeds wait too."""
        if reply.status not in (429, 503):
            return None
        until = retry_after(reply.headers, self._clock.now())
        if until is not None:
            self._gates.pause(_host(httpx.URL(reply.url)), min(until, self._clock.now() + DAY))
        return until

    async def _get(self, url: httpx.URL, headers: dict[str, str]) -> Reply:
        host = _host(url)
        delay = await self._robots.delay(url, host) if self._robots else 0
        async with self._gates.turn(host, delay):
            return await self._exchange(url, headers)

    async def _get_robots(self, url: httpx.URL) -> Reply:
        async def get(url: httpx.URL) -> Reply:
            async with self._gates.turn(_host(url)):
                return await self._exchange(url, {})

        return (await follow(get, str(url), self._settings.limits.hops)).reply

    async def _exchange(self, url: httpx.URL, headers: dict[str, str]) -> Reply:
        return await exchange(self._client, url, {"User-Agent": self._settings.agent, **headers}, self._settings.limits)

    def _settle(self, feed: FeedState, answer: Answer, success: Success) -> tuple[FeedState, Outcome]:
        """What an answer makes of a feed; its body is kept if it is new, and then it is in the archive."""
        reply, now = answer.reply, max(self._clock.now(), feed.fetched_at + 1)
        headers = reply.headers.multi_items()
        url, final = without_credentials(feed.url), without_credentials(reply.url)
        capture = Capture(url, feed.source, final, reply.status, headers, now, success.sha256, reply.body)
        new = reply.status == 200 and success.sha256 != (self._archive.newest(feed.source) or feed.sha256)
        if new:
            self._archive.keep(capture)
        else:
            self._archive.met_again(capture, feed.fetched_at)
        after = succeeded(feed, success, now, self._settings.pace, self._random())
        return after, Outcome.NEW if new else Outcome.UNCHANGED


async def _looked_at(reply: Reply) -> Look | None:
    """What the body is; None for an answer that says that nothing has changed."""
    if reply.status != 200:
        return None
    try:
        return await confined_aside(look, reply.body, reply.url, size=len(reply.body))
    except ConfinedError as error:
        raise FetchError(str(error), reply.status) from None


def _judged(feed: FeedState, answer: Answer, seen: Look | None, now: int) -> Success:
    """What an answer says, whose body was looked at; FetchError where it is no feed."""
    reply = answer.reply
    if seen is not None and seen.kind != "feed":
        raise FetchError("the answer is not a feed", reply.status)
    return Success(
        address=answer.address,
        status=reply.status,
        etag=_validator(reply, "ETag") or (feed.etag if seen is None else ""),
        last_modified=_validator(reply, "Last-Modified") or (feed.last_modified if seen is None else ""),
        sha256=feed.sha256 if seen is None else seen.sha256,
        hints=feed.hints if seen is None else seen.hints,
        fresh=fresh_for(reply.headers, now),
    )


def _validator(reply: Reply, name: str) -> str:
    """A header that can be sent back; "" for what cannot, and for what is too long to be kept."""
    value = reply.headers.get(name, "")
    return value if value.isascii() and value.isprintable() and len(value) <= LONGEST_VALIDATOR else ""


@contextmanager
def _failures_of_the_feed() -> Iterator[None]:
    """Whatever a stranger's server and feed do to us is that feed's failure; that the state cannot be used is not."""
    try:
        yield
    except (FetchError, FetchedAlready, HostPaused, SourceError, sqlite3.Error):
        raise
    except Exception as error:
        raise FetchError(f"unexpected {type(error).__name__}: {one_line(str(error))}") from error


def _host(url: httpx.URL) -> str:
    return url.netloc.decode("ascii")
