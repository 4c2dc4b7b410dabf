"""What `run`, `stream` and `serve` tell of feeds that are fetched round by round: of real ones, which a server on
loopback shows as they were when they were fetched, and of back-dated entries."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from common.dates import DAY, HOUR
from feeds.fetch.fetcher import Capture, DropArchive, WarcArchive
from feeds.fetch.http import ReplyLimits
from feeds.fetch.state import FetchStore, Pace
from feeds.history import History, NotedVisit
from feeds.readers import read_stem
from mmqjp.engine import Session
from mmqjp.service.commands import CommandQueue
from mmqjp.service.drops import DropDirectory, fetch_directory
from mmqjp.service.loop import Service, ServiceOptions
from mmqjp.service.spool import Spool
from mmqjp.sinks.deliverer import OUTPUT_SINK
from mmqjp.sinks.files import open_sink
from mmqjp.state.eviction import ID_RETENTION
from tests.generate.seeds import at_length
from tests.support.cli import mmqjp, write_queries
from tests.support.feed_server import START, FeedServer, Fetching, Hours, Request, rss, running_server
from tests.support.places import REAL_FEEDS
from tests.support.service import Events, StopAfter

QUERIES = """
FROM S//item->a[./title->t1][./feed_url->f1]
  JOIN UNORDERED { lower-case(t1) = lower-case(t2) AND f1 != f2, 6 h } S//item->b[./title->t2][./feed_url->f2]
PUBLISH same_title;
FROM S//item->a[./feed_url->f1] NOT FOLLOWED BY { f1 = f2, 14 d } S//item->b[./feed_url->f2] PUBLISH silent;
FROM S//item->a[./category->c1] NOT PRECEDED BY { c1 = c2, 30 d } S//item->b[./category->c2] PUBLISH first;
SELECT c AS category FROM S//item->a[./category->c] PUBLISH once ONCE PER (c);
FROM S//item->a[contains(./title, "Claude")] PUBLISH filtered;
FROM S//item->a[./title->t1][./feed_url->f1]
  JOIN UNORDERED { near(t1, t2, 0.6) AND lower-case(t1) != lower-case(t2) AND f1 != f2, 3 d }
  S//item->b[./title->t2][./feed_url->f2]
PUBLISH similar;
FROM S//item->a[./item_url->u1][./title->t1] FOLLOWED BY { u1 = u2 AND t1 != t2, 60 d }
  S//item->b[./item_url->u2][./title->t2]
PUBLISH retitled;
FROM S//item->a[./item_url->u1][./feed_url->f1] JOIN UNORDERED { u1 = u2 AND f1 != f2, 2 d }
  S//item->b[./item_url->u2][./feed_url->f2]
PUBLISH same_link;
FROM same_link//item->a[./title->t1] NOT FOLLOWED BY { t1 = t2, 7 d } S//item->b[./title->t2] PUBLISH last_of_link;
FROM S//item->a[./category->c1] FOLLOWED BY { c1 = c2, 1 d } S//item->b[./category->c2]
  NOT FOLLOWED BY { c2 = c3, 5 d } S//item->c[./category->c3]
PUBLISH quiet_after_two;
DEFINE EVENT Item FROM S//item->i[./title] (feed := i/feed_url, title := i/title);
FROM Item NEXT{$1.feed = $2.feed AND $1.title != $2.title} Item WITHIN 7 d PUBLISH next_of_feed;
FROM AGGREGATE{count() AS n BY feed OVER 30 d}(Item) PUBLISH monthly
"""

real = pytest.mark.skipif(not REAL_FEEDS.is_dir(), reason=f"{REAL_FEEDS} is missing")
SOME = "anthropic", "anthropic_engineering", "anthropic_news", "claude", "windsurf_changelog", "windsurf_next_changelog"

TIMING = {"lateness": DAY, "idle_after": 45 * DAY, "settle": 2 * HOUR}
TIMES = "--lateness", "1d", "--idle-after", "45d", "--settle", "2h"
NOW = "--trigger", "available-now", "--max-ahead", "INF"


class BothArchives(DropArchive):
    """A drop directory, with the same in WARC files beside it."""

    def __init__(self, directory: Path, warcs: Path, store: FetchStore) -> None:
        super().__init__(directory)
        self._warcs = WarcArchive(warcs, store.archive_mark(), store.save_mark)

    def keep(self, capture: Capture) -> None:
        super().keep(capture)
        self._warcs.keep(capture)

    def met_again(self, capture: Capture, since: int) -> NotedVisit | None:
        self._warcs.met_again(capture, since)
        return super().met_again(capture, since)

    def note(self, visits: Sequence[NotedVisit], now: int) -> None:
        super().note(visits, now)
        self._warcs.note(visits, now)

    def finish(self) -> None:
        self._warcs.finish()

    def close(self) -> None:
        self._warcs.close()


class Ticking(Hours):
    def now(self) -> int:
        self.time += 1
        return self.time


class Crawl:
    """Feeds that are fetched when they had another version, and every 20 days. Those that had none for 60 days fail."""

    def __init__(self, server: FeedServer, drops: Path, warcs: Path) -> None:
        self.clock = Ticking(0)
        self._server, self._begun, self.times = server, dict[str, int](), set[int]()
        self._fetching = Fetching(
            drops, self.clock, ReplyLimits(), Pace(20 * DAY, 20 * DAY), {"spacing": 0},
            archive=lambda directory, store: BothArchives(directory, warcs, store),
        )  # fmt: skip
        for folder in REAL_FEEDS.iterdir():
            if at_length() or folder.name.removeprefix("feed_") in SOME:
                stems = ((read_stem(path.stem), path) for path in folder.glob("*.xml"))
                self._show(f"/{folder.name}", {stem[0]: path for stem, path in stems if stem is not None})

    def _show(self, path: str, versions: dict[int, Path]) -> None:
        times = sorted(versions)
        self._begun[self._server.url(path)] = times[0]
        self.times.update(times)

        def answer(request: Request) -> None:
            last = times[bisect_right(times, self.clock.time) - 1]
            if self.clock.time - last > 60 * DAY:
                request.answer(500)
            elif request.headers.get("If-None-Match") == f'"{last}"':
                request.answer(304)
            else:
                request.answer(200, versions[last].read_bytes(), ETag=f'"{last}"')

        self._server.routes[path] = answer

    def fetch(self, time: int) -> None:
        """Fetches what is due by then."""
        self.clock.time = time
        self._fetching.run(*(url for url, begun in self._begun.items() if begun <= time))


def told(output: Path) -> set[str]:
    """The lines without their numbers. Of what is told once only the value: whose line it is depends on batches."""
    rows = map(json.loads, output.read_text("utf-8").splitlines())
    return {json.dumps(row | {"seq": 0}) if row["query"] != "once" else row["xml"].partition(">")[2] for row in rows}


def serve(
    fetch: Callable[[int], object], clock: Hours, queries: str, state: Path, rounds: Sequence[int], output: Path,
    **timing: Any,
) -> None:  # fmt: skip
    """What `mmqjp serve` does: fetches into its state, and answers after each round, and is restarted once."""
    state.mkdir()
    drops = DropDirectory(fetch_directory(state), None, clock.now)
    half = len(rounds) // 2
    for some in (rounds[:half], rounds[half:]):
        with Session("duckdb", state=state, now=clock.now, max_ahead=DAY, **timing) as engine:
            if not engine.queries():
                engine.subscribe(queries)
            with closing(open_sink(output, engine.position(OUTPUT_SINK))) as sink:
                options = ServiceOptions(history=History(keep=ID_RETENTION))
                queue = CommandQueue(Spool(state))
                service = Service(engine, [drops.tail("item")], sink, queue, Events(), options)
                for time in some:
                    fetch(time)
                    service.run(None, StopAfter(10**9))


@real
def test_run_stream_and_serve_tell_the_same_of_real_feeds(tmp_path):
    state, output = tmp_path / "serve", tmp_path / "serve.jsonl"
    drops, warcs = state / "drops", tmp_path / "warcs"
    queries = write_queries(tmp_path, QUERIES)
    with running_server() as server:
        crawl = Crawl(server, drops, warcs)
        serve(crawl.fetch, crawl.clock, QUERIES, state, sorted(crawl.times), output, **TIMING)
    wanted = told(output)
    names = {json.loads(line)["query"] for line in output.read_text("utf-8").splitlines()}
    assert len(names) == 12
    found = {}
    for command, source, *options in (
        ("run", drops, "--documents"),
        ("run", warcs, "--documents"),
        ("stream", drops, *NOW, "--source"),
        ("stream", warcs, *NOW, "--batch-size", "97", "--source"),
    ):
        state, output = (tmp_path / f"{command}-{source.name}{suffix}" for suffix in ("", ".jsonl"))
        given = "--feeds", "--engine", "duckdb", "--queries", queries, "--state", state, "--output", output
        result = mmqjp(command, *given, *TIMES, *options, source)
        assert result.exit_code == 0, result.stderr
        found[command, source] = told(output)
    assert found["run", drops] == wanted and found["stream", drops] == wanted
    assert found["run", warcs] == found["stream", warcs]
    # A visit without a new version stands where it was made in a WARC file, and behind the round in a directory. So a
    # back-dated entry may be behind a watermark in one, and not in the other.
    assert len(found["run", warcs] ^ wanted) < len(wanted) / 20


@real
def test_after_the_first_round_of_visits_a_service_has_told_what_run_tells(tmp_path):
    output, queries = tmp_path / "serve.jsonl", write_queries(tmp_path, QUERIES)
    with running_server() as server:
        crawl = Crawl(server, tmp_path / "serve" / "drops", tmp_path / "warcs")
        timing = {"lateness": 0, "idle_after": HOUR, "settle": 0}
        serve(crawl.fetch, crawl.clock, QUERIES, tmp_path / "serve", [max(crawl.times)], output, **timing)
    options = "--feeds", "--engine", "duckdb", "--queries", queries, "--output", tmp_path / "run.jsonl"
    result = mmqjp("run", *options, "--documents", tmp_path / "serve" / "drops")
    assert re.search("silent: .* wait for their deadline; the last visits of the feeds were before\n", result.stderr)
    assert told(tmp_path / "run.jsonl") == told(output) and len(told(output)) > 100


PAIRS = """
FROM S//item->a[./title = "partner"][./channel_url->c1]
  JOIN UNORDERED { c1 = c2, 10 d } S//item->b[starts-with(./title, "back")][./channel_url->c2]
PUBLISH pairs;
FROM S//item->a[starts-with(./title, "back")] PUBLISH seen
"""


def test_no_back_dated_entry_is_lost_and_each_is_joined(server, fetching, tmp_path):
    """At noon, a feed lists five entries of the last nine days that it did not list an hour ago."""
    state, queries, now = tmp_path / "serve", write_queries(tmp_path, PAIRS), datetime.fromtimestamp(START / 10**6, UTC)
    fetching.directory = state / "drops"
    entries = {f"back{days}": format_datetime(now - timedelta(days=days)) for days in (0, 2, 3, 6, 9)}
    urls = server.serve("/a", rss("old", guid="a")), server.serve("/b", rss("partner", guid="b"))

    def fetch(time: int) -> None:
        fetching.clock.time = time
        if time == START + DAY:
            dated = rss("old", *entries, guid="a")
            for title, date in entries.items():
                dated = re.sub(f"(>{title}</link><pubDate>)[^<]*", rf"\g<1>{date}", dated)
            server.serve("/a", dated)
        fetching.run(*urls)

    rounds = [START + hour * HOUR for hour in (0, 1, 23, 24, 25)]
    serve(fetch, fetching.clock, PAIRS, state, rounds, tmp_path / "serve.jsonl", lateness=DAY, idle_after=2 * DAY)
    commands = [
        ["run", "--documents"],
        ["run", "--lateness", "1d", "--state", tmp_path / "run", "--documents"],
        ["stream", "--state", tmp_path / "stream", *NOW, "--source"],
        ["stream", "--state", tmp_path / "small", "--batch-size", "1", *NOW, "--source"],
    ]
    for number, (command, *options) in enumerate(commands):
        output = tmp_path / f"{number}.jsonl"
        given = "--feeds", "--engine", "duckdb", "--queries", queries, "--output", output
        result = mmqjp(command, *given, *options, fetching.directory)
        assert result.exit_code == 0 and "dead_letters=1" not in result.stderr
        assert told(output) == told(tmp_path / "serve.jsonl")
    found = map(json.loads, (tmp_path / "serve.jsonl").read_text("utf-8").splitlines())
    assert Counter(row["query"] for row in found) == {"pairs": 5, "seen": 5}
