"""Subscriptions at WebSub hubs (W3C, 2018): the fetcher asks a hub to call an address of ours, where the page answers.

A push makes its feed due; its content is only authenticated. What a feed has, and up to when, is known from a visit
alone, and a hub sends new entries without saying what came before, so that a push taken as entries could lose some and
say nothing of time. The page, which is another process, leaves what it hears from hubs in files beside the state, one
for each kind and subscription, that the fetcher takes in.
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

CALLBACK = "/websub/"  # hubs call the addresses below this one

LEASE, SHORTEST_LEASE, LONGEST_LEASE = 10 * DAY, 5 * MINUTE, 60 * DAY
"""The lease that is asked for and, of what hubs grant, the least and the most that counts."""

RENEWED = 0.8  # the part of a lease after which it is renewed
MOST_FAILURES = 5  # failures in a row after which a hub is not asked any more to end a subscription
MOST_HUBS = 5  # maximum number of hubs of one feed that are tried
REFUSED = DAY  # after a refusal, a hub is asked again

SLOWER = 4  # how many times slower a feed is polled whose hub pushes
GAPS = 60  # into how many parts pushes may cut the interval of a feed
LAG = 5 * MINUTE  # for which a push that shows nothing new is followed by further visits: a hub may be ahead of a cache

SPARE = "spare"  # the mode of a subscription at a hub that is asked if that of another fails
WAITS = "the hub has not confirmed it yet"

HubMessage = Literal["verified", "denied", "pushed", "forged"]

_ALGORITHMS = frozenset({"sha1", "sha256", "sha384", "sha512"})


class Signature:
    """Checks the `X-Hub-Signature` of a push whose body comes in parts."""

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
    """The granted lease in microseconds, of a text with seconds."""
    seconds = int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else LEASE // SECOND
    return min(max(seconds * SECOND, SHORTEST_LEASE), LONGEST_LEASE)


class HubMailbox:
    """What the page has heard from hubs, for the fetcher of a state file. A message replaces one of the same kind about
    the same subscription, so that however often a hub calls, the files are bounded."""

    def __init__(self, state: Path) -> None:
        self._directory = state.with_name(f".{state.name}.hubs")

    def leave(self, token: str, kind: HubMessage, **said: str) -> None:
        """Survives a kill once it has returned. Raises OSError."""
        self._directory.mkdir(0o700, exist_ok=True)
        keep_private(self._directory)
        write_whole(self._directory / f"{kind}-{token}.json", json.dumps(said))

    def messages(self) -> Iterator[tuple[Path, str, str, Mapping[str, Any]]]:
        """The path, the kind, the token and the content of each. Whoever has taken it in deletes the file."""
        for path in sorted(self._directory.glob("[!.]*.json")):
            kind, _, token = path.stem.partition("-")
            try:
                said = json.loads(path.read_bytes())
            except (OSError, ValueError):
                said = {}
            yield path, kind, token, said if isinstance(said, dict) else {}


Post = Callable[[str, httpx.URL, Mapping[str, str]], Awaitable[Reply]]
"""Sends a form for a feed to an address, and follows redirects. Raises FetchError and HostPaused."""


OnEvent = Callable[..., object]
"""Called with the name of an event, and fields."""


@dataclass
class Hubs:
    """The fetcher's side. `callback` is the address that hubs call, without the token; "" if they cannot.

    Of the hubs that a feed names, one is subscribed at. The others are spare: where that hub refuses, fails or does not
    confirm, the spare one takes its place that is to be asked first, each at its own pace. `event` hears what comes of
    requests and calls (`hub`), and how many subscriptions there are (`hubs`).
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
    """The token of the subscription that a feed has, by its address."""
    _spare: dict[str, list[HubSubscription]] = field(default_factory=dict)
    _asking: set[str] = field(default_factory=set)
    _counted: tuple[int, int] = 0, 0

    def __post_init__(self) -> None:
        self.reload()
        if self.is_on:  # where the page was before, no hub finds it
            moved = (one for one in self._known.values() if one.callback != self.callback)
            self._save(*(replace(one, next_check=0) for one in moved))

    @property
    def gap(self) -> int:
        """The least time between two visits of a feed for the sake of pushes."""
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
        """Reports how many feeds hubs push, and how many they should, if that has changed."""
        active = sum(map(self.is_active, self._of_feed))
        counted = active, len(self._of_feed) - active
        if self.is_on and counted != self._counted:
            self._counted = counted
            self.event("hubs", active=active, waiting=counted[1])

    def has(self, feed: str) -> bool:
        """Whether a feed has a subscription, confirmed or not."""
        return feed in self._of_feed

    def is_active(self, feed: str) -> bool:
        """Whether the hub of a feed pushes to us now."""
        one = self._known.get(self._of_feed.get(feed, ""))
        return self.is_on and one is not None and one.callback == self.callback and one.until > self.clock.now()

    def is_lagging(self, feed: str) -> bool:
        """Whether a push came a moment ago, so that a feed that shows nothing new may soon."""
        one = self._known.get(self._of_feed.get(feed, ""))
        return self.is_on and one is not None and self.clock.now() - one.pushed_at < LAG

    def found(self, feed: FeedState, page: PageLinks, reply: Reply, *, wanted: bool) -> None:
        """Takes in what a feed says of its hub: subscribes, or ends a subscription that is not wanted any more."""
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
        """Ends the subscription of a feed, if it has one, at its hub too."""
        if (known := self._known.get(self._of_feed.get(feed, ""))) is not None:
            self._spares(known, [])
            self._save(replace(known, mode="unsubscribe", next_check=0, failures=0))

    def _spares(self, one: HubSubscription, hubs: list[str]) -> None:
        """Keeps these hubs to be asked where that of `one` fails."""
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
        """Saves a subscription that no hub has confirmed, or in its place one at a hub that is to be asked earlier."""
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
        """Whether a hub is to be asked when its time comes."""
        return one.mode != SPARE and one.token not in self._asking

    def due(self) -> list[HubSubscription]:
        """The subscriptions for whose sake a hub is to be asked now. Call `ask` for each."""
        if not self.is_on:
            return []
        now = self.clock.now()
        found = [one for one in self._known.values() if one.next_check <= now and self._is_asked(one)]
        self._asking.update(one.token for one in found)
        return found

    async def ask(self, one: HubSubscription) -> None:
        """Asks a hub to subscribe, to renew or to unsubscribe. It calls back, maybe before it answers."""
        try:
            await self._ask(one)
        finally:
            self._asking.discard(one.token)

    async def _ask(self, one: HubSubscription) -> None:
        now = self.clock.now()
        if one.mode == "unsubscribe" and (one.failures >= MOST_FAILURES or one.callback != self.callback):
            self.store.drop_subscription(one.token)  # it ends with its lease, and its pushes are refused
            self.reload()
            return
        if one.callback != self.callback:
            one = replace(one, callback=self.callback, until=0)
        failures = one.failures + 1
        check = after_failure(now, failures, None, Hints(), self.pace, self.random())
        if one.error == WAITS and one.until <= now:  # it was asked long ago
            self._else(replace(one, next_check=check))
            if self._known[one.token].mode == SPARE:
                return
        one = replace(one, failures=failures, next_check=check, error=one.error or WAITS)
        self._save(one)
        form = {
            "hub.callback": f"{self.callback}{one.token}", "hub.mode": one.mode, "hub.topic": one.topic,
            "hub.lease_seconds": str(LEASE // SECOND), "hub.secret": one.secret,
            "hub.verify": "async",  # which older hubs want to be told
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
        if found is not None and found.failures == failures and found.mode == one.mode:  # else it has called meanwhile
            found = replace(found, error=cause, next_check=max(found.next_check, not_before or 0))
            self._save(found) if cause == WAITS else self._else(found)

    def take(self, busy: Collection[str]) -> list[FeedState]:
        """Takes in what the page heard. Returns the feeds that are due now; messages about `busy` ones wait."""
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
                # What came since the last visit was not pushed.
                return [] if one.until > now else self._due(one.feed, now)
            case "verified" if said.get("mode") == one.mode == "unsubscribe":
                self.store.drop_subscription(one.token)
                self.reload()
            case "denied" if one.mode == "subscribe":
                error = one_line(f"the hub refuses it: {said.get('reason') or 'it gives no reason'}")
                self._else(replace(one, until=0, next_check=now + REFUSED, failures=one.failures + 1, error=error))
                return self._due(one.feed, now)
            case "pushed" if one.mode == "subscribe":
                found = self._due(one.feed, now)
                self._save(replace(one, pushed_at=now))
                return found
            case "forged":
                # In case it is the hub, and has lost the secret: it is told again.
                error, check = "a push without a valid signature was ignored", now + self.pace.interval
                self._save(replace(one, error=error, next_check=min(one.next_check, check)))
        return []

    def _due(self, url: str, now: int) -> list[FeedState]:
        """Makes a feed due, but not sooner than `gap` after its last visit."""
        feed = self.store.feed(url)
        if feed is None or feed.stopped:
            return []
        feed = replace(feed, next_check=min(feed.next_check, max(now, feed.checked_at + self.gap)))
        self.store.commit(feed)
        return [feed]


def subscription_text(one: HubSubscription, now: int) -> str:
    """What `feeds list` and the page say of a subscription."""
    hub = without_credentials(one.hub)
    pushed = f"pushed by {hub}" if one.until > now else f"not pushed by {hub}"
    return f"{pushed}; {one.error}" if one.error else pushed
