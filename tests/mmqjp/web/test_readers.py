"""Readers of stores: what each refuses and shows, what is cached, and limits of slow questions."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from multiprocessing.connection import Connection
from queue import Queue
from threading import Event, Thread, current_thread

import pytest
from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient

from common.errors import OperationalError
from feeds.documents import Document
from join_stage.store.protocol import QuestionRefused
from mmqjp.engine import Session
from mmqjp.service.commands import CommandError, run_command
from mmqjp.service.spool import Command
from mmqjp.service.sql_question import BACKTEST, WHY_NOT
from mmqjp.web.questions import PipeReader, QuestionServer, StoreProcessGone
from mmqjp.web.readers import (
    KEPT_SECONDS,
    MAX_CACHED_REPLIES,
    MOST_SLOW,
    REPLY_FRESH_SECONDS,
    REPLY_STALE_SECONDS,
    STORE_STALE_SECONDS,
    Busy,
    CursorReader,
    FilesReader,
    RecentlyTold,
    RunningQuestions,
    SpoolReader,
    SteadyReader,
    TooSlow,
)
from mmqjp.web.serving import LONGEST_ADDRESS, MOST_SECONDS, PageCache
from mmqjp.web.site import Site
from tests.mmqjp.web.conftest import NOW
from tests.support.stores import TABLES, parquet_store
from tests.support.web import URL, browser, script, site_of

REFUSED = [
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM glob('/*')",
    "SELECT getenv('HOME')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT content FROM read_blob('/etc/passwd')",
    "COPY documents TO '/tmp/out.csv'",
    "ATTACH '/tmp/other.db'",
    "INSTALL httpfs",
    "DROP TABLE documents",
    "INSERT INTO settings VALUES ('a', 'b', 1)",
    "SET threads = 1",
    "PRAGMA database_list",
    "SELECT 1; SELECT 2",
    "CALL pragma_version()",
    "SELECT * FROM query('SELECT 1')",
]


def spool_reader(engine: Session, asked: list[str] | None = None, clock=lambda: 0.0) -> SpoolReader:
    """A reader that asks an engine of this thread as another process would."""

    def ask(do, arguments):
        if asked is not None:
            asked.append(arguments["sql"])
        found = run_command(engine, Command("1", do, arguments))
        if found.error is not None:
            raise CommandError(found.error)
        return found.result

    return SpoolReader(ask, clock)


def test_the_process_that_holds_the_store_answers_nothing_but_selects(unchanged_engine):
    for sql in REFUSED:
        with pytest.raises(QuestionRefused):
            CursorReader(unchanged_engine).select(sql, 10, 5)
        with pytest.raises(CommandError):
            spool_reader(unchanged_engine).select(sql, 10, 5)


def test_own_questions_are_single_selects_that_only_read(unchanged_engine):
    reader = CursorReader(unchanged_engine)
    of_duckdb = ("SELECT * FROM read_text('/etc/passwd')", "SELECT nextval('unknown')")  # which it refuses itself
    ours = ("DROP TABLE documents", "SELECT 1; SELECT 2", "COPY documents TO '/tmp/out.csv'", "SELECT * FROM no")
    for sql in (*ours, *of_duckdb):
        with pytest.raises(QuestionRefused):
            reader.select(sql, 10, 5, own=True)
    assert reader.select("SELECT count(*) AS n FROM outputs", 1, 5, own=True)["n"].to_pylist() == [1]


def test_answers_are_bounded_in_rows_and_time(unchanged_engine):
    reader = CursorReader(unchanged_engine)
    assert len(reader.select("SELECT * FROM range(10)", 10, 5)) == 10
    with pytest.raises(QuestionRefused, match="more than 10 rows"):
        reader.select("SELECT * FROM range(11)", 10, 5)
    with pytest.raises(TooSlow):
        reader.select("SELECT count(*) FROM range(1000000000000) a, range(1000000)", 10, 0.2)


def test_few_questions_run_at_once_and_can_be_ended():
    running = RunningQuestions(1)
    begun, ended = threading.Event(), threading.Event()

    class Long:
        def answer(self):
            begun.set()
            ended.wait(60)

        def interrupt(self):
            ended.set()

    class Failing(Long):
        def answer(self):
            raise AssertionError

    thread = threading.Thread(target=lambda: running.answer(Long, 60))
    thread.start()
    begun.wait(60)
    with pytest.raises(Busy):
        running.answer(Long, 0.01)
    with pytest.raises(AssertionError):
        running.answer(Failing, 0.01, asked=True)  # what people ask has a place of its own
    assert running.interrupt()
    thread.join(60)
    assert not running.interrupt()


def test_a_cursor_sees_whole_batches_and_tells_of_new_ones(engine):
    reader = CursorReader(engine)
    before = reader.version()
    assert reader.select("SELECT count(*) AS n FROM documents", 1, 5)["n"].to_pylist() == [2]
    engine.process([Document("d3", "<blog><author>Ada</author></blog>", time=NOW)])
    assert reader.version() != before
    assert reader.select("SELECT count(*) AS n FROM outputs", 1, 5)["n"].to_pylist() == [2]


def test_another_process_is_asked_once_a_second(unchanged_engine):
    engine = unchanged_engine
    now = [0.0]
    asked: list[str] = []
    reader = spool_reader(engine, asked, lambda: now[0])
    sql = "SELECT id, t0, [t0, t1] AS times, NULL AS nothing, 1.5 AS x, true AS yes FROM documents ORDER BY id"
    rows = reader.select(sql, 10, 5).to_pylist()
    assert rows == CursorReader(engine).select(sql, 10, 5).to_pylist() and len(rows) == 2
    assert reader.select(sql, 10, 5).to_pylist() == rows and len(asked) == 1
    version = reader.version()
    now[0] += KEPT_SECONDS
    assert reader.version() != version
    reader.select(sql, 10, 5)
    assert len(asked) == 2
    assert reader.select("SELECT id FROM documents WHERE false", 10, 5).to_pylist() == []


PAGES = ["/", "/?sort=last", "/q/book_blog", "/q/nobody", "/api/v1/queries", "/api/v1/queries/book_blog"]


def shown(site: Site, ids: list[str]) -> list[str]:
    addresses = [*PAGES, "/api/v1/queries/book_blog/outputs", *(f"/o/{id}" for id in ids)]
    client = browser(site)
    return [client.get(address).text for address in addresses]


def over(engine: Session, reader: object) -> Site:
    inner = site_of(engine, now=lambda: NOW)
    return Site(reader, inner.ask, inner.access, URL, inner.state, now=lambda: NOW, clock=inner.clock)  # type: ignore[arg-type]


def test_a_page_is_the_same_beside_a_service(unchanged_engine):
    engine = unchanged_engine
    ids = [output.id for output in engine.outputs()]
    assert shown(over(engine, spool_reader(engine)), ids) == shown(site_of(engine, now=lambda: NOW), ids)


def test_files_as_those_of_spark_are_read_as_of_the_newest_batch(engine, tmp_path):
    now, written = [0.0], dict[str, int]()
    store = parquet_store(tmp_path)

    def write_on():
        for name, schema in TABLES.items():
            rows = engine._store.read(name, schema.names)
            store.append(name, rows.slice(written.get(name, 0)))
            written[name] = len(rows)
        store.commit()

    write_on()
    reader = FilesReader(tmp_path, lambda: now[0])
    count = "SELECT count(*) AS n FROM outputs"
    assert reader.select(count, 1, 30)["n"].to_pylist() == [1]
    for sql in REFUSED:
        with pytest.raises(QuestionRefused):
            reader.select(sql, 10, 30)
    version = reader.version()
    engine.process([Document("d3", "<blog><author>Ada</author></blog>", time=NOW)])
    write_on()
    now[0] += KEPT_SECONDS
    assert reader.version() != version
    assert reader.select(count, 1, 30)["n"].to_pylist() == [2]
    ids = [output.id for output in engine.outputs()]
    assert shown(over(engine, reader), ids) == shown(site_of(engine, now=lambda: NOW), ids)
    reader.close()
    store.close()


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;{{ 8191 * 8191 }}\u202e"


def test_text_of_feeds_is_escaped_on_every_page():
    text = HOSTILE.replace("&", "&amp;").replace("<", "&lt;")
    item = (
        "<item><title>{0}</title><item_url>{1}</item_url><channel_url>javascript:alert(3)</channel_url>"
        "<feed_title>{0}</feed_title><author>{0}</author></item>"
    )
    with Session("duckdb") as engine:
        engine.subscribe(
            "FROM S//item->a[./title->t1] FOLLOWED BY {t1 = t2, 1 d} S//item->b[./title->t2] PUBLISH hostile;"
            'SELECT a/title AS t FROM S//item->a[contains(./title, "<script>")] PUBLISH selecting'
        )
        for n, url in enumerate(("javascript:alert(4)", 'https://x.example/"onclick=alert(5)', "https://x.example/")):
            engine.process([Document(f"<b>{n}", item.format(text, url), time=NOW + n)])
        site = site_of(engine, now=lambda: NOW)
        outputs = list(engine.outputs())
        assert {output.query for output in outputs} == {"hostile", "selecting"}
        addresses = ["/", "/q/hostile", "/q/selecting", *(f"/o/{output.id}" for output in outputs)]
        client = browser(site)
        for address in addresses:
            page = client.get(address)
            assert page.status_code == 200
            for word in ("<script>alert", "<img", 'onclick=alert(5)"', "67092481"):
                assert word not in page.text, (address, word)
            for link in page.text.split("<a ")[1:]:
                tag = link.split(">")[0]
                assert (
                    'href="/' in tag
                    or f'href="{URL}/f/' in tag
                    or "#main" in tag
                    or ('href="https://x.example/"' in tag and 'rel="noopener noreferrer nofollow"' in tag)
                ), tag
        found = script(site).get("/api/v1/queries/hostile/outputs").json()
        assert HOSTILE.replace("&amp;", "&")[:10] in found["outputs"][0]["items"][0]["title"]
        assert {item["link"] for one in found["outputs"] for item in one["items"]} <= {"", "https://x.example/"}


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


class Pages:
    made = 0

    async def __call__(self, scope, receive, send):
        self.made += 1
        page = Response("<p>page", media_type="text/html")
        await (PlainTextResponse("text") if scope["path"] == "/text" else page)(scope, receive, send)


def test_a_page_is_made_once_until_the_next_commit_or_change():
    pages, reader, now = Pages(), Store(), [0.0]
    client = TestClient(PageCache(pages, reader, lambda: now[0]))
    made = []
    for step in (lambda: None, lambda: setattr(reader, "now", 2), lambda: client.post("/"), lambda: now.append(0)):
        step()
        made += [client.get("/").text, pages.made]
    now[0] += MOST_SECONDS
    made += [client.get("/").text, pages.made]
    assert made == ["<p>page", 1, "<p>page", 2, "<p>page", 4, "<p>page", 4, "<p>page", 5]


def test_what_is_no_page_or_has_a_long_address_is_not_kept():
    for address, made in (("/", 1), ("/?a=1", 1), ("/text", 2), ("/?" + "a" * LONGEST_ADDRESS, 2)):
        pages = Pages()
        client = TestClient(PageCache(pages, Store(), lambda: 0.0))
        assert [client.get(address).status_code for _ in range(2)] == [200, 200]
        assert pages.made == made, address


THREADS = 40
"""Starlette answers so many requests at the same time. Those for one page are answered together."""

SLOW = {
    "why-not": lambda client, n: client.get(f"/q/book_blog/why-not?document=d{n}"),
    "a back-test": lambda client, n: client.post("/api/v1/backtest", json={"text": f"FROM S//a{n}->x"}),
    "SQL": lambda client, n: client.get(f"/sql?sql=SELECT+{n}"),
}


@pytest.mark.parametrize("kind", SLOW)
def test_others_are_served_while_slow_requests_wait(engine, kind, monkeypatch):
    site = site_of(engine, now=lambda: NOW)
    begun, goes_on = Queue[None](), Event()
    ask, select = site.ask, site.reader.select

    def waits():
        begun.put(None)
        assert goes_on.wait(60)

    def slow_ask(do, arguments):
        if do in (WHY_NOT, BACKTEST):
            waits()
        return {} if do == BACKTEST else ask(do, arguments)

    def slow_select(sql, limit, seconds, *, asked=False, own=False):
        if asked:
            waits()
        return select(sql, limit, seconds, asked=asked, own=own)

    object.__setattr__(site, "ask", slow_ask)
    monkeypatch.setattr(site.reader, "select", slow_select)
    with browser(site) as client, ThreadPoolExecutor(2 * THREADS) as pool:
        waiting = [pool.submit(SLOW[kind], client, n) for n in range(MOST_SLOW)]
        for _ in waiting:
            begun.get(timeout=60)
        more = [pool.submit(SLOW[kind], client, n) for n in range(100, 100 + THREADS)]
        assert {one.result(60).status_code for one in more} == {503}
        assert client.get("/").status_code == 200
        goes_on.set()
        assert 503 not in {one.result(60).status_code for one in waiting}
        assert SLOW[kind](client, 200).status_code != 503


def test_an_answer_serves_for_a_moment_and_until_a_change():
    now, numbers = [0.0], count(1)
    told = RecentlyTold(lambda do, given: next(numbers), lambda: now[0])
    assert [told.ask("status", {}), told.ask("status", {}), told.ask("sinks", {"name": "a"})] == [1, 1, 2]
    now[0] = REPLY_STALE_SECONDS
    assert told.ask("status", {}) == 3
    told.forget()
    assert told.ask("status", {}) == 4
    for number in range(MAX_CACHED_REPLIES):
        told.ask("sinks", {"name": str(number)})
    assert told.ask("status", {}) == MAX_CACHED_REPLIES + 5, "a bounded number is kept"


def test_after_a_second_an_answer_serves_while_it_is_asked_for_again():
    now, asked, goes_on = [0.0], Queue[Thread | None](), Event()

    def ask(do, given):
        number = asked.qsize()
        if number:
            goes_on.wait(60)
        asked.put(current_thread())
        return number

    told = RecentlyTold(ask, lambda: now[0])
    assert told.ask("status", {}) == 0
    asked.get()
    asked.put(None)
    now[0] = REPLY_FRESH_SECONDS
    assert [told.ask("status", {}), told.ask("status", {})] == [0, 0], "nobody waits"
    goes_on.set()
    asked.get(timeout=60)
    asking = asked.get(timeout=60)
    assert asking is not None
    asking.join(60)
    assert told.ask("status", {}) == 1


def test_an_error_is_not_kept():
    asked = []

    def ask(do, given):
        asked.append(do)
        raise OSError("gone")

    told = RecentlyTold(ask, lambda: 0.0)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            told.ask("status", {})
    assert len(asked) == 2


def test_what_was_asked_before_a_change_is_not_shown_after_it():
    begun, goes_on, asked = Event(), Event(), []

    def ask(do, given):
        asked.append(do)
        if len(asked) == 1:
            begun.set()
            goes_on.wait(60)
        return len(asked)

    told = RecentlyTold(ask, lambda: 0.0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(told.ask, "status", {})
        begun.wait(60)
        told.forget()  # what is under way may be of before
        assert told.ask("status", {}) == 2
        goes_on.set()
        first.result(60)
    assert told.ask("status", {}) == 2 and len(asked) == 2


class Store:
    def __init__(self):
        self.now, self.refreshed = 1, 0

    def version(self):
        return self.now

    def committed(self, mark):
        raise NotImplementedError

    def refresh(self):
        self.refreshed += 1

    def select(self, sql, limit, seconds, *, asked=False, own=False):
        raise NotImplementedError

    def close(self):
        raise NotImplementedError


class Case:
    """A steady reader, a clock, and a `prepare` that notes the version it reads and then waits for `goes_on`."""

    def __init__(self, error=None):
        self.store, self.time, self.error = Store(), 0.0, error
        self.begun, self.goes_on = Queue[int](), Event()
        self.reader = SteadyReader(self.store, lambda: self.time)
        self.first = self.reader.version()
        self.reader.prepare_by(self.prepare)

    def prepare(self):
        self.begun.put(self.reader.version())
        self.goes_on.wait(60)
        if self.error is not None:
            raise self.error

    def wait(self):
        self.goes_on.set()
        while self.reader._is_preparing:
            pass


@pytest.mark.parametrize("error", [None, OperationalError("gone")])
def test_an_older_version_is_shown_while_a_newer_one_is_read(error):
    case = Case(error)
    case.store.now = 2
    assert case.reader.version() == case.reader.version() == case.first
    newer = case.begun.get(timeout=60)
    assert newer > case.first and case.begun.empty(), "it is read once"
    case.wait()
    assert case.reader.version() == newer
    case.store.now = 3
    assert case.reader.version() == newer, "and so is the next"
    assert case.begun.get(timeout=60) > newer


def test_what_there_is_is_read_before_anybody_asks():
    case = Case()
    case.reader.begin()
    assert case.begun.get(timeout=60) == case.first == case.reader.version()
    case.wait()
    case.store.now = 2
    assert case.reader.version() == case.first, "and from then on pages show that while something newer is read"
    assert case.begun.get(timeout=60) > case.first


def test_a_page_waits_rather_than_show_what_is_old():
    case = Case()
    case.store.now = 2
    assert case.reader.version() == case.first
    case.time = STORE_STALE_SECONDS
    assert case.reader.version() > case.first, "it takes too long"
    case.wait()
    shown = case.reader.version()
    case.time, case.store.now = 3 * STORE_STALE_SECONDS, 3
    assert case.reader.version() > shown, "nobody has looked for so long"


def test_a_change_is_shown_at_once():
    case = Case()
    case.store.now = 2
    assert case.reader.version() == case.first
    case.reader.refresh()
    after = case.reader.version()
    assert after > case.first and case.store.refreshed == 1
    case.wait()
    assert case.reader.version() == after, "what was being read meanwhile is older"
