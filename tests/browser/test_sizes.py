"""Sites with nothing in them, and with thousands of queries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.site import OPTIONS, Site, served_site
from tests.browser.test_pages import serves_everybody
from tests.generate.seeds import at_length
from tests.support.cli import mmqjp

MANY = 10_000 if at_length() else 3_000


@pytest.fixture(scope="module")
def empty(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with served_site(browser, tmp_path_factory.mktemp("empty") / "state") as site:
        yield site


@pytest.fixture(scope="module")
def crowded(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with many queries, of which some have very long names."""
    directory = tmp_path_factory.mktemp("crowded")
    queries = directory / "queries.xscl"
    name = "a_query_with_a_name_" * 10
    queries.write_text(
        ";\n".join(
            f'FROM S//item->a[./title = "{n}"] PUBLISH {name if n % 1_000 == 0 else "q"}{n}' for n in range(MANY)
        )
    )
    done = mmqjp("subscribe", queries, "--state", directory / "state")
    assert done.exit_code == 0, done.stderr
    with served_site(browser, directory / "state", *OPTIONS) as site:
        yield site


EMPTY = ["/", "/feeds", *(["/new", "/live", "/sinks", "/engine", "/sharing", "/sql"] if at_length() else [])]


@pytest.mark.parametrize("path", EMPTY)
def test_pages_without_anything_serve_everybody(visit, empty: Site, path):
    serves_everybody(empty.enter(visit, path))


@pytest.mark.parametrize(("path", "leads"), [("/", "/new"), ("/live", "/new"), ("/live", "/feeds")])
def test_pages_without_anything_say_what_to_do_next(visit, empty: Site, path, leads):
    page = empty.enter(visit, path)
    page.locator(f'.empty a[href="{leads}"]').click()
    expect(page).to_have_url(f"{empty.url}{leads}")


def test_thousands_of_queries_are_shown_some_at_a_time(visit, crowded: Site):
    page = crowded.enter(visit)
    expect(page.get_by_role("rowheader")).to_have_count(100)
    expect(page.get_by_text(f"{MANY:,}").first).to_be_visible()
    serves_everybody(page)
    first = page.get_by_role("rowheader").first.inner_text()
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_role("rowheader")).to_have_count(100)
    assert page.get_by_role("rowheader").first.inner_text() > first
    page.get_by_label("Search by name").fill("q2999")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="q2999", exact=True).click()
    expect(page.get_by_text("It has not matched yet")).to_be_visible()


def test_a_very_long_name_fits(visit, crowded: Site):
    page = crowded.enter(visit, "/?search=a_query_with")
    serves_everybody(page)
    page.get_by_role("rowheader").first.get_by_role("link").click()
    serves_everybody(page)
