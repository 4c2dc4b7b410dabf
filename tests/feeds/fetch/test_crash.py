"""Many feeds fetched politely and killed again and again: nothing is lost, nothing comes twice, no host is pressed."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from feeds.fetch.http import HOUR
from feeds.fetch.state import STATE_FILE
from feeds.readers import read_stem
from feeds.tail import read_documents
from tests.processes import nursery
from tests.support.cli import mmqjp
from tests.support.feed_server import START, running_server
from tests.support.many_feeds import QUERY, ManyFeeds, Run, assert_polite, committed, path_of, read_trail


@pytest.fixture(params=[(100, 20), pytest.param((400, 40), marks=pytest.mark.soak)], ids=["100", "400"])
def many(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ManyFeeds]:
    """The feeds, listed in tmp_path / "feeds.opml"."""
    with running_server() as server:
        yield ManyFeeds(server, tmp_path / "feeds.opml", *request.param)


def launch(directory: Path, layout: str, agent: str, start: int, point: str, calls: int) -> int:
    opml = directory.parent / "feeds.opml"
    return nursery.run("tests.processes.fetch", directory, opml, layout, agent, start, point, calls).returncode


def trail(directory: Path) -> Path:
    return directory.with_suffix(".trail")


def fetch_killed(directory: Path, layout: str, start: int, kills: list[tuple[str, int]]) -> list[Run]:
    """Fetches what is due, killed and started again."""
    runs = []
    for number, (point, calls) in enumerate([*kills, ("never", 0)]):
        agent = f"{directory.name}-{start}-{number}"
        before = committed(directory / STATE_FILE, start)
        # The clock goes on where the killed process left it.
        clock = max([start, *(moment for moment, _ in read_trail(trail(directory)))])
        status = launch(directory, layout, agent, clock, point, calls)
        assert status == (0 if point == "never" else -signal.SIGKILL), (point, calls)
        runs.append(Run(agent, before, committed(directory / STATE_FILE, start), point != "never"))
    return runs


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


@pytest.mark.parametrize("layout", [pytest.param("drop", marks=pytest.mark.soak), "warc"])
def test_feeds_killed_and_restarted(layout, many, tmp_path):
    keep = "keep" if layout == "drop" else "keep-warc"
    named = ["before exchange", "after exchange", f"before {keep}", f"after {keep}", "before commit", "after commit"]
    named += ["after save-host", *(["after rename", "before rename"] if layout == "drop" else [])]
    random = Random(6)
    disturbed, calm = tmp_path / "disturbed", tmp_path / "calm"
    runs: dict[Path, list[Run]] = {disturbed: [], calm: []}
    for version, start in enumerate((START, START + 2 * HOUR)):
        many.publish(version)
        half = random.randrange(many.feeds // 4, many.feeds // 2)
        kills = [("after exchange", half), *((point, random.randrange(many.feeds // 20)) for point in named)]
        runs[disturbed] += fetch_killed(disturbed, layout, start, kills)
        runs[calm] += fetch_killed(calm, layout, start, [])
    for directory, processes in runs.items():
        assert_polite(many, trail(directory), processes)

    # A new version of every feed, then one of every fifth; of each its entries; and nothing else.
    assert versions(disturbed) == versions(calm)
    if layout == "drop":
        assert sum(len(hashes) for _, hashes in versions(calm)) == many.feeds + many.feeds // 5
    assert documents(disturbed) == documents(calm)
    lines = output(disturbed)
    assert lines.count("\n") >= many.feeds
    assert lines == output(calm)


def test_an_undisturbed_fetch_asks_for_each_feed_once_and_for_robots_once_a_host(many, tmp_path):
    directory = tmp_path / "calm"
    first = fetch_killed(directory, "drop", START, [])
    second = fetch_killed(directory, "drop", START + 2 * HOUR, [])
    assert_polite(many, trail(directory), first + second)
    log = many.server.log
    seen = [Counter(r.path for r in log if r.headers["User-Agent"] == run.agent) for run in first + second]
    once = {path_of(number): 1 for number in range(many.feeds)}
    assert seen == [once | {"/robots.txt": many.hosts}, once]
    assert all(request.headers["If-None-Match"] for request in log[many.feeds + many.hosts :])
