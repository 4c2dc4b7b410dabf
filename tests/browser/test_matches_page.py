"""`mmqjp matches --format html`: the page of one file, in a browser."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.generate.seeds import at_length
from tests.support.browser import DESK, PHONE, SCHEMES, ZOOMED, overflow, violations
from tests.support.cli import mmqjp, write_queries
from tests.support.hostile import QUERY, TITLES, write_hostile_feeds


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("pages")
    write_hostile_feeds(directory / "feeds")
    state, page = directory / "state", directory / "page.html"
    options = ("--engine", "duckdb", "--lateness", "INF", "--state", state, "--output", directory / "lines.jsonl")
    queries = write_queries(directory, QUERY)
    for result in (
        mmqjp("run", "--queries", queries, "--documents", directory / "feeds", "--feeds", *options),
        mmqjp("matches", "--state", state, "--format", "html", "--utc", "--output", page),
    ):
        assert result.exit_code == 0, result.stderr
    return page.as_uri()


@pytest.fixture
def page(visit: Visit, address: str) -> Page:
    page = visit(address).new_page()
    page.goto(address)
    return page


def test_it_serves_everybody(page):
    for viewport in (DESK, PHONE, ZOOMED):
        page.set_viewport_size(viewport)
        assert overflow(page) == 0, viewport
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            if at_length() or (viewport, scheme) in ((PHONE, "light"), (DESK, "dark")):
                assert violations(page) == [], (viewport, scheme)


def test_hostile_titles_are_text(page):
    assert page.title() != "broken"
    assert page.locator("script, img, [onclick]").count() == 0
    for name in ("markup", "template", "hebrew"):
        expect(page.locator(".title").filter(has_text=TITLES[name]).first).to_be_visible()


@pytest.mark.soak
def test_it_is_read_by_keyboard(page):
    names = page.locator("nav a")
    for number in range(names.count()):
        page.keyboard.press("Tab")
        expect(names.nth(number)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("h2").last).to_be_in_viewport()
    page.keyboard.press("Tab")
    expect(page.locator("summary").last).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("pre").last).to_be_visible()
