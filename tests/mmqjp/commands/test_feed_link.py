"""`mmqjp feed-link`: the link of a query's feed, with and without a service, and revoked."""

import pytest

from mmqjp.engine import Session
from mmqjp.service.commands import run_command
from mmqjp.service.spool import Command
from mmqjp.syndication.atom import load_feed_links
from mmqjp.syndication.read_entries import FeedPages, FeedRequest, StoreFeeds
from tests.mmqjp.syndication.feed_cases import Clock, SessionReader
from tests.support.cli import mmqjp


@pytest.fixture
def state(tmp_path):
    with Session("duckdb", state=tmp_path / "state") as engine:
        engine.subscribe("S//a->x PUBLISH aé; S//b->x PUBLISH b")
    return tmp_path / "state"


def link(state, *options):
    result = mmqjp("feed-link", "--state", state, *options)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.removesuffix("\n")


def status(state, address):
    _, _, key, name = address.removeprefix("https://x.example").split("/")
    with Session("duckdb", state=state, read_only=True) as engine:
        pages = FeedPages(StoreFeeds(SessionReader(engine)), load_feed_links(state), "https://x.example", Clock())
        return pages.answer(FeedRequest(key, {"b.atom": "b"}.get(name, "aé"))).status


def test_a_link_opens_its_feed_until_it_is_revoked(state):
    one = link(state, "aé", "--public-url", "https://x.example/")
    other = link(state, "b", "--public-url", "https://x.example")
    assert one.startswith("https://x.example/f/") and one.endswith("/a%C3%A9.atom")
    assert one == link(state, "aé", "--public-url", "https://x.example") and status(state, one) == 200
    newer = link(state, "aé", "--revoke", "--public-url", "https://x.example")
    assert [status(state, address) for address in (one, newer, other)] == [410, 200, 200]
    again = link(state, "aé", "--revoke", "--public-url", "https://x.example")
    assert len({one, newer, again}) == 3 and status(state, newer) == 410


def test_the_feed_of_a_removed_query_keeps_its_link(state):
    before = link(state, "b")
    assert before.startswith("http://127.0.0.1:8765/f/"), "the address of serve is the default"
    assert mmqjp("unsubscribe", "b", "--state", state).exit_code == 0
    assert link(state, "b") == before
    for options in ((), ("--revoke",)):
        result = mmqjp("feed-link", "c", "--state", state, *options)
        assert result.exit_code != 0 and result.stderr.startswith("mmqjp: error: ") and "c" in result.stderr


def test_a_link_is_revoked_once_by_one_command(state):
    """Also if the process is killed before it answers, and runs the command again."""
    with Session("duckdb", state=state) as engine:
        command = Command("1", "revoke-feed-link", {"name": "b"})
        results = [run_command(engine, command) for _ in range(2)]
        assert [result.result for result in results] == [["b"], ["b"]]
        assert run_command(engine, Command("2", "feed-link", {"name": "b"})).result == 1
