"""Readers of stores: what each refuses, that each sees whole batches, and that all show the same."""

import threading

import pytest

from feeds.documents import Document
from join_stage.store.protocol import QuestionRefused
from mmqjp.engine import Session
from mmqjp.service.commands import CommandError, run_command
from mmqjp.service.spool import Command
from mmqjp.web.readers import KEPT_SECONDS, Busy, CursorReader, FilesReader, RunningQuestions, SpoolReader, TooSlow
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
        """Adds what the engine has committed since."""
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
