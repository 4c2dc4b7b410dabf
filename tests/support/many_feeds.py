"""Many feeds on a few hosts, for a fetch that is killed repeatedly, and a check that it was polite to the hosts."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from feeds.fetch.http import SECOND
from feeds.fetch.lists import ListedFeed, write_opml
from feeds.fetch.state import FetchStore
from tests.support.feed_server import FeedServer, rss

QUERY = """
FROM S//item->a[./title->t1] JOIN { t1 = t2, 2 d } S//item->b[./title->t2] PUBLISH same
"""


def path_of(number: int) -> str:
    return f"/{number}/feed.xml"


def titles(number: int, version: int) -> list[str]:
    """The entries of a feed: some are its own, some its neighbour has too. Every fifth feed changes."""
    return [f"own-{number}", f"shared-{number // 4}", *(["late"] if version and number % 5 == 0 else [])]


@dataclass
class ManyFeeds:
    """So many feeds on so many hosts of a server, listed in an OPML file with folders."""

    server: FeedServer
    opml: Path
    feeds: int
    hosts: int

    def __post_init__(self) -> None:
        self.server.serve("/robots.txt", "User-agent: *\nDisallow: /private")
        self.publish(0)
        urls = [self.server.url(path_of(number), f"h{number % self.hosts}.test") for number in range(self.feeds)]
        listed = [ListedFeed(url, f"Feed {n}", f"all/{n % 7}") for n, url in enumerate(urls)]
        self.opml.write_bytes(write_opml(listed))

    def publish(self, version: int) -> None:
        """Makes the server serve a version of each feed."""
        for number in range(self.feeds):
            entries = titles(number, version)
            self.server.validated(path_of(number), rss(*entries, guid=f"{number}/"), f'"{number}-{len(entries)}"')

    def paths(self) -> set[str]:
        return {path_of(number) for number in range(self.feeds)}


def committed(state: Path, start: int) -> set[str]:
    """The paths of the feeds that were fetched since a time, according to the fetcher's state."""
    if not state.exists():
        return set()
    with FetchStore(state) as store:
        return {urlsplit(feed.url).path for feed in store.feeds() if feed.checked_at >= start}


def read_trail(path: Path) -> list[tuple[int, str]]:
    """When each request began, by the test's clock, and to which host."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(moment), host) for moment, host in map(str.split, lines)]


@dataclass
class Run:
    """One process: what had been fetched before it began and after it ended, and whether it was killed."""

    agent: str
    before: set[str]
    after: set[str]
    killed: bool


def assert_polite(many: ManyFeeds, trail: Path, runs: list[Run]) -> None:
    """Asserts that each process requested, once, what had not been fetched, and that requests are spaced across
    processes too."""
    for run in runs:
        # Who was killed may have requests on the way that the server never read, but it lacks no answer.
        log = [request for request in many.server.log if request.headers["User-Agent"] == run.agent]
        asked = Counter(request.path for request in log if request.path != "/robots.txt")
        assert set(asked.values()) <= {1}
        assert not asked.keys() & run.before
        assert asked.keys() >= run.after - run.before
        assert run.killed or asked.keys() == run.after - run.before
    by_host: dict[str, list[int]] = {}
    for moment, host in read_trail(trail):
        by_host.setdefault(host, []).append(moment)
    gaps = [later - earlier for moments in by_host.values() for earlier, later in pairwise(moments)]
    assert min(gaps) >= SECOND
    assert len(by_host) == many.hosts
