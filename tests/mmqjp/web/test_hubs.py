"""WebSub: the fetcher's side and the page's, with a hub that behaves as told; and a service with a hub on loopback."""

import asyncio
import hashlib
import hmac
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from queue import Queue
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from prometheus_client import generate_latest

from common.dates import DAY, HOUR, MINUTE, SECOND
from feeds.fetch.archives import PageLinks
from feeds.fetch.http import FetchError, HostPaused, Reply
from feeds.fetch.hubs import CALLBACK, LEASE, LONGEST_LEASE, MOST_FAILURES, WAITS, HubMailbox, Hubs, subscription_text
from feeds.fetch.state import STATE_FILE, FeedChange, FeedState, FetchStore, HubSubscription, Pace, source_name
from mmqjp.service.log import NullLog
from mmqjp.service.status import Metrics
from mmqjp.web.site import Site
from tests.support.cli import mmqjp
from tests.support.feed_server import START, Hours, Request, answer, closed_port, rss
from tests.support.served import served
from tests.support.web import URL, site_of, stranger

LOCAL = "--allow-private", "127.0.0.1"
FEED, HUB, TOPIC = "https://news.example/feed", "https://hub.example/", "https://news.example/self"
LINKS = PageLinks((("hub", HUB), ("self", TOPIC)))
ANSWER = Reply(FEED, 200, httpx.Headers(), b"")


class World:
    """A feed, the fetcher's subscriptions, the page, and a hub, which is asked by `post`."""

    def __init__(self, site: Site, store: FetchStore) -> None:
        self.store, self.clock = store, Hours()
        self.hub: Callable[[Mapping[str, str]], int] = self.agree
        self.client = stranger(site)
        self.mailbox = HubMailbox(site.state / "drops" / STATE_FILE)
        self.posts: list[tuple[str, dict[str, str]]] = []
        self.metrics = Metrics(NullLog())
        store.add([FeedState(FEED, source_name(FEED), next_check=START + HOUR, checked_at=START - HOUR)])
        self.hubs = self.restarted()

    def restarted(self, callback: str = URL + CALLBACK) -> Hubs:
        self.hubs = Hubs(
            self.store, self.mailbox, callback, self.post, self.clock, lambda: 0.0, Pace(), self.metrics.event
        )
        return self.hubs

    async def post(self, feed: str, hub: httpx.URL, form: Mapping[str, str]) -> Reply:
        self.posts.append((str(hub), dict(form)))
        return replace(ANSWER, status=self.hub(form))

    def agree(self, form: Mapping[str, str], lease: int = LEASE // SECOND) -> int:
        """Confirms before it answers."""
        assert self.called(form, lease=str(lease)) == (200, "c-h-a-l-l-e-n-g-e")
        return 202

    def called(self, form: Mapping[str, str], lease: str = "864000", **changed: str) -> tuple[int, str]:
        asked = {name: form[f"hub.{name}"] for name in ("mode", "topic")}
        asked |= {"challenge": "c-h-a-l-l-e-n-g-e", "lease_seconds": lease} | changed
        path = urlsplit(form["hub.callback"]).path
        found = self.client.get(path, params={f"hub.{name}": value for name, value in asked.items()})
        return found.status_code, found.text

    def found(self, links: PageLinks = LINKS, wanted: bool = True) -> None:
        self.hubs.found(self.feed, links, ANSWER, wanted=wanted)

    def turn(self, later: int = 0, busy: tuple[str, ...] = ()) -> list[str]:
        """What the fetch does each second. Returns the feeds that became due."""
        self.clock.time += later
        due = self.hubs.take(busy)
        for one in self.hubs.due():
            asyncio.run(self.hubs.ask(one))
        self.hubs.count()
        return [feed.url for feed in (*due, *self.hubs.take(busy))]

    @property
    def feed(self) -> FeedState:
        found = self.store.feed(FEED)
        assert found is not None
        return found

    @property
    def one(self) -> HubSubscription:
        (found,) = self.store.subscriptions()
        return found

    def push(self, body: bytes = b"<feed/>", method: str = "sha256", **headers: str) -> int:
        digest = hmac.new(self.one.secret.encode(), body, getattr(hashlib, method)).hexdigest()
        sent = {"X-Hub-Signature": f"{method}={digest}", **headers}
        return self.client.post(f"{CALLBACK}{self.one.token}", content=body, headers=sent).status_code  # type: ignore[no-any-return]  # untyped


@pytest.fixture
def world(engine, tmp_path):
    with FetchStore(tmp_path / "drops" / STATE_FILE, write=True, now=lambda: START) as store:
        yield World(site_of(engine, tmp_path), store)


def test_a_feed_is_subscribed_at_its_hub_and_the_subscription_is_renewed(world):
    world.found()
    assert not world.hubs.is_active(FEED)
    assert world.turn() == [FEED], "what came before the hub confirmed was not pushed"
    (hub, form), *more = world.posts
    assert hub == HUB and not more and form == form | {"hub.mode": "subscribe", "hub.topic": TOPIC}
    assert form["hub.callback"] == f"{URL}{CALLBACK}{world.one.token}" and len(world.one.token) == 48
    assert len(form["hub.secret"]) == 64 and form["hub.lease_seconds"] == "864000"
    assert world.hubs.is_active(FEED) and subscription_text(world.one, START) == f"pushed by {HUB}"
    assert oct((world.mailbox._directory).stat().st_mode & 0o777) == "0o700"
    world.found()
    assert world.turn(later=7 * DAY) == [] and len(world.posts) == 1
    assert world.turn(later=DAY) == [] and len(world.posts) == 2, "renewed when four fifths have passed"
    assert world.one.until == START + 18 * DAY and world.posts[1] == world.posts[0]
    # A hub that does not answer any more: the feed is polled as usual when the lease has ended.
    world.hub = lambda form: 503
    asked = [world.turn(later=HOUR) for _ in range(11 * 24)]
    assert asked.count([FEED]) == 1 and not world.hubs.is_active(FEED)
    assert subscription_text(world.one, world.clock.time) == f"not pushed by {HUB}; the hub answered 503"
    assert 10 < len(world.posts) < 20, "with growing pauses"


@pytest.mark.parametrize(
    ("lease", "granted"),
    [("864000", 10 * DAY), ("1", 5 * MINUTE), ("9" * 11, LONGEST_LEASE), ("9" * 99, LEASE), ("-1", LEASE), ("", LEASE)],
)
def test_leases_are_bounded(world, lease, granted):
    world.hub = lambda form: world.called(form, lease)[0]
    world.found()
    world.turn()
    assert world.one.until - START == granted


@pytest.mark.parametrize("method", ["sha1", "sha256", "sha384", "sha512"])
def test_a_signed_push_makes_the_feed_due(world, method):
    world.found()
    world.turn()
    world.store.commit(replace(world.feed, next_check=START + 4 * HOUR, checked_at=START))
    assert [world.push(method=method) for _ in range(3)] == [202] * 3
    assert world.turn(busy=(FEED,)) == [], "a visit that is under way may have come too early"
    world.restarted()
    assert world.turn(later=10 * SECOND) == [FEED] and world.turn() == [], "repeated pushes are one"
    assert world.feed.next_check == START + MINUTE, "not twice within a minute"
    assert world.hubs.is_lagging(FEED) and not world.turn(later=5 * MINUTE) and not world.hubs.is_lagging(FEED)
    assert world.push(b"x" * 3_000_000, Origin="https://hub.example") == 202
    assert world.turn() == [FEED]


FORGED = [
    {"X-Hub-Signature": "sha256=" + "0" * 64}, {"X-Hub-Signature": "md5=" + "0" * 32}, {"X-Hub-Signature": ""},
    {"X-Hub-Signature": "sha256"}, {"X-Hub-Signature": "=\u00e9".encode("latin-1").decode("latin-1")},
]  # fmt: skip


@pytest.mark.parametrize("headers", FORGED)
def test_a_push_without_a_right_signature_is_ignored(world, headers):
    world.found()
    world.turn()
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    path = f"{CALLBACK}{world.one.token}"
    assert world.client.post(path, content=b"<feed/>", headers=sent).status_code == 202
    assert world.turn() == [] and world.feed.next_check == START
    assert "a push without a valid signature was ignored" in subscription_text(world.one, START)
    for _ in range(100):
        world.client.post(path, content=b"<feed/>", headers=sent)
        world.turn(later=MINUTE)
    assert len(world.posts) == 2, "a hub that has lost the secret is told again, and not often"


def test_strangers_get_nowhere(world):
    world.found()
    world.turn()
    form = world.posts[0][1]
    before = world.one
    cases = [
        world.called(form, topic="https://other.example/"), world.called(form, mode="unsubscribe"),
        world.called(form, mode="publish"), world.called(form, challenge=""), world.called(form, challenge="x" * 5_000),
        world.called(form | {"hub.callback": f"{URL}{CALLBACK}{'0' * 48}"}),
        world.called(form | {"hub.callback": f"{URL}{CALLBACK}..%2f..%2fx"}),
    ]  # fmt: skip
    assert {status for status, _ in cases} == {404}
    assert world.client.post(f"{CALLBACK}{'0' * 48}", content=b"x").status_code == 410
    assert world.client.post(f"{CALLBACK}{before.token}", content=b"x" * (17 << 20)).status_code == 413
    assert world.client.post("/feeds/retry", data={}, headers={"Origin": "https://x.example"}).status_code == 403
    assert world.client.get("/feeds").status_code == 303
    assert world.turn() == [] and world.one == before
    assert [*world.mailbox.messages()] == []
    challenge = world.called(form, challenge="<script>alert(1)</script>")
    assert challenge == (200, "<script>alert(1)</script>")
    assert world.client.get(f"{CALLBACK}{before.token}").headers["content-type"].startswith("text/plain")


def test_a_hub_that_refuses_is_asked_again_after_a_day(world):
    world.hub = lambda form: 202
    world.found()
    world.turn()
    form = world.posts[0][1]
    assert subscription_text(world.one, START) == f"not pushed by {HUB}; {WAITS}"
    assert world.called(form, mode="denied", reason="not\nyours")[0] == 200
    assert world.turn() == [FEED]
    assert "the hub refuses it: not yours" in subscription_text(world.one, START)
    assert [world.turn(later=HOUR) for _ in range(23)] == [[]] * 23 and len(world.posts) == 1
    world.turn(later=HOUR)
    assert len(world.posts) == 2


def test_what_goes_wrong_at_a_hub(world):
    def failing(error):
        def post(form):
            raise error

        return post

    world.found()
    for hub, cause in (
        (failing(FetchError("192.168.1.1 resolves to 192.168.1.1, and only public addresses are allowed")), "only p"),
        (failing(HostPaused(START + 3 * HOUR)), "the hub asks to wait"),
        (lambda form: 410, "the hub answered 410"),
        (lambda form: 204, WAITS),
    ):
        world.hub = hub
        world.clock.time = max(world.clock.time, world.one.next_check)
        assert world.turn() == [] and cause in world.one.error
    assert [form["hub.mode"] for _, form in world.posts] == ["subscribe"] * 4
    world.hub = world.agree
    world.turn(later=4 * HOUR)
    assert world.hubs.is_active(FEED) and not world.one.error


HUBS = HUB, "https://second.example/", "https://third.example/"
WAYS = {"fails": 503, "is silent": 202, "refuses": 202, "lets the lease end": 503}


@pytest.mark.parametrize("way", WAYS)
def test_another_hub_of_the_feed_is_asked_where_one(world, way):
    def behave(form: Mapping[str, str]) -> int:
        last = world.posts[-1][0] == HUBS[2]
        if last or way == "refuses":
            assert world.called(form, **({} if last else {"mode": "denied"}))[0] == 200
        return 202 if last else WAYS[way]

    links = PageLinks((*(("hub", hub) for hub in HUBS), ("hub", HUB), ("self", TOPIC)))
    world.hub = world.agree if way == "lets the lease end" else behave
    world.found(links)
    if way == "lets the lease end":
        world.turn()
        world.hub = behave
        while world.clock.time < START + LEASE - HOUR:
            world.turn(later=HOUR)
        assert {hub for hub, _ in world.posts} == {HUB}, "while it pushes, it is left where it is"
    for _ in range(70):
        world.turn(later=MINUTE)
        world.restarted()
        world.found(links)
    tried = [*dict.fromkeys(hub for hub, _ in world.posts)]
    assert tried == [*HUBS] and world.hubs.is_active(FEED)
    (one,) = (one for one in world.store.subscriptions() if one.mode == "subscribe")
    assert subscription_text(one, world.clock.time) == f"pushed by {HUBS[2]}"
    assert {one.hub for one in world.store.subscriptions() if one.mode == "spare"} == {*HUBS[:2]}
    lines = {*generate_latest(world.metrics.registry).decode().splitlines()}
    assert {
        f'mmqjp_hub_subscriptions{{state="{state}"}} {n}.0' for state, n in (("active", 1), ("waiting", 0))
    } <= lines
    counted = {"fails": "failed", "is silent": "asked", "refuses": "denied", "lets the lease end": "failed"}[way]
    assert f'mmqjp_hub_events_total{{what="{counted}"}}' in {line.rpartition(" ")[0] for line in lines}
    # Late calls of a hub that is no longer asked, and of strangers.
    for mode in ("subscribe", "spare"):
        assert world.called(world.posts[0][1], mode=mode)[0] == 404
    world.found(PageLinks((("hub", HUBS[2]), ("self", TOPIC))))
    assert world.store.subscriptions() == [one]
    world.found(links)
    FeedChange(remove=(FEED,)).make(world.store)
    assert [left.mode for left in world.store.subscriptions()] == ["unsubscribe"]


@pytest.mark.parametrize("status", [503, 202])
def test_hubs_that_all_fail_or_are_silent_are_asked_in_turn_with_growing_pauses(world, status):
    world.hub = lambda form: status
    world.found(PageLinks((*(("hub", hub) for hub in HUBS), ("self", TOPIC))))
    for _ in range(24 * 6):
        world.turn(later=10 * MINUTE)
    asked = [hub for hub, _ in world.posts]
    assert asked[:9] == [*HUBS] * 3 and len(asked) < 3 * 10
    world.hubs.count()
    assert 'mmqjp_hub_subscriptions{state="waiting"} 1.0' in generate_latest(world.metrics.registry).decode()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_hubs_do_one_that_confirms_is_used_and_each_is_asked_again(world, seed):
    """Hubs confirm at once, late or never, fail, refuse and let leases end; the fetch is killed at some commits."""
    rng = random.Random(seed)
    hubs = HUBS[: rng.randint(2, 3)]
    ways = rng.choices(["confirms", "is late", "is silent", "fails", "refuses"], k=3)
    links = PageLinks((*(("hub", hub) for hub in hubs), ("self", TOPIC)))
    asked: dict[str, list[int]] = {hub: [] for hub in hubs}
    leases = dict.fromkeys(hubs, 0)  # by the hubs' own clocks
    late: list[tuple[int, str, Mapping[str, str]]] = []

    def confirm(hub: str, form: Mapping[str, str]) -> None:
        lease = rng.choice((HOUR, DAY))
        if world.called(form, lease=str(lease // SECOND))[0] == 200:
            leases[hub] = world.clock.time + lease

    def behave(form: Mapping[str, str]) -> int:
        hub, way = world.posts[-1][0], rng.choice(ways)
        asked[hub].append(world.clock.time)
        if way == "confirms":
            confirm(hub, form)
        elif way == "is late":
            late.append((world.clock.time + rng.choice((1, 15, 90)) * MINUTE, hub, form))
        elif way == "refuses":
            assert world.called(form, mode="denied")[0] == 200
            leases[hub] = min(leases[hub], world.clock.time)
        return 503 if way == "fails" else 202

    def kill(made: Callable[..., None], *given: object) -> None:
        if rng.random() < 0.1:
            raise KeyboardInterrupt
        made(*given)
        if rng.random() < 0.1:
            raise KeyboardInterrupt

    world.hub, last = behave, START
    while world.clock.time < START + 9 * DAY:
        world.clock.time += rng.choice((1, 10, 60)) * MINUTE
        for one in [one for one in late if one[0] <= world.clock.time]:
            late.remove(one)
            confirm(*one[1:])
        with pytest.MonkeyPatch.context() as patched, suppress(KeyboardInterrupt):
            for step in ("commit", "save_subscriptions"):
                patched.setattr(world.store, step, partial(kill, getattr(world.store, step)))
            world.restarted() if rng.random() < 0.1 else None
            world.found(links)
            world.turn()
        world.restarted()
        world.found(links)
        now, all_of = world.clock.time, world.store.subscriptions()
        (used,) = (one for one in all_of if one.mode == "subscribe")
        assert {one.hub for one in all_of} == {*hubs} and len(all_of) == len(hubs)
        if world.hubs.is_active(FEED):
            assert leases[used.hub] > now - 6 * HOUR, "a hub that has confirmed"
            last = now
        last = max(last, *(times[-1] for times in asked.values() if times), START)
        assert now - last < 3 * DAY, "some hub is asked, though a kill may cost one its turn"
    assert all(asked.values()) or world.hubs.is_active(FEED) or any(leases.values())
    assert all(b - a >= Pace().backoff for times in asked.values() for a, b in pairwise(times))


@pytest.mark.parametrize("way", ["removed", "stopped", "unset", "no hub"])
def test_a_subscription_that_is_not_wanted_any_more_is_ended_at_the_hub(world, way):
    world.found()
    world.turn()
    token = world.one.token
    if way == "removed":
        FeedChange(remove=(FEED,)).make(world.store)
        world.hubs.reload()
    elif way == "stopped":
        world.hubs.end(FEED)
    else:
        world.found(LINKS if way == "unset" else PageLinks((("self", TOPIC),)), wanted=way != "unset")
    assert world.push() == 410, "which ends it at the hub, too"
    world.hub = lambda form: 202
    world.turn()
    assert world.posts[-1][1]["hub.mode"] == "unsubscribe"
    assert world.called(world.posts[0][1])[0] == 404, "it is not wanted any more"
    world.called(world.posts[-1][1])
    world.turn()
    assert world.store.subscriptions() == []
    assert world.client.post(f"{CALLBACK}{token}", content=b"x").status_code == 410


def test_a_hub_that_does_not_end_a_subscription_is_given_up(world):
    world.found()
    world.turn()
    world.hub = lambda form: 500
    world.hubs.end(FEED)
    for _ in range(24):
        world.turn(later=HOUR)
    assert len(world.posts) == 1 + MOST_FAILURES and world.store.subscriptions() == []


def test_another_hub_topic_or_public_address_is_another_subscription(world):
    world.found()
    world.turn()
    first = world.one.token
    world.found(PageLinks((("hub", "https://other.example/"), ("self", TOPIC))))
    world.turn()
    assert [(hub, form["hub.mode"]) for hub, form in world.posts[1:]] == [
        (HUB, "unsubscribe"), ("https://other.example/", "subscribe"),
    ]  # fmt: skip
    assert world.one.token != first
    world.restarted("https://moved.example/websub/")
    assert not world.hubs.is_active(FEED), "pushes go to where nobody is"
    world.hub = lambda form: 202
    world.turn()
    assert world.posts[-1][1]["hub.callback"] == f"https://moved.example/websub/{world.one.token}"
    posts = len(world.posts)
    assert world.restarted("").due() == [] and not world.hubs.is_on, "without a public address no hub is asked"
    world.found()
    assert len(world.posts) == posts


def test_a_kill_between_any_two_steps_loses_neither_a_push_nor_a_confirmation(world):
    world.hub = lambda form: 202
    world.found()
    world.turn()
    form = world.posts[0][1]
    world.called(form)
    world.restarted()
    assert world.turn() == [FEED] and world.hubs.is_active(FEED)
    world.store.commit(replace(world.feed, next_check=START + 4 * HOUR))
    world.push()
    for step in ("commit", "save_subscriptions"):  # killed after each, before the message is deleted
        with pytest.MonkeyPatch.context() as patched:
            made = getattr(world.store, step)

            def kill(*given, made=made):
                made(*given)
                raise KeyboardInterrupt

            patched.setattr(world.store, step, kill)
            with pytest.raises(KeyboardInterrupt):
                world.turn()
        world.restarted()
    assert world.turn() == [FEED] and world.feed.next_check == START
    (world.mailbox._directory / "pushed-x.json").write_text("[")
    (world.mailbox._directory / ".tmp").write_text("")
    assert world.turn() == [] and [*world.mailbox.messages()] == [], "what is broken is passed over"


def test_a_service_is_pushed_to_by_a_hub_across_restarts_until_the_feed_is_removed(server, tmp_path):
    """The hub of a feed, on loopback, confirms while it answers; a feed that is pushed is fetched at once. It was known
    before there was a public address, and its older page was read before its first visit."""
    asked: Queue[tuple[str, dict[str, str]]] = Queue()
    port = closed_port()

    def feed(request: Request) -> None:
        if request.headers.get("If-None-Match") == '"1"':
            request.answer(304)
        else:
            rels = {"hub": "/moved", "self": "/feed", "prev-archive": "/older"}
            atom = '<link xmlns="http://www.w3.org/2005/Atom" rel="{}" href="{}"/>'
            links = "".join(atom.format(rel, server.url(path)) for rel, path in rels.items())
            request.answer(200, rss("a", extra=links).encode(), ETag='"1"')
        asked.put(("feed", {}))

    def hub(request: Request) -> None:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        names = {name: form[name] for name in ("hub.mode", "hub.topic")}
        found = httpx.get(
            form["hub.callback"], params=names | {"hub.challenge": "yes", "hub.lease_seconds": "86400"}, timeout=60
        )
        request.answer(202 if (found.status_code, found.text) == (200, "yes") else 500)
        asked.put((form["hub.mode"], form))

    def push(form: Mapping[str, str]) -> int:
        mac = hmac.new(form["hub.secret"].encode(), b"<rss/>", "sha256").hexdigest()
        sent = {"X-Hub-Signature": f"sha256={mac}"}
        return httpx.post(form["hub.callback"], content=b"<rss/>", headers=sent, timeout=60).status_code

    def until(what: str) -> dict[str, str]:
        while (found := asked.get(timeout=60))[0] != what:
            pass
        return found[1]

    server.routes |= {"/feed": feed, "/moved": answer(307, Location="/hub"), "/hub": hub}
    server.serve("/older", rss("b"))
    options = ["--fetch", "", "--allow-private", "--interval", "1min", "--spacing", "0s"]
    place = ["--address", f"127.0.0.1:{port}", "--public-url", f"http://127.0.0.1:{port}"]
    state = tmp_path / "state"
    (queries := tmp_path / "q.xscl").write_text("FROM S//item->a PUBLISH all")
    for command in (
        ("feeds", "add", server.url("/feed"), "--history", "INF", *LOCAL),
        ("run", "--queries", queries, *options, "--engine", "duckdb"),
        ("feeds", "retry", server.url("/feed")),
    ):
        assert mmqjp(*command, "--state", state).exit_code == 0
    with served(state, *options, *place) as page:
        form = until("subscribe")
        assert server.paths()[:6] == ["/feed", "/older", "/feed", "/feed", "/moved", "/hub"]
        until("feed")  # what came before was not pushed
        assert push(form) == 202
        until("feed")
        page.process.kill()
    with served(state, *options, *place) as page, page.client() as client:
        assert push(form) == 202
        until("feed")
        (known,) = client.get("/api/v1/feeds").json()["rows"]
        assert known["older"] == "1 older page read, to the end" and known["hub"] == f"pushed by {server.url('/moved')}"
        assert server.paths().count("/hub") == 1, "a subscription outlives the service"
        assert client.delete("/api/v1/feeds", params={"address": server.url("/feed")}).status_code == 200
        assert until("unsubscribe")["hub.topic"] == form["hub.topic"]
        assert push(form) == 410
        assert page.stop()[0] == 0
