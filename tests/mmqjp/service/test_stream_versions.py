"""Versions of entries through a service: each is answered once, whatever feeds do and wherever it crashes."""

import json
from collections import Counter
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from lxml import etree

from feeds.fetch.archive import DropArchive, WarcArchive
from feeds.fetch.http import DAY, HOUR
from feeds.fetch.state import FetchStore
from feeds.history import History
from feeds.readers import drop_stem
from mmqjp.engine import Session
from mmqjp.service.commands import CommandQueue
from mmqjp.service.drops import DropDirectory
from mmqjp.service.loop import HISTORY, Service, ServiceOptions
from mmqjp.service.spool import Spool
from mmqjp.sinks.deliverer import OUTPUT_SINK
from mmqjp.sinks.files import GrowingFile, open_sink
from tests.generate.seeds import at_length, examples
from tests.support.faults import Killed, armed, killed
from tests.support.feed_server import START, Fetching, rss, running_server
from tests.support.service import Events, StopAfter


class Reader:
    """A service that reads what is fetched into its state, and is opened anew for every run."""

    def __init__(self, directory: Path, lateness: int | None = None) -> None:
        self.state, self.output = directory / "state", directory / "out.jsonl"
        self.drops, self.lateness = self.state / "drops", lateness
        self.now = START

    def run(self, events: Events | None = None, **options: Any) -> None:
        """Reads what is there, in batches of two."""
        history = History(lateness=self.lateness, **options)
        drops = DropDirectory(self.drops, 0, lambda: self.now)
        with Session("duckdb", state=self.state, lateness=self.lateness, now=lambda: self.now) as engine:
            if not engine.queries():
                engine.subscribe("FROM S//item->a PUBLISH all")
            lines = open_sink(self.output, engine.position(OUTPUT_SINK))
            service = Service(
                engine, [drops.tail("item")], lines, CommandQueue(Spool(self.state)),
                Events() if events is None else events,
                ServiceOptions(batch_size=2, history=history, on_idle=drops.sweep),
            )  # fmt: skip
            try:
                service.run(None, StopAfter(10**9))
            finally:
                lines.close()

    def documents(self) -> list[tuple[str, int, str]]:
        """The documents that were answered for, in order: title, time, hour of the entry's own date."""
        found = []
        for line in map(json.loads, self.output.read_text().splitlines() if self.output.exists() else ()):
            item = etree.fromstring(line["xml"]).find(".//item")
            assert item is not None
            found.append((item.findtext("title", ""), line["t1"], item.findtext("timestamp", "")[11:13]))
        return found

    def engine(self) -> Session:
        return Session("duckdb", state=self.state)

    def drop(self, hour: int, feed: str, url: str = "https://s.example/feed") -> None:
        """A version of a feed, as it was fetched at an hour."""
        folder = self.drops / "s"
        folder.mkdir(parents=True, exist_ok=True)
        stem = drop_stem(START + hour * HOUR, f"{hour:012x}")
        (folder / f"{stem}.json").write_text(json.dumps({"url": url}))
        (folder / f"{stem}.xml").write_text(feed)


KILLS = [
    *(
        (owner, name, after)
        for owner, name in (
            (None, "keep"),
            (FetchStore, "commit"),
            (Session, "process"),
            (GrowingFile, "write"),
            (DropDirectory, "sweep"),
        )
        for after in (False, True)
    )
]
"""Calls before or after which it is killed: the archive's is that of the layout."""

STEPS = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abcde"), max_size=5, unique=True),
        st.sets(st.sampled_from("abcde")),
        st.booleans(),
        st.none() | st.tuples(st.sampled_from(KILLS), st.integers(1, 3)),
    ),
    max_size=8 if at_length() else 4,
)
"""Fetches: the titles of the feed then, those of which a second version is there, whether the server has validators,
and at which call of what the process is killed."""


@pytest.mark.parametrize("layout", [pytest.param("drop", marks=pytest.mark.soak), "warc"])
@given(steps=STEPS)
@examples(3, 8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_fetches_of_any_versions_with_crashes_give_each_version_once(steps, layout, tmp_path_factory):
    reader = Reader(tmp_path_factory.mktemp("versions"))
    versions: set[tuple[str, str]] = set()
    with running_server() as server:
        url = server.url("/feed")
        for number, (titles, second, validated, kill) in enumerate(steps):
            fetching = Fetching(reader.drops)
            if layout == "warc":  # a file a fetch: a source's files are whole
                fetching.archive = lambda out, store: WarcArchive(out, store.archive_mark(), store.save_mark, 1)
            fetching.later(2 * 3600 * number)
            reader.now = fetching.clock.time
            feed = rss(*titles)
            for title in second & set(titles):
                feed = feed.replace(
                    f"/{title}</link><pubDate>Wed, 06 May 2026 10", f"/{title}</link><pubDate>Wed, 06 May 2026 11"
                )
            server.validated("/feed", feed, f'"{hash(feed)}"') if validated else server.serve("/feed", feed)
            archive = DropArchive if layout == "drop" else WarcArchive
            with suppress(Killed), killing(archive, kill):
                fetching.run(url)
                reader.run(keep=30 * DAY)
            fetching.run(url)
            reader.run(keep=30 * DAY)
            versions |= {(title, "11" if title in second else "10") for title in titles}
            assert Counter((title, hour) for title, _, hour in reader.documents()) == dict.fromkeys(versions, 1)


def killing(archive: type, kill: tuple[tuple[Any, str, bool], int] | None) -> AbstractContextManager[None]:
    """A block that ends at the n-th call of a seam, if it comes to that."""
    if kill is None:
        return nullcontext()
    (owner, name, after), calls = kill
    return armed((owner or archive, name), killed, calls, after=after)


# ---------------------------------------------------------------- what a service knows of entries


def test_a_changed_entry_is_a_version_of_the_time_of_its_change_also_after_a_restart(tmp_path):
    reader = Reader(tmp_path)
    reader.drop(0, rss("a", "b"))
    reader.run()
    changed = rss("a", "b").replace("<title>a", "<title>A")
    reader.drop(5, changed)
    events = Events()
    reader.run(events)
    assert reader.documents()[2:] == [("A", START + 5 * HOUR, "10")]
    # The rest of the feed is passed over, not looked up.
    assert [(batch["documents"], batch["duplicates"]) for batch in events.named("batch")] == [(1, 0)]
    reader.drop(6, rss("a", "b"))
    reader.run(versions="keep")
    assert len(reader.documents()) == 3
    reader.drop(7, rss("a", "b").replace("<title>b", "<title>B"))
    reader.run(versions="ignore")
    assert len(reader.documents()) == 3


def test_an_entry_that_changes_without_end_is_a_dead_letter_at_last(tmp_path):
    reader = Reader(tmp_path)
    for hour in range(5):
        reader.drop(hour, rss("a").replace("<title>a", f"<title>{hour}"))
        reader.run(most=3)
    assert len(reader.documents()) == 3
    with reader.engine() as engine:
        letters = sorted(engine.dead_letters(), key=lambda letter: letter["time"])
    assert all("changes without end" in letter["reason"] for letter in letters)
    assert [b"<title>3" in letter["raw"] for letter in letters] == [True, False]
    reader.drop(5, rss("a").replace("<title>a", "<title>more"))
    reader.run(most=4)
    assert len(reader.documents()) == 4


def test_a_late_entry_is_a_dead_letter_once(tmp_path):
    reader = Reader(tmp_path, lateness=HOUR)
    reader.drop(0, rss("a"))
    reader.run()
    for hour in (1, 2, 3):
        reader.drop(hour, rss("a", "b", *map(str, range(hour))))  # two hours old and more: late
        reader.run()
    with reader.engine() as engine:
        ids = [letter["id"].split()[1] for letter in engine.dead_letters()]
    assert sorted(ids) == ["0", "1", "2", "b"]


def test_what_is_known_of_entries_does_not_grow_for_ever(tmp_path):
    reader = Reader(tmp_path)
    sizes = []
    for day in range(8):
        reader.drop(day * 24, rss(*(str(day * 5 + n) for n in range(5))))
        reader.run(keep=3 * DAY)
        with reader.engine() as engine:
            (kept,) = engine.settings(HISTORY).values()
        sizes.append(len(json.loads(kept)[1]))
    assert sizes[:4] == [5, 10, 15, 20] and sizes[-1] == sizes[-2] <= 30
    assert len(reader.documents()) == 40


def test_the_old_entries_of_a_feed_that_is_met_in_a_warc_file_have_the_time_of_the_fetch(tmp_path):
    reader = Reader(tmp_path, lateness=HOUR)
    fetching = Fetching(reader.drops)
    fetching.archive = lambda out, store: WarcArchive(out, store.archive_mark(), store.save_mark, 1)
    with running_server() as server:
        url = server.serve("/feed", rss("a", "b", "c"))  # two hours old
        fetching.run(url)
        reader.run()
        assert {time for _, time, _ in reader.documents()} == {fetching.feed(url).fetched_at}
        server.serve("/feed", rss("a", "b", "c", "d"))
        fetching.later(2 * 3600)
        fetching.run(url)
        reader.run()
        assert len(reader.documents()) == 3  # the new one is late, as it says
