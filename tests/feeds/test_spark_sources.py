"""Crawls, drops and live feeds as sources of Spark: the documents that reading them here gives, and each once."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lxml import etree

from feeds.documents import Document, Reject, SourceError
from feeds.fetch.archive import WarcArchive
from feeds.fetch.state import STATE_FILE, FetchStore
from feeds.spark.sources import drops, local_path, row_batches
from feeds.tail import read_documents
from mmqjp.engine import Session
from mmqjp.spark.attachment import register
from tests.support.feed_server import Fetching, rss
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.feed_server import FeedServer

Row = tuple[Any, ...]


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session that knows the sources."""
    found = spark.newSession()
    register(found)
    return found


def here(*paths: Path) -> list[Row]:
    """What reading paths in this process gives."""
    found = []
    for item in read_documents(paths, feeds="item"):
        assert isinstance(item, Document)
        found.append((item.id, item.stream, item.t0, item.t1, item.xml_bytes().decode()))
    return found


def rows(frame: DataFrame) -> list[Row]:
    return [tuple(row) for row in frame.where("reason IS NULL").select("id", "stream", "t0", "t1", "xml").collect()]


class Query:
    """A stream that writes what it finds; each run is a query of its own on the same checkpoint."""

    def __init__(self, session: SparkSession, directory: Path) -> None:
        self.session, self.directory = session, directory
        self.failing = False

    def run(self, frame: DataFrame) -> None:
        """Processes what is there, or, `failing`, fails with the batch processed and not committed."""
        found, checkpoint = str(self.directory / "found"), str(self.directory / "checkpoint")

        def write(batch: DataFrame, number: int) -> None:
            batch.coalesce(1).write.mode("overwrite").json(f"{found}/{number}")
            if self.failing:
                raise ZeroDivisionError

        query = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()

    def batches(self) -> list[list[str]]:
        """The ids of each batch, in order."""
        folders = sorted((self.directory / "found").iterdir(), key=lambda path: int(path.name))
        texts = ["".join(path.read_text() for path in sorted(folder.glob("part*"))) for folder in folders]
        return [[json.loads(line)["id"] for line in text.splitlines()] for text in texts]

    def ids(self) -> list[str]:
        return [id for batch in self.batches() for id in batch]


@pytest.fixture
def query(session: SparkSession, tmp_path: Path) -> Query:
    return Query(session, tmp_path)


# ---------------------------------------------------------------- WARC


@pytest.fixture
def archives(server: FeedServer, tmp_path: Path) -> Fetching:
    """A fetch into WARC files, a file a version."""
    fetching = Fetching(tmp_path / "crawl")
    fetching.archive = lambda out, store: WarcArchive(out, store.archive_mark(), store.save_mark, 1)
    return fetching


def publish(server: FeedServer, fetching: Fetching, *titles: str) -> None:
    """Fetches a version of the feed, two hours after the last."""
    server.serve("/feed", rss(*titles), Content_Type="application/rss+xml")
    fetching.later(2 * 3600)
    fetching.run(server.url("/feed"))


def test_warc_files_are_read_as_here(session, server, archives, tmp_path):
    publish(server, archives, "a", "b")
    publish(server, archives, "c")
    server.serve("/other", rss("d"), Content_Type="application/rss+xml")
    archives.run(server.url("/other"))
    for form in ("item", "raw"):
        frame = session.read.format("mmqjp_warc").option("feeds", form).load(str(archives.directory))
        assert frame.rdd.getNumPartitions() == 3
        assert len(rows(frame)) == 4
    frame = session.read.format("mmqjp_warc").option("feeds", "item").load(f"file://{archives.directory}")
    assert rows(frame) == here(archives.directory)  # in the order of the fetches
    whole = session.read.format("mmqjp_warc").load(str(archives.directory))
    assert [row["id"].split()[0] for row in whole.collect()] == [server.url("/feed")] * 2 + [server.url("/other")]


def test_what_cannot_be_read_is_a_row_with_the_reason(session, server, archives):
    publish(server, archives, "a")
    (path,) = archives.directory.glob("*.warc.gz")
    (archives.directory / "broken.warc.gz").write_bytes(path.read_bytes()[:-20])
    (archives.directory / ".draft.warc").write_bytes(b"")
    frame = session.read.format("mmqjp_warc").option("feeds", "item").load(str(archives.directory))
    (reject,) = frame.where("reason IS NOT NULL").collect()
    assert "broken.warc.gz" in reject["reason"] and reject["xml"] is None
    assert len(rows(frame)) == 1


@pytest.mark.soak
def test_a_stream_of_warc_files_reads_each_once(session, query, server, archives):
    def stream() -> DataFrame:
        source = session.readStream.format("mmqjp_warc").option("feeds", "item").option("maxFilesPerTrigger", 1)
        found: DataFrame = source.load(str(archives.directory))
        return found

    archives.directory.mkdir()
    publish(server, archives, "a")
    publish(server, archives, "b")
    query.run(stream())
    assert [[id.split()[1] for id in batch] for batch in query.batches()] == [["a"], ["b"]]
    publish(server, archives, "c")
    query.failing = True
    with pytest.raises(Exception, match="ZeroDivisionError"):
        query.run(stream())
    query.failing = False
    publish(server, archives, "d")
    query.run(stream())
    query.run(stream())
    assert [[id.split()[1] for id in batch] for batch in query.batches()] == [["a"], ["b"], ["c"], ["d"]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no path"),
        ({"path": "/nowhere"}, "no such file or directory"),
        ({"path": "s3://bucket/x"}, "what is at s3: cannot be read"),
        ({"path": "/", "feeds": "atom"}, "no form of entries"),
    ],
)
def test_what_is_no_crawl_is_said(session, options, words):
    with pytest.raises(Exception, match=words):
        session.read.format("mmqjp_warc").options(**options).load().collect()


# ---------------------------------------------------------------- drops


@pytest.mark.soak
def test_a_stream_of_drops_reads_each_file_once(session, query, server, tmp_path):
    fetching = Fetching(tmp_path / "drops")
    publish(server, fetching, "a", "b")
    query.run(drops(session, fetching.directory))
    fetching.later(2 * 3600)
    server.serve("/other", rss("c"))
    fetching.run(server.url("/other"))
    query.failing = True
    with pytest.raises(Exception, match="ZeroDivisionError"):
        query.run(drops(session, fetching.directory))
    query.failing = False
    query.run(drops(session, fetching.directory))
    query.run(drops(session, fetching.directory))
    assert sorted(query.ids()) == sorted(id for id, *_ in here(fetching.directory))
    assert query.ids()[0].startswith(server.url("/feed"))


def test_documents_of_drops_are_those_that_are_read_here(session, server, tmp_path):
    fetching = Fetching(tmp_path / "100% & drops")
    publish(server, fetching, "a", "b")
    (fetching.directory / "x.xml").write_text("no feed")
    frame = drops(session, fetching.directory, most_files=1)
    frame.writeStream.format("memory").queryName("found").trigger(availableNow=True).start().awaitTermination()
    found = session.table("found")
    (fetching.directory / "x.xml").unlink()
    assert sorted(rows(found)) == sorted(here(fetching.directory))
    assert [row["reason"][:6] for row in found.where("xml IS NULL").collect()] == ["x.xml:"]


# ---------------------------------------------------------------- live feeds


@pytest.fixture
def live(server: FeedServer, tmp_path: Path) -> dict[str, str]:
    server.validated("/a", rss("one", "two", guid="a"), '"1"')
    server.serve("/b", rss("two", "three", guid="b"))
    listed = f"<outline text='News'><outline text='My A' xmlUrl='{server.url('/a')}'/></outline>"
    (tmp_path / "feeds.opml").write_text(f"<opml><body>{listed}</body></opml>")
    lists = f"{tmp_path / 'feeds.opml'},{server.url('/b')}"
    return {"lists": lists, "state": str(tmp_path / "live"), "allowPrivate": "true", "spacing": "0"}


def due(state: Path) -> None:
    """Makes all feeds due again."""
    with FetchStore(state / "drops" / STATE_FILE, write=True) as store:
        for feed in store.feeds():
            store.commit(replace(feed, next_check=0))


@pytest.mark.soak
def test_live_feeds_are_fetched_and_read(session, server, live, tmp_path):
    frame = session.read.format("mmqjp_feeds").options(**live).load()
    assert sorted(id.split()[1] for id, *_ in rows(frame)) == ["aone", "atwo", "bthree", "btwo"]
    items = [etree.fromstring(xml) for *_, xml in rows(frame)]
    assert sorted({(item.findtext("feed_title"), item.findtext("folder")) for item in items}) == [
        ("My A", "News"),
        ("Site", None),
    ]
    assert sorted(server.paths()) == ["/a", "/b"]  # once: they are not due again
    due(tmp_path / "live")
    server.serve("/b", rss("two", "three", guid="b").replace("<title>two", "<title>2"))
    frame = session.read.format("mmqjp_feeds").options(**live).load()
    assert sorted(rows(frame)) == sorted(here(tmp_path / "live" / "drops")) and len(rows(frame)) == 5
    assert [request.headers.get("If-None-Match") for request in server.log if request.path == "/a"] == [None, '"1"']


def test_a_stream_of_live_feeds_has_each_version_of_each_entry_once(session, query, server, live, tmp_path):
    def stream() -> DataFrame:
        found: DataFrame = session.readStream.format("mmqjp_feeds").options(**live).load()
        return found

    query.run(stream())
    assert sorted(id.split()[1] for id in query.ids()) == ["aone", "atwo", "bthree", "btwo"]
    for title, failing in (("2", True), ("II", False), ("zwei", True), ("2", False)):
        server.serve("/b", rss("two", "three", guid="b").replace("<title>two", f"<title>{title}"))
        due(tmp_path / "live")
        query.failing = failing
        if failing:
            with pytest.raises(Exception, match="ZeroDivisionError"):
                query.run(stream())
        else:
            query.run(stream())
    query.run(stream())
    assert len(query.ids()) == len(set(query.ids())) == 4 + 3  # "2" was met before
    assert sorted(query.ids()) == sorted(id for id, *_ in here(tmp_path / "live" / "drops"))


@pytest.mark.soak
def test_a_state_goes_with_one_query(session, query, server, live, tmp_path):
    def stream() -> DataFrame:
        found: DataFrame = session.readStream.format("mmqjp_feeds").options(**live).load()
        return found

    query.run(stream())
    server.serve("/b", rss("four", guid="b"))
    due(tmp_path / "live")
    query.run(stream())
    assert len(query.ids()) == 5
    with pytest.raises(Exception, match="a state goes with one query and its checkpoint"):
        Query(session, tmp_path / "other").run(stream())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lists": ""}, "no feeds"),
        ({"state": ""}, "no state"),
        ({"lists": "nowhere.opml"}, "no such file"),
        ({"lists": "ftp://x.example/"}, "is not an http or https address"),
        ({"feeds": "nowhere.opml"}, "lists names lists of feeds"),
        ({"interval": "soon"}, "no number of seconds"),
        ({"robots": "perhaps"}, "neither true nor false"),
        ({"feeds": "atom"}, "no form of entries"),
    ],
)
def test_what_cannot_be_fetched_is_said(session, live, options, words):
    with pytest.raises(Exception, match=words):
        session.read.format("mmqjp_feeds").options(**live).options(**options).load().collect()


# ---------------------------------------------------------------- rows, and a use of them


def test_a_document_in_another_encoding_is_text_in_its_row():
    items: list[Document | Reject] = [
        Document("d", "<?xml version='1.0' encoding='iso-8859-1'?><a>é</a>".encode("latin-1"), "S", 1),
        Document("e", b"<a>\xff</a>", "S", 2),
        Reject("f", "S", None, "why", "raw"),
    ]
    (batch,) = row_batches(items)
    assert batch.column("xml").to_pylist() == ["<a>é</a>", None, None]
    assert [str(reason)[:18] for reason in batch.column("reason").to_pylist()] == ["None", "e: not well-formed", "why"]
    assert batch.column("t1").to_pylist() == [1, 2, None]


def test_a_document_whose_doctype_gives_attributes_defaults_is_a_row_with_the_reason():
    xml = b"<?xml version='1.0'?><!DOCTYPE a [<!ATTLIST a k CDATA '1'>]><a/>"
    (batch,) = row_batches([Document("d", xml, "S", 1)])
    assert batch.column("xml").to_pylist() == [None]
    assert batch.column("reason")[0].as_py().startswith("d: the DOCTYPE gives an attribute of 'a' a default")


def test_only_what_is_local_is_a_path():
    assert local_path("file:///a%20b") == Path("/a b")
    with pytest.raises(SourceError):
        local_path("hdfs://x/y")


def test_feeds_alone_do_not_import_spark():
    program = "import sys, feeds.tail, feeds.tail, feeds.fetch.fetcher, mmqjp.cli; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def programs() -> list[str]:
    """The programs of docs/spark.md that read feeds."""
    page = (ROOT / "docs" / "spark.md").read_text("utf-8")
    parts = [part.removeprefix("python\n") for part in page.split("```") if part.startswith("python\n")]
    return [part for part in parts if "mmqjp_" in part]


def test_the_programs_of_the_documentation_work(spark, server, live, archives, tmp_path, monkeypatch):
    """The feeds of the test in place of the page's, on loopback, and a stream that ends when all is read."""
    monkeypatch.chdir(tmp_path)
    publish(server, archives, "a", "b")
    query = "FROM S//item->a[./title->t] JOIN {t = u, 2 d} S//item->b[./title->u] PUBLISH same_story"
    (tmp_path / "stories.xscl").write_text(query)
    names = {"spark": spark.newSession()}
    feeds = '.option("lists", "subscriptions.opml")'
    local = f""".option("lists", "{live["lists"]}").option("allowPrivate", "true").option("spacing", "0")"""
    for text in programs():
        assert feeds in text or "mmqjp_feeds" not in text
        text = text.replace(feeds, local).replace('processingTime="1 minute"', "availableNow=True")
        for folder in ("crawl/", "fetched/", "checkpoint/"):  # Spark has a current directory of its own
            text = text.replace(f'"{folder}"', f'"{tmp_path / folder}"')
        exec(text, names)
    names["engine"].close()
    names.clear()
    with Session("duckdb", state=tmp_path / "state") as engine:
        assert engine.sql("SELECT count(*) AS n FROM outputs")["n"].to_pylist() == [2]
