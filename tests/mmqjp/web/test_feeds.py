"""The page of feeds and its API: what is shown of them, and that changes reach the fetch."""

import html

import pytest

from feeds.fetch.state import STATE_FILE, ChangesOf, FeedState, FetchStore, source_name
from mmqjp.web.areas import feeds as views
from tests.support.web import browser, script, site_of

HOSTILE = "<script>alert(1)</script>\"'&\u202e"
OPML = b"""<opml version="2.0"><body><outline text="News"><outline text="A" xmlUrl="https://a.example/feed"/></outline>
<outline text="B" xmlUrl="https://b.example/feed"/><outline text="C" xmlUrl="javascript:alert(1)"/></body></opml>"""


@pytest.fixture
def site(unchanged_engine, tmp_path):
    return site_of(unchanged_engine, tmp_path)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "drops" / STATE_FILE


def put(file, *feeds):
    with FetchStore(file, write=True) as store:
        store.add(feeds)


def feed(url, **known):
    return FeedState(url, source_name(url), **known)


def listed(site):
    return script(site).get("/api/v1/feeds").json()


def test_without_feeds_the_page_says_what_to_do(site):
    found = browser(site).get("/feeds")
    assert found.status_code == 200 and "No feed yet" in found.text and "OPML" in found.text
    assert listed(site) == {"rows": [], "next": None, "feeds": 0, "failing": 0, "stopped": 0, "overdue": False}
    assert script(site).get("/api/v1/feeds.opml").status_code == 200
    assert browser(site).post("/feeds/remove", data={"address": "https://a.example/"}).status_code == 400
    answer = script(site).delete("/api/v1/feeds", params={"address": "https://a.example/"})
    assert answer.status_code == 400 and answer.json()["error"] == "https://a.example/ is not a feed of this state"


def test_the_health_of_feeds_is_shown_with_their_last_errors(site, file):
    ok = {"checked_at": 1, "fetched_at": 1, "next_check": 1 << 60, "status": 200}
    put(
        file,
        feed("https://well.example/", **ok),
        feed("https://failing.example/", **ok | {"errors": 3, "last_error": "the server answered 503"}),
        feed("https://gone.example/", **ok | {"errors": 1, "last_error": "gone for good", "stopped": True}),
        feed("https://me:secret@new.example/"),
    )
    found = listed(site)
    assert [row["health"] for row in found["rows"]] == ["well", "failing", "stopped", "new"]
    assert (found["feeds"], found["failing"], found["stopped"]) == (4, 1, 1)
    text = browser(site).get("/feeds").text
    assert "the server answered 503 (3 times in a row)" in text and "not fetched yet" in text
    assert "secret" not in text + str(found)
    only = browser(site).get("/feeds?health=stopped").text
    assert "gone.example" in only and "well.example" not in only


def test_texts_of_feeds_are_shown_as_they_are(site, file):
    put(file, feed("https://a.example/", title=HOSTILE, folder=HOSTILE, last_error=HOSTILE, errors=1, checked_at=1))
    text = browser(site).get("/feeds").text
    assert "<script>alert" not in text and html.escape(HOSTILE, quote=False)[:30] in text.replace("&#39;", "'")


def test_feeds_come_page_by_page(site, file):
    put(file, *(feed(f"https://a.example/{n}", errors=n % 2) for n in range(2 * views.ROWS + 1)))
    client, seen, after = script(site), [], ""
    while after is not None:
        found = client.get("/api/v1/feeds", params={"after": after}).json()
        seen += [row["url"] for row in found["rows"]]
        after = found["next"]
    assert seen == [f"https://a.example/{n}" for n in range(2 * views.ROWS + 1)]
    assert client.get("/api/v1/feeds?after=x").status_code == 400
    page = browser(site).get("/feeds").text
    assert 'rel="next"' in page


def test_forms_add_retry_and_remove_a_feed(site, file):
    client = browser(site)
    added = client.post("/feeds", data={"address": " HTTPS://A.example/feed "})
    assert added.status_code == 303 and "1 feed added." in client.get(added.headers["location"]).text
    with FetchStore(file, write=True) as store:
        (known,) = store.feeds()
        store.commit(feed(known.url, errors=2, stopped=True, next_check=9))
    assert client.post("/feeds/retry", data={"address": "https://a.example/feed"}).status_code == 303
    with FetchStore(file) as store:
        assert [(one.next_check, one.stopped) for one in store.feeds()] == [(0, False)]
    assert client.post("/feeds/remove", data={"address": "https://a.example/feed"}).status_code == 303
    assert listed(site)["feeds"] == 0


def test_what_is_no_web_address_is_told_at_its_field(site):
    client, pages = script(site), browser(site)
    for address in ("", "javascript:alert(1)", "file:///etc/passwd", "no address", "http://"):
        found = pages.post("/feeds", data={"address": address})
        assert found.status_code == 400 and 'aria-invalid="true"' in found.text and 'id="address-error"' in found.text
        assert html.escape(address) in found.text
        assert client.post("/api/v1/feeds", json={"address": address}).status_code == 400


def test_a_list_is_added_and_comes_back_as_opml(site):
    client = browser(site)
    done = client.post("/feeds/list", files={"opml": ("feeds.opml", OPML)})
    text = client.get(done.headers["location"]).text
    assert "2 feeds added; 1 left out" in text
    found = client.get("/feeds/feeds.opml")
    assert "attachment" in found.headers["content-disposition"] and b'xmlUrl="https://a.example/feed"' in found.content
    again = script(site).post("/api/v1/feeds.opml", content=found.content, headers={"Content-Type": "text/x-opml"})
    assert again.json() == {"feeds": 2, "made": True, "complaints": []}
    assert [(row["title"], row["folders"]) for row in listed(site)["rows"]] == [("A", ["News"]), ("B", [])]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"<html>", b"<opml", b'<!DOCTYPE x [<!ENTITY a "b">]><opml/>'])
def test_what_is_no_list_is_told_at_its_field(site, content):
    found = browser(site).post("/feeds/list", files={"opml": ("feeds.opml", content)})
    assert found.status_code == 400 and 'id="opml-error"' in found.text


def test_while_a_fetch_runs_it_takes_the_change_in(site, file, monkeypatch):
    monkeypatch.setattr("mmqjp.web.areas.feeds.WAIT", 0.0)
    put(file)
    with FetchStore(file, write=True) as store:
        done = script(site).post("/api/v1/feeds", json={"address": "https://a.example/"})
        assert done.json() == {"feeds": 1, "made": False, "complaints": []}
        assert [one.url for one in ChangesOf(file).take(store)[0]] == ["https://a.example/"]


def test_feeds_that_nobody_fetches_are_told(site, file):
    put(file, feed("https://a.example/", checked_at=1, next_check=2))
    assert listed(site)["overdue"] and "nobody fetches them" in browser(site).get("/feeds").text


def test_getting_a_page_changes_nothing(site, file):
    put(file, feed("https://a.example/", next_check=7, errors=1))
    client = browser(site)
    for path in ("/feeds", "/feeds/retry", "/feeds/remove?address=https://a.example/", "/feeds/list"):
        assert client.get(path).status_code in (200, 405)
    with FetchStore(file) as store:
        assert [one.next_check for one in store.feeds()] == [7]
