"""Every page: for everybody, on every screen, in both colour schemes."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.site import LONG_NAME, Site
from tests.generate.seeds import at_length
from tests.support.browser import DESK, PHONE, ZOOMED, overflow, violations
from tests.support.hostile import TITLES

PAGES = {
    "queries": "/",
    "no query found": "/?search=nothing-is-called-so",
    "a query": "/q/incident",
    "a query with hostile matches": "/q/hostile",
    "a long name": f"/q/{LONG_NAME}",
    "remove": "/q/same_story/remove",
    "why not": "/q/incident/why-not",
    "why not these": "/q/incident/why-not?document=Investigating&document=nothing",
    "new": "/new",
    "a starter": "/new?starter=same_story",
    "live": "/live",
    "live of a query": "/live?query=hostile",
    "feeds": "/feeds",
    "sinks": "/sinks",
    "engine": "/engine",
    "sharing": "/sharing",
    "sql": "/sql",
    "rows": "/sql?sql=SELECT+query,+xml+FROM+outputs",
}
"""Pages by what they show."""

MOST_VARIED = ["queries", "a long name", "a query with hostile matches", "why not these", "new", "live"]
"""Those that have all kinds of content."""


def serves_everybody(page: Page) -> None:
    """Asserts that a page has no violations, need not be scrolled sideways, and has one heading and a title."""
    expect(page.locator("h1")).to_have_count(1)
    assert page.title().endswith("mmqjp")
    for viewport in (DESK, PHONE, ZOOMED):
        page.set_viewport_size(viewport)
        assert overflow(page) == 0, viewport
        if viewport == PHONE or at_length():  # it takes most of the time
            assert violations(page) == [], viewport
    page.set_viewport_size(DESK)
    page.emulate_media(color_scheme="dark")
    assert violations(page, *["color-contrast"] * (not at_length())) == []


@pytest.mark.parametrize("name", PAGES if at_length() else MOST_VARIED)
def test_each_page_serves_everybody(visit, site: Site, name):
    page = site.enter(visit, PAGES[name])
    if name == "rows":
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_role("heading", name="Answer")).to_be_visible()
    serves_everybody(page)


@pytest.mark.parametrize("query", ["hostile", *(["incident", "mended", "all_of_them"] if at_length() else [])])
def test_each_match_serves_everybody(visit, site: Site, query):
    page = site.enter(visit, f"/q/{query}")
    page.get_by_role("link", name="Why").first.click()
    expect(page.locator("h1")).to_contain_text("Match of")
    serves_everybody(page)


def test_hostile_titles_are_text(visit, site: Site):
    page = site.enter(visit, "/q/hostile")
    shown, targets = set[str](), set[tuple[str, str]]()
    while True:
        assert page.locator("main script, main img, [onclick], main [style]").count() == 0
        shown.update(page.locator(".title").all_inner_texts())
        found = page.locator(".title a").evaluate_all("links => links.map(link => [link.protocol, link.rel])")
        targets.update(map(tuple, found))
        if not (following := page.get_by_role("link", name="Next")).count():
            break
        following.click()
    assert shown >= {TITLES[name] for name in ("markup", "template", "hebrew", "arabic")}
    assert targets == {("https:", "noopener noreferrer nofollow")}


def test_logging_in_serves_everybody(visit, site: Site):
    page = visit(site.url).new_page()
    page.goto(f"{site.url}/feeds")
    expect(page).to_have_url(f"{site.url}/login?next=%2Ffeeds")
    serves_everybody(page)


def test_a_page_that_is_not_there_serves_everybody(visit, site: Site):
    page = site.enter(visit, "/nowhere", allowed=("404",))
    expect(page.locator("h1")).to_have_text("There is no such page")
    serves_everybody(page)
