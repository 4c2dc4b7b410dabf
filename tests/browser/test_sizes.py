"""A site with thousands of queries."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.site import OPTIONS, Site, served_site
from tests.browser.test_pages import serves_everybody
from tests.support.cli import mmqjp

MANY = 10_000


@pytest.fixture(scope="module")
def crowded(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("crowded")
    queries = directory / "queries.xscl"
    queries.write_text(";\n".join(f'FROM S//item->a[./title = "{n}"] PUBLISH q{n}' for n in range(MANY)))
    done = mmqjp("subscribe", queries, "--state", directory / "state")
    assert done.exit_code == 0, done.stderr
    with served_site(browser, directory / "state", *OPTIONS) as site:
        yield site


@pytest.mark.soak
def test_thousands_of_queries_are_shown_some_at_a_time(visit, crowded: Site):
    page = crowded.enter(visit)
    expect(page.get_by_role("rowheader")).to_have_count(100)
    expect(page.get_by_text(f"{MANY:,}").first).to_be_visible()
    serves_everybody(page)
    first = page.get_by_role("rowheader").first.inner_text()
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_role("rowheader")).to_have_count(100)
    assert page.get_by_role("rowheader").first.inner_text() > first
    page.get_by_label("Search by name").fill(f"q{MANY - 1}")
    page.keyboard.press("Enter")
    page.get_by_role("link", name=f"q{MANY - 1}", exact=True).click()
    expect(page.get_by_text("It has not matched yet")).to_be_visible()
