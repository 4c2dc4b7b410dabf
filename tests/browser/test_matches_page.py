"""`mmqjp matches --format html`: the page of one file, in a browser."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.generate.seeds import at_length
from tests.support.browser import DESK, PHONE, SCHEMES, ZOOMED, overflow, violations
from tests.support.cli import mmqjp
from tests.support.hostile import QUERY, TITLES, write_hostile_feeds
from tests.support.places import ROOT


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("pages")
    write_hostile_feeds(directory / "feeds")
    (directory / "queries.xscl").write_text(QUERY, "utf-8")
    examples, found = ROOT / "examples", {}
    for name, queries, feeds in (
        ("stories", examples / "stories.xscl", examples / "feeds"),
        ("hostile", directory / "queries.xscl", directory / "feeds"),
    ):
        state, page = directory / name, directory / f"{name}.html"
        arguments = ("--queries", queries, "--documents", feeds, "--feeds", "--engine", "duckdb", "--lateness", "INF")
        for result in (
            mmqjp("run", *arguments, "--state", state, "--output", directory / "lines.jsonl"),
            mmqjp("matches", "--state", state, "--format", "html", "--utc", "--output", page),
        ):
            assert result.exit_code == 0, result.stderr
        found[name] = page.as_uri()
    return found


def shown(visit: Visit, address: str, **options: object) -> Page:
    page = visit(address, **options).new_page()
    page.goto(address)
    return page


@pytest.mark.parametrize("feeds", ["hostile", pytest.param("stories", marks=pytest.mark.soak)])
def test_it_serves_everybody(visit, pages, feeds):
    page = shown(visit, pages[feeds])
    for viewport in (DESK, PHONE, ZOOMED):
        page.set_viewport_size(viewport)
        assert overflow(page) == 0, viewport
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            if at_length() or (viewport, scheme) in ((PHONE, "light"), (DESK, "dark")):
                assert violations(page) == [], (viewport, scheme)


def test_hostile_titles_are_text(visit, pages):
    page = shown(visit, pages["hostile"])
    assert page.title() != "broken"
    assert page.locator("script, img, [onclick]").count() == 0
    for name in ("markup", "template", "hebrew"):
        expect(page.locator(".title").filter(has_text=TITLES[name]).first).to_be_visible()


def test_it_is_read_by_keyboard(visit, pages):
    page = shown(visit, pages["stories"])
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
