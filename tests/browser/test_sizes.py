"""Sites with nothing in them, and with thousands of queries."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.site import OPTIONS, Site, served_site
from tests.browser.test_pages import serves_everybody
from tests.generate.seeds import at_length
from tests.support.browser import NAMES_OF_LOOPBACK
from tests.support.cli import mmqjp
from tests.support.feed_server import closed_port

MANY = 10_000 if at_length() else 240
PLAIN = ("Cross-Origin-Opener-Policy",)  # it is for TLS and loopback alone


@pytest.fixture(scope="module")
def empty(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with nothing in it, over plain HTTP, where browsers tell less."""
    port = closed_port()
    place = ("--address", f"127.0.0.1:{port}", "--public-url", f"http://page{NAMES_OF_LOOPBACK}:{port}")
    with served_site(browser, tmp_path_factory.mktemp("empty") / "state", *OPTIONS, *place) as site:
        yield site


@pytest.fixture(scope="module")
def crowded(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
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


def test_pages_without_anything_serve_everybody_and_say_what_to_do_next(visit, empty: Site):
    page = empty.enter(visit, allowed=PLAIN)
    for path in ["/", "/feeds", "/new", "/live", "/sinks", "/engine", "/sharing", "/sql"] if at_length() else ["/"]:
        page.goto(empty.url + path)
        serves_everybody(page)
    for path, leads in (("/", "/new"), ("/live", "/new"), ("/live", "/feeds")):
        page.goto(empty.url + path)
        page.locator(f'.empty a[href="{leads}"]').click()
        expect(page).to_have_url(f"{empty.url}{leads}")


def test_forms_are_taken_over_plain_http(visit, empty: Site):
    page = empty.enter(visit, allowed=PLAIN)
    assert not page.evaluate("isSecureContext")  # so there is no Sec-Fetch-Site
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(f"{empty.url}/login")
    page.get_by_label("Token").fill((empty.served.state / "secrets" / "token").read_text().strip())
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{empty.url}/")


def test_thousands_of_queries_are_shown_some_at_a_time(visit, crowded: Site):
    page = crowded.enter(visit)
    expect(page.get_by_role("rowheader")).to_have_count(100)
    expect(page.get_by_text(f"{MANY:,}").first).to_be_visible()
    first = page.get_by_role("rowheader").first.inner_text()
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_role("rowheader")).to_have_count(100)
    assert page.get_by_role("rowheader").first.inner_text() > first
    page.get_by_label("Search by name").fill(f"q{MANY - 1}")
    page.keyboard.press("Enter")
    page.get_by_role("link", name=f"q{MANY - 1}", exact=True).click()
    expect(page.get_by_text("It has not matched yet")).to_be_visible()
    page.goto(f"{crowded.url}/?search=a_query_with")  # a very long name
    serves_everybody(page)
    page.get_by_role("rowheader").first.get_by_role("link").click()
    serves_everybody(page)
