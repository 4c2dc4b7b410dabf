"""Every page: for everybody, on every screen, in both colour schemes. And tests notice what is wrong with a page."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import LONG_NAME, Site, Visit
from tests.generate.seeds import at_length
from tests.support.browser import DESK, PHONE, SCHEMES, ZOOMED, Watch, overflow, violations
from tests.support.cli import mmqjp
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
    "docs": "/docs",
    "a page of docs": "/docs/language",
    "found in docs": "/docs?search=stories",
    "texts": "/q/incident/texts",
    "rows": "/sql?sql=SELECT+query,+xml+FROM+outputs",
}
"""Pages by what they show."""

MOST_VARIED = [
    *("queries", "a long name", "a query with hostile matches", "why not these", "new", "live"),
    *("a page of docs", "found in docs"),
]
"""Those that have all kinds of content."""


def serves_everybody(page: Page) -> None:
    """Asserts that a page has no violations, need not be scrolled sideways, and has one heading and a title."""
    expect(page.locator("h1")).to_have_count(1)
    assert page.title().endswith(("mmqjp", " matches"))
    for viewport in (DESK, PHONE, ZOOMED):
        page.set_viewport_size(viewport)
        assert overflow(page) == 0, viewport
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            if at_length() or (viewport, scheme) == (PHONE, "light"):  # it takes most of the time
                assert violations(page) == [], (viewport, scheme)
    page.set_viewport_size(DESK)
    assert violations(page, "color-contrast") == []


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


@pytest.fixture
def matches_page(visit: Visit, site: Site, tmp_path: Path) -> Page:
    """The page of one file that `mmqjp matches --format html` writes."""
    path = tmp_path / "page.html"
    result = mmqjp("matches", "--state", site.served.state, "--format", "html", "--output", path)
    assert result.exit_code == 0, result.stderr
    page = visit(path.as_uri()).new_page()
    page.goto(path.as_uri())
    return page


def test_the_page_of_matches_serves_everybody_and_hostile_titles_are_text(matches_page):
    serves_everybody(matches_page)
    assert matches_page.locator("script, img, [onclick]").count() == 0
    for name in ("markup", "template", "hebrew"):
        expect(matches_page.locator(".title").filter(has_text=TITLES[name]).first).to_be_visible()


@pytest.mark.soak
def test_the_page_of_matches_is_read_by_keyboard(matches_page):
    names = matches_page.locator("nav a")
    for number in range(names.count()):
        matches_page.keyboard.press("Tab")
        expect(names.nth(number)).to_be_focused()
    matches_page.keyboard.press("Enter")
    expect(matches_page.locator("h2").last).to_be_in_viewport()
    matches_page.keyboard.press("Tab")
    expect(matches_page.locator("summary").last).to_be_focused()
    matches_page.keyboard.press("Enter")
    expect(matches_page.locator("pre").last).to_be_visible()


HEAD = "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Page</title>"
POLICY = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\">"
SOUND = f"{HEAD}<body><main><h1>Page</h1></main>"


def opened(browser: Browser, directory: Path, text: str) -> tuple[Page, Watch]:
    path = directory / "page.html"
    path.write_text(text, "utf-8")
    page, watch = browser.new_page(viewport=DESK), Watch("file://")
    watch.follow(page)
    page.goto(path.as_uri(), wait_until="load")
    return page, watch


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("<script>console.log('hello')</script>", "console: hello"),
        ("<script>throw Error('oh')</script>", "error: oh"),
        ("<img alt='' src='http://127.0.0.1:9/x.png'>", "request elsewhere: http://127.0.0.1:9/x.png"),
        ("<p style='color: red'>", "violates the following Content Security Policy"),
    ],
)
def test_what_a_page_says_or_asks_for_is_wrong(browser, tmp_path, text, wrong):
    _, watch = opened(browser, tmp_path, (HEAD + POLICY if "style" in text else HEAD) + text)
    assert any(wrong in found for found in watch.wrongs), watch.wrongs


def test_what_not_everybody_can_read_is_wrong(browser, tmp_path):
    page, watch = opened(browser, tmp_path, SOUND)
    assert (violations(page), overflow(page), watch.wrongs) == ([], 0, [])
    faint = "<p id='faint'>faint</p><style>#faint { color: #ccc; background: #fff }</style>"
    page, _ = opened(browser, tmp_path, f"{SOUND}{faint}<input><p>{'x' * 500}")
    assert {text.partition(":")[0] for text in violations(page)} >= {"color-contrast", "label"}
    page.set_viewport_size(ZOOMED)
    assert overflow(page) > 1_000
