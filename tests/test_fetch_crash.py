"""400 feeds fetched politely and killed again and again: nothing is lost, nothing comes twice, no host is pressed."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest

from feeds import read_documents
from feeds.fetch.clock import HOUR, SECOND
from feeds.fetch.opml import Listed, write_opml
from feeds.fetch.state import STATE_FILE, FetchStore
from feeds.layout import read_stem
from tests.cli_support import mmqjp
from tests.feed_server import START, FeedServer, rss, running_server

FEEDS, HOSTS = 400, 40
ROOT = Path(__file__).parent.parent
QUERY = """
FROM S//item->a[./title->t1] JOIN { t1 = t2, 2 d } S//item->b[./title->t2] PUBLISH same
"""


def path_of(number: int) -> str:
    return f"/{number}/feed.xml"


def titles(number: int, version: int) -> list[str]:
    """The entries of a feed: some are its own, some are its neighbour's too; every fifth feed changes."""
    return [f"own-{number}", f"shared-{number // 4}", *(["late"] if version and number % 5 == 0 else [])]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FeedServer]:
    """The feeds on their hosts, listed in tmp_path / "feeds.opml", in folders."""
    with running_server() as server:
        server.serve("/robots.txt", "User-agent: *\nDisallow: /private")
        publish(server, 0)
        urls = [server.url(path_of(number), f"h{number % HOSTS}.test") for number in range(FEEDS)]
        listed = [Listed(url, f"Feed {n}", f"all/{n % 7}") for n, url in enumerate(urls)]
        (tmp_path / "feeds.opml").write_bytes(write_opml(listed))
        yield server


def publish(server: FeedServer, version: int) -> None:
    for number in range(FEEDS):
        entries = titles(number, version)
        server.validated(path_of(number), rss(*entries, guid=f"{number}/"), f'"{number}-{len(entries)}"')


def launch(directory: Path, layout: str, agent: str, start: int, point: str, calls: int) -> int:
    opml = directory.parent / "feeds.opml"
    command = [sys.executable, "-m", "tests.fetch_process", directory, opml, layout, agent, start, point, calls]
    return subprocess.run(list(map(str, command)), cwd=ROOT, check=False).returncode


def committed(directory: Path, start: int) -> set[str]:
    """The paths of the feeds that have been fetched since a time."""
    if not (directory / STATE_FILE).exists():
        return set()
    with FetchStore(directory / STATE_FILE) as store:
        return {urlsplit(feed.url).path for feed in store.feeds() if feed.checked_at >= start}


def trail(directory: Path) -> list[tuple[int, str]]:
    path = directory.with_suffix(".trail")
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(moment), host) for moment, host in map(str.split, lines)]


@dataclass
class Run:
    """One process: what had been fetched before it began and after it ended, and whether it was killed."""

    agent: str
    before: set[str]
    after: set[str]
    killed: bool


def fetch_killed(directory: Path, layout: str, start: int, kills: list[tuple[str, int]]) -> list[Run]:
    """Fetches what is due, killed and started again."""
    runs = []
    for number, (point, calls) in enumerate([*kills, ("never", 0)]):
        agent = f"{directory.name}-{start}-{number}"
        before = committed(directory, start)
        # The clock goes on where the killed process left it.
        clock = max([start, *(moment for moment, _ in trail(directory))])
        status = launch(directory, layout, agent, clock, point, calls)
        assert status == (0 if point == "never" else -signal.SIGKILL), (point, calls)
        runs.append(Run(agent, before, committed(directory, start), point != "never"))
    return runs


def assert_polite(server: FeedServer, directory: Path, runs: list[Run]) -> None:
    """Each process asked for what had not been fetched, once; what is spaced is so across processes too."""
    for run in runs:
        # Who was killed may have requests on the way that the server never read, but it lacks no answer.
        log = [request for request in server.log if request.headers["User-Agent"] == run.agent]
        asked = Counter(request.path for request in log if request.path != "/robots.txt")
        assert set(asked.values()) <= {1}
        assert not asked.keys() & run.before
        assert asked.keys() >= run.after - run.before
        assert run.killed or asked.keys() == run.after - run.before
    by_host: dict[str, list[int]] = {}
    for moment, host in trail(directory):
        by_host.setdefault(host, []).append(moment)
    gaps = [later - earlier for moments in by_host.values() for earlier, later in pairwise(moments)]
    assert min(gaps) >= SECOND
    assert len(by_host) == HOSTS


def versions(directory: Path) -> list[tuple[str, list[str]]]:
    """Each feed's hashes in the order of their fetches."""
    return [
        (source.name, [stem[1] for path in sorted(source.glob("*.xml")) if (stem := read_stem(path.stem))])
        for source in sorted(directory.iterdir())
        if source.is_dir()
    ]


def documents(directory: Path) -> list[tuple[str, int, bytes | str]]:
    return sorted((d.id, d.t0, d.xml) for d in read_documents([directory], feeds="item"))  # type: ignore[union-attr]


def output(directory: Path) -> str:
    queries = directory.parent / "q.xscl"
    queries.write_text(QUERY)
    result = mmqjp("run", "--engine", "duckdb", "--queries", queries, "--feeds", "--documents", directory)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("layout", ["drop", "warc"])
def test_400_feeds_killed_and_restarted(layout, server, tmp_path):
    keep = "keep" if layout == "drop" else "keep-warc"
    named = ["before exchange", "after exchange", f"before {keep}", f"after {keep}", "before commit", "after commit"]
    named += ["after save-host", *(["after rename", "before rename"] if layout == "drop" else [])]
    random = Random(6)
    disturbed, calm = tmp_path / "disturbed", tmp_path / "calm"
    runs: dict[Path, list[Run]] = {disturbed: [], calm: []}
    for version, start in enumerate((START, START + 2 * HOUR)):
        publish(server, version)
        kills = [("after exchange", random.randrange(100, 200)), *((point, random.randrange(20)) for point in named)]
        runs[disturbed] += fetch_killed(disturbed, layout, start, kills)
        runs[calm] += fetch_killed(calm, layout, start, [])
    for directory, processes in runs.items():
        assert_polite(server, directory, processes)

    # A new version of every feed, then one of every fifth; of each its entries; and nothing else.
    assert versions(disturbed) == versions(calm)
    if layout == "drop":
        assert sum(len(hashes) for _, hashes in versions(calm)) == FEEDS + FEEDS // 5
    assert documents(disturbed) == documents(calm)
    lines = output(disturbed)
    assert lines.count("\n") >= FEEDS
    assert lines == output(calm)


def test_an_undisturbed_fetch_asks_for_each_feed_once_and_for_robots_once_a_host(server, tmp_path):
    directory = tmp_path / "calm"
    first = fetch_killed(directory, "drop", START, [])
    second = fetch_killed(directory, "drop", START + 2 * HOUR, [])
    assert_polite(server, directory, first + second)
    seen = [Counter(r.path for r in server.log if r.headers["User-Agent"] == run.agent) for run in first + second]
    once = {path_of(number): 1 for number in range(FEEDS)}
    assert seen == [once | {"/robots.txt": HOSTS}, once]
    assert all(request.headers["If-None-Match"] for request in server.log[FEEDS + HOSTS :])
