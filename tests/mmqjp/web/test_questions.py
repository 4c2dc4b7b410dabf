"""Questions over a pipe, as the process of the page asks the one that holds the store."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest

from feeds.documents import Document
from join_stage.store.protocol import QuestionRefused
from mmqjp.web.questions import PipeReader, QuestionServer, StoreProcessGone
from mmqjp.web.readers import CursorReader, TooSlow
from tests.mmqjp.web.conftest import NOW
from tests.mmqjp.web.test_readers import REFUSED, over, shown
from tests.support.web import site_of


@pytest.fixture
def pipe(engine):
    ours, theirs = socket.socketpair()
    server = QuestionServer(Connection(ours.detach()), CursorReader(engine))
    thread = threading.Thread(target=server.run)
    thread.start()
    reader = PipeReader(Connection(theirs.detach()))
    yield reader
    reader.close()
    thread.join(60)
    assert not thread.is_alive()


def test_rows_and_pages_are_those_of_the_store_and_sql_is_judged(engine, pipe):
    ids = [output.id for output in engine.outputs()]
    assert shown(over(engine, pipe), ids) == shown(site_of(engine, now=lambda: NOW), ids)
    sql = "SELECT docid, id, xml, source_ids, NULL AS nothing FROM documents ORDER BY docid"
    assert pipe.select(sql, 10, 5) == CursorReader(engine).select(sql, 10, 5)
    for bad in REFUSED:
        with pytest.raises(QuestionRefused):
            pipe.select(bad, 10, 5)
    with pytest.raises(QuestionRefused, match="more than 1 rows"):
        pipe.select(sql, 1, 5)
    with pytest.raises(TooSlow):
        pipe.select("SELECT count(*) FROM range(1000000000000) a, range(1000000)", 10, 0.2)


def test_many_ask_at_once(pipe):
    with ThreadPoolExecutor(20) as pool:
        found = pool.map(lambda n: pipe.select(f"SELECT {n} AS n", 1, 60)["n"].to_pylist(), range(20))
    assert list(found) == [[n] for n in range(20)]


def test_new_batches_are_told(engine, pipe):
    pipe.refresh()
    before = pipe.version()
    engine.process([Document("d3", "<blog><author>Ada</author></blog>", time=NOW)])
    while pipe.version() == before:
        pass  # it is told by itself
    before = pipe.version()
    engine.pause("nobody")
    pipe.refresh()
    assert pipe.version() != before


def test_what_is_committed_is_told(engine, pipe):
    reader = CursorReader(engine)
    assert (pipe.committed(-1), reader.committed(-1)) == ((1, None), (1, None))
    engine.process([Document("d3", "<blog><author>Ada</author></blog>", time=NOW)])
    told, expected = pipe.committed(1), reader.committed(1)
    assert told == expected and told.rows["documents"]["id"].to_pylist() == ["d3"]
    assert (pipe.committed(2), pipe.committed(2)) == ((3, {}), (4, None))


def test_nobody_waits_for_a_process_that_has_ended():
    ours, theirs = socket.socketpair()
    reader, end = PipeReader(Connection(theirs.detach())), Connection(ours.detach())
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(reader.select, "SELECT 1", 1, 600)
        end.recv_bytes()
        end.close()
        with pytest.raises(StoreProcessGone):
            asked.result(60)
    reader.wait()
    with pytest.raises(StoreProcessGone):
        reader.select("SELECT 1", 1, 1)
    reader.close()
