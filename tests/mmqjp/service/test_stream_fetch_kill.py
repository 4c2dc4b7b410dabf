"""Many feeds fetched, read and joined by `mmqjp stream --fetch`, killed again and again: as if it had never been."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from feeds.fetch.http import HOUR
from feeds.fetch.state import STATE_FILE
from mmqjp.shown_engine import Engine
from tests.processes import nursery
from tests.support.feed_server import START, running_server
from tests.support.many_feeds import QUERY, ManyFeeds, Run, assert_polite, committed, path_of, read_trail

FETCHING = ["exchange", "keep", "commit", "save-host", "rename"]
POINTS = [*FETCHING, "process", "write", "sweep"]
NEVER = ("never", 0)


@pytest.fixture(params=[(20, 4), pytest.param((400, 40), marks=pytest.mark.soak)], ids=["20", "400"])
def many(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ManyFeeds]:
    """The feeds, and the queries over them."""
    (tmp_path / "queries.xscl").write_text(f"{QUERY};\nFROM S//item->a PUBLISH all;\nFROM same/match->m PUBLISH again")
    with running_server() as server:
        yield ManyFeeds(server, tmp_path / "feeds.opml", *request.param)


def state_of(directory: Path) -> Path:
    return directory / "state" / "drops" / STATE_FILE


def streamed(directory: Path, trigger: str, start: int, number: int, kill: tuple[str, int]) -> Run:
    """One process, which goes on from where the one before it was killed, or ended."""
    trail = directory.with_suffix(".trail")
    directory.mkdir(exist_ok=True)
    now = max([start, *(moment for moment, _ in read_trail(trail))])
    agent = f"{directory.name}-{start}-{number}"
    before = committed(state_of(directory), start)
    arguments = [directory, trigger, agent, start, now, *kill]
    done = nursery.run("tests.processes.stream", *arguments)
    assert done.returncode in ((0,) if kill == NEVER else (0, -signal.SIGKILL)), done.stderr
    return Run(agent, before, committed(state_of(directory), start), done.returncode != 0)


def outcome(directory: Path) -> tuple[Counter[str], list[tuple[str, int, str]], int]:
    """The output lines without their numbers, the documents, and how many dead letters there are."""
    numbered = [json.loads(line) for line in (directory / "out.jsonl").read_text().splitlines()]
    assert [line["seq"] for line in numbered] == list(range(len(numbered)))
    # Outputs are numbered batch by batch, and batches end where processes do.
    lines = Counter(json.dumps({**line, "seq": None}) for line in numbered)
    with Engine("duckdb", state=directory / "state") as engine:
        found = engine.sql("SELECT id, t0, xml FROM documents WHERE kind = 'external' ORDER BY id").to_pylist()
        return lines, [(row["id"], row["t0"], row["xml"]) for row in found], len(list(engine.dead_letters()))


def test_feeds_are_fetched_politely_and_each_entry_is_joined_once_wherever_it_is_killed(many, tmp_path):
    random = Random(6)
    disturbed, calm = tmp_path / "disturbed", tmp_path / "calm"
    runs: dict[Path, list[Run]] = {disturbed: [], calm: []}
    kills = 0
    for version, start in enumerate((START, START + 2 * HOUR)):
        many.publish(version)
        whens = ("before", "after") if version else ("after", "before")
        points = [f"{whens[place % 2]} {point}" for place, point in enumerate(POINTS)]
        random.shuffle(points)
        for number, point in enumerate(points):
            if committed(state_of(disturbed), start) == many.paths():
                break  # who watches would wait for the next hour
            of_the_fetch = point.split()[1] in FETCHING
            calls = random.randrange(3) if of_the_fetch else 0
            trigger = "available-now" if of_the_fetch and number % 2 else "0.01s"
            runs[disturbed].append(streamed(disturbed, trigger, start, number, (point, calls)))
            kills += runs[disturbed][-1].killed
        runs[disturbed].append(streamed(disturbed, "available-now", start, len(points), NEVER))
        runs[calm].append(streamed(calm, "available-now", start, 0, NEVER))
    assert kills >= len(POINTS)
    for directory, processes in runs.items():
        assert_polite(many, directory.with_suffix(".trail"), processes)
    asked = [Counter(r.path for r in many.server.log if r.headers["User-Agent"] == run.agent) for run in runs[calm]]
    once = {path_of(number): 1 for number in range(many.feeds)}
    assert asked == [once | {"/robots.txt": many.hosts}, once]

    lines, documents, dead = outcome(calm)
    assert (lines, documents, dead) == outcome(disturbed)
    assert max(lines.values()) == 1 and dead == 0
    assert len(documents) == 2 * many.feeds + many.feeds // 5
    counts = Counter(json.loads(line)["query"] for line in lines)
    late = many.feeds // 5
    # Each title that four neighbours share, and the one of every fifth feed: every pair, either one as the left one.
    assert counts["same"] == counts["again"] == many.feeds // 4 * 12 + late * (late - 1)
    assert counts["all"] == len(documents)
    for directory in (disturbed, calm):
        kept = Counter(path.parent for path in (directory / "state" / "drops").rglob("*.xml"))
        assert list(kept.values()) == [1] * many.feeds
