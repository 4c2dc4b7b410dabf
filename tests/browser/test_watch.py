"""The tests of pages notice what is wrong with a page."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.support.browser import DESK, ZOOMED, Watch, overflow, violations

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
