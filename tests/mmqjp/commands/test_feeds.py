"""`mmqjp feeds`: what is known of fetched feeds is listed, exported and changed."""

import json

import pytest
from lxml import etree

from feeds.fetch.lists import read_opml
from feeds.fetch.state import STATE_FILE, ChangesOf, FetchStore
from feeds.items import LONGEST_TITLE
from tests.support.cli import mmqjp as call
from tests.support.cli import write_queries
from tests.support.feed_server import rss


def test_the_list_shows_each_feed(server, fetch, tmp_path):
    server.serve("/gone", b"", 410)
    (tmp_path / "f.opml").write_text(
        '<opml><body><outline text="F"><outline text="G"><outline text="A" xmlUrl="{0}"/></outline></outline>'
        '<outline text="H"><outline xmlUrl="{0}"/></outline></body></opml>'.format(server.url("/a"))
    )
    state = ["--state", tmp_path / "crawl"]
    (tmp_path / "crawl").mkdir()
    none = call("feeds", "list", *state)
    missing = f"mmqjp: error: {tmp_path / 'crawl' / STATE_FILE}: there is no state of a fetch; mmqjp fetch makes one\n"
    assert (none.exit_code, none.stderr) == (1, missing)
    fetch(tmp_path / "f.opml", server.url("/gone"), server.url("/missing"))
    text = " ".join(call("feeds", "list", *state).stdout.split())
    assert all(words in text for words in ("errors", "200", "stopped", "404", "the server answered"))
    one, two, _ = map(json.loads, call("feeds", "list", "--json", *state).stdout.splitlines())
    assert one["checked_at"].startswith("20") and one["next_check"] > one["checked_at"]
    assert {key: one[key] for key in ("url", "title", "folders", "status", "errors", "stopped")} == {
        "url": server.url("/a"), "title": "A", "folders": ["F/G", "H"], "status": 200, "errors": 0, "stopped": False,
    }  # fmt: skip
    assert (two["url"], two["status"], two["stopped"], two["next_check"]) == (server.url("/gone"), 410, True, None)


def test_addresses_are_whole_and_other_lines_as_narrow_as_columns_says(server, fetch, tmp_path, monkeypatch):
    long = server.url(f"/{'long-' * 40}feed")
    (tmp_path / "f.opml").write_text(
        f'<opml><body><outline text="A folder"><outline text="A title" xmlUrl="{long}"/></outline></body></opml>'
    )
    fetch(tmp_path / "f.opml")
    for columns in ("40", "80", "nonsense"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = call("feeds", "list", "--state", tmp_path / "crawl").stdout.splitlines()
        assert len([line for line in lines if line.endswith(f" {long}")]) == 1
        about = [line for line in lines[1:] if long not in line]
        assert " ".join(" ".join(about).split()) == "A title (A folder) the server answered 404"
        assert all(len(line) <= (100 if columns == "nonsense" else int(columns)) for line in about)


def test_the_export_is_what_a_fetch_takes(server, fetch, tmp_path):
    server.serve("/gone", b"", 410)
    server.serve("/old", b"", 301, Location="/b")
    opml = f'<opml><body><outline text="F"><outline title="A" xmlUrl="{server.url("/a")}"/></outline></body></opml>'
    (tmp_path / "in.opml").write_text(opml)
    fetch(tmp_path / "in.opml", server.url("/old"), server.url("/gone"))
    assert call("feeds", "export", "--state", tmp_path / "crawl", "--output", tmp_path / "out.opml").exit_code == 0
    exported = (tmp_path / "out.opml").read_bytes()
    assert {(feed.url, feed.title, feed.folder) for feed in read_opml(exported)} == {
        (server.url("/a"), "A", "F"),
        (server.url("/b"), server.url("/b"), ""),
    }
    shown = call("feeds", "export", "--state", tmp_path / "crawl").stdout
    assert etree.fromstring(shown.encode()).tag == "opml"


def test_feeds_that_failed_or_stopped_can_be_tried_again(server, fetch, tmp_path):
    server.serve("/gone", b"", 410)
    fetch(server.url("/gone"), server.url("/missing"), server.url("/a"))
    for path in ("/gone", "/missing"):
        server.serve(path, rss("back"))
    assert fetch().stderr.startswith("mmqjp: 3 feeds, none is due before")
    retry = ["feeds", "retry", "--state", tmp_path / "crawl"]
    assert call(*retry, server.url("/gone")).stderr == "mmqjp: 1 feed due now\n"
    assert "1 new" in fetch().stderr
    assert call(*retry).stderr == "mmqjp: 1 feed due now\n"
    assert "1 new" in fetch().stderr
    result = call(*retry, "https://unknown.example/")
    assert result.exit_code == 1
    assert "https://unknown.example/ is not a feed of" in result.stderr


# ---------------------------------------------------------------- add, remove, rename


@pytest.fixture
def known(tmp_path):
    """The titles and folders of the feeds of a state, by address."""

    def read():
        with FetchStore(tmp_path / "crawl" / STATE_FILE) as store:
            return {feed.url: (feed.title, feed.folders) for feed in store.feeds()}

    return read


def test_feeds_are_added_renamed_and_removed(server, fetch, tmp_path, known):
    state = ["--state", tmp_path / "crawl"]
    a, b = server.url("/a"), server.url("/b")
    result = call("feeds", "add", a, b, *state, "--folder", "News/World")
    assert (result.exit_code, result.stderr) == (0, "mmqjp: 2 new feeds, 2 feeds in all\n")
    assert fetch().stderr.startswith("mmqjp: 2 feeds, 2 visits: 2 new")
    assert call("feeds", "add", a, *state, "--title", "Mine").stderr == "mmqjp: 0 new feeds, 2 feeds in all\n"
    assert known() == {a: ("Mine", ("News/World",)), b: ("", ("News/World",))}
    assert call("feeds", "rename", b, " My\tB ", *state).stderr == f"mmqjp: {b} is called My B\n"
    assert call("feeds", "rename", a, "", *state).stderr == f"mmqjp: {a} has its own title\n"
    assert known() == {a: ("", ("News/World",)), b: ("My B", ("News/World",))}
    assert call("feeds", "remove", a, *state).stderr == "mmqjp: 1 feed removed\n"
    assert list(known()) == [b]
    exported = call("feeds", "export", *state).stdout
    assert [(feed.url, feed.title, feed.folder) for feed in read_opml(exported.encode())] == [(b, "My B", "News/World")]


def test_the_feeds_of_a_list_are_added(tmp_path, known):
    a, b, c = (f"https://{name}.example/f" for name in "abc")
    (tmp_path / "list.opml").write_text(
        f'<opml version="2.0"><body><outline text="News"><outline text="A" xmlUrl="{a}"/></outline>'
        f'<outline text="B" xmlUrl="{b}"/></body></opml>'
    )
    (tmp_path / "list.txt").write_text(f"{c}\nftp://c.example/\n")
    state = ["--state", tmp_path / "crawl"]
    result = call("feeds", "add", tmp_path / "list.opml", tmp_path / "list.txt", *state)
    complaint, told = result.stderr.splitlines()
    assert "list.txt:2" in complaint and "left out" in complaint
    assert (result.exit_code, told) == (0, "mmqjp: 3 new feeds, 3 feeds in all")
    assert known() == {a: ("A", ("News",)), b: ("B", ()), c: ("", ())}
    assert call("feeds", "add", tmp_path / "list.opml", "--title", "T", *state).exit_code == 2
    assert call("feeds", "add", tmp_path / "list.txt", "--folder", "Old", *state).exit_code == 0
    assert known()[c] == ("", ("Old",))
    assert call("feeds", "add", "HTTPS://Example.org", "https://example.org/#top", *state).exit_code == 0
    assert known().keys() == {a, b, c, "https://example.org/"}, "as a person spells it"
    assert call("feeds", "rename", "https://example.org", "E", *state).exit_code == 0
    assert call("feeds", "remove", "https://Example.org:443/", *state).exit_code == 0
    assert known().keys() == {a, b, c}


WRONG = [
    (["add", "ftp://ada:s3cret@example.org/"], 1, "error: 'ftp://example.org/' is not an http or https address"),
    (["add", "https://a.example/", "https://b.example/", "--title", "T"], 2, "--title is for one feed"),
    (["add", "https://a.example/", "--title", "x" * (LONGEST_TITLE + 1)], 2, "write at most 1,000"),
    (["add"], 2, "Missing argument 'ADDRESS|LIST...'"),
    (["remove", "https://a.example/"], 1, "https://a.example/ is not a feed of"),
    (["rename", "https://a.example/", "T"], 1, "mmqjp feeds list shows them"),
    (["rename", "https://a.example/"], 2, "Missing argument 'TITLE'"),
]


def test_what_cannot_be_changed(tmp_path, known):
    assert call("feeds", "add", "https://known.example/", "--state", tmp_path / "crawl").exit_code == 0
    for arguments, status, words in WRONG:
        result = call("feeds", *arguments, "--state", tmp_path / "crawl")
        assert result.exit_code == status and words in result.stderr and len(result.stderr.splitlines()) == 1
    assert list(known()) == ["https://known.example/"]


@pytest.mark.parametrize(
    ("command", "done"), [("remove", "1 feed removed"), ("rename", "is called T"), ("retry", "1 feed due now")]
)
def test_of_feeds_that_differ_in_their_password_the_one_that_is_named_is_changed(tmp_path, known, command, done):
    state = ["--state", tmp_path / "crawl"]
    plain, ada, bob = (f"https://{who}h.example/f" for who in ("", "ada:s3cret@", "bob:s3cret@"))
    more = ["T"] if command == "rename" else []
    assert call("feeds", "add", plain, ada, bob, *state).exit_code == 0
    named = call("feeds", command, plain, *more, *state)
    assert (named.exit_code, named.stderr.count("\n")) == (0, 1) and done in named.stderr
    assert [known().get(url) for url in (ada, bob)] == [("", ())] * 2
    assert call("feeds", "remove", plain, *state).exit_code == (1 if command == "remove" else 0)
    refused = call("feeds", command, plain, *more, *state)
    assert refused.exit_code == 1 and set(known()) == {ada, bob}
    assert "error: https://h.example/f is the address of 2 feeds, with different names or passwords" in refused.stderr
    assert call("feeds", "remove", bob, *state).stderr == "mmqjp: 1 feed removed\n"
    assert done in call("feeds", command, plain, *more, *state).stderr


def test_a_fetch_that_runs_is_asked_for_changes(server, fetch, tmp_path, monkeypatch):
    fetch(server.url("/a"))
    monkeypatch.setattr("mmqjp.commands.feeds.WAIT", 0.0)
    file, state = tmp_path / "crawl" / STATE_FILE, ["--state", tmp_path / "crawl"]
    with FetchStore(file, write=True) as store:
        for do, address in (("retry", server.url("/a")), ("add", server.url("/ax")), ("remove", server.url("/a"))):
            before = store.feeds()
            result = call("feeds", do, address, *state)
            assert result.exit_code == 0 and "; the fetch that is running will take it in" in result.stderr
            assert store.feeds() == before
            ChangesOf(file).take(store)
            assert store.feeds() != before
        result = call("feeds", "rename", server.url("/ax"), "T", *state)  # which is not left to others
    assert result.exit_code == 1 and "another fetch is using this state; wait for it, or end it" in result.stderr


def test_feeds_that_were_added_are_read_by_fetch_without_a_list(server, tmp_path):
    command = ["stream", "--trigger", "available-now"]
    queries = write_queries(tmp_path, "SELECT t FROM S//item[./feed_title->t][./folder = 'F'][./title = 'one']")
    state = ["--state", tmp_path / "state"]
    (tmp_path / "no.jsonl").touch()
    options = ["--engine", "duckdb", "--queries", queries, *state, "--allow-private", "--lateness", "INF", "--fetch"]
    early = call(*command, *options)
    assert early.exit_code == 2 and "--fetch without a LIST needs a --state with feeds" in early.stderr
    made = ["run", "--engine", "duckdb", "--queries", queries, *state, "--documents", tmp_path / "no.jsonl"]
    assert call(*made).exit_code == 0
    assert call("feeds", "add", server.url("/a"), "--title", "A", "--folder", "F", *state).exit_code == 0
    found = call(*command, *options)
    assert found.exit_code == 0, found.stderr
    assert "<t><feed_title>A</feed_title></t>" in found.stdout and len(found.stdout.splitlines()) == 1
    mixed = call(*command, *options, "--fetch", server.url("/b"))
    assert mixed.exit_code == 2 and "with a LIST and without" in mixed.stderr
