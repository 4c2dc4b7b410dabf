"""One browser for all tests of pages. A page that says anything on its console or asks elsewhere fails its test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext

from tests.browser.site import Site, served_site, write_story_state
from tests.support.browser import DESK, Watch, origin_of, running_browser

Visit = Callable[..., BrowserContext]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sends all tests of pages to the same worker, whose browser serves them all."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
            item.add_marker(pytest.mark.xdist_group("browser"))


# Of the package and not of the session: while it runs, asyncio.run() refuses to work in this thread.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Makes visitors of a site: `visit(address, **options of a browser context)`. With `allowed`, what the console says
    may have one of these texts in it."""
    watches: list[Watch] = []
    with ExitStack() as stack:

        def new(address: str, *, allowed: tuple[str, ...] = (), **options: Any) -> BrowserContext:
            context = stack.enter_context(browser.new_context(**({"viewport": DESK} | options)))
            context.set_default_timeout(30_000)
            watch = Watch(origin_of(address), allowed)
            watches.append(watch)
            context.on("page", watch.follow)
            return context

        yield new
    assert [wrong for watch in watches for wrong in watch.wrongs] == []


@pytest.fixture(scope="package")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with the example feeds and those that try to break pages. Tests leave it as it was."""
    directory = tmp_path_factory.mktemp("site")
    options = write_story_state(directory)
    with served_site(browser, directory / "state", *options) as site:
        yield site
