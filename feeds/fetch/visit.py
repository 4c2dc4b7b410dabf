"""One visit to a feed: fetches it politely, judges the answer, keeps a new version. Each outcome is one commit."""

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
from feeds.fetch.claims import AddressClaims
from feeds.fetch.clock import DAY, Clock
from feeds.fetch.exchange import Reply, ReplyLimits, exchange
from feeds.fetch.failures import FetchedAlready, FetchError, Gone, HostPaused
from feeds.fetch.feed_state import FeedState, Success, failed, put_aside, succeeded
from feeds.fetch.follow import Answer, follow
from feeds.fetch.gates import HostGates
from feeds.fetch.hints import fresh_for, retry_after
from feeds.fetch.look import Look, look
from feeds.fetch.robots import Robots
from feeds.fetch.schedule import Pace
from feeds.fetch.state import FetchStore
from feeds.text import one_line

LOST = 3
"""After this many failures in a row, a feed that has moved is looked for at its first address again."""

LONGEST_VALIDATOR = 1000
"""The most characters of an ETag or a Last-Modified."""


class Outcome(Enum):
    """What became of a visit."""

    NEW = "new"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    STOPPED = "stopped"
    PUT_OFF = "put off"


def own_agent() -> str:
    """The User-Agent by default."""
    return f"mmqjp/{version('mmqjp')} (feed fetcher)"


@dataclass(frozen=True, slots=True)
class Settings:
    """How feeds are visited; `agent` is the User-Agent."""

    agent: str
    limits: ReplyLimits = ReplyLimits()
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
        claims: AddressClaims,
        clock: Clock,
        random: Callable[[], float],
        settings: Settings,
    ) -> None:
        self._client, self._store, self._archive = client, store, archive
        self._gates, self._claims, self._clock = gates, claims, clock
        self._random, self._settings = random, settings
        self._robots = Robots(store, clock, self._get_robots) if settings.robots else None

    async def visit(self, feed: FeedState) -> tuple[FeedState, Outcome]:
        """Fetches a feed once and commits the outcome. Nothing is awaited between the answer and the commit, so a visit
        that is cancelled has either happened or not."""
        try:
            with self._claims.visited(feed), _failures_of_the_feed():
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
        self._claims.update(after)
        return after, outcome

    async def _ask(self, feed: FeedState) -> tuple[Answer, Look | None]:
        """The answer with a feed, or that there is no newer one; if a page answers, that of the feed that it names. And
        what its body is, if it has one."""
        sent: dict[str, str] = {}
        # The address that it has moved to may be dead, and the first one may lead elsewhere by now.
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
        def moved(to: str) -> None:
            self._claims.claim(feed, to)

        answer = await follow(lambda url: self._get(url, headers), address, self._settings.limits.hops, moved)
        reply = answer.reply
        if reply.status == 410:
            raise Gone("the server says that it is gone for good (410)", 410)
        if reply.status != 200 and not (reply.status == 304 and headers):
            raise FetchError(f"the server answered {reply.status}", reply.status, self._pause(reply))
        return answer

    def _pause(self, reply: Reply) -> int | None:
        """When an overloaded server wants the next request. Its other feeds wait too."""
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
        """The feed after an answer. A new body is in the archive then."""
        reply, now = answer.reply, max(self._clock.now(), feed.fetched_at + 1)
        headers = reply.headers.multi_items()
        url, final = without_credentials(feed.url), without_credentials(reply.url)
        told = url, feed.source, final, reply.status, headers, now, success.sha256, reply.body
        capture = Capture(*told, feed.title, feed.folders)
        new = reply.status == 200 and success.sha256 != (self._archive.newest(feed.source) or feed.sha256)
        if new:
            self._archive.keep(capture)
        else:
            self._archive.met_again(capture, feed.fetched_at)
        after = succeeded(feed, success, now, self._settings.pace, self._random())
        return after, Outcome.NEW if new else Outcome.UNCHANGED


async def _looked_at(reply: Reply) -> Look | None:
    """What the body is; None if the answer says that nothing has changed."""
    if reply.status != 200:
        return None
    try:
        return await confined_aside(look, reply.body, reply.url, size=len(reply.body))
    except ConfinedError as error:
        raise FetchError(str(error), reply.status) from None


def _judged(feed: FeedState, answer: Answer, seen: Look | None, now: int) -> Success:
    """What an answer says. Raises FetchError if its body is no feed."""
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
    """A header that can be sent back; "" if it cannot, or is too long to be kept."""
    value = reply.headers.get(name, "")
    return value if value.isascii() and value.isprintable() and len(value) <= LONGEST_VALIDATOR else ""


@contextmanager
def _failures_of_the_feed() -> Iterator[None]:
    """Whatever a stranger's server or feed does is a failure of that feed alone. An error of our state is not."""
    try:
        yield
    except (FetchError, FetchedAlready, HostPaused, SourceError, sqlite3.Error):
        raise
    except Exception as error:
        raise FetchError(f"unexpected {type(error).__name__}: {one_line(str(error))}") from error


def _host(url: httpx.URL) -> str:
    return url.netloc.decode("ascii")
