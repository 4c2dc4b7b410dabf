"""Feeds and archives of a store, read and from remembered answers, against what is recounted from all outputs."""

from random import Random

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.present import recent, recipients
from mmqjp.present.recent import RecentAnswers
from mmqjp.syndication.read_entries import Archived, ArchiveGone, Earlier, StoreFeeds
from mmqjp.web.readers import FilesReader
from tests.generate.seeds import seeds
from tests.mmqjp.syndication.feed_cases import QUERIES, Clock, Recount, SessionReader, filled, process
from tests.support.stores import as_files


def ids(entries):
    return [entry.id for entry in entries]


def check(feeds, recount):
    for name in QUERIES:
        found = feeds.newest(name)
        if found is None:
            assert not recount.of(name)
            continue
        chain = recount.chain(name)
        assert ids(found.entries) == recount.newest(name)
        assert found.archive == recount.newest_archive(name)
        for number in range(recount.archives):
            archive = feeds.archive(name, number)
            earlier = [one for one in chain if one < number]
            if number in chain:
                assert isinstance(archive, Archived) and ids(archive.entries) == recount.archive(name, number)
                assert archive.more == (number > 0)
            elif earlier:
                assert archive == Earlier(earlier[0])
            else:
                assert archive == Archived((), False, found.since)
        assert feeds.archive(name, recount.archives) is None


@pytest.mark.parametrize("seed", seeds(1, 6, 7))
def test_feeds_hold_what_is_recounted(seed):
    with Session("duckdb") as engine:
        kept = StoreFeeds(SessionReader(engine))

        def check_newest():
            """What is read on, batch by batch, is what is read at once."""
            recount = Recount(engine.outputs())
            for name in QUERIES:
                if (found := kept.newest(name)) is not None:
                    assert (ids(found.entries), found.archive) == (recount.newest(name), recount.newest_archive(name))

        filled(engine, seed, after_each=check_newest)
        check(StoreFeeds(SessionReader(engine)), Recount(engine.outputs()))


def test_feeds_of_files_of_spark_are_the_same(tmp_path):
    with Session("duckdb", state=tmp_path / "duckdb") as engine:
        filled(engine, 5)
        recount, there = Recount(engine.outputs()), StoreFeeds(SessionReader(engine))
        texts = {name: there.newest(name) for name in QUERIES}
    as_files(tmp_path / "duckdb", tmp_path / "files", batches=3)
    reader = FilesReader(tmp_path / "files")
    feeds = StoreFeeds(reader)
    check(feeds, recount)
    assert {name: feeds.newest(name) for name in QUERIES} == texts
    reader.close()


def archives(feeds, names, count):
    return {(name, number): feeds.archive(name, number) for name in names for number in range(count)}


def test_archives_never_change(tmp_path):
    """Whatever happens after they are full: more outputs, pauses, removals, other queries of the name, a restart."""
    with Session("duckdb", state=tmp_path) as engine:
        filled(engine, 11)
        count = (engine.last_seq + 1) // 100
        before = archives(StoreFeeds(SessionReader(engine)), QUERIES, count)
        assert any(isinstance(one, Archived) and one.entries for one in before.values())
        for name in engine.queries():
            engine.pause(name)
        assert archives(StoreFeeds(SessionReader(engine)), QUERIES, count) == before
        for name in list(engine.queries()):
            engine.unsubscribe(name)
        assert archives(StoreFeeds(SessionReader(engine)), QUERIES, count) == before
        for name in QUERIES:
            engine.subscribe(f"SELECT t FROM S//item->x[./title->t] PUBLISH {name}", backfill=True)
    with Session("duckdb", state=tmp_path, plan="basic") as engine:
        feeds = StoreFeeds(SessionReader(engine))
        added = [key for key, one in before.items() if one is None]  # of names that there were not yet
        found = archives(feeds, QUERIES, count)
        assert {key: one for key, one in found.items() if key not in added} == {
            key: one for key, one in before.items() if key not in added
        }
        check(feeds, Recount(engine.outputs()))


def test_what_is_dropped_is_gone():
    clock = Clock()
    with Session("duckdb", now=clock, lateness=0) as engine:
        filled(engine, 11)
        feeds = StoreFeeds(SessionReader(engine))
        count = (engine.last_seq + 1) // 100
        before = archives(feeds, QUERIES, count)
        assert all(feeds.newest(name) for name in engine.queries())
        engine.prune(15_000_000)
        assert engine.sql("SELECT min(seq) AS seq FROM outputs")["seq"][0].as_py() > 0, "something is dropped"
        found = archives(StoreFeeds(SessionReader(engine)), QUERIES, count)
        assert found[next(iter(engine.queries())), 0] == ArchiveGone()
        kept = {key for key, one in found.items() if not isinstance(one, ArchiveGone)}
        assert all(found[key] == before[key] for key in kept if isinstance(before[key], Archived))
        for name in engine.queries():
            found, fresh = feeds.newest(name), StoreFeeds(SessionReader(engine)).newest(name)
            assert found is not None and fresh is not None
            assert (ids(found.entries), found.archive) == (ids(fresh.entries), fresh.archive), "dropped ones have gone"
        engine.prune(0)
        clock.now += 1
        assert engine.sql("SELECT count(*) AS n FROM outputs")["n"][0].as_py() < 20
        for name in engine.queries():
            newest = feeds.newest(name)
            assert newest is not None and newest.archive is None
            assert feeds.archive(name, count - 1) == ArchiveGone() and feeds.archive(name, count) is None


def test_there_is_no_feed_of_what_is_no_query(engine):
    filled(engine, 1, batches=1)
    feeds = StoreFeeds(SessionReader(engine))
    for name in ("unknown", "it's", "a\\b", "", "\n", "x' OR '1'='1", "é\u202e"):
        assert feeds.newest(name) is None and feeds.archive(name, 0) is None


def test_entries_have_values_only_of_queries_that_select(engine):
    engine.subscribe(QUERIES["titles"])
    engine.subscribe(QUERIES["every"])
    process(engine, 0, 1, Random(0))
    feeds = StoreFeeds(SessionReader(engine))
    newest = [feeds.newest(name) for name in ("titles", "every")]
    titles, every = (entry for one in newest if one is not None for entry in one.entries)
    value = "&lt;dt dir=&quot;auto&quot;&gt;t&lt;/dt&gt;&lt;dd dir=&quot;auto&quot;&gt;of page 0&lt;/dd&gt;"
    assert value in titles.xml and "&gt;t&lt;" not in every.xml


def test_a_feed_is_read_once_for_each_batch(engine):
    filled(engine, 3, batches=3)
    reader = SessionReader(engine)
    feeds, name = StoreFeeds(reader), next(iter(engine.queries()))
    first = feeds.newest(name)
    asked = reader.asked
    assert feeds.newest(name) == first and reader.asked == asked
    engine.process([])
    assert feeds.newest(name) == first and reader.asked == asked + 2  # the entries are kept


def test_long_documents_have_titles_or_ids_and_long_outputs_no_values(engine):
    engine.subscribe("SELECT c, t FROM S//item->x[./content->c][./title->t] PUBLISH long; S//item->x PUBLISH short")
    fields = "<title>Ä &amp; title</title><item_url>https://a.example/1</item_url>"
    engine.process([Document("d1", f"<item>{fields}<content>{'ä &lt;x&gt; ' * 20_000}</content></item>")])
    for name in ("long", "short"):
        newest = StoreFeeds(SessionReader(engine)).newest(name)
        assert newest is not None
        (entry,) = newest.entries
        assert "<title>Ä &amp; title</title>" in entry.xml
        assert 'href="https://a.example/1"' in entry.xml and len(entry.xml) < 2_000
    engine.process([Document("d2", f"<item a='{'x' * 200_000}'><title>A</title></item>")])  # cut in its first tag
    newest = StoreFeeds(SessionReader(engine)).newest("short")
    assert newest is not None and [
        f"<title>{title}</title>" in entry.xml
        for title, entry in zip(("d2", "Ä &amp; title"), newest.entries, strict=True)
    ] == [True, True]


def remembering(reader):
    return StoreFeeds(reader, RecentAnswers(lambda sql: reader.select(sql, 100_000, 10.0), reader.version))


@pytest.mark.parametrize("of_form", [pytest.param(recent.OF_FORM, marks=pytest.mark.soak), 40])
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_feeds_are_the_same_after_each_batch(of_form, seed):
    """With few remembered answers some feeds are asked for."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch, Session("duckdb", now=clock, lateness=0) as engine:
        patch.setattr(recent, "OF_FORM", of_form)
        patch.setattr(recipients, "MAX_CACHED_ANSWERS", of_form)
        feeds, asked = remembering(SessionReader(engine)), StoreFeeds(SessionReader(engine))

        def compare():
            clock.now += 1_000_000
            for name in QUERIES:
                assert feeds.newest(name) == asked.newest(name)  # also documents that are shown after they are dropped

        filled(engine, seed, after_each=compare)
        engine.prune(15_000_000)
        process(engine, 1_000, 3, Random(seed))  # what was dropped is seen with the next batch
        compare()


class HeardReader(SessionReader):
    def __init__(self, engine):
        super().__init__(engine)
        self.heard = []

    def select(self, sql, limit, seconds):
        self.heard.append(sql)
        return super().select(sql, limit, seconds)


def test_the_newest_outputs_are_not_asked_for(engine):
    filled(engine, 5, batches=3)
    reader = HeardReader(engine)
    feeds = remembering(reader)
    for name in engine.queries():
        assert feeds.newest(name) is not None
    assert not [sql for sql in reader.heard if "m.name =" in sql or "WHERE name =" in sql], "none is for one name"
    reader.heard.clear()
    for name in engine.queries():
        assert feeds.newest(name) is not None
    assert reader.heard == []
