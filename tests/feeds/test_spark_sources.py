"""Crawls, drops and live feeds as sources of Spark: the documents that reading them here gives, and each once.

Most tests call the sources in this process, as Spark would.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pytest
from lxml import etree
from pyspark.sql.streaming.datasource import ReadAllAvailable

from feeds.documents import (
    VISITS_STREAM,
    Document,
    Reject,
    SourceError,
    SourceItem,
    Visit,
    VisitOutcome,
    parse_iso,
    with_visit_documents,
)
from feeds.feed import EntryForm
from feeds.fetch.fetcher import WarcArchive
from feeds.fetch.state import STATE_FILE, FetchStore
from feeds.history import History, NotedVisit
from feeds.readers import Offset, drop_stem, visits_text
from feeds.spark.sources import FeedSource, WarcSource, _entries, drops, local_path, row_batches
from feeds.tail import Tail, Turns, judged, read_documents, waiting_files
from mmqjp.engine import Session
from mmqjp.spark import source as spark_source
from mmqjp.spark.source import FileReader, FileSource, PlanFiles, PlanPartition, SourcePath, decode_items, register
from tests.generate.seeds import seeds
from tests.support.feed_server import Fetching, rss
from tests.support.files import archive
from tests.support.files import read as read_here
from tests.support.in_turn import in_turn
from tests.support.places import ROOT
from xpath_stage.spark import unpacked_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.feed_server import FeedServer

Row = dict[str, Any]
COLUMNS = ("id", "stream", "t0", "t1", "xml")


def here(*paths: Path) -> list[Row]:
    found = []
    for item in read_here(*paths, feeds="item"):
        assert isinstance(item, Document)
        values = (item.id, item.stream, item.t0, item.t1, item.xml_bytes().decode())
        found.append(dict(zip(COLUMNS, values, strict=True)))
    return found


def ids(rows: Iterable[Row]) -> list[str]:
    return [row["id"].split()[1] for row in rows]


def documents(rows: Iterable[Row]) -> list[Row]:
    return [{name: row[name] for name in COLUMNS} for row in rows if row["reason"] is None]


def rows_of(reader: Any, partitions: Iterable[Any]) -> list[Row]:
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def read(source: WarcSource | FeedSource) -> list[Row]:
    reader = source.reader(None)
    return rows_of(reader, reader.partitions())


class Query:
    """A stream: each run goes on where the last ended, and repeats a batch that was planned and not committed."""

    def __init__(self, source: WarcSource | FeedSource) -> None:
        self.source, self.batches = source, list[list[Row]]()
        self.start: Any = None
        self.planned: Any = None

    def run(self, *, failing: bool = False) -> None:
        """Processes what is there, or fails with a batch processed and not committed."""
        reader = self.source.streamReader(None)
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset() if self.start is None else self.start
        while (end := self.planned or reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            found = rows_of(reader, reader.partitions(start, end))
            assert not self.planned or found == self.batches.pop()
            self.batches.append(found)
            if failing:
                self.planned = end
                return
            reader.commit(end)
            self.start = start = end
            self.planned = None

    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch]


@pytest.fixture
def archives(server: FeedServer, tmp_path: Path) -> Fetching:
    """A fetch into WARC files, a file a version."""
    fetching = Fetching(tmp_path / "crawl")
    fetching.archive = lambda out, store: WarcArchive(out, store.archive_mark(), store.save_mark, 1)
    return fetching


def publish(server: FeedServer, fetching: Fetching, *titles: str, path: str = "/feed") -> None:
    """Two hours after the last version."""
    server.serve(path, rss(*titles), Content_Type="application/rss+xml")
    fetching.later(2 * 3600)
    fetching.run(server.url(path))


def test_warc_files_are_read_as_here(server, archives):
    publish(server, archives, "a", "b")
    publish(server, archives, "c")
    publish(server, archives, "d", path="/other")
    where = str(archives.directory)
    for form in ("item", "raw"):
        reader = WarcSource({"path": where, "feeds": form}).reader(None)
        counts = [len(rows_of(reader, [one])) for one in reader.partitions()]
        assert len(counts) == 6 and [*filter(None, counts)] == [2, 1, 1]  # two first visits and a revisit
    assert documents(read(WarcSource({"path": f"file://{where}", "feeds": "item"}))) == here(archives.directory)
    whole = read(WarcSource({"path": where}))
    assert [row["id"].split()[0] for row in whole] == [server.url("/feed")] * 2 + [server.url("/other")]
    # What cannot be read is a row with the reason.
    path = min(archives.directory.glob("*.warc.gz"))
    path.with_name("broken.warc.gz").write_bytes(path.read_bytes()[:-20])
    path.with_name(".draft.warc").touch()
    rows = read(WarcSource({"path": where, "feeds": "item"}))
    (reject,) = (row for row in rows if row["reason"] is not None)
    assert "broken.warc.gz" in reject["reason"] and reject["xml"] is None and len(documents(rows)) == 4


def test_a_stream_of_warc_files_reads_each_once(server, archives):
    archives.directory.mkdir()
    query = Query(WarcSource({"path": str(archives.directory), "feeds": "item", "maxFilesPerTrigger": "1"}))
    publish(server, archives, "a")
    publish(server, archives, "b")
    query.run()
    assert [ids(batch) for batch in query.batches if batch] == [["a"], ["b"]]
    publish(server, archives, "c")
    query.run(failing=True)
    publish(server, archives, "d")
    for _ in range(2):
        query.run()
    assert [ids(batch) for batch in query.batches if batch] == [["a"], ["b"], ["c"], ["d"]]


def test_documents_of_drops_are_those_that_are_read_here(server, tmp_path):
    fetching = Fetching(tmp_path / "100% & drops")
    publish(server, fetching, "a", "b")
    (fetching.directory / "x.xml").write_text("no feed")
    paths = pa.record_batch({"path": [f"file:{path}" for path in sorted(fetching.directory.rglob("*.xml"))]})
    rows = pa.Table.from_batches(_entries(iter([paths]), str(fetching.directory), "item")).to_pylist()
    (fetching.directory / "x.xml").unlink()
    assert documents(rows) == here(fetching.directory)
    assert [row["reason"][:6] for row in rows if row["xml"] is None] == ["x.xml:"]


@pytest.fixture
def live(server: FeedServer, tmp_path: Path) -> dict[str, str]:
    server.validated("/a", rss("one", "two", guid="a"), '"1"')
    server.serve("/b", rss("two", "three", guid="b"))
    listed = f"<outline text='News'><outline text='My A' xmlUrl='{server.url('/a')}'/></outline>"
    (tmp_path / "feeds.opml").write_text(f"<opml><body>{listed}</body></opml>")
    lists = f"{tmp_path / 'feeds.opml'},{server.url('/b')}"
    return {"lists": lists, "state": str(tmp_path / "live"), "allowPrivate": "true", "spacing": "0"}


def due(live: dict[str, str]) -> None:
    with FetchStore(Path(live["state"]) / "drops" / STATE_FILE, write=True) as store:
        for feed in store.feeds():
            store.commit(replace(feed, next_check=0))


def by_id(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: str(row["id"]))


def test_live_feeds_are_fetched_and_read(server, live, tmp_path):
    rows = read(FeedSource(live))
    assert sorted(ids(rows)) == ["aone", "atwo", "bthree", "btwo"]
    items = [etree.fromstring(row["xml"]) for row in rows]
    named = {(item.findtext("feed_title"), item.findtext("folder")) for item in items}
    assert named == {("My A", "News"), ("Site", None)}
    assert len(read(FeedSource(live))) == 4 and sorted(server.paths()) == ["/a", "/b"], "they are not due again"
    due(live)
    server.serve("/b", rss("two", "three", guid="b").replace("<title>two", "<title>2"))
    rows = documents(read(FeedSource(live)))
    assert by_id(rows) == by_id(here(tmp_path / "live" / "drops")) and len(rows) == 5
    assert [request.headers.get("If-None-Match") for request in server.log if request.path == "/a"] == [None, '"1"']


def test_a_stream_of_live_feeds_has_each_version_of_each_entry_once(server, live, tmp_path):
    query = Query(FeedSource(live))
    query.run()
    assert sorted(ids(query.rows())) == ["aone", "atwo", "bthree", "btwo"]
    for title, failing in (("2", True), ("II", False), ("zwei", True), ("2", False)):
        server.serve("/b", rss("two", "three", guid="b").replace("<title>two", f"<title>{title}"))
        due(live)
        query.run(failing=failing)
    query.run()
    assert len(query.rows()) == 4 + 3  # "2" was met before
    with pytest.raises(SourceError, match="a state belongs to one query and its checkpoint"):
        Query(FeedSource(live)).run()
    assert by_id(documents(query.rows())) == by_id(here(tmp_path / "live" / "drops"))


def test_what_is_no_crawl_or_cannot_be_fetched_is_said(live):
    for options, words in (
        *(({}, "no path"), ({"path": "/nowhere"}, "no such file or directory")),
        *(({"path": "s3://bucket/x"}, "s3: addresses cannot be read"), ({"path": "/", "feeds": "atom"}, "no form of")),
        ({"path": "/", "maxFilesPerTrigger": "0"}, "no number of files"),
    ):
        with pytest.raises(SourceError, match=words):
            WarcSource(options).streamReader(None)
    assert local_path("file:///a%20b") == Path("/a b")
    for options, words in (
        *(({"lists": ""}, "no feeds"), ({"state": ""}, "no state"), ({"lists": "nowhere.opml"}, "no such file")),
        ({"lists": "ftp://x.example/"}, "is not an http or https address"),
        *(({"feeds": "atom"}, "no form of entries"), ({"feeds": "nowhere.opml"}, "lists names lists of feeds")),
        *(({"interval": "soon"}, "no number of seconds"), ({"robots": "perhaps"}, "neither true nor false")),
    ):
        with pytest.raises(SourceError, match=words):
            FeedSource(live | options).reader(None)


def test_spark_reads_what_is_read_here(spark: SparkSession, server, archives, live, tmp_path):
    session = spark.newSession()
    register(session)
    publish(server, archives, "a", "b")
    fetching = Fetching(tmp_path / "100% & drops")
    publish(server, fetching, "a", "b")

    def rows(frame: DataFrame) -> list[Row]:
        return by_id(documents(row.asDict() for row in frame.collect()))

    crawl = session.read.format("mmqjp_warc").option("feeds", "item").load(str(archives.directory))
    assert rows(crawl) == by_id(here(archives.directory))
    assert rows(session.read.format("mmqjp_feeds").options(**live).load()) == by_id(here(tmp_path / "live" / "drops"))
    stream = drops(session, fetching.directory, most_files=1)
    stream.writeStream.format("memory").queryName("found").trigger(availableNow=True).start().awaitTermination()
    assert rows(session.table("found")) == by_id(here(fetching.directory))


def test_a_document_in_another_encoding_is_text_in_its_row():
    """And what is no document has the reason."""
    items: list[SourceItem] = [
        Document("d", "<?xml version='1.0' encoding='iso-8859-1'?><a>é</a>".encode("latin-1"), "S", 1),
        Document("e", b"<a>\xff</a>", "S", 2),
        Document("f", b"<?xml version='1.0'?><!DOCTYPE a [<!ATTLIST a k CDATA '1'>]><a/>", "S", 3),
        Reject("g", "S", None, "why", "raw"),
    ]
    (batch,) = row_batches(items)
    assert batch.column("xml").to_pylist() == ["<a>é</a>", None, None, None]
    reasons = [str(reason)[:18] for reason in batch.column("reason").to_pylist()]
    assert reasons == ["None", "e: not well-formed", "f: the DOCTYPE giv", "why"]
    assert batch.column("t1").to_pylist() == [1, 2, 3, None]


@pytest.mark.soak
def test_the_programs_of_the_documentation_work(spark, server, live, archives, tmp_path, monkeypatch):
    """The feeds of the test in place of the page's, on loopback, and a stream that ends when all is read."""
    monkeypatch.chdir(tmp_path)
    publish(server, archives, "a", "b")
    query = "FROM S//item->a[./title->t] JOIN {t = u, 2 d} S//item->b[./title->u] PUBLISH same_story"
    (tmp_path / "stories.xscl").write_text(query)
    names = {"spark": spark.newSession()}
    feeds = '.option("lists", "subscriptions.opml")'
    local = f""".option("lists", "{live["lists"]}").option("allowPrivate", "true").option("spacing", "0")"""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "spark.md").read_text("utf-8"), re.S)
    for text in (text for text in programs if "mmqjp_" in text):
        assert feeds in text or "mmqjp_feeds" not in text
        text = text.replace(feeds, local).replace('processingTime="1 minute"', "availableNow=True")
        for folder in ("crawl/", "fetched/", "checkpoint/"):  # Spark has a current directory of its own
            text = text.replace(f'"{folder}"', f'"{tmp_path / folder}"')
        exec(text, names)
    names["engine"].close()
    names.clear()
    with Session("duckdb", state=tmp_path / "state") as engine:
        assert engine.sql("SELECT count(*) AS n FROM outputs")["n"].to_pylist() == [2]


# ---------------------------------------------------------------- run, stream and Spark read the same

Sequence = list[tuple[str, str, int | None, str]]

NOW, DAY = 1_800_000_000_000_000, 86_400_000_000
RSS = "<rss><channel><title>t</title>{0}</channel></rss>"
ENTRY = "<item><title>{0}</title><guid>{1}</guid>{2}</item>"


class Crawl:
    """A directory of drops with sidecars and without, archives, JSON lines and XML, in folders, of any file times."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory, self._rng = directory, random.Random(seed)
        for number in range(25):
            rng = self._rng
            folder = directory / rng.choice([".", "a", "b", "b/c"])
            folder.mkdir(parents=True, exist_ok=True)
            kinds = [self.drop, self.noted, self.noted, self.plain, self.archive, self.archive, self.lines, self.visits]
            rng.choice(kinds)(folder, f"{rng.choice('xyz')}{number}")
        (directory / ".hidden.xml").write_text("<a/>")
        (directory / "draft.xml.tmp").write_text("<a/>")
        (directory / "lone.json").write_text('{"url": "http://nobody/"}')
        for path in directory.rglob("*"):
            moment = self._rng.randint(1_500_000_000, 1_700_000_000)
            os.utime(path, (moment, moment))

    def _day(self) -> int:
        return self._rng.randint(1, 28)

    def _feed(self) -> str:
        """A version of one of two feeds, whose entries change, with their dates or without."""
        entries = ""
        for guid in self._rng.sample("ghij", 2):
            date = self._rng.choice(["", f"<pubDate>{self._day():02d} Mar 2026 00:00:00 GMT</pubDate>"])
            entries += ENTRY.format(f"T{self._rng.randint(0, 2)}", guid, date)
        return RSS.format(entries)

    def _address(self) -> str:
        return f"http://{self._rng.choice('fg')}/"

    def drop(self, folder: Path, name: str) -> None:
        path = folder / f"202603{self._day():02d}T120000Z-{name[1:]:0>12}.xml"
        path.write_text(self._feed())
        path.with_suffix(".json").write_text(json.dumps({"url": self._address()}))

    def noted(self, folder: Path, name: str) -> None:
        path = folder / f"{name}.xml"
        path.write_text(self._feed())
        notes = {"url": self._address(), "fetched_at": f"2026-03-{self._day():02d}T12:00:00Z"}
        path.with_suffix(".json").write_text(json.dumps(notes))

    def plain(self, folder: Path, name: str) -> None:
        (folder / f"{name}.xml").write_text(self._rng.choice([self._feed(), "<a>v</a>", "<broken"]))

    def archive(self, folder: Path, name: str) -> None:
        packed, count = self._rng.random() < 0.5, self._rng.randint(0, 3)
        feeds = ((self._address(), self._feed(), f"2026-03-{self._day():02d}T12:00:00Z") for _ in range(count))
        archive(folder / f"{name}.warc{'.gz' * packed}", *feeds)

    def visits(self, folder: Path, name: str) -> None:
        """Of the feeds, some of which were fetched then."""
        visits = []
        for _ in range(4):
            fetched = parse_iso(f"2026-03-{self._day():02d}T12:00:00Z")
            outcome, since = self._rng.choice(get_args(VisitOutcome)), self._rng.choice([None, fetched])
            error = self._rng.choice(["", "not there", "no answer"]) if outcome in ("ended", "failed") else ""
            visits.append(NotedVisit(self._address(), fetched + DAY // 4, outcome, since, 0, error))
        stem = drop_stem(visits[0].time, f"{name[1:]:0>12}")
        (folder / f"{stem}.visits").write_bytes(visits_text(visits) + b"none")

    def lines(self, folder: Path, name: str) -> None:
        times: list[object] = [None, self._rng.randint(0, 9), f"2026-03-{self._day():02d}", 1_700_000_000]
        rows = [{"id": f"{name} {n}", "xml": "<a/>", "time": time} for n, time in enumerate(times)]
        given = ({key: value for key, value in row.items() if value is not None} for row in rows)
        text = "".join(json.dumps(row) + "\n" for row in given)
        if self._rng.random() < 0.5:
            (folder / f"{name}.jsonl").write_text(text + "no line\n")
        else:
            (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))


def history() -> History:
    return History(most=3, keep=2 * DAY)


def sequence(items: Iterable[SourceItem]) -> Sequence:
    """The documents, those of visits, too, and visits; of what is none, only that it was there: where it stood is told
    in other ways."""
    return [
        (f"{i.id} {i.xml!r}" if i.stream == VISITS_STREAM else i.id, i.stream, i.t0, i.feed) if isinstance(i, Document)
        else (i.outcome, i.stream, i.time, i.feed) if isinstance(i, Visit)
        else ("reject", i.stream, i.time, "")
        for i in with_visit_documents(items)
    ]  # fmt: skip


def by_stream(directory: Path, feeds: EntryForm | None) -> tuple[Sequence, dict[str, str]]:
    """What is read, and what is kept of it."""
    tail, known = Tail(directory, feeds=feeds, now=lambda: NOW), history()
    found = judged(Turns(None).read(waiting_files([tail], {}), lambda waiting, cause: pytest.fail(cause)), known)
    return sequence([read.item for read in found if read.item is not None]), known.changed()


def by_spark(
    directory: Path, feeds: EntryForm | None, plans: Path, most: int, *, again: bool
) -> tuple[Sequence, dict[str, str]]:
    """What the driver admits of what executors read, here in one process, in micro-batches of `most` items. With
    `again` each of them is first left in the middle."""
    found, kept = list[SourceItem](), dict[str, str]()
    positions: dict[tuple[str, str], Offset] = {}
    files = FileSource((SourcePath(directory, feeds),), grain=100 if most > 1 else 1, tasks=3, most=most)
    reader, start = FileReader(files, lambda: positions, PlanFiles(plans), lambda: NOW), {"plan": 0}
    while (end := reader.latestOffset(start, ReadAllAvailable())) != start:
        shares = reader.partitions(start, end)
        made = [row for share in reversed(shares) if isinstance(share, PlanPartition) for row in reader.read(share)]
        rows, failed = spark_source.split_unreadable(
            pa.Table.from_batches(unpacked_rows(made), spark_source.ROWS).sort_by("place")
        )
        assert not failed
        text = pa.array([xml and xml.decode() for xml in rows["xml"].to_pylist()], pa.string())
        rows = rows.append_column("text", text).append_column("unread", pa.nulls(len(rows), pa.binary()))
        for count in (len(rows) // 3, len(rows)) if again else (len(rows),):
            known = history()
            known.load(kept)
            for read in islice(judged(decode_items(spark_source.uncommitted(rows, positions)), known), count):
                positions[read.offset.source, read.offset.file] = read.offset
                found += [] if read.item is None else [read.item]
            kept |= known.changed()
        start = end
    return sequence(found), kept


@pytest.mark.parametrize(("seed", "feeds"), in_turn(seeds(3, 60), [None, "item", "raw"]))
def test_all_read_the_same(seed: int, feeds: EntryForm | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    crawl = Crawl(tmp_path / "crawl", seed).directory
    found, kept = by_stream(crawl, feeds)
    assert len([one for one in found if one[0] not in ("reject", "complete")]) > 10
    by_run = read_documents([crawl], feeds=feeds, now=lambda: NOW, history=history())
    assert sequence(by_run) == found
    for place, (most, again) in enumerate(((1_000, False), (1, True), (3, seed % 2 == 0), (1, seed % 2 == 1))):
        if place == 3:  # a micro-batch takes an entry of a file
            monkeypatch.setattr("mmqjp.spark.source.LARGE", 100)
        assert by_spark(crawl, feeds, tmp_path / f"{place}", most, again=again) == (found, kept)
