import asyncio
import json

import pytest

from feeds.fetch import fetcher
from feeds.fetch.fetcher import Job, Settings, World
from feeds.fetch.state import STATE_FILE, AddedFeed, ChangesOf, FeedChange, FetchStore, change_feeds
from tests.support.feed_server import Hours, rss, to_loopback


@pytest.fixture
def file(tmp_path):
    return tmp_path / STATE_FILE


def urls(file):
    with FetchStore(file) as store:
        return [feed.url for feed in store.feeds()]


def adding(*urls):
    return FeedChange(add=tuple(map(AddedFeed, urls)))


def test_changes_wait_for_a_fetch_that_runs_in_their_order_and_are_made_once(file):
    a, b, c = (f"https://{name}.example/" for name in "abc")
    with FetchStore(file, write=True) as store:
        changes = adding(a, b), FeedChange(remove=(a,)), FeedChange(remove=(c,))
        assert not any(change_feeds(file, one) for one in changes)
        assert store.feeds() == []
        changed, removed = ChangesOf(file).take(store)
        assert [feed.url for feed in changed] == [b] and removed == {a, c}
        assert ChangesOf(file).take(store) == ([], set())
        assert not change_feeds(file, changes[2], 0.1, sleep=lambda seconds: None)
        assert change_feeds(file, changes[2], 60, sleep=lambda seconds: ChangesOf(file).take(store))
    assert urls(file) == [b]
    # Without a fetch they are made at once.
    assert change_feeds(file, FeedChange(add=(AddedFeed(a, "A", "News"),)))
    assert change_feeds(file, FeedChange(add=(AddedFeed(a, "AA"),), remove=(b,)))
    with FetchStore(file) as store:
        assert [(feed.url, feed.title, feed.folder) for feed in store.feeds()] == [(a, "AA", "News")]


def test_a_change_of_a_busy_feed_waits_with_all_after_it_and_what_is_no_change_is_passed_over(file):
    with FetchStore(file, write=True) as store:
        changes = ChangesOf(file)
        for name in "ab":
            change_feeds(file, adding(f"https://{name}.example/"))
        assert changes.take(store, {"https://a.example/"}) == ([], set())
        assert [feed.url for feed in changes.take(store)[0]] == ["https://a.example/", "https://b.example/"]
        change_feeds(file, adding("https://me:pw@a.example/"))
        (kept,) = file.parent.glob(".*.changes/*.json")
        # Addresses may have passwords, and are the owner's alone.
        assert [path.stat().st_mode & 0o077 for path in (kept, kept.parent)] == [0, 0]
        for number, text in enumerate(["", "[]", '{"add": 1}', json.dumps({"add": [{"x": 1}], "remove": []})]):
            kept.with_name(f"0{number}.json").write_text(text)
        assert [feed.url for feed in changes.take(store)[0]] == ["https://me:pw@a.example/"]
        assert list(kept.parent.iterdir()) == []


def test_a_watch_without_feeds_takes_in_what_is_added_removed_and_due(server, file, monkeypatch):
    """The first feed comes after the start; a retry brings it at once; one that was removed is asked no more."""
    monkeypatch.setattr(fetcher, "LOOK", 0.01)
    a, b = (server.serve(path, rss("one")) for path in ("/a", "/b"))

    async def asked(count):
        while len(server.log) < count or list(file.parent.glob(".*.changes/*.json")):
            await asyncio.sleep(0.005)

    class StandingClock(Hours):
        async def sleep_until(self, moment):
            if moment > self.time:
                await asyncio.Event().wait()

    async def run():
        stop = asyncio.Event()
        world = World(clock=StandingClock(), resolve=to_loopback)
        job = Job((), file.parent, Settings("test", spacing=0, allow_private=True))
        running = asyncio.create_task(job.run(watch=True, stop=stop, world=world))
        while not file.exists():
            await asyncio.sleep(0.005)
        for count, change in (
            (1, adding(a)),
            (2, FeedChange(retry=(a,))),
            (3, FeedChange(add=(AddedFeed(b),), remove=(a,))),
            (3, FeedChange(retry=(a,))),
        ):
            await asyncio.to_thread(change_feeds, file, change)
            async with asyncio.timeout(20):
                await asked(count)
        stop.set()
        await running

    asyncio.run(run())
    assert server.paths() == ["/a", "/a", "/b"]
    assert urls(file) == [b]
