"""From `mmqjp serve` to a match in a feed reader, without a terminal: the whole way in a browser, over plain HTTP,
where browsers tell a site less."""

from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import feedparser
import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from feeds.fetch.lists import ListedFeed, write_opml
from tests.browser.conftest import Visit
from tests.browser.site import Site, served_site
from tests.browser.test_pages import serves_everybody
from tests.support.browser import NAMES_OF_LOOPBACK
from tests.support.feed_server import FeedServer, closed_port, rss

PLAIN = ("Cross-Origin-Opener-Policy",)  # it is for TLS and loopback alone


@pytest.mark.soak
def test_from_nothing_to_a_match_in_a_feed_reader(
    visit: Visit, browser: Browser, server: FeedServer, tmp_path: Path
) -> None:
    server.serve("/one.xml", channel("one", "Old news", "Ferry strike called off"))
    server.serve("/two.xml", channel("two", "Other news"))
    server.serve("/page", '<html><head><link rel="alternate" type="application/rss+xml" href="/two.xml"></head></html>')
    port = closed_port()
    place = ("--address", f"127.0.0.1:{port}", "--public-url", f"http://page{NAMES_OF_LOOPBACK}:{port}")
    with served_site(browser, tmp_path / "state", *place, "--allow-private", "--spacing", "0s") as site:
        page = site.enter(visit, allowed=PLAIN)
        see_nothing(page, site.url)
        log_out_and_in(page, site)
        add_feeds(page, server, tmp_path)
        subscribe(page)
        expect(page.get_by_text("It has not matched yet")).to_be_visible()
        feed = page.locator("#feed").locator("..").get_by_role("link").first.get_attribute("href")
        assert feed is not None and feed.startswith(site.url)
        feed = feed.replace(site.url, f"http://127.0.0.1:{port}")
        assert read_in_a_feed_reader(feed) == []

        # A feed changes, and is fetched again: the match appears by itself on the page of live matches, too.
        live = page.context.new_page()
        live.goto(f"{site.url}/live")
        server.serve("/two.xml", channel("two", "Other news", "FERRY STRIKE CALLED OFF"))
        page.get_by_role("link", name="Feeds").click()
        page.get_by_role("row").filter(has_text="two.xml").get_by_role("button", name="Fetch now").click()
        expect(live.locator(".match").first).to_contain_text("FERRY STRIKE CALLED OFF", timeout=30_000)

        page.get_by_role("link", name="Queries").click()
        page.get_by_role("link", name="same_story", exact=True).click()
        expect(page.locator(".match")).to_have_count(1)
        assert read_in_a_feed_reader(feed) == ["Ferry strike called off"]
        page.locator(".match").get_by_role("link", name="Why").click()
        expect(page.get_by_text("FERRY STRIKE CALLED OFF").first).to_be_visible()


def channel(name: str, *titles: str) -> str:
    text = rss(*titles, guid=f"{name}/").replace("https://site.example/", f"https://{name}.example/")
    return text.replace("Wed, 06 May 2026 10:00:00 GMT", format_datetime(datetime.now(UTC), usegmt=True))


def see_nothing(page: Page, url: str) -> None:
    for path in ["/", "/feeds", "/new", "/live", "/sinks", "/engine", "/sharing", "/sql"]:
        page.goto(url + path)
        serves_everybody(page)
    for path, leads in (("/", "/new"), ("/live", "/new"), ("/live", "/feeds")):
        page.goto(url + path)
        page.locator(f'.empty a[href="{leads}"]').click()
        expect(page).to_have_url(f"{url}{leads}")


def log_out_and_in(page: Page, site: Site) -> None:
    assert not page.evaluate("isSecureContext")  # so there is no Sec-Fetch-Site
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(f"{site.url}/login")
    page.get_by_label("Token").fill((site.served.state / "secrets" / "token").read_text().strip())
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{site.url}/")


def add_feeds(page: Page, server: FeedServer, directory: Path) -> None:
    page.get_by_role("link", name="Feeds").first.click()
    opml = directory / "subscriptions.opml"
    opml.write_bytes(write_opml([ListedFeed(server.url("/one.xml"), "One", "news")]))
    page.get_by_label("Add the feeds of a list").set_input_files(opml)
    page.get_by_role("button", name="Upload").click()
    page.get_by_label("Add a feed").fill(server.url("/two.xml"))
    page.get_by_role("button", name="Add", exact=True).click()
    for name in ("one.xml", "two.xml"):
        row = page.get_by_role("row").filter(has_text=name)
        while "well" not in row.inner_text():
            page.wait_for_timeout(200)
            page.reload()


def subscribe(page: Page) -> None:
    page.get_by_role("link", name="New query").click()
    page.get_by_role("link", name="same_story").click()
    page.get_by_role("button", name="Try it").click()
    expect(page.get_by_text("It finds nothing in them")).to_be_visible()
    page.get_by_label("Answer it over the documents that are kept, too").check()
    page.get_by_role("button", name="Subscribe").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("same_story")


def read_in_a_feed_reader(address: str) -> list[str]:
    """The titles of the entries of a feed, as a reader gets them that knows nothing but its address."""
    found = feedparser.parse(httpx.get(address).raise_for_status().content)
    assert not found.bozo
    return [entry.title for entry in found.entries]
