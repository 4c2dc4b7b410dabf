"""Sites for browsers: states that are written for them, and `mmqjp serve` over one, where the browser is logged in."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page

from tests.support.cli import mmqjp
from tests.support.hostile import QUERY, write_hostile_feeds
from tests.support.places import ROOT
from tests.support.served import Served, served

LONG_NAME = "z" + "_query_with_a_name" * 10


@dataclass(frozen=True)
class Site:
    """A site and the storage of a browser that is logged in."""

    served: Served
    storage: Any

    @property
    def url(self) -> str:
        return self.served.url

    def api(self, path: str, **parameters: str | int) -> Any:
        with self.served.client() as client:
            return client.get(f"/api/v1{path}", params=parameters).raise_for_status().json()

    def enter(self, visit: Any, path: str = "/", **options: Any) -> Page:
        """Opens a page in a new context of the browser, which is logged in."""
        context: BrowserContext = visit(self.url, storage_state=self.storage, **options)
        page = context.new_page()
        page.goto(self.url + path)
        return page


def write_story_state(directory: Path) -> tuple[object, ...]:
    """Writes a state in `state`: the example feeds with their queries, and feeds that try to break pages. Returns the
    options with which it goes on."""
    feeds, queries = directory / "feeds", directory / "queries.xscl"
    shutil.copytree(ROOT / "examples" / "feeds", feeds)
    write_hostile_feeds(feeds)
    long = f"FROM S//item->a[./title = 'nothing'] PUBLISH {LONG_NAME}"
    queries.write_text(f"{(ROOT / 'examples' / 'stories.xscl').read_text('utf-8')};\n{QUERY};\n{long}", "utf-8")
    options = ("--source", feeds, "--engine", "duckdb", "--feeds", "--lateness", "INF", "--idle-after", "INF")
    done = mmqjp(
        "stream", *options, "--queries", queries, "--state", directory / "state", "--trigger", "available-now",
        "--output", directory / "lines.jsonl",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    return options


@contextmanager
def served_site(browser: Browser, state: Path, *options: object) -> Iterator[Site]:
    """`mmqjp serve` over a state until the end of the block. It must then end well."""
    with served(state, *options, TZ="UTC") as running:
        with browser.new_context() as context:
            context.new_page().goto(running.link)
            storage = context.storage_state()
        yield Site(running, storage)
        status, said = running.stop()
        assert status == 0, said
