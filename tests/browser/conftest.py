"""One browser for all tests of pages. A page that says anything on its console or asks elsewhere fails its test."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.support.browser import DESK, Watch, origin_of, running_browser
from tests.support.cli import mmqjp
from tests.support.hostile import QUERY, write_hostile_feeds
from tests.support.places import ROOT
from tests.support.served import Served, served

LONG_NAME = "z" + "_query_with_a_name" * 10

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


@dataclass(frozen=True)
class Site:
    """A site and the storage of a browser that is logged in."""

    served: Served
    storage: Any

    @property
    def url(self) -> str:
        return self.served.url

    def enter(self, visit: Visit, path: str = "/", **options: Any) -> Page:
        """Opens a page in a new context of the browser, which is logged in."""
        page = visit(self.url, storage_state=self.storage, **options).new_page()
        page.goto(self.url + path)
        return page


@contextmanager
def served_site(browser: Browser, state: Path, *options: object) -> Iterator[Site]:
    """`mmqjp serve` over a state until the end of the block. It must then end well."""
    with served(state, *options, TZ="Asia/Tokyo") as running:  # which no page shows
        with browser.new_context() as context:
            context.new_page().goto(running.link)
            storage = context.storage_state()
        yield Site(running, storage)
        status, said = running.stop()
        assert status == 0, said


@pytest.fixture(scope="package")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with the example feeds and those that try to break pages. Tests leave it as it was."""
    directory = tmp_path_factory.mktemp("site")
    state, feeds, queries = directory / "state", directory / "feeds", directory / "queries.xscl"
    shutil.copytree(ROOT / "examples" / "feeds", feeds)
    write_hostile_feeds(feeds)
    long = f"FROM S//item->a[./title = 'nothing'] PUBLISH {LONG_NAME}"
    queries.write_text(f"{(ROOT / 'examples' / 'stories.xscl').read_text('utf-8')};\n{QUERY};\n{long}", "utf-8")
    options = ("--source", feeds, "--engine", "duckdb", "--feeds", "--lateness", "INF", "--idle-after", "INF")
    done = mmqjp("stream", *options, "--queries", queries, "--state", state, "--trigger", "available-now")
    assert done.exit_code == 0, done.stderr
    with served_site(browser, state, *options) as site:
        yield site
