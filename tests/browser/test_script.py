"""What script adds: checking as one types, outputs as they come, keys. And the keyboard alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.site import Site, served_site
from tests.support.cli import write_documents

QUERY = "FROM S//book->b[./author] PUBLISH books"

OUTLINE = "getComputedStyle(document.activeElement).outlineStyle"
"""What shows where the focus is."""


@pytest.fixture(scope="module")
def living(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Path]]:
    """A site to which documents come, and the directory for them."""
    directory = tmp_path_factory.mktemp("living")
    (directory / "drops").mkdir()
    (directory / "queries.xscl").write_text(QUERY)
    options = ("--source", directory / "drops", "--queries", directory / "queries.xscl", "--lateness", "INF")
    with served_site(browser, directory / "state", *options) as site:
        yield site, directory / "drops"


def drop(drops: Path, name: str) -> None:
    document = {"id": name, "time": "2026-01-01T00:00:00Z", "xml": f"<book><author>{name}</author></book>"}
    write_documents(drops / f"{name}.tmp", [document]).rename(drops / f"{name}.jsonl")


def test_outputs_appear_as_they_come_and_none_is_missed(visit, living):
    site, drops = living
    page = site.enter(visit, "/live", allowed=("ERR_INTERNET_DISCONNECTED",))
    drop(drops, "Ada")
    expect(page.locator(".match").first).to_contain_text("Ada")
    page.get_by_role("button", name="Pause").click()
    drop(drops, "Bob")
    drop(drops, "Cleo")
    page.get_by_role("button", name="Go on").click()
    expect(page.locator(".match")).to_have_count(3)
    assert sorted(page.locator(".match .title").all_inner_texts()) == ["Ada", "Bob", "Cleo"]
    expect(page.get_by_role("status")).to_have_text("3 new outputs")  # counts only are announced


def test_a_query_is_checked_as_one_types(visit, living):
    page = living[0].enter(visit, "/new")
    text = page.get_by_label("Text in XSCL")
    text.press_sequentially("FROM S//a->x[./t->t] JOIN {t = u, 1 d} S//b[./t->v] PUBLISH x")
    expect(page.get_by_text("variable u is not bound")).to_be_visible()
    expect(text).to_have_attribute("aria-invalid", "true")
    text.fill("FROM S//a->x[./t->t] JOIN {t = v, 1 d} S//b[./t->v] PUBLISH x")
    expect(page.get_by_text("No mistakes")).to_be_visible()
    expect(text).not_to_have_attribute("aria-invalid", "true")


def test_keys_lead_everywhere_and_can_be_switched_off(visit, living):
    site, _ = living
    page = site.enter(visit)
    for key, path in (("l", "/live"), ("f", "/feeds"), ("q", "/")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page).to_have_url(site.url + path)
        expect(page.locator("h1")).to_be_visible()
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="books", exact=True)).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("Search by name")).to_be_focused()
    page.keyboard.type("gl?")  # a field keeps its keys
    expect(page.get_by_label("Search by name")).to_have_value("gl?")
    page.locator("h1").click()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    dialog.get_by_label("Use these keys").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("l")
    expect(page).to_have_url(f"{site.url}/")


def test_everything_is_reached_by_keyboard(visit, living):
    site, _ = living
    page = site.enter(visit, "/q/books")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    reached, unseen = set[str](), list[str]()
    while (now := focused(page)) not in reached:
        reached.add(now)
        page.keyboard.press("Tab")
        if not page.evaluate(f"document.activeElement === document.body || {OUTLINE} !== 'none'"):
            unseen.append(page.evaluate("document.activeElement.outerHTML"))
    inside = page.locator("main").locator("a[href], button, input:not([type=hidden]), textarea, summary")
    assert len(reached) >= inside.count()
    assert unseen == []


def focused(page: Page) -> str:
    script = "[...document.querySelectorAll('*')].indexOf(document.activeElement)"
    return str(page.evaluate(script))
