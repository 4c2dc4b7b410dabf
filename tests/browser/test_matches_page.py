"""`mmqjp matches --format html`: the page of one file, in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.generate.seeds import at_length
from tests.support.browser import DESK, PHONE, SCHEMES, ZOOMED, overflow, violations
from tests.support.cli import mmqjp
from tests.support.hostile import QUERY, TITLES, write_hostile_feeds
from tests.support.places import ROOT


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("stories")
    return written_page(directory, ROOT / "examples" / "stories.xscl", ROOT / "examples" / "feeds")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("hostile")
    write_hostile_feeds(directory / "feeds")
    queries = directory / "queries.xscl"
    queries.write_text(QUERY, "utf-8")
    return written_page(directory, queries, directory / "feeds")


def written_page(directory: Path, queries: Path, feeds: Path) -> str:
    """Answers queries over feeds and returns the address of the page of their matches."""
    state, page = directory / "state", directory / "matches.html"
    arguments = ("--queries", queries, "--documents", feeds, "--feeds", "--engine", "duckdb", "--lateness", "INF")
    for result in (
        mmqjp("run", *arguments, "--state", state, "--output", directory / "lines.jsonl"),
        mmqjp("matches", "--state", state, "--format", "html", "--utc", "--output", page),
    ):
        assert result.exit_code == 0, result.stderr
    return page.as_uri()


def shown(visit: Visit, address: str, **options: object) -> Page:
    page = visit(address, **options).new_page()
    page.goto(address)
    return page


@pytest.mark.parametrize("feeds", ["hostile", pytest.param("stories", marks=pytest.mark.soak)])
def test_it_serves_everybody(visit, request, feeds):
    page = shown(visit, request.getfixturevalue(feeds))
    for viewport in (DESK, PHONE, ZOOMED):
        page.set_viewport_size(viewport)
        assert overflow(page) == 0, viewport
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            if at_length() or (viewport, scheme) in ((PHONE, "light"), (DESK, "dark")):
                assert violations(page) == [], (viewport, scheme)


def test_hostile_titles_are_text(visit, hostile):
    page = shown(visit, hostile)
    assert page.title() != "broken"
    assert page.locator("script, img, [onclick]").count() == 0
    for name in ("markup", "template", "hebrew"):
        expect(page.locator(".title").filter(has_text=TITLES[name]).first).to_be_visible()


def test_it_is_read_by_keyboard(visit, stories):
    page = shown(visit, stories)
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
