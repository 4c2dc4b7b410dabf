"""Event queries on the pages: the values of their outputs are shown in lists, on pages of outputs and in feeds."""

import re

import pytest

from feeds.document import Document
from mmqjp.session import Session
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
