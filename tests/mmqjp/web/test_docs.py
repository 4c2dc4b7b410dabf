"""The documentation in the page."""

import re
from dataclasses import replace
from functools import partial
from html import unescape
from typing import Any

import pytest
from lxml import html

from mmqjp.service.commands import run_offline
from mmqjp.sinks.definition import SinkTables
from mmqjp.web.areas.docs import coloured, doc_names, doc_page, search_docs
from tests.support.places import ROOT
from tests.support.web import asking, browser, script, site_of

ALLOWED = {
    *("a", "article", "blockquote", "code", "div", "em", "h1", "h2", "h3", "h4", "h5", "hr", "li", "ol", "p", "pre"),
    *("span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul", "br"),
}


@pytest.fixture(scope="module")
def site(unchanged_engine):
    return site_of(unchanged_engine)


def test_each_page_of_docs_is_there_its_links_lead_somewhere_and_no_html_of_its_own_is_shown():
    assert set(doc_names()) == {path.stem for path in (ROOT / "docs").glob("*.md")}
    pages = {name: doc_page(name) for name in doc_names()}
    shown = {name: page.html for name, page in pages.items() if page is not None}
    anchors = {(name, id) for name, text in shown.items() for id in re.findall(r' id="([^"]+)"', text)}
    for name, text in shown.items():
        assert set(re.findall(r"<([a-z][a-z0-9]*)", text)) <= ALLOWED, name
        assert "<!--" not in text and "&lt;!-- not run" not in text and " style=" not in text
        for address in re.findall(r'href="([^"]*)"', text):
            page, _, anchor = address.partition("#")
            page = page.removeprefix("/docs").lstrip("/") or ("index" if page else name)
            known = page in shown and (not anchor or (page, anchor) in anchors)
            assert known or address.startswith(("http://", "https://")), (name, address)


def test_pages_are_shown_and_found_without_a_script(site):
    pages, api = browser(site), script(site)
    for path, words in {
        "/docs": (">Documentation", "/docs/language", ">Recipes<"), "/docs/web": ("On this page", 'id="access"'),
        "/docs/language.md": ('aria-label="Table: Functions"', "lower-case"),
    }.items():  # fmt: skip
        text = pages.get(path).text
        assert all(word in text for word in words), path
    for path in ("/docs/nothing", "/docs/..%2Fmmqjp%2Fcli", "/api/v1/docs/nothing"):
        assert pages.get(path).status_code == 404, path
    found = pages.get("/docs", params={"search": 'Backfill sees "before"'}).text
    assert "for “Backfill sees" in found and "<mark>" in found and "/docs/semantics#" in found
    assert "Nothing for" in (nothing := pages.get("/docs", params={"search": "<b>zzzz</b>"}).text)
    assert "<b>zzzz" not in nothing and "<b>zzzz</b>" in unescape(nothing)
    assert pages.get("/docs", params={"search": "x" * 300}).status_code == 400
    hits = api.get("/api/v1/docs", params={"search": "webhook"}).json()
    assert {"page": "sinks", "anchor": "webhooks"}.items() <= hits[0].items()
    assert api.get("/api/v1/docs/push").text == (ROOT / "docs" / "push.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("namespaces", "Namespaces"), ("once per", "ONCE PER"), ("STORIES lasting", "Stories"),
        ("token push", None), ("", None), ('"*(', None), ("namesp", "Namespaces"), ("nosuchwordatall", None),
    ],
)  # fmt: skip
def test_sections_are_found_by_words_and_their_beginnings(text, first):
    found = search_docs(text)
    assert len(found) <= 30 and all(len(hit.excerpt) < 240 for hit in found)
    words = re.findall(r"[\w-]+", text.casefold())
    assert bool(found) == (bool(words) and "nosuchwordatall" not in words)
    if first is not None:
        assert first in [hit.title for hit in found[:3]]


def test_each_field_leads_to_what_is_written_about_it(unchanged_engine, tmp_path):
    ask = asking(unchanged_engine, partial(run_offline, tmp_path, SinkTables))
    pages = browser(replace(site_of(unchanged_engine, tmp_path), ask=ask))
    shown = {name: page for name in doc_names() if (page := doc_page(name)) is not None}
    paths = ["/new", "/items", "/feeds", "/feeds/edit", "/sql", "/q/nobody", "/q/nobody/why-not"]
    paths += ["/build?recipe=retitled"]
    paths += [f"/sinks?kind={kind}" for kind in ("webhook", "mail", "jsonl", "atom", "parquet", "command")]
    for path in paths:
        tree: Any = html.fromstring(pages.get(path).text)
        fields = tree.xpath("//main//div[contains(@class, 'field')][not(.//input[@type = 'search'])]")
        ticks = tree.xpath("//main//label[@class = 'tick']")
        assert fields or path.startswith("/build"), path
        for field in fields:
            (about,) = field.xpath("a[@class = 'about']")
            page, _, anchor = about.get("href").removeprefix("/docs/").partition("#")
            known = {one.anchor for one in shown[page].sections}
            assert not anchor or anchor in known, (path, about.get("href"))
        assert all(tick.getnext().get("class") == "about" for tick in ticks), path


def test_texts_of_xscl_have_the_colours_of_the_editor():
    text = coloured("-- x\nFROM S//from->join[contains(a, 'JOIN <b>')] foo(2 d) \"y\"")
    assert re.findall(r'<span class="tok-(\w+)">(.*?)</span>', text) == [
        ("comment", "-- x"), ("keyword", "FROM"), ("function", "contains"), ("string", "&#x27;JOIN &lt;b&gt;&#x27;"),
        ("number", "2 d"), ("string", "&quot;y&quot;"),
    ]  # fmt: skip
    assert "S//from-&gt;join[" in text
