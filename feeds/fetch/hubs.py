"""Subscriptions at WebSub hubs (W3C, 2018): the fetcher asks a hub to call an address of ours, where the page answers.

A push makes its feed due; its content is authenticated but not read. Only a visit shows which entries a feed has, and
up to when; a hub sends new entries without saying what came before, so reading them from pushes could lose some and
would not advance time. The web page runs in another process: it leaves messages from hubs in files beside the state,
one for each kind and subscription, and the fetcher processes them.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

import httpx

from common.dates import DAY, MINUTE, SECOND
from common.files import keep_private, write_whole
from feeds.fetch.archives import PageLinks
from feeds.fetch.http import Clock, FetchError, Hints, HostPaused, Reply, retry_after
from feeds.fetch.state import FeedState, FetchStore, HubSubscription, Pace, after_failure
from feeds.items import LONGEST_ADDRESS, one_line, without_credentials

CALLBACK = "/websub/"  # path of the addresses that hubs call

LEASE, SHORTEST_LEASE, LONGEST_LEASE = 10 * DAY, 5 * MINUTE, 60 * DAY
"""The requested lease; a granted one is clamped to the other two."""

RENEWED = 0.8  # fraction of a lease after which it is renewed
MOST_FAILURES = 5  # consecutive failures after which unsubscribing is given up
MOST_HUBS = 5  # maximum number of hubs tried for one feed
REFUSED = DAY  # delay before a hub that refused is tried again

SLOWER = 4  # factor by which polling slows down while a hub pushes
GAPS = 60  # maximum number of visits that pushes may cause in one polling interval
LAG = 5 * MINUTE  # how long visits repeat after a push that shows nothing new: the feed's cache may lag behind its hub

SPARE = "spare"  # the mode of a subscription that is requested only if the one at another hub fails
WAITS = "the hub has not confirmed it yet"
SILENT = "the hub did not confirm it"

HubMessage = Literal["verified", "denied", "pushed", "forged"]

_ALGORITHMS = frozenset({"sha1", "sha256", "sha384", "sha512"})


class Signature:
    """Checks the `X-Hub-Signature` of a push whose body arrives in parts."""

    def __init__(self, header: str, secret: str) -> None:
        method, _, self._given = header.strip().partition("=")
        known = method.lower() in _ALGORITHMS
        self._mac = hmac.new(secret.encode(), digestmod=method.lower()) if known else None

    def update(self, part: bytes) -> None:
        if self._mac is not None:
            self._mac.update(part)

    def is_right(self) -> bool:
        given = self._given.strip().lower().encode("utf-8", "replace")
        return self._mac is not None and hmac.compare_digest(self._mac.hexdigest().encode(), given)


def lease_of(text: str) -> int:
    """The granted lease in microseconds, from a text in seconds, clamped."""
    seconds = int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else LEASE // SECOND
    return min(max(seconds * SECOND, SHORTEST_LEASE), LONGEST_LEASE)


class HubMailbox:
    """Messages from hubs, left by the web page for the fetcher of a state file. A message replaces an earlier one of
    the same kind and subscription, so the number of files is bounded however often a hub calls."""

    def __init__(self, state: Path) -> None:
        self._directory = state.with_name(f".{state.name}.hubs")

    def leave(self, token: str, kind: HubMessage, **said: str) -> None:
        """Leaves a message, which survives a kill once this returns. Raises OSError."""
        self._directory.mkdir(0o700, exist_ok=True)
        keep_private(self._directory)
        write_whole(self._directory / f"{kind}-{token}.json", json.dumps(said))

    def messages(self) -> Iterator[tuple[Path, str, str, Mapping[str, Any]]]:
        """The path, kind, token and content of each message, oldest first: one that comes again after a kill must not
        undo a later one of another kind. The caller deletes the file once it is processed."""
        for path in sorted(self._directory.glob("[!.]*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name)):
            kind, _, token = path.stem.partition("-")
            try:
                said = json.loads(path.read_bytes())
            except (OSError, ValueError):
                said = {}
            yield path, kind, token, said if isinstance(said, dict) else {}


Post = Callable[[str, httpx.URL, Mapping[str, str]], Awaitable[Reply]]
"""Posts a form on behalf of a feed, following redirects. Raises FetchError and HostPaused."""


OnEvent = Callable[..., object]
"""Called with the name of an event and its fields."""


@dataclass
class Hubs:
    """The fetcher's side. `callback` is the address that hubs call, without the token; "" if they cannot.

    A feed is subscribed at one of the hubs that it names; the others are spares. If that hub refuses, fails or does not
    confirm, the spare with the earliest `next_check` takes its place; each backs off at its own pace. `event` receives
    the outcomes of requests and calls (`hub`), and the number of subscriptions (`hubs`).
    """

    store: FetchStore
    mailbox: HubMailbox | None
    callback: str
    post: Post
    clock: Clock
    random: Callable[[], float]
    pace: Pace
    event: OnEvent = lambda name, **fields: None
    _known: dict[str, HubSubscription] = field(default_factory=dict)
    _of_feed: dict[str, str] = field(default_factory=dict)
    """The token of a feed's subscription, by the feed's address."""
    _spare: dict[str, list[HubSubscription]] = field(default_factory=dict)
    _asking: set[str] = field(default_factory=set)
    _counted: tuple[int, int] = 0, 0

    def __post_init__(self) -> None:
        self.reload()
        if self.is_on:  # hubs cannot reach the previous address
            moved = (one for one in self._known.values() if one.callback != self.callback)
            self._save(*(replace(one, next_check=0) for one in moved))

    @property
    def gap(self) -> int:
        """The minimum time between two visits of a feed that pushes cause."""
        return self.pace.interval // GAPS

    @property
    def is_on(self) -> bool:
        return bool(self.callback) and self.mailbox is not None

    def reload(self) -> None:
        self._known = {one.token: one for one in self.store.subscriptions()}
        self._of_feed = {one.feed: one.token for one in self._known.values() if one.mode == "subscribe"}
        self._spare = {}
        for one in self._known.values():
            if one.mode == SPARE:
                self._spare.setdefault(one.feed, []).append(one)

    def count(self) -> None:
        """Reports how many feeds are pushed, and how many should be, if that has changed."""
        active = sum(map(self.is_active, self._of_feed))
        counted = active, len(self._of_feed) - active
        if self.is_on and counted != self._counted:
            self._counted = counted
            self.event("hubs", active=active, waiting=counted[1])

    def has(self, feed: str) -> bool:
        """Whether a feed has a subscription, confirmed or not."""
        return feed in self._of_feed

    def is_active(self, feed: str) -> bool:
        """Whether the hub of a feed currently pushes to us."""
        one = self._known.get(self._of_feed.get(feed, ""))
        return self.is_on and one is not None and one.callback == self.callback and one.until > self.clock.now()

    def is_lagging(self, feed: str) -> bool:
        """Whether a push came so recently that the feed may still be about to show new entries."""
        one = self._known.get(self._of_feed.get(feed, ""))
        return self.is_on and one is not None and self.clock.now() - one.pushed_at < LAG

    def found(self, feed: FeedState, page: PageLinks, reply: Reply, *, wanted: bool) -> None:
        """Processes the hub links of a feed: subscribes, or ends a subscription that is no longer wanted."""
        if not self.is_on:
            return
        named = [url for _, url in page.of("hub") if len(url) <= LONGEST_ADDRESS] if wanted else []
        hubs = list(dict.fromkeys(named))[:MOST_HUBS]
        topic = without_credentials(next((url for _, url in page.of("self")), reply.url))
        known = self._known.get(self._of_feed.get(feed.url, ""))
        if known is not None:
            if known.hub in hubs and (known.topic, known.callback) == (topic, self.callback):
                self._spares(known, [hub for hub in hubs if hub != known.hub])
                return
            self.end(feed.url)
        if hubs:
            token, secret = token_hex(24), token_hex(32)
            self._save(one := HubSubscription(token, feed.url, hubs[0], topic, self.callback, secret))
            self._spares(one, hubs[1:])

    def end(self, feed: str) -> None:
        """Ends the subscription of a feed, if it has one, also at its hub."""
        if (known := self._known.get(self._of_feed.get(feed, ""))) is not None:
            self._spares(known, [])
            self._save(replace(known, mode="unsubscribe", next_check=0, failures=0))

    def _spares(self, one: HubSubscription, hubs: list[str]) -> None:
        """Stores these hubs as spares of `one`, replacing those before."""
        known = {spare.hub: spare for spare in self._spare.get(one.feed, ())}
        if known.keys() == {*hubs}:
            return
        for hub in known.keys() - {*hubs}:
            self.store.drop_subscription(known[hub].token)
        made = (
            HubSubscription(token_hex(24), one.feed, hub, one.topic, one.callback, token_hex(32), SPARE)
            for hub in hubs
            if hub not in known
        )
        self._save(*made)

    def _else(self, one: HubSubscription) -> None:
        """Saves an unconfirmed subscription, or promotes a spare in its place whose hub can be tried earlier."""
        first = min(self._spare.get(one.feed, ()), key=lambda spare: spare.next_check, default=one)
        if one.mode != "subscribe" or one.until > self.clock.now() or first.next_check >= one.next_check:
            self._save(one)
            return
        self._save(replace(first, mode="subscribe"), replace(one, mode=SPARE, until=0))

    def _save(self, *changed: HubSubscription) -> None:
        self.store.save_subscriptions(*changed)
        self.reload()

    def _report(self, what: str, one: HubSubscription, **fields: object) -> None:
        self.event("hub", what=what, hub=without_credentials(one.hub), feed=without_credentials(one.feed), **fields)

    def next_check(self) -> int | None:
        waiting = (one.next_check for one in self._known.values() if self._is_asked(one))
        return min(waiting, default=None) if self.is_on else None

    def _is_asked(self, one: HubSubscription) -> bool:
        """Whether a request is sent to the hub once `next_check` is reached."""
        return one.mode != SPARE and one.token not in self._asking

    def due(self) -> list[HubSubscription]:
        """The subscriptions that are due for a request now. Call `ask` for each."""
        if not self.is_on:
            return []
        now = self.clock.now()
        found = [one for one in self._known.values() if one.next_check <= now and self._is_asked(one)]
        self._asking.update(one.token for one in found)
        return found

    async def ask(self, one: HubSubscription) -> None:
        """Asks a hub to subscribe, renew or unsubscribe. The hub calls back, possibly before it answers."""
        try:
            await self._ask(one)
        finally:
            self._asking.discard(one.token)

    async def _ask(self, one: HubSubscription) -> None:
        now = self.clock.now()
        if one.mode == "unsubscribe" and (one.failures >= MOST_FAILURES or one.callback != self.callback):
            self.store.drop_subscription(one.token)  # it expires with its lease; until then its pushes are rejected
            self.reload()
            return
        if one.callback != self.callback:
            one = replace(one, callback=self.callback, until=0)
        failures = one.failures + 1
        check = after_failure(now, failures, None, Hints(), self.pace, self.random())
        if one.error == WAITS and one.until <= now:  # the last request was long ago
            self._else(replace(one, next_check=check, error=SILENT))  # not WAITS: as a spare it has a new turn
            if self._known[one.token].mode == SPARE:
                return
        one = replace(one, failures=failures, next_check=check, error=one.error or WAITS)
        self._save(one)
        form = {
            "hub.callback": f"{self.callback}{one.token}", "hub.mode": one.mode, "hub.topic": one.topic,
            "hub.lease_seconds": str(LEASE // SECOND), "hub.secret": one.secret,
            "hub.verify": "async",  # required by older hubs
        }  # fmt: skip
        cause, not_before = WAITS, None
        try:
            reply = await self.post(one.feed, httpx.URL(one.hub), form)
            if not 200 <= reply.status < 300:
                cause, not_before = f"the hub answered {reply.status}", retry_after(reply.headers, now)
        except HostPaused as pause:
            cause, not_before = "the hub asks to wait", pause.until
        except FetchError as error:
            cause, not_before = f"the hub: {error}", error.not_before
        cause = without_credentials(one_line(cause))
        self._report("asked" if cause == WAITS else "failed", one, **({} if cause == WAITS else {"reason": cause}))
        self.reload()
        found = self._known.get(one.token)
        # If not, it has called in the meantime.
        if found is not None and found.failures == failures and found.mode == one.mode:
            found = replace(found, error=cause, next_check=max(found.next_check, not_before or 0))
            self._save(found) if cause == WAITS else self._else(found)

    def take(self, busy: Collection[str]) -> list[FeedState]:
        """Processes the messages from hubs. Returns the feeds that are due now; messages about `busy` ones wait."""
        if self.mailbox is None or not self.is_on:
            return []
        due: dict[str, FeedState] = {}
        for path, kind, token, said in self.mailbox.messages():
            one = self._known.get(token)
            if one is not None and one.feed in busy:
                continue
            if one is not None:
                due |= {feed.url: feed for feed in self._heard(one, kind, said)}
            path.unlink(missing_ok=True)
        for one in list(self._known.values()):
            if 0 < one.until <= self.clock.now() and one.feed not in busy:
                self._else(replace(one, until=0, error="its lease has ended"))
                due |= {feed.url: feed for feed in self._due(one.feed, self.clock.now())}
        return list(due.values())

    def _heard(self, one: HubSubscription, kind: str, said: Mapping[str, Any]) -> list[FeedState]:
        now = self.clock.now()
        self._report(kind, one)
        match kind:
            case "verified" if said.get("mode") == one.mode == "subscribe":
                lease = lease_of(str(said.get("lease", "")))
                check = now + int(lease * (RENEWED - 0.1 * self.random()))
                self._save(replace(one, until=now + lease, next_check=check, failures=0, error=""))
                # Entries since the last visit were not pushed.
                return [] if one.until > now else self._due(one.feed, now)
            case "verified" if said.get("mode") == one.mode == "unsubscribe":
                self.store.drop_subscription(one.token)
                self.reload()
            case "denied" if one.mode == "subscribe":
                error = one_line(f"the hub refuses it: {said.get('reason') or 'no reason given'}")
                self._else(replace(one, until=0, next_check=now + REFUSED, failures=one.failures + 1, error=error))
                return self._due(one.feed, now)
            case "pushed" if one.mode == "subscribe":
                found = self._due(one.feed, now)
                self._save(replace(one, pushed_at=now))
                return found
            case "forged":
                # In case it was the hub, having lost the secret: the renewal sends it again.
                error, check = "a push without a valid signature was ignored", now + self.pace.interval
                self._save(replace(one, error=error, next_check=min(one.next_check, check)))
        return []

    def _due(self, url: str, now: int) -> list[FeedState]:
        """Makes a feed due, but at least `gap` after its last visit."""
        feed = self.store.feed(url)
        if feed is None or feed.stopped:
            return []
        feed = replace(feed, next_check=min(feed.next_check, max(now, feed.checked_at + self.gap)))
        self.store.commit(feed)
        return [feed]


def subscription_text(one: HubSubscription, now: int) -> str:
    """Describes a subscription for `feeds list` and the web page."""
    hub = without_credentials(one.hub)
    pushed = f"pushed by {hub}" if one.until > now else f"not pushed by {hub}"
    return f"{pushed}; {one.error}" if one.error else pushed
