"""Every form works without script, by keyboard too, and says what came of it."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.site import Site
from tests.browser.test_pages import serves_everybody
from tests.support.browser import violations

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
    page.get_by_role("button", name="Try it on what is kept").click()
    expect(page.locator(".match").first).to_be_visible(timeout=60_000)
    expect(text).to_have_value(QUERY)
    page.get_by_label("Answer it over the documents that are kept, too").check()
    page.get_by_role("button", name="Subscribe").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("seagrass")
    expect(page.locator(".match").first).to_be_visible()
    page.get_by_role("link", name="Remove").click()
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("status")).to_have_text("seagrass: removed")
    expect(page.get_by_role("link", name="seagrass", exact=True)).to_have_count(0)


def test_a_sink_is_added_paused_tested_and_removed(page):
    page.get_by_role("link", name="Sinks").click()
    page.get_by_label("Name").fill("alerts")
    page.get_by_label("Address").fill("http://user:word@hooks.invalid/")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("Name")).to_have_value("alerts")
    page.get_by_label("Address").fill("https://hooks.invalid/in")
    page.get_by_label("Queries").fill("same_* other")
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
