"""What people do: forms, which work without script, what script adds, and the whole way to a match in a feed reader."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import feedparser
import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from feeds.fetch.lists import ListedFeed, write_opml
from tests.browser.conftest import Site, Visit, served_site
from tests.browser.test_pages import serves_everybody
from tests.support.browser import NAMES_OF_LOOPBACK, SCHEMES, violations
from tests.support.cli import write_documents
from tests.support.feed_server import FeedServer, closed_port, rss

QUERY = "FROM S//item->a[./title->t][contains(./title, 'Seagrass')] PUBLISH seagrass"


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.soak), False], ids=["script", "no script"])
def page(request: pytest.FixtureRequest, visit: Visit, site: Site) -> Page:
    return site.enter(visit, "/", java_script_enabled=request.param, allowed=("400 (Bad Request)",))


def test_a_query_is_written_checked_tried_subscribed_and_removed(page):
    page.get_by_role("link", name="New query").first.click()
    text = page.get_by_label("Text in XSCL")
    text.fill("FROM S//item->a[./title->t] FOLLOWED BY {t = tt, 1 d} S//item->b[./title->u] PUBLISH wrong")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("variable tt is not bound")).to_be_visible()
    text.fill(QUERY)
    page.get_by_role("button", name="Try it on stored documents").click()
    expect(page.locator(".match").first).to_be_visible(timeout=60_000)
    expect(page.locator("textarea")).to_have_value(QUERY)
    page.get_by_label("Also answer it over stored documents").check()
    page.get_by_role("button", name="Subscribe").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("seagrass")
    expect(page.locator(".match").first).to_be_visible()
    page.get_by_role("link", name="Remove").click()
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("status")).to_have_text("seagrass: removed")
    expect(page.get_by_role("link", name="seagrass", exact=True)).to_have_count(0)


def test_an_item_is_searched_read_and_asked_about(page):
    page.get_by_role("link", name="Items").click()
    page.get_by_label("Words").fill("OYSTERS, built")
    page.get_by_label("Feed").select_option("https://idabrandt.example/feed.json")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("link", name="What the oysters built", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("What the oysters built")
    expect(page.get_by_text("Ida Brandt", exact=True).first).to_be_visible()
    expect(page.get_by_text("This is the only stored one.")).to_be_visible()
    page.get_by_role("combobox", name="Query").fill("incident")
    page.get_by_role("button", name="Why not?").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Why is there no match?")
    asked = page.get_by_label("A document, by its id, address or title")
    expect(asked).to_have_value(re.compile("what-the-oysters-built"))
    page.go_back()
    page.get_by_role("link", name="What Ida Brandt writes").click()
    expect(page.get_by_label("Author")).to_have_value("Ida Brandt")
    page.get_by_role("link", name="Items").click()
    page.get_by_label("Words").fill("***")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("has no word")).to_be_visible()
    assert page.get_by_label("Words").get_attribute("aria-invalid") == "true"


def test_a_sink_is_added_paused_tested_and_removed(page):
    page.get_by_role("link", name="Sinks").click()
    page.get_by_role("textbox", name="Name", exact=True).fill("alerts")
    page.get_by_role("textbox", name="Address", exact=True).fill("http://user:word@hooks.invalid/")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_role("textbox", name="Name", exact=True)).to_have_value("alerts")
    page.get_by_role("textbox", name="Address", exact=True).fill("https://hooks.invalid/in")
    page.get_by_role("textbox", name="Queries", exact=True).fill("same_* other")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("It was added")
    expect(page.get_by_role("heading", level=1)).to_have_text("alerts")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_contain_text("It is paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status")).to_contain_text("It tries again now")
    page.get_by_role("button", name="Send a test").click()  # to a host that nobody has
    expect(page.get_by_role("alert")).to_contain_text("The test failed")
    page.get_by_label("From").fill("tomorrow")
    page.get_by_role("button", name="Deliver again").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_role("button", name="Remove alerts").click()
    expect(page.get_by_role("status")).to_have_text("The sink was removed.")
    expect(page.get_by_role("rowheader")).to_have_count(0)


def test_sinks_and_errors_serve_everybody(visit, site: Site):
    table = {"kind": "webhook", "url": f"https://hooks.invalid/{'long' * 60}", "queries": ["same_*", "x" * 100]}
    with site.served.client() as client:
        client.post("/api/v1/sinks", json={"name": "chat", "table": table}).raise_for_status()
        for path in ("/sinks", "/sinks/chat"):
            serves_everybody(site.enter(visit, path))
        client.delete("/api/v1/sinks/chat").raise_for_status()
    page = site.enter(visit, "/new", allowed=("400",))
    page.get_by_label("Text in XSCL").fill("FROM")
    page.get_by_role("button", name="Subscribe").click()
    expect(page.get_by_role("alert").or_(page.locator(".problems")).first).to_be_visible()
    assert violations(page) == []


def test_every_flow_works_by_keyboard(visit, site: Site):
    page = site.enter(visit, "/build")

    def reach(role: Any, name: str, *, exact: bool = False, key: str = "Enter") -> None:
        """Presses Tab until the focus is there, then types or presses a key."""
        wanted = page.get_by_role(role, name=name, exact=exact).first
        expect(wanted).to_be_visible()
        for _ in range(150):
            if wanted.evaluate("one => one === document.activeElement"):
                break
            page.keyboard.press("Tab")
        expect(wanted).to_be_focused()
        if key == "Enter":
            page.keyboard.press(key)
        else:
            page.keyboard.press("ControlOrMeta+a")
            page.keyboard.type(key)

    reach("link", "My words")
    reach("textbox", "Words", key="seagrass")
    reach("textbox", "Name of the query", key="typed")
    reach("button", "Try it on stored documents")
    expect(page.locator(".match").first).to_be_visible(timeout=60_000)
    reach("button", "Subscribe")
    expect(page.get_by_role("heading", level=1)).to_have_text("typed")
    reach("button", "Pause")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    reach("button", "Resume")
    reach("link", "Remove")
    reach("button", "Remove")
    expect(page.get_by_role("status")).to_have_text("typed: removed")
    reach("link", "Sinks")
    reach("link", "File of lines")
    reach("textbox", "Name", exact=True, key="typed")
    reach("textbox", "File", exact=True, key="typed.jsonl")
    reach("button", "Add", exact=True)
    reach("button", "Send a test")
    expect(page.get_by_role("status")).to_contain_text("A file was written there")
    reach("button", "Pause")
    reach("button", "Remove typed")
    expect(page.get_by_role("status")).to_have_text("The sink was removed.")


FOCUSED = "[...document.querySelectorAll('*')].indexOf(document.activeElement)"


@pytest.fixture(scope="module")
def living(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Path]]:
    """A site to which documents come, and the directory for them."""
    directory = tmp_path_factory.mktemp("living")
    (directory / "drops").mkdir()
    (directory / "queries.xscl").write_text("FROM S//book->b[./author] PUBLISH books")
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


def test_the_card_of_a_story_changes_in_place(visit, browser: Browser, tmp_path: Path):
    (tmp_path / "drops").mkdir()
    (tmp_path / "told.xscl").write_text(
        "FROM S//item->a[./title->t] JOIN {near(t, u, 0.5), 1 d} S//item->b[./title->u] "
        "PUBLISH told STORIES LASTING 7 d TELL opened, grew"
    )
    options = (
        "--source",
        tmp_path / "drops",
        "--queries",
        tmp_path / "told.xscl",
        "--lateness",
        "0s",
        "--settle",
        "0s",
    )

    def tell(hour: int, title: str) -> None:
        xml = f"<item><title>{title}</title></item>"
        found = [{"id": f"d{hour}", "time": f"2026-01-01T{hour:02}:00:00Z", "xml": xml}]
        write_documents(tmp_path / "drops" / f"{hour}.tmp", found).rename(tmp_path / "drops" / f"{hour}.jsonl")

    with served_site(browser, tmp_path / "state", *options) as site:
        page = site.enter(visit, "/live")
        for hour, title in enumerate(("tram depot burns", "the tram depot burns", "dog show", "the dog show", "rain")):
            tell(hour, title)
        cards = page.locator("[data-story]")
        expect(cards).to_have_count(2, timeout=60_000)
        card = cards.filter(has_text="tram depot burns")
        expect(card.locator(".timeline")).to_be_hidden()
        card.locator("summary").click()
        tell(5, "tram depot burns still")
        tell(6, "sun")
        expect(card.locator("summary")).to_contain_text("and 2 more, the latest", timeout=60_000)
        expect(card.locator(".timeline .title")).to_have_text(["the tram depot burns", "tram depot burns still"])
        expect(cards).to_have_count(2)
        assert violations(page) == []
        page.goto(f"{site.url}/q/told")
        expect(cards).to_have_count(2)
        cards.filter(has_text="depot").get_by_role("link", name="Why").click()
        expect(page.get_by_role("heading", name="How it came together")).to_be_visible()


MOVED = """() => {
  const seen = new PerformanceObserver(() => 0);
  seen.observe({ type: "layout-shift", buffered: true });
  const nodes = seen.takeRecords().flatMap((one) => one.sources).map(({ node }) => node?.parentElement);
  return nodes.filter((node) => node?.closest(".figures, .matches, table")).length;
}"""
"""How many places around times have moved since the page began."""


@pytest.mark.parametrize(
    ("script", "zone", "minute", "second"),
    [
        (True, "America/St_Johns", "2025-12-31 20:30", "2025-12-31 20:30:00"),
        (False, "UTC", "2026-01-01 00:00", "2026-01-01 00:00:00"),
    ],
)
def test_times_are_in_the_zone_of_the_visitor(visit, living, script, zone, minute, second):
    site, drops = living
    page = site.enter(visit, "/live", timezone_id="America/St_Johns", java_script_enabled=script)
    drop(drops, zone.rpartition("/")[2])
    while not page.locator(".match", has_text=zone.rpartition("/")[2]).count():  # it comes by itself, with script
        page.wait_for_timeout(100)
        if not script:
            page.reload()
    for path in ("/live", "/q/books", "/"):
        time = page.locator("main time").first
        expect(time).to_have_text(minute)
        assert (time.get_attribute("datetime"), time.get_attribute("title")) == (
            "2026-01-01T00:00:00Z", "2026-01-01 00:00:00 UTC"
        )  # fmt: skip
        page.goto(site.url + path)
        expect(page.locator("footer .zone")).to_have_text(zone)
        assert not script or page.evaluate(MOVED) == 0
    page.goto(f"{site.url}/sql?sql=SELECT+t0+FROM+outputs")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("cell").first).to_have_text(second)
    page.goto(f"{site.url}/engine")
    label = page.locator("figcaption time").first.inner_text()
    assert page.locator("svg title").first.text_content().startswith(f"{label}: ")
    assert label.endswith(":30") is script  # of whole hours in UTC


def test_a_query_is_checked_as_one_types(visit, living):
    page = living[0].enter(visit, "/new")
    text = page.get_by_label("Text in XSCL")
    text.press_sequentially("FROM S//a->x[./t->t] JOIN {t = u, 1 d} S//b[./t->v] PUBLISH x")
    expect(page.get_by_text("variable u is not bound")).to_be_visible()
    expect(text).to_have_attribute("aria-invalid", "true")
    text.fill("FROM S//a->x[./t->t] JOIN {t = v, 1 d} S//b[./t->v] PUBLISH x")
    expect(page.get_by_text("No mistakes")).to_be_visible()
    expect(text).not_to_have_attribute("aria-invalid", "true")


def choose(page: Page, name: str) -> None:
    """Goes down the list of completions to one, and takes it. For a moment after it appears, the list ignores keys."""
    chosen = page.get_by_role("option", selected=True)
    expect(chosen).to_be_visible()
    for _ in range(1000):
        page.keyboard.press("ArrowDown")
        if chosen.inner_text() == name:
            break
    page.keyboard.press("Enter")


def test_the_editor_completes_shows_mistakes_and_is_left_by_keyboard(visit, site: Site):
    page = site.enter(visit, "/new")
    field, text = page.locator("textarea"), page.get_by_label("Text in XSCL")
    expect(text).to_have_role("textbox")
    offered = page.get_by_role("option")
    text.press_sequentially("-- What is told\nf")
    page.keyboard.press("Control+Space")
    choose(page, "FROM")
    text.press_sequentially(" S//item->a[./t")
    expect(offered.first).to_have_text("timestamp")
    page.keyboard.press("Escape")
    expect(offered).to_have_count(0)
    page.keyboard.press("Control+Space")
    choose(page, "title")
    expect(field).to_have_value("-- What is told\nFROM S//item->a[./title")
    text.press_sequentially("->t][contains(., \"fr \")][contain(., 'x')] PUBLISH told")
    expect(offered).to_have_count(0)
    expect(page.locator(".cm-lintRange-error")).to_have_text("contain")
    expect(page.locator("#problems")).to_contain_text("did you mean contains?")
    shown = {
        name: page.locator(f".tok-{name}").all_inner_texts() for name in ("comment", "keyword", "string", "function")
    }
    assert [*shown.values()] == [["-- What is told"], ["FROM", "PUBLISH"], ['"fr "', "'x'"], ["contains"]]
    page.keyboard.press("Control+z")
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(page.locator(".cm-content")).not_to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(text).to_be_focused()
    text.fill("-- What is told\nFROM  S//item->a[./title->t] PUBLISH told")
    expect(page.get_by_text("No mistakes")).to_be_visible()
    expect(page.locator(".cm-lintRange-error")).to_have_count(0)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert violations(page) == []
    page.get_by_role("button", name="Subscribe").click()
    expect(page.locator("pre").first).to_have_text("-- What is told\nFROM  S//item->a[./title->t] PUBLISH told")
    page.get_by_role("link", name="Edit").click()
    text.press("Control+End")
    text.press_sequentially(" -- twice")
    expect(page.get_by_text("No mistakes")).to_be_visible()
    page.get_by_role("button", name="Subscribe").click()
    expect(page.locator("pre").first).to_contain_text("-- twice")
    page.get_by_role("link", name="Earlier texts").click()
    page.get_by_role("button", name="Restore this text").first.click()
    expect(page.get_by_role("status")).to_have_text("told: an earlier text is restored")
    expect(page.locator("pre").first).not_to_contain_text("-- twice")
    assert site.served.client().delete("/api/v1/queries/told").status_code == 200


def test_the_documentation_is_searched_and_read(visit, site: Site):
    page = site.enter(visit, "/docs", java_script_enabled=False)
    page.get_by_label("Search the documentation").fill("belated absence")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("for “belated absence”")
    page.get_by_role("link", name="An absence is reported once and never taken back").click()
    expect(page.get_by_role("heading", name="An absence is reported once and never taken back")).to_be_in_viewport()
    page.get_by_role("navigation", name="On this page").get_by_text("On this page").click()
    page.get_by_role("link", name="Equal times").first.click()
    expect(page).to_have_url(re.compile("/docs/language#equal-times$"))
    expect(page.get_by_role("heading", name="Equal times")).to_be_in_viewport()


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
    reached, unseen = set[int](), list[str]()
    while (now := page.evaluate(FOCUSED)) not in reached:
        reached.add(now)
        page.keyboard.press("Tab")
        outline = "getComputedStyle(document.activeElement).outlineStyle"  # which shows where the focus is
        if not page.evaluate(f"document.activeElement === document.body || {outline} !== 'none'"):
            unseen.append(page.evaluate("document.activeElement.outerHTML"))
    inside = page.locator("main").locator("a[href], button, input:not([type=hidden]), textarea, summary")
    assert len(reached) >= inside.count()
    assert unseen == []


def channel(name: str, *titles: str) -> str:
    text = rss(*titles, guid=f"{name}/").replace("https://site.example/", f"https://{name}.example/")
    return text.replace("Wed, 06 May 2026 10:00:00 GMT", format_datetime(datetime.now(UTC), usegmt=True))


def read_in_a_feed_reader(address: str) -> list[str]:
    """The titles of the entries of a feed, as a reader gets them that knows nothing but its address."""
    found = feedparser.parse(httpx.get(address).raise_for_status().content)
    assert not found.bozo
    return [entry.title for entry in found.entries]


def test_scripts_work_below_a_path(visit: Visit, browser: Browser, tmp_path: Path) -> None:
    port = closed_port()
    place = ("--address", f"127.0.0.1:{port}", "--public-url", f"http://127.0.0.1:{port}/stories")
    with served_site(browser, tmp_path / "state", *place) as site:
        page = site.enter(visit, "/new")
        page.get_by_label("Text in XSCL").fill(QUERY)
        expect(page.locator("#checked")).to_contain_text("No mistakes")
        page.locator("h1").click()
        page.keyboard.press("g")
        page.keyboard.press("l")
        expect(page).to_have_url(f"{site.url}/live")
        expect(page.get_by_text("connected", exact=True)).to_be_visible()


@pytest.mark.soak
def test_from_nothing_to_a_match_in_a_feed_reader(
    visit: Visit, browser: Browser, server: FeedServer, tmp_path: Path
) -> None:
    """Over plain HTTP, where browsers tell a site less."""
    server.serve("/one.xml", channel("one", "Old news", "Ferry strike called off"))
    server.serve("/two.xml", channel("two", "Other news"))
    server.serve("/page", '<html><head><link rel="alternate" type="application/rss+xml" href="/two.xml"></head></html>')
    port = closed_port()
    place = ("--address", f"127.0.0.1:{port}", "--public-url", f"http://page{NAMES_OF_LOOPBACK}:{port}")
    with served_site(browser, tmp_path / "state", *place, "--allow-private", "--spacing", "0s") as site:
        page = site.enter(visit, allowed=("Cross-Origin-Opener-Policy",))  # it is for TLS and loopback alone
        for path in ["/", "/feeds", "/new", "/live", "/sinks", "/engine", "/sharing", "/sql"]:
            page.goto(site.url + path)
            serves_everybody(page)
        for path, leads in (("/", "/new"), ("/live", "/new"), ("/live", "/feeds")):
            page.goto(site.url + path)
            page.locator(f'.empty a[href="{leads}"]').click()
            expect(page).to_have_url(f"{site.url}{leads}")

        assert not page.evaluate("isSecureContext")  # so there is no Sec-Fetch-Site
        page.get_by_role("button", name="Log out").click()
        expect(page).to_have_url(f"{site.url}/login")
        page.get_by_label("Token").fill((site.served.state / "secrets" / "token").read_text().strip())
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{site.url}/")

        page.get_by_role("link", name="Feeds").first.click()
        opml = tmp_path / "subscriptions.opml"
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

        page.get_by_role("link", name="New query").click()
        page.get_by_role("link", name="same_story").click()
        page.get_by_role("button", name="Try it").click()
        expect(page.get_by_text("It finds nothing in them")).to_be_visible()
        page.get_by_label("Also answer it over stored documents").check()
        page.get_by_role("button", name="Subscribe").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("same_story")
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
