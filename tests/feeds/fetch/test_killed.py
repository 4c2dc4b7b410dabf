"""Many feeds on a few hosts, fetched by processes that are killed again and again: nothing is lost, nothing comes
twice, and each host is asked politely."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest

import feeds.fetch.fetcher
from common.dates import HOUR, SECOND
from feeds.fetch.fetcher import HostGates, World
from feeds.fetch.lists import ListedFeed, write_opml
from feeds.fetch.state import STATE_FILE, FetchStore
from mmqjp.shown_engine import Engine
from tests.processes import nursery
from tests.processes.programs import command
from tests.support.feed_server import START, FeedServer, Hours, rss, to_loopback

QUERIES = """
FROM S//item->a[./title->t1] JOIN { t1 = t2, 2 d } S//item->b[./title->t2] PUBLISH same;
FROM S//item->a PUBLISH all; FROM same/match->m PUBLISH again
"""

Kill = tuple[str, int]


def path_of(number: int) -> str:
    return f"/{number}/feed.xml"


@dataclass
class ManyFeeds:
    """Feeds on the hosts of a server, listed in an OPML file with folders. Every fifth changes."""

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
        """Makes the server serve a version of each feed: some entries are its own, some its neighbours have too."""
        for number in range(self.feeds):
            entries = [f"own-{number}", f"shared-{number // 4}", *["late"][: version and number % 5 == 0]]
            self.server.validated(path_of(number), rss(*entries, guid=f"{number}/"), f'"{number}-{len(entries)}"')

    def paths(self) -> set[str]:
        return {path_of(number) for number in range(self.feeds)}


def note_starts(trail: Path, clock: Hours) -> None:
    """Writes down when each request began by the clock of the test."""
    turn = HostGates.turn

    @asynccontextmanager
    async def noted(gates: HostGates, host: str, spacing: int = 0) -> AsyncIterator[None]:
        async with turn(gates, host, spacing):
            with trail.open("a") as file:
                file.write(f"{clock.now()} {host}\n")
            yield

    HostGates.turn = noted  # type: ignore


class OneHour(Hours):
    """A clock that jumps to what is waited for within the hour; what is later never comes."""

    def __init__(self, now: int, start: int) -> None:
        super().__init__(now)
        self.end = start + HOUR

    async def sleep_until(self, moment: int) -> None:
        if moment >= self.end:
            await asyncio.Event().wait()
        await super().sleep_until(moment)


def end_when_all_is_fetched(start: int) -> None:
    """Asks this process to end when no feed is left that was not fetched since a time."""
    commit = FetchStore.commit

    def committing(store: FetchStore, *arguments: object) -> None:
        commit(store, *arguments)  # type: ignore[arg-type]
        if all(feed.checked_at >= start for feed in store.feeds()):
            os.kill(os.getpid(), signal.SIGTERM)

    FetchStore.commit = committing  # type: ignore


def stream(directory: Path, trigger: str, agent: str, start: int, now: int) -> None:
    """Streams, from `now` on, what is due at `start`."""
    clock = OneHour(now, start)
    feeds.fetch.fetcher.World = lambda: World(clock, lambda: 0.0, to_loopback)  # type: ignore
    note_starts(directory.with_suffix(".trail"), clock)
    if trigger != "available-now":
        end_when_all_is_fetched(start)
    lists = ["--fetch", directory.parent / "feeds.opml", "--user-agent", agent, "--allow-private", "--robots"]
    lists += ["--concurrency", "2"]  # who is killed has not fetched them all
    kept = ["--state", directory / "state", "--output", directory / "out.jsonl", "--keep-drops", "0s"]
    times = ["--trigger", trigger, "--lateness", "INF", "--idle-after", "INF", "--batch-size", "20"]
    queries = ["--queries", directory.parent / "queries.xscl", "--engine", "duckdb", "--log", "json"]
    command("stream", *lists, *kept, *times, *queries)


@dataclass
class Run:
    """One process: what had been fetched before it began and after it ended, and whether it was killed."""

    agent: str
    before: set[str]
    after: set[str]
    killed: bool


class Fetched:
    """The directory of a service that fetches, in processes one after the other."""

    seams = ("http.exchange", "FetchStore.commit", "FetchStore.save_host", "DropArchive.keep", "Path.replace")
    joining = ("Session.process", "GrowingFile.write", "DropDirectory.sweep")

    def __init__(self, directory: Path, many: ManyFeeds) -> None:
        self.directory, self.many = directory, many
        self.state = directory / "state" / "drops" / STATE_FILE
        self.runs: list[Run] = []
        directory.mkdir()

    def moments(self, rng: Random) -> list[Kill]:
        """When processes are killed: at each seam."""
        later = bool(self.runs)
        found = [
            (f"{('before', 'after')[(n + later) % 2]} {seam}", rng.randrange(3) + 1 if seam in self.seams else 1)
            for n, seam in enumerate((*self.seams, *self.joining))
        ]
        return rng.sample(found, len(found))

    def fetch(self, start: int, kills: list[Kill]) -> None:
        for number, kill in enumerate((*kills, None)):
            if kill and self.committed(start) == self.many.paths():
                continue  # a service that watches would wait for the next hour
            agent, before = f"{self.directory.name}-{start}-{number}", self.committed(start)
            # The clock goes on where the killed process left it.
            now = max([start, *(moment for moment, _ in self.trail())])
            of_the_fetch = kill is not None and kill[0].split()[1] in self.seams
            trigger = "available-now" if kill is None or (of_the_fetch and number % 2) else "0.01s"
            done = nursery.run(stream, self.directory, trigger, agent, start, now, kill=kill)
            assert done.returncode in ((0,) if kill is None else (0, -signal.SIGKILL)), done.stderr
            self.runs.append(Run(agent, before, self.committed(start), done.returncode != 0))

    def committed(self, start: int) -> set[str]:
        """The paths of the feeds that were fetched since a time, according to the fetcher's state."""
        if not self.state.exists():
            return set()
        with FetchStore(self.state) as store:
            return {urlsplit(feed.url).path for feed in store.feeds() if feed.checked_at >= start}

    def trail(self) -> list[tuple[int, str]]:
        """When each request began, by the test's clock, and to which host."""
        path = self.directory.with_suffix(".trail")
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(moment), host) for moment, host in map(str.split, lines)]

    def assert_polite(self) -> None:
        """Asserts that each process requested, once, what had not been fetched, and that requests are spaced across
        processes too."""
        for run in self.runs:
            # Who was killed may have requests on the way that the server never read, but it lacks no answer.
            asked = self.asked(run)
            del asked["/robots.txt"]
            assert {*asked.values()} <= {1}
            assert not asked.keys() & run.before
            assert asked.keys() >= run.after - run.before
            assert run.killed or asked.keys() == run.after - run.before
        by_host: dict[str, list[int]] = {}
        for moment, host in self.trail():
            by_host.setdefault(host, []).append(moment)
        assert min(later - earlier for moments in by_host.values() for earlier, later in pairwise(moments)) >= SECOND
        assert len(by_host) == self.many.hosts

    def asked(self, run: Run) -> Counter[str]:
        return Counter(r.path for r in self.many.server.log if r.headers["User-Agent"] == run.agent)

    def outcome(self) -> object:
        """The output lines without their numbers, and the documents."""
        numbered = [json.loads(line) for line in (self.directory / "out.jsonl").read_text().splitlines()]
        assert [line["seq"] for line in numbered] == list(range(len(numbered)))
        # Outputs are numbered batch by batch, and batches end where processes do.
        lines = Counter(json.dumps({**line, "seq": None}) for line in numbered)
        with Engine("duckdb", state=self.directory / "state") as engine:
            found = engine.sql("SELECT id, t0, xml FROM documents WHERE kind = 'external' ORDER BY id").to_pylist()
            assert not list(engine.dead_letters())
        feeds, late = self.many.feeds, self.many.feeds // 5
        assert max(lines.values()) == 1 and len(found) == 2 * feeds + late
        counts = Counter(line["query"] for line in numbered)
        # Every pair of the four neighbours that share a title, and of every fifth feed, either one as the left one.
        assert counts["same"] == counts["again"] == feeds // 4 * 12 + late * (late - 1)
        assert counts["all"] == len(found)
        kept = Counter(path.parent for path in (self.directory / "state" / "drops").rglob("*.xml"))
        assert list(kept.values()) == [1] * feeds
        return lines, [(row["id"], row["t0"], row["xml"]) for row in found]


@pytest.mark.soak
def test_feeds_are_fetched_politely_and_once_whatever_is_killed(server: FeedServer, tmp_path: Path) -> None:
    rng, many = Random(6), ManyFeeds(server, tmp_path / "feeds.opml", 400, 40)
    (tmp_path / "queries.xscl").write_text(QUERIES)
    disturbed, calm = (Fetched(tmp_path / name, many) for name in ("disturbed", "calm"))
    for version, start in enumerate((START, START + 2 * HOUR)):
        many.publish(version)
        disturbed.fetch(start, disturbed.moments(rng))
        calm.fetch(start, [])
    assert sum(run.killed for run in disturbed.runs) >= 8
    for one in (disturbed, calm):
        one.assert_polite()
    once = dict.fromkeys(many.paths(), 1)
    assert [calm.asked(run) for run in calm.runs] == [once | {"/robots.txt": many.hosts}, once]
    again = [request for request in server.log if request.headers["User-Agent"] == calm.runs[1].agent]
    assert all(request.headers["If-None-Match"] for request in again)
    assert disturbed.outcome() == calm.outcome()
