"""A real browser for tests: Chromium of the system, pages that report whatever goes wrong, and axe's judgement."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, ViewportSize, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")

NEEDED = "MMQJP_TESTS_NEED_BROWSER"
"""The environment variable with which a test that finds no browser fails."""

NAMES_OF_LOOPBACK = ".plain.test"
"""Names with this end lead the browser to 127.0.0.1. It does not trust them without TLS, as it trusts loopback."""

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

DESK: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
ZOOMED: ViewportSize = {"width": 320, "height": 225}
"""What 1,280 x 900 are at 400%, in the pixels of CSS."""


def chromium() -> str:
    """Returns the path of Chromium. Without one, the test is skipped, or fails where the environment has NEEDED."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    missing = f"no browser: none of {', '.join(NAMES)} is on PATH; .ci/run installs Chromium"
    if os.environ.get(NEEDED):
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


@contextmanager
def running_browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        names = f"--host-resolver-rules=MAP *{NAMES_OF_LOOPBACK} 127.0.0.1"
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage", names]
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watch:
    """What went wrong in a page: console messages (also those about its policy), errors, requests elsewhere. Messages
    are let pass that have one of the `allowed` texts in them."""

    origin: str
    allowed: tuple[str, ...] = ()
    wrongs: list[str] = field(default_factory=list)

    def follow(self, page: Page) -> None:
        page.on("console", lambda message: self._hear(message.text))
        page.on("pageerror", lambda error: self.wrongs.append(f"error: {error}"))
        page.on("request", self._judge)

    def _hear(self, text: str) -> None:
        if not any(allowed in text for allowed in self.allowed):
            self.wrongs.append(f"console: {text}")

    def _judge(self, request: Request) -> None:
        if origin_of(request.url) != self.origin:
            self.wrongs.append(f"request elsewhere: {request.url}")


def origin_of(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"


@cache
def _axe() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")


def violations(page: Page, *rules: str) -> list[str]:
    """What axe finds wrong with a page, by all of its rules or some: one text for each place."""
    page.evaluate(_axe())  # the policy of a page does not hold for what the debugger evaluates
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    found: dict[str, Any] = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{violation['id']}: {violation['help']}: {node['html']}: {node['failureSummary']}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]


def overflow(page: Page) -> int:
    """By how many pixels a page is wider than the window: then one must scroll in two directions to read."""
    width: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return width
