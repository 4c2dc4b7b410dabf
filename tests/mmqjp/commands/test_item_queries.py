"""Questions about where items are from and what they mention, from lists of feeds to the lines of `mmqjp run`."""

import json
from dataclasses import replace
from html import escape

import pytest
from lxml import etree

from feeds.fetch.state import STATE_FILE, FetchStore
from tests.support.cli import mmqjp, write_queries
from tests.support.feed_server import FeedServer, running_server

QUICK = ["--engine", "duckdb", "--lateness", "INF"]

MENTIONS = """
FROM S//item->a[./link[./@rel = "mention"]/@href->m] JOIN { m = canonical-url(u), INF } S//item->b[./item_url->u]
PUBLISH mentions
"""
SECTIONS = """
FROM S//item->a[./channel_url->c][./item_url->u][./feed_url->f]
JOIN { c = d and u = v and f != g, INF } S//item->b[./channel_url->d][./item_url->v][./feed_url->g]
PUBLISH sections
"""
WORLD = """SELECT t, f FROM S//item[./feed_title->t][./folder->f][./title = "one"] PUBLISH world"""


def section(name: str, *items: tuple[str, str]) -> str:
    """A section of a news site. Items have a title, which is in their addresses, and HTML."""
    made = "".join(
        f"<item><title>{title}</title><link>https://news.example/{title}</link>"
        f"<description>{escape(html)}</description></item>"
        for title, html in items
    )
    channel = f"<title>News: {name}</title><link>https://news.example/</link><language>en</language>"
    return f'<rss version="2.0"><channel>{channel}{made}</channel></rss>'


@pytest.fixture
def server():
    with running_server() as server:
        link = "see <a href='http://news.example:80/one/?utm_source=rss'>one</a>"
        server.serve("/world", section("world", ("one", "first"), ("two", link)))
        server.serve("/sport", section("sport", ("one", "first, in another section")))
        yield server


def opml(server: FeedServer) -> str:
    """A list that has the section of sports in two folders, and the other, with a title, in a folder of a folder."""
    world, sport = server.url("/world"), server.url("/sport")
    inner = f'<outline text="World"><outline text="My world" xmlUrl="{world}"/></outline>'
    feed = f'<outline xmlUrl="{sport}"/>'
    folders = f'<outline text="News">{inner}{feed}</outline><outline text="Games">{feed}</outline>'
    return f"<opml><body>{folders}</body></opml>"


def found(text: str, query: str) -> list[list[str]]:
    """The titles of the documents of each match, from their ids' addresses."""
    lines = [json.loads(line) for line in text.splitlines()]
    return sorted(
        [id.split("/")[3].split()[0] + " " + id.split()[1].rpartition("/")[2] for id in line["documents"]]
        for line in lines
        if line["query"] == query
    )


WORLDS = {
    ("My world", "News"), ("My world", "News/World"), ("News: sport", "News"), ("News: sport", "Games"),
}  # fmt: skip


def told(text: str) -> set[tuple[str, str]]:
    outputs = [etree.fromstring(json.loads(line)["xml"]) for line in text.splitlines() if '"world"' in line]
    return {(output.findtext("t/feed_title", ""), output.findtext("f/folder", "")) for output in outputs}


@pytest.mark.parametrize("way", ["stream --fetch", "drops", "warc"])
def test_titles_and_folders_come_from_the_list_to_the_items(server, tmp_path, way):
    queries = write_queries(tmp_path, "; ".join([MENTIONS, SECTIONS, WORLD]))
    (tmp_path / "feeds.opml").write_text(opml(server))
    local = ["--allow-private", "--spacing", "0s"]
    reading = ["--queries", queries, *QUICK, "--state", tmp_path / "state"]
    if way == "stream --fetch":
        result = mmqjp("stream", *reading, "--trigger", "available-now", *local, "--fetch", tmp_path / "feeds.opml")
    else:
        layout = ["--warc"] if way == "warc" else []
        assert mmqjp("fetch", tmp_path / "feeds.opml", "--out", tmp_path / "crawl", *local, *layout).exit_code == 0
        result = mmqjp("run", *reading, "--documents", tmp_path / "crawl", "--feeds")
    assert result.exit_code == 0, result.stderr
    assert found(result.stdout, "mentions") == [["world two", "sport one"], ["world two", "world one"]]
    assert found(result.stdout, "sections") == [["sport one", "world one"], ["world one", "sport one"]]
    assert told(result.stdout) == WORLDS


def test_what_the_export_writes_keeps_titles_and_folders(server, tmp_path):
    (tmp_path / "feeds.opml").write_text(opml(server))
    kept = []
    for list_of_feeds, out in (("feeds.opml", "one"), ("exported.opml", "two")):
        crawl = tmp_path / out
        fetch = ["fetch", tmp_path / list_of_feeds, "--out", crawl, "--allow-private", "--spacing", "0s"]
        assert mmqjp(*fetch).exit_code == 0
        assert mmqjp("feeds", "export", "--state", crawl, "--output", tmp_path / "exported.opml").exit_code == 0
        with FetchStore(crawl / STATE_FILE) as store:
            kept.append(sorted((feed.url, feed.title, sorted(feed.folders)) for feed in store.feeds()))
    known = [(server.url("/world"), "My world", ["News/World"]), (server.url("/sport"), "", ["Games", "News"])]
    assert kept[0] == kept[1] == sorted(known)


def test_a_feed_that_is_renamed_gives_its_new_title_with_what_is_new(server, tmp_path):
    queries = write_queries(tmp_path, "SELECT i/title AS t, i/feed_title AS f FROM S//item->i PUBLISH all")
    fetch = ["--fetch", server.url("/sport"), "--allow-private", "--spacing", "0s"]
    run = ["run", "--queries", queries, *QUICK, "--state", tmp_path / "state", *fetch]
    assert "<f><feed_title>News: sport</feed_title></f>" in mmqjp(*run).stdout
    server.serve("/sport", section("sport", ("one", "first, in another section"), ("three", "third")))
    state = ["--state", tmp_path / "state"]
    assert mmqjp("feeds", "rename", server.url("/sport"), "Games", *state).exit_code == 0
    with FetchStore(tmp_path / "state" / "drops" / STATE_FILE, write=True) as store:
        for feed in store.feeds():
            store.commit(replace(feed, next_check=0))
    (line,) = mmqjp(*run).stdout.splitlines()  # the entry that was there before is no new version
    assert "<f><feed_title>Games</feed_title></f>" in line and "three" in line
