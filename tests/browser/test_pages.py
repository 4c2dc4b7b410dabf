"""Every page: for everybody, on every screen, in both colour schemes."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.site import Site
from tests.support.browser import DESK, PHONE, ZOOMED, overflow, violations

PAGES = {
    "queries": "/",
    "no query found": "/?search=nothing-is-called-so",
    "remove": "/q/same_story/remove",
    "feeds": "/feeds",
}
"""Pages by what they show."""


def serves_everybody(page: Page) -> None:
    """Asserts that a page has no violations, need not be scrolled sideways, and has one heading and a title."""
    expect(page.locator("h1")).to_have_count(1)
    assert page.title().endswith("mmqjp")
    for viewport in (DESK, PHONE, ZOOMED):
        page.set_viewport_size(viewport)
        assert overflow(page) == 0, viewport
        assert violations(page) == [], viewport
    page.set_viewport_size(DESK)
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []


@pytest.mark.parametrize("name", PAGES)
def test_each_page_serves_everybody(visit, site: Site, name):
    serves_everybody(site.enter(visit, PAGES[name]))


def test_logging_in_serves_everybody(visit, site: Site):
    page = visit(site.url).new_page()
    page.goto(f"{site.url}/feeds")
    expect(page).to_have_url(f"{site.url}/login?next=%2Ffeeds")
    serves_everybody(page)


def test_a_page_that_is_not_there_serves_everybody(visit, site: Site):
    page = site.enter(visit, "/nowhere", allowed=("404",))
    expect(page.locator("h1")).to_have_text("There is no such page")
    serves_everybody(page)
