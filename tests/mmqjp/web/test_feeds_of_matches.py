"""Atom feeds over HTTP: their keys, entity tags and revocation; and why there is no match."""

import feedparser

from feeds.documents import Document
from tests.mmqjp.web.conftest import NOW
from tests.support.web import URL, browser, script, site_of, stranger


def address(client, name="book_blog"):
    return client.get(f"/api/v1/queries/{name}/feed").json()["url"].removeprefix(URL)


def test_a_feed_needs_its_key_alone(site, engine):
    link = address(script(site))
    anybody = stranger(site)
    found = anybody.get(link)
    assert (found.status_code, found.headers["content-type"]) == (200, "application/atom+xml; charset=utf-8")
    parsed = feedparser.parse(found.content)
    assert len(parsed.entries) == 1 and parsed.feed.links[0].href == URL + link
    assert anybody.get(link, headers={"If-None-Match": found.headers["etag"]}).status_code == 304
    head = anybody.head(link)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", found.headers["etag"])
    other = link.replace("book_blog", "nobody")
    for wrong in (other, "/f/x/book_blog.atom", link + "x", "/f/x", "/f/../", "/f/%2e%2e/x"):
        assert anybody.get(wrong).status_code in (303, 404), wrong
    assert anybody.get(link, headers={"Host": "evil.example"}).status_code == 421
    key = {"Authorization": f"Bearer {link.split('/')[2]}"}
    assert anybody.get("/api/v1/queries", headers=key).status_code == 401, "the key is no token"
    engine.process([Document("d3", "<blog><author>Ada</author></blog>", time=NOW)])
    assert len(feedparser.parse(anybody.get(link).content).entries) == 2


def test_archives_are_served(engine):
    site = site_of(engine, now=lambda: NOW)
    engine.process(Document(f"n{n}", "<blog><author>Ada</author></blog>", time=NOW + n) for n in range(250))
    client, link = stranger(site), address(script(site))
    first = feedparser.parse(client.get(link).content)
    (archive,) = [one.href for one in first.feed.links if one.rel == "prev-archive"]
    found = client.get(archive.removeprefix(URL))
    assert found.status_code == 200 and "immutable" in found.headers["cache-control"]
    assert len(feedparser.parse(found.content).entries) == 100
    assert client.get(link.replace(".atom", "/99.atom")).status_code == 404


def test_a_link_is_revoked_by_itself(site):
    client, pages = script(site), browser(site)
    before, other = address(client), address(client, "nobody")
    shown = pages.post("/q/book_blog/feed/revoke").headers["location"]
    assert shown.endswith("#feed") and "The feed has another address." in pages.get(shown).text
    after = address(client)
    assert after != before and after in pages.get("/q/book_blog").text
    anybody = stranger(site)
    assert [anybody.get(one).status_code for one in (before, after, other)] == [410, 200, 200]
    assert client.post("/api/v1/queries/book_blog/feed/revoke").json()["url"] != URL + after
    assert client.get("/api/v1/queries/none/feed").status_code == 404
    assert client.post("/api/v1/queries/none/feed/revoke").status_code == 404


def test_why_there_is_no_match_is_said_of_documents_and_of_all(site, engine):
    engine.process([Document("d4", "<blog><author>ada</author></blog>", time=NOW)])
    client, pages = script(site), browser(site)
    found = client.get("/api/v1/queries/book_blog/why-not", params={"document": ["d1", "d4"]}).json()
    assert found["kind"] == "equality"
    text = pages.get("/q/book_blog/why-not?document=d1&document=d4").text
    assert "The values are not equal" in text and "lower-case" in text
    assert "There is no such document" in pages.get("/q/book_blog/why-not?document=%3Cb%3E").text
    assert "<b>" not in pages.get("/q/book_blog/why-not?document=%3Cb%3E").text
    assert client.get("/api/v1/queries/nobody/why-not").json()["funnels"][0]["found"] == 0
    assert "first in the way" in pages.get("/q/nobody/why-not").text
    assert client.get("/api/v1/queries/x/why-not?document=d1").json()["kind"] == "query"
    assert pages.get("/q/nobodi/why-not").status_code == 200
    many = "&".join("document=x" for _ in range(11))
    assert client.get(f"/api/v1/queries/x/why-not?{many}").status_code == 400
