"""Feeds from remembered answers, against feeds that are asked for."""

from random import Random

import pytest

from mmqjp.engine import Session
from mmqjp.present import recent, recipients
from mmqjp.present.recent import RecentAnswers
from mmqjp.syndication.read_entries import StoreFeeds
from tests.generate.seeds import seeds
from tests.mmqjp.syndication.feed_cases import QUERIES, Clock, SessionReader, filled, process


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
