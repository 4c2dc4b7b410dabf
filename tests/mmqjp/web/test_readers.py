import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue
from random import Random
from threading import Event, Thread, current_thread
from unittest.mock import Mock, patch

import pytest
from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient

from common.errors import OperationalError
from feeds.documents import Document
from join_stage.store.protocol import QuestionRefused, manifest_batches
from mmqjp.engine import Session
from mmqjp.service.commands import CommandError
from mmqjp.service.sql_question import BACKTEST, WHY_NOT
from mmqjp.state import sql_worker
from mmqjp.tables import lookup
from mmqjp.web import readers
from mmqjp.web.areas.feeds import VISITS
from mmqjp.web.readers import PipeReader, QuestionServer, StoreProcessGone
from mmqjp.web.serving import LONGEST_ADDRESS, MOST_SECONDS, PageCache
from mmqjp.web.site import MOST_SLOW, Site
from tests.generate.seeds import at_length, seeds
from tests.mmqjp.web.conftest import NOW
from tests.support.stores import TABLES, parquet_store
from tests.support.web import URL, asking, browser, remember_nothing, site_of

REFUSED = [
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT getenv('HOME')",
    "COPY documents TO '/tmp/out.csv'",
    "INSERT INTO settings VALUES ('a', 'b', 1)",
    "SELECT 1; SELECT 2",
]
"""The others are in tests/mmqjp/service/test_questions.py."""


PAGES = ["/", "/?sort=last", "/q/book_blog", "/q/nobody", "/api/v1/queries", "/api/v1/queries/book_blog"]


def shown(site: Site, ids: list[str]) -> list[str]:
    addresses = [*PAGES, "/api/v1/queries/book_blog/outputs", *(f"/o/{id}" for id in ids)]
    client = browser(site)
    return [client.get(address).text for address in addresses]


Opened = Iterator[tuple[readers.StoreReader, Callable[[], object]]]
"""A reader, and what makes it show what was committed meanwhile."""


@contextmanager
def cursor_reader(engine: Session, _: Path) -> Opened:
    yield readers.CursorReader(engine), lambda: None


@contextmanager
def spool_reader(engine: Session, _: Path) -> Opened:
    now = [0.0]
    yield readers.SpoolReader(asking(engine), lambda: now[-1]), lambda: now.append(now[-1] + readers.KEPT_SECONDS)


@contextmanager
def pipe_reader(engine: Session, _: Path) -> Opened:
    ours, theirs = socket.socketpair()
    thread = Thread(target=QuestionServer(Connection(ours.detach()), readers.CursorReader(engine)).run)
    thread.start()
    reader = PipeReader(Connection(theirs.detach()))
    yield reader, reader.refresh
    reader.close()
    thread.join(60)
    assert not thread.is_alive()


@contextmanager
def files_reader(engine: Session, state: Path) -> Opened:
    """Of files as those of Spark."""
    written = dict[str, int]()
    store, reader = parquet_store(state), readers.FilesReader(state)

    def follow() -> None:
        for name, schema in TABLES.items():
            rows = engine._store.read(name, schema.names)
            store.append(name, rows.slice(written.get(name, 0)))
            written[name] = len(rows)
        store.commit()
        reader.refresh()

    for _ in range(8):
        store.append("settings", engine._store.read("settings", TABLES["settings"].names).slice(0, 1))
        store.commit()
    assert manifest_batches(state)[-1] == 8, "numbers of two digits come"
    with patch.object(sql_worker, "STALE", 0.0):
        yield reader, follow
    reader.close()
    store.close()


@pytest.mark.parametrize("opened", [cursor_reader, spool_reader, pipe_reader, files_reader])
def test_a_reader_shows_the_newest_batch_and_only_reads_a_bounded_number_of_rows(opened, engine, tmp_path):
    with opened(engine, tmp_path) as (reader, follow):
        version = None
        for number in (1, 2, 3):
            follow()
            assert reader.version() != version
            version = reader.version()
            for own in (True, False):
                assert reader.select("SELECT count(*) AS n FROM outputs", 1, 30, own=own)["n"].to_pylist() == [number]
            ids, site = [output.id for output in engine.outputs()], site_of(engine, now=lambda: NOW)
            other = Site(reader, site.ask, site.access, URL, site.state, now=lambda: NOW)
            assert shown(other, ids) == shown(site, ids)
            engine.process([Document(f"d{number + 2}", "<blog><author>Ada</author></blog>", time=NOW)])
        sql = "SELECT id, t0, [t0, t1] AS times, NULL AS nothing, 1.5 AS x, true AS yes FROM documents WHERE id < 'd3'"
        assert reader.select(sql, 10, 5).to_pylist() == engine.question(sql).answer().to_pylist()
        for sql in REFUSED:
            with pytest.raises((QuestionRefused, CommandError)):
                reader.select(sql, 10, 30)
        assert reader.select(VISITS, 10, 30, own=True).num_rows == 0
        assert len(reader.select("SELECT * FROM range(10)", 10, 30)) == 10
        with pytest.raises((QuestionRefused, CommandError), match="more than 10 rows"):
            reader.select("SELECT * FROM range(11)", 10, 30)
        if opened is not spool_reader:  # the service counts the time
            with pytest.raises(readers.TooSlow):
                reader.select("SELECT count(*) FROM range(1000000000000) a, range(1000000)", 10, 0.2)


def test_our_own_questions_only_read_too(unchanged_engine):
    of_duckdb = ("SELECT * FROM read_text('/etc/passwd')", "SELECT nextval('unknown')")  # which it refuses itself
    ours = ("DROP TABLE documents", "SELECT 1; SELECT 2", "COPY documents TO '/tmp/out.csv'", "SELECT * FROM no")
    for sql in (*ours, *of_duckdb):
        with pytest.raises(QuestionRefused):
            readers.CursorReader(unchanged_engine).select(sql, 10, 5, own=True)


def test_few_questions_run_at_once_and_can_be_ended():
    running = readers.RunningQuestions(1)
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
    with pytest.raises(readers.Busy):
        running.answer(Long, 0.01)
    with pytest.raises(AssertionError):
        running.answer(Failing, 0.01, asked=True)  # what people ask has a place of its own
    assert running.interrupt()
    thread.join(60)
    assert not running.interrupt()


def test_another_process_is_asked_once_a_second(unchanged_engine):
    now, ask = [0.0], Mock(wraps=asking(unchanged_engine))
    reader = readers.SpoolReader(ask, lambda: now[0])
    for now[0], asked in ((0.0, 1), (0.9, 1), (readers.KEPT_SECONDS, 2)):
        assert reader.select("SELECT id FROM documents WHERE false", 10, 5).to_pylist() == []
        assert ask.call_count == asked


def test_a_pipe_answers_as_the_store_does_also_many_at_once_and_tells_of_new_batches_by_itself(engine, tmp_path):
    cursor = readers.CursorReader(engine)
    with pipe_reader(engine, tmp_path) as (pipe, refresh), ThreadPoolExecutor(20) as pool:
        sql = "SELECT docid, id, xml, source_ids, NULL AS nothing FROM documents ORDER BY docid"
        assert pipe.select(sql, 10, 5) == cursor.select(sql, 10, 5)
        found = pool.map(lambda n: pipe.select(f"SELECT {n} AS n", 1, 60)["n"].to_pylist(), range(20))
        assert list(found) == [[n] for n in range(20)]
        assert (pipe.committed(-1), cursor.committed(-1)) == ((1, None), (1, None))
        refresh()
        before = pipe.version()
        engine.process([Document("d3", "<blog><author>Ada</author></blog>", time=NOW)])
        told = pipe.committed(1)
        assert told is not None and told.rows is not None and told == cursor.committed(1)
        assert told.rows["documents"]["id"].to_pylist() == ["d3"]
        assert (pipe.committed(2), pipe.committed(2)) == ((3, {}), (4, None))
        while pipe.version() == before:
            pass


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


def test_which_pages_are_kept_and_until_when():
    pages, reader, now = Pages(), Store(), [0.0]
    client = TestClient(PageCache(pages, reader, lambda: now[0]))  # type: ignore[arg-type]
    made = []
    for step in (lambda: None, lambda: setattr(reader, "now", 2), lambda: client.post("/"), lambda: now.append(0)):
        step()
        made += [client.get("/").text, pages.made]
    now[0] += MOST_SECONDS
    made += [client.get("/").text, pages.made]
    assert made == ["<p>page", 1, "<p>page", 2, "<p>page", 4, "<p>page", 4, "<p>page", 5]
    for address, wanted in (("/", 1), ("/?a=1", 1), ("/text", 2), ("/?" + "a" * LONGEST_ADDRESS, 2)):
        pages = Pages()
        client = TestClient(PageCache(pages, Store(), lambda: 0.0))  # type: ignore[arg-type]
        assert [client.get(address).status_code for _ in range(2)] == [200, 200]
        assert pages.made == wanted, address


SLOW = {
    "why-not": lambda client, n: client.get(f"/q/book_blog/why-not?document=d{n}"),
    "a back-test": lambda client, n: client.post("/api/v1/backtest", json={"text": f"FROM S//a{n}->x"}),
    "SQL": lambda client, n: client.post("/sql", data={"sql": f"SELECT {n}"}),
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

    def slow_select(sql, limit, seconds, *, own=False):
        if not own:
            waits()
        return select(sql, limit, seconds, own=own)

    object.__setattr__(site, "ask", slow_ask)
    monkeypatch.setattr(site.reader, "select", slow_select)
    with browser(site) as client, ThreadPoolExecutor(80) as pool:
        waiting = [pool.submit(SLOW[kind], client, n) for n in range(MOST_SLOW)]
        for _ in waiting:
            begun.get(timeout=60)
        more = [pool.submit(SLOW[kind], client, n) for n in range(100, 140)]  # as many as Starlette answers
        assert {one.result(60).status_code for one in more} == {503}
        assert client.get("/").status_code == 200
        goes_on.set()
        assert 503 not in {one.result(60).status_code for one in waiting}
        assert SLOW[kind](client, 200).status_code != 503


def test_answers_serve_for_a_moment_and_errors_do_not():
    now, numbers = [0.0], count(1)
    cache, answer = readers.SharedCache(100, 1, 10, lambda: now[0]), partial(next, numbers)
    assert [cache.get(key, None, answer) for key in ("status", "status", "sinks")] == [1, 1, 2]
    now[0] = 10
    assert cache.get("status", None, answer) == 3
    assert cache.get("status", "another version", answer) == 4
    cache.clear()
    assert cache.get("status", None, answer) == 5
    for number in range(100):
        cache.get(number, None, answer)
    assert cache.get("status", None, answer) == 106, "a bounded number is kept"
    failing = Mock(side_effect=[OSError("gone"), 1])
    with pytest.raises(OSError, match="gone"):
        cache.get("failing", None, failing)
    assert cache.get("failing", None, failing) == 1


def test_after_a_second_an_answer_serves_while_it_is_asked_for_again():
    now, asked, goes_on = [0.0], Queue[Thread | None](), Event()

    def ask():
        number = asked.qsize()
        if number:
            goes_on.wait(60)
        asked.put(current_thread())
        return number

    cache = readers.SharedCache(100, 1, 10, lambda: now[0])
    assert cache.get("status", None, ask) == 0
    asked.get()
    asked.put(None)
    now[0] = 1
    assert [cache.get("status", None, ask) for _ in range(2)] == [0, 0], "nobody waits"
    goes_on.set()
    asked.get(timeout=60)
    asking = asked.get(timeout=60)
    assert asking is not None
    asking.join(60)
    assert cache.get("status", None, ask) == 1


def test_what_was_asked_before_a_change_is_not_shown_after_it():
    begun, goes_on, asked = Event(), Event(), list[None]()

    def ask():
        asked.append(None)
        if len(asked) == 1:
            begun.set()
            goes_on.wait(60)
        return len(asked)

    cache = readers.SharedCache(clock=lambda: 0.0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get, "status", None, ask)
        begun.wait(60)
        cache.clear()  # what is under way may be of before
        assert cache.get("status", None, ask) == 2
        goes_on.set()
        first.result(60)
    assert cache.get("status", None, ask) == 2 and len(asked) == 2


class Store:
    """What has a version only: nothing else is asked of it."""

    now, refreshed = 1, 0

    def version(self):
        return self.now

    def refresh(self):
        self.refreshed += 1


class Case:
    """A steady reader, a clock, and a `prepare` that notes the version it reads and then waits for `goes_on`."""

    def __init__(self, error=None):
        self.store, self.time, self.error = Store(), 0.0, error
        self.begun, self.goes_on = Queue[int](), Event()
        self.reader = readers.SteadyReader(self.store, lambda: self.time)  # type: ignore[arg-type]
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
def test_what_is_read_before_anybody_asks_and_when_a_page_waits(error):
    case = Case(error)
    case.reader.begin()
    assert case.begun.get(timeout=60) == case.first == case.reader.version()
    case.wait()
    case.store.now = 2
    assert case.reader.version() == case.first, "and from then on pages show that while something newer is read"
    assert case.begun.get(timeout=60) > case.first and case.begun.empty(), "it is read once"
    case = Case()
    case.store.now = 2
    assert case.reader.version() == case.first
    case.time = readers.STORE_STALE_SECONDS
    assert case.reader.version() > case.first, "it takes too long"
    case.wait()
    shown = case.reader.version()
    case.time, case.store.now = 3 * readers.STORE_STALE_SECONDS, 3
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


DAY = 86_400_000_000


def queries(rng):
    text = ""
    for _ in range(rng.randint(1, 3)):
        name, days, key = f"q{rng.randrange(5)}", rng.randint(1, 40), rng.choice("km")
        select = rng.choice(["", "SELECT x "])
        text += f"""{select}FROM S//a->x[./{key}->v] FOLLOWED BY {{v = w, {days} d}} S//b->y[./{key}->w]
PUBLISH {name};"""
    return text


def documents(rng, first):
    for n in range(first, first + rng.randint(0, 6)):
        name, k, m = rng.choice("ab"), rng.randrange(3), rng.randrange(2)
        time = NOW - (400 - n) * DAY // 10
        yield Document(f"d{n}", f"<{name}><title>Document {n}</title><k>{k}</k><m>{m}</m></{name}>", time=time)


def shown_from(client):
    found, addresses = {}, ["/", "/?search=Q3", "/?sort=total&search=q", "/live", *(f"/q/q{n}" for n in range(5))]
    while addresses:
        address = addresses.pop()
        if address in found:
            continue
        page = client.get(address)
        found[address] = page.status_code, page.text
        for part in page.text.split('href="')[1:]:
            linked = part.partition('"')[0].replace("&amp;", "&")
            if linked.startswith(("/o/", "/q/")) and ("after=" in linked or "group=" in linked):
                addresses.append(linked.partition("#")[0])
    return found


FEW = {
    "present.recent": {
        "OF_FORM": 4, "MAX_CACHED_FORM_ANSWERS": 9, "AT_FIRST": 5, "MOST_NEW": 6, "FEW": 2, "DOCUMENTS_AT_FIRST": 3,
        "MOST_NEW_ROWS": 3,
    },
    "present.recipients": {"MAX_CACHED_ANSWERS": 7, "MOST_NUMBERED": 5, "MOST_JUDGED": 9},
}  # fmt: skip
"""Limits with which few things are remembered, so that most are read again."""


@pytest.mark.parametrize("seed", seeds(1, 12, 1))
def test_pages_are_those_of_a_site_that_remembers_nothing(monkeypatch, seed):
    rng, turns = Random(seed), 5 if at_length() else 3
    if seed % 3 == 2:  # members are remembered at first, and then they are too many
        monkeypatch.setattr("mmqjp.present.recent.MOST_MEMBERS", 3)
    if seed % 2:
        of_this_run = {
            "present.recipients": {"TOGETHER": rng.choice([1, 4]), "JUDGED_AT_ONCE": rng.choice([1, 3])},
            "web.tallies": {"MOST_OUTPUTS": rng.choice([1, 5]), "FEW": rng.choice([0, 2])},
        }
        for module, limits in (*FEW.items(), *of_this_run.items()):
            for name, value in limits.items():
                monkeypatch.setattr(f"mmqjp.{module}.{name}", value)
    past = count()
    with Session("duckdb", now=lambda: NOW - (next(past) if seed % 2 else 0)) as engine:  # a clock may be put back
        engine.subscribe(queries(rng), add=True)
        site = site_of(engine, now=lambda: NOW)
        client, number, pages, told = browser(site), 0, 0, []
        committed, is_meanwhile = site.reader.committed, False

        def since(mark):
            """Tells what was committed, and commits something more before that can be read."""
            nonlocal number, is_meanwhile
            found = committed(mark)
            assert found is not None
            told.append(found.rows)
            if is_meanwhile:
                is_meanwhile = False
                if rng.random() < 0.4:
                    engine.subscribe(queries(rng), add=True)
                elif rng.random() < 0.4:
                    engine.unsubscribe(rng.choice([*engine.queries()]))
                some = list(documents(rng, number))
                number += len(some)
                engine.process(some)
            return found

        monkeypatch.setattr(site.recent._news, "_since", since)
        for turn in range(turns):
            some = list(documents(rng, number))
            number += len(some)
            engine.process(some)
            match rng.randrange(7), sorted(engine.queries()):
                case ((0 | 6), _):
                    engine.subscribe(queries(rng), add=True)
                case (1 | 2 | 3) as what, [*_, _] as names:
                    (engine.unsubscribe, engine.pause, engine.resume)[what - 1](rng.choice(names))
                case 4, _:
                    engine.prune(rng.randint(36, 40) * DAY)
            is_meanwhile = rng.random() < 0.4
            client.get("/live")
            kept, fresh = shown_from(client), shown_from(browser(site_of(engine, now=lambda: NOW)))
            assert kept == fresh
            pages += len(fresh)
            if turn % 3 != 1:
                continue
            without = site_of(engine, now=lambda: NOW)
            remember_nothing(without.recent)
            assert kept == shown_from(browser(without))
        assert pages > 5 * turns and any(told)
        engine.subscribe("FROM S//a->x PUBLISH q7; FROM S//a->x PUBLISH Q8; FROM S//b->x PUBLISH q8")
        for name in ("q7", "Q8"):  # the times of these removals may disagree with their order
            client.get("/?search=q")
            engine.unsubscribe(name)
            assert client.get("/?search=q").text == browser(site_of(engine, now=lambda: NOW)).get("/?search=q").text


@pytest.mark.parametrize("large", [lookup.changed_members(-1), "(SELECT max(answer)"], ids=["members", "answers"])
def test_what_is_too_large_to_be_remembered_is_asked_for(monkeypatch, large):
    with Session("duckdb", now=lambda: NOW) as engine:
        engine.subscribe("FROM S//a->x[./k->v] JOIN {v = w, INF} S//b->y[./k->w] PUBLISH q0")
        engine.process(list(documents(Random(1), 0)) + list(documents(Random(2), 100)))
        site, small = site_of(engine, now=lambda: NOW), site_of(engine, now=lambda: NOW)
        ask = small.recent.select

        def refusing(sql):
            if large in sql:
                raise QuestionRefused("the answer has too many bytes")
            return ask(sql)

        monkeypatch.setattr(small.recent, "select", refusing)
        monkeypatch.setattr(small.recent._news, "_select", refusing)
        expected = shown_from(browser(site))
        assert len(expected) > 5 and expected == shown_from(browser(small))
