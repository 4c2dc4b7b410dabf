"""Event queries on the pages: the values of their outputs are shown in lists, on pages of outputs and in feeds."""

import re
from html import unescape

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from tests.mmqjp.web.conftest import NOW
from tests.support.web import browser, site_of

QUERIES = """DEFINE EVENT Post FROM S//item->i (site := i/site, title := i/title);
SELECT place, first, later FROM (SELECT site AS place, title AS first FROM Post)
NEXT{place = $2.site} (SELECT site, title AS later FROM Post) WITHIN 5 d PUBLISH next_post"""

SHOWN = ('<span class="name">place</span>', '<span class="value" dir="auto">Harbour</span>')


def post(number, title):
    xml = f"<item><site>Harbour</site><title>{title}</title></item>"
    return Document(f"d{number}", xml, time=NOW - (10 - number) * 3_600_000_000)


@pytest.mark.parametrize("is_remembered", [True, False])
def test_values_of_events_are_shown(is_remembered, monkeypatch):
    with Session("duckdb", now=lambda: NOW, lateness=0) as engine:
        engine.subscribe(QUERIES)
        engine.process([post(1, "One"), post(2, "Two"), post(9, "Three")])
        site = site_of(engine, now=lambda: NOW)
        if not is_remembered:
            for name in ("newest", "output", "latest", "of_feed"):
                monkeypatch.setattr(site.matches.recent, name, lambda *_: None)
        client = browser(site)
        page = client.get("/q/next_post").text
        outputs = client.get("/api/v1/queries/next_post/outputs").json()["outputs"]
        values = [(one["name"], one["text"]) for one in outputs[-1]["selected"]]
        assert values == [("place", "Harbour"), ("first", "One"), ("later", "Two")]
        (address, *_) = re.findall(r'"(/o/[^"]+)"', page)
        for shown in (page, client.get("/live").text, client.get(address.replace("&amp;", "&")).text):
            assert all(part in shown for part in SHOWN)
        feed = client.get(client.get("/api/v1/queries/next_post/feed").json()["url"])
        assert "&lt;dt dir=&quot;auto&quot;&gt;place&lt;/dt&gt;&lt;dd dir=&quot;auto&quot;&gt;Harbour" in feed.text


READING = 'FROM FILTER{place = "Harbour"} next_post PUBLISH harbour'
DEFINED = "DEFINE EVENT Post FROM S//item-&gt;i (site := i/site, title := i/title)"


def edited(client, name):
    """The text in the form that edits a query."""
    page = client.get("/new", params={"query": name}).text
    (text,) = re.findall(r"(?s)<textarea[^>]*>\n(.*?)</textarea>", page)
    return unescape(text)


def test_a_page_has_what_event_queries_read_and_its_text_can_be_changed():
    with Session("duckdb", now=lambda: NOW, lateness=0) as engine:
        engine.subscribe(f"{QUERIES};\n{READING}")
        engine.subscribe("DEFINE EVENT Unread FROM S//item->i (title := i/title)", add=True)
        client = browser(site_of(engine, now=lambda: NOW))
        page, other = client.get("/q/next_post").text, client.get("/q/harbour").text
        assert DEFINED in page and "Unread" not in page and DEFINED not in other
        assert '<a href="/q/next_post">next_post</a> publishes' in other
        events = client.get("/api/v1/queries/next_post").json()["events"]
        assert events == {"names": ["Post"], "texts": [unescape(DEFINED)], "published": []}
        text, before = edited(client, "next_post"), engine.queries()
        assert text.count("DEFINE") == 1
        assert client.post("/new", data={"text": text, "do": "subscribe"}).status_code == 303
        assert engine.queries() == before
        text = text.replace("5 d", "6 d")
        assert client.post("/new", data={"text": text, "do": "subscribe"}).status_code == 303
        assert "WITHIN 6 d" in client.get("/q/next_post").text and engine.queries().keys() == before.keys()


def test_namespaces_are_declared_once_and_what_is_not_replaced_is_copied():
    with Session("duckdb", now=lambda: NOW) as engine:
        script = 'DECLARE NAMESPACE a = "http://a/"; FROM S//a:one->x; FROM S//two->y'
        assert engine.subscribe(script) == ["q1", "q2"]
        for prefix in "ab":
            text = f'DECLARE NAMESPACE {prefix} = "http://{prefix}/"; FROM S//{prefix}:three->y PUBLISH p'
            engine.subscribe(text, add=True)
        client = browser(site_of(engine, now=lambda: NOW))
        assert edited(client, "q1") == 'DECLARE NAMESPACE a = "http://a/";\n\nFROM S//a:one->x\n'
        text = edited(client, "p")
        assert text.count("DECLARE") == text.count("PUBLISH p") == 2
        assert client.post("/new", data={"text": text, "do": "subscribe"}).status_code == 303
        assert edited(client, "p") == text
        for name, can_be_replaced in {"q2": False, "p": True}.items():
            assert (">Edit<" in client.get(f"/q/{name}").text) == can_be_replaced
            assert ("becomes another query" in client.get("/new", params={"query": name}).text) != can_be_replaced


def test_they_are_retraced():
    with Session("duckdb", now=lambda: NOW, lateness=0) as engine:
        engine.subscribe(QUERIES)
        engine.process([post(1, "One"), post(2, "Two"), post(3, "Three"), post(9, "Last")])
        client = browser(site_of(engine, now=lambda: NOW))
        (first, *_) = client.get("/api/v1/queries/next_post/outputs").json()["outputs"]
        found = client.get(f"/api/v1/outputs/{first['id']}").json()
        assert [part["name"] for part in found["events"]["parts"]] == ["Post", "NEXT Post"]
        page = client.get(f"/o/{first['id']}").text
        assert "<h3>The events</h3>" in page and "NEXT Post" in page
        asked = {"document": ["d1", "d3"]}
        assert client.get("/api/v1/queries/next_post/why-not", params=asked).json()["kind"] == "consumed"
        page = client.get("/q/next_post/why-not", params=asked).text
        assert "Another event was first" in page and "The nearest of the kept documents" in page
        assert "events get past all." in client.get("/q/next_post/why-not").text
