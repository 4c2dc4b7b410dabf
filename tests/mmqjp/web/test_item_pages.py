"""Pages of items and their twins in the API: what they show, what they refuse, and where they lead."""

import re
from datetime import UTC, datetime
from html import unescape
from typing import Any

import pytest

from feeds.documents import Document
from feeds.fetch.state import STATE_FILE, FeedState, FetchStore, source_name
from feeds.items import Entry, item_xml
from tests.mmqjp.web.conftest import NOW
from tests.support.hostile import TITLES
from tests.support.web import browser, script, site_of, stranger

HOUR = 3_600_000_000
FEED = "https://a.example/feed?x=1&y=2"
HOSTILE = f"Ada: {TITLES['markup']}{TITLES['override']}"


def put_items(engine, count=60):
    """Items of a feed, one an hour, and a second version of the oldest one."""
    every = [(n, f"Harbour strike {n}", NOW - n * HOUR) for n in range(count)] + [(count - 1, HOSTILE, NOW)]
    for version, (n, title, time) in enumerate(every):
        page = f"https://a.example/{n}"
        entry = Entry(
            page, "https://a.example/", title, time, authors=("Ann & Co",), guid=f"g{n}", content="<p>Text</p>"
        )
        xml = item_xml(entry, FEED, "<b>A</b> feed")
        engine.process([Document(f"{FEED} g{n} {version:012x}", xml, time=time)])


def shown(page):
    return [int(docid) for docid in re.findall(r'dir="auto"><a href="/items/(\d+)">', page.text)]


def test_pages_of_items_lead_through_all_of_them(engine, pages, api):
    put_items(engine)
    page = pages.get("/items")
    assert [page.status_code, len(shown(page))] == [200, 50]
    assert "2 versions" in page.text
    (after,) = re.findall(r'href="([^"]*)" rel="next"', page.text)
    rest = pages.get(unescape(after))
    assert len(shown(page) + shown(rest)) == len({*shown(page), *shown(rest)}) == 62
    assert 'rel="next"' not in rest.text
    listed: list[dict[str, Any]] = []
    after = None
    while after is not None or not listed:
        found = api.get("/api/v1/items", params={} if after is None else {"after": after}).json()
        listed += found["items"]
        after = found["next"]
    assert [one["docid"] for one in listed] == shown(page) + shown(rest)
    assert listed[0]["item"]["title"] != HOSTILE  # control characters are not shown
    assert {one["versions"] for one in listed} == {1, 2}


def test_items_are_found_by_words_feed_and_day(engine, api):
    put_items(engine)

    def count(**asked):
        return len(api.get("/api/v1/items", params=asked).json()["items"])

    found = {search: count(search=search) for search in ("harbour", "HARBOUR 7", "ada", "zzz")}
    assert found == {"harbour": 50, "HARBOUR 7": 1, "ada": 3, "zzz": 0}
    assert [count(feed=FEED), count(feed=FEED, search="ada"), count(feed="https://a.example/")] == [50, 1, 0]
    today, before = (datetime.fromtimestamp(NOW / 1e6 - days * 86_400, UTC).date() for days in (0, 1))
    assert [count(day=str(before)), count(day="2020-02-29")] == [24, 0]
    assert 1 <= count(day=str(today), search="strike") <= 24


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("search=***", "search: '***' has no word: write letters or digits"),
        ("day=yesterday", "day: 'yesterday' is not a day: write it as 2026-07-16"),
        ("day=2026-02-30", "day: there is no 2026-02-30: write a day such as 2026-07-16"),
        ("day=٢٠٢٦-٠١-٠١", "is not a day"),
        ("after=WzFd", "after='WzFd' is not the next of a list"),
        ("after=WyJhIiwxXQ", "is not the next of a list"),
        (f"search={'x' * 401}", "at most 400 characters"),
    ],
)
def test_what_cannot_be_searched_is_said(asked, said, pages, api):
    for client, path in ((pages, "/items"), (api, "/api/v1/items")):
        answer = client.get(f"{path}?{asked}")
        assert answer.status_code == 400
        assert said in (answer.text if client is api else unescape(answer.text))
    if not asked.startswith("after") and len(asked) < 100:
        assert 'aria-invalid="true"' in pages.get(f"/items?{asked}").text


def test_an_item_shows_what_was_read_and_where_to_go(engine, pages, api):
    put_items(engine, 3)
    newest = shown(pages.get("/items"))[0]
    page, found = pages.get(f"/items/{newest}"), api.get(f"/api/v1/items/{newest}").json()
    text = unescape(page.text)
    assert "<script>alert" not in page.text.replace('<script src="/static', "").replace('<script type="module"', "")
    assert [one["docid"] for one in found["versions"]] == [newest, newest - 1]
    assert [change["name"] for change in found["versions"][0]["changes"]] == ["title", "timestamp"]
    assert {"item_url", "author", "content"} <= {one["name"] for one in found["fields"]}
    for recipe in ("my_words", "by_author", "retitled", "silent"):
        (link, *_) = re.findall(rf'href="(/build\?recipe={recipe}&[^"]*)"', text)
        assert pages.get(link).status_code == 200
    assert "author=Ann+%26+Co" in text
    asked = pages.get(f"/items/{newest}/why-not?query=book_blog")
    assert asked.headers["location"].startswith("/q/book_blog/why-not?document=https%3A%2F%2Fa.example")
    verdict = pages.get(asked.headers["location"])
    assert [verdict.status_code, "Why is there no match?" in verdict.text] == [200, True]


def test_an_item_names_its_matches(pages, api):
    (match,) = api.get("/api/v1/queries/book_blog/outputs").json()["outputs"]
    for docid in (0, 1):
        (output,) = api.get(f"/api/v1/items/{docid}").json()["outputs"]
        assert (output["id"], output["query"]) == (match["id"], "book_blog")
        assert f'<a href="/items/{docid}">Item' in pages.get(f"/o/{output['id']}?group={output['group']}").text
        assert api.get(f"/api/v1/outputs/{output['id']}").json()["item_numbers"] == [0, 1]
        assert "nobody" in pages.get(f"/items/{docid}").text  # one can ask why that did not match


@pytest.mark.parametrize("docid", ["99", str(10**30), "x", "-1", "1.5"])
def test_no_item_is_no_page(docid, pages, api):
    assert pages.get(f"/items/{docid}").status_code == 404
    assert api.get(f"/api/v1/items/{docid}").status_code in (400, 404)


def test_strangers_see_no_item(site):
    client = stranger(site)
    assert [client.get("/items").status_code, client.get("/api/v1/items/0").status_code] == [303, 401]


def test_the_feeds_page_counts_items_and_the_queries_page_matches(engine, tmp_path):
    put_items(engine)
    site = site_of(engine, tmp_path, now=lambda: NOW)
    (tmp_path / "drops").mkdir()
    with FetchStore(tmp_path / "drops" / STATE_FILE, write=True) as store:
        store.add([FeedState(url, source_name(url)) for url in (FEED, "https://silent.example/")])
    (first, second) = script(site).get("/api/v1/feeds").json()["rows"]
    assert (first["kept"]["items"], first["kept"]["last"], sum(first["kept"]["days"])) == (60, NOW, 60)
    assert (second["kept"]["items"], second["kept"]["last"], sum(second["kept"]["days"])) == (0, None, 0)
    page = unescape(browser(site).get("/feeds").text)
    assert re.search(
        r"Items of https://a.example/feed\?x=1&y=2 in the last 30 days: 60, at most 2\d a day, today \d+", page
    )
    assert "/items?feed=https%3A%2F%2Fa.example%2Ffeed%3Fx%3D1%26y%3D2" in page
    rows = {one["name"]: one for one in script(site).get("/api/v1/queries").json()["rows"]}
    assert (sum(rows["book_blog"]["days"]), sum(rows["nobody"]["days"])) == (1, 0)
    assert "Matches of book_blog in the last 30 days: 1, at most 1 a day, today 1" in browser(site).get("/").text
