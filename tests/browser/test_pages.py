"""Every page: for everybody, on every screen, in both colour schemes. And tests notice what is wrong with a page."""

from pathlib import Path

import pytest
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import LONG_NAME, Site, Visit
from tests.generate.seeds import at_length
from tests.support.browser import DESK, PHONE, SCHEMES, ZOOMED, Watch, overflow, violations
from tests.support.cli import mmqjp
from tests.support.hostile import TITLES
from tests.support.web import shared_routes

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
    "build": "/build",
    "a recipe": "/build?recipe=named",
    "live": "/live",
    "live of a query": "/live?query=hostile",
    "items": "/items",
    "items found": "/items?search=the+barrier",
    "an item": "/items/0",
    "feeds": "/feeds",
    "settings of feeds": "/feeds/edit",
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
    *("queries", "a long name", "a query with hostile matches", "why not these", "new", "live", "a recipe"),
    *("a page of docs", "found in docs", "items", "an item"),
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


PLACES = {"/q/{name}": "/q/incident", "/docs/{name}": "/docs/recipes", "/sinks/{name}": "/sinks/chat"}
"""Addresses for paths with something to fill in. Those of an output and a document are asked for."""

SCROLLED = """[...document.querySelectorAll("main *")].filter((one) => one.scrollWidth > one.clientWidth + 1
  && ["auto", "scroll"].includes(getComputedStyle(one).overflowX) && !one.matches(".drawing, pre, textarea, input")
  && !one.closest(".cm-editor")).map((one) => one.outerHTML.slice(0, 200))"""
"""What must be scrolled sideways, but for pictures and code."""


def test_every_page_of_the_router_fits_and_serves_everybody(visit, site: Site):
    """New pages are visited, too. A path with a new name to fill in has no address in PLACES yet."""
    found = [route for route in shared_routes().routes if isinstance(route, APIRoute)]
    found = [route for route in found if route.response_class is HTMLResponse and "GET" in (route.methods or ())]
    paths = [route.path for route in found]
    assert {"/", "/build", "/sinks/{name}"} <= set(paths)
    places = dict(PLACES)
    with site.served.client() as client:
        table = {"kind": "webhook", "url": "https://hooks.invalid/in"}
        client.post("/api/v1/sinks", json={"name": "chat", "table": table}).raise_for_status()
        places["/o/{id}"] = f"/o/{client.get('/api/v1/queries/incident/outputs').json()['outputs'][0]['id']}"
        places["/items/{docid:int}"] = f"/items/{client.get('/api/v1/items').json()['items'][0]['docid']}"
        page, wrong = site.enter(visit), list[str]()
        for path in paths:
            start = next((one for one in places if path.startswith(one)), "")
            address = places.get(start, "") + path.removeprefix(start)
            assert "{" not in address, f"name an address of {path}"
            page.goto(site.url + address)
            for width in (1280, 360):
                page.set_viewport_size({"width": width, "height": 800})
                wrong += [
                    f"{address} at {width}: {one}"
                    for one in (overflow(page) * ["too wide"], *page.evaluate(SCROLLED))
                    if one
                ]
            wrong += [f"{address}: {one}" for one in violations(page)]
        client.delete("/api/v1/sinks/chat").raise_for_status()
    assert wrong == []


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
