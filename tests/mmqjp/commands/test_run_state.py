"""`mmqjp run --state` again and again: which files it reads, which queries it answers, and what it writes where."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from click.testing import Result

from feeds.stamps import SETTLED, stamp_of
from feeds.tail import Tail
from mmqjp.engine import Session
from tests.support.cli import DOCUMENTS, LINES, QUERIES, mmqjp, write_documents, write_queries
from tests.support.faults import FaultySession, Injected
from tests.support.service import PAIRS, Directory
from xscl.parser import parse_script

QUERY = "FROM S//item->a[./title->t] JOIN {t = u, INF} S//item->b[./title->u] PUBLISH same"
FEED = """<rss version="2.0"><channel><title>A feed</title><link>http://{host}/</link>
<atom:link xmlns:atom="http://www.w3.org/2005/Atom" rel="self" href="http://{host}/feed"/>{items}</channel></rss>"""
ITEM = "<item><guid>{}</guid><title>{}</title><pubDate>{}</pubDate></item>"
NEW, OLD = "Mon, 01 Jun 2026 23:59:00 GMT", "Mon, 01 Jan 2024 00:00:00 GMT"
LINE = '{{"id": "{0}", "time": "2026-01-01T00:00:00Z", "xml": "<{0}/>"}}\n'
LATER = 10**19
"""A clock by which every file is old."""


def feed(path: Path, host: str, *titles: str) -> Path:
    date = "Thu, 01 Jan 2026 00:0{}:00 GMT"
    items = "".join(ITEM.format(f"{host}-{n}", title, date.format(n)) for n, title in enumerate(titles))
    path.write_text(FEED.format(host=host, items=items))
    return path


def sidecar(path: Path, host: str, fetched_at: str = "2026-01-02T00:00:00Z") -> None:
    path.with_suffix(".json").write_text(json.dumps({"url": f"http://{host}/feed", "fetched_at": fetched_at}))


class Runs:
    """A directory, and runs over it that note which files they read. `dead` counts the dead letters of the last one."""

    def __init__(self, place: Path, read: list[str]) -> None:
        self.path, self.state, self.output, self.dead_letters = (place / n for n in ("in", "state", "out", "dead"))
        self.path.mkdir()
        self.read, self.dead = read, 0
        self.arguments: list[str | Path] = ["run", "--queries", write_queries(place, QUERY), "--documents", self.path]

    def run(self, *options: str, feeds: str = "--feeds") -> list[str]:
        self.read.clear()
        where: list[str | Path] = ["--state", self.state, "--output", self.output, "--dead-letters", self.dead_letters]
        result = mmqjp(*self.arguments, *where, "--engine", "duckdb", *([feeds] if feeds else []), *options)
        assert result.exit_code == 0, result.stderr
        self.dead = len(self.dead_letters.read_text().splitlines()) if self.dead_letters.exists() else 0
        return sorted(set(self.read))

    def lines(self) -> int:
        return len(self.output.read_text().splitlines())

    def fetch(self, number: int, *entries: tuple[str, str]) -> None:
        """Writes a fetch of a feed, given the guids and dates of its entries."""
        items = "".join(ITEM.format(guid, guid, date) for guid, date in entries)
        (self.path / f"{number}.xml").write_text(FEED.format(host="a.example", items=items))
        sidecar(self.path / f"{number}.xml", "a.example", f"2026-06-0{number + 1}T00:00:00Z")

    def stored(self) -> list[tuple[str, int]]:
        with Session("duckdb", state=self.state, read_only=True) as engine:
            rows = engine.sql("SELECT id, t0 FROM documents WHERE kind = 'external' ORDER BY id").to_pylist()
            return [(row["id"], row["t0"]) for row in rows]

    def noted(self) -> dict[str, str]:
        with Session("duckdb", state=self.state, read_only=True) as engine:
            return {offset.file: offset.fingerprint for offset in engine.offsets().values()}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    read: list[str] = []
    real = Tail._items

    def items(self, file):
        read.append(file.name)
        return real(self, file)

    monkeypatch.setattr(Tail, "_items", items)
    monkeypatch.setattr("mmqjp.service.drops.time_ns", lambda: LATER)
    return Runs(tmp_path, read)


def killed(runs: Runs, monkeypatch: pytest.MonkeyPatch, after: Callable[[Session], object]) -> None:
    """A run with batches of one document, killed after the first batch for which `after` is true."""
    real = Session.process

    def process(self, *given, **options):
        real(self, *given, **options)
        if after(self):
            raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Session, "process", process)
        with pytest.raises(AssertionError, match="killed"):
            runs.run("--batch-size", "1", "--lateness", "1h")


def test_unchanged_files_are_read_once(runs, monkeypatch):
    path = feed(runs.path / "a.xml", "a.example", "One", "Two")
    feed(runs.path / "b.xml", "b.example", "One")

    def nothing_is_opened() -> None:
        with monkeypatch.context() as patched:
            patched.setattr("feeds.stamps._digest", lambda paths: pytest.fail(f"{paths} were read"))
            assert runs.run() == []

    assert runs.run() == ["a.xml", "b.xml"] and runs.lines() == 2
    nothing_is_opened()
    assert runs.lines() == 2
    feed(runs.path / "c.xml", "c.example", "Two")
    assert runs.run() == ["c.xml"] and runs.lines() == 4
    feed(runs.path / "b.xml", "b.example", "One", "Two")
    assert runs.run() == ["b.xml"] and runs.lines() == 8
    os.utime(path, (1, 1))
    assert runs.run() == [], "its content is the same"
    nothing_is_opened()  # the new time was noted


def test_a_change_that_keeps_size_and_time_of_a_new_file_is_seen(runs, monkeypatch):
    path = feed(runs.path / "a.xml", "a.example", "One")
    status = path.stat()
    soon = max(status.st_mtime_ns, status.st_ctime_ns) + SETTLED
    monkeypatch.setattr("mmqjp.service.drops.time_ns", lambda: soon)
    runs.run()
    assert runs.noted()["a.xml"].startswith(" "), "its times cannot be relied on"
    feed(path, "a.example", "Two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert runs.run() == ["a.xml"]


def test_another_sidecar_or_way_to_read_reads_a_file_again(runs):
    path = feed(runs.path / "a.xml", "a.example", "One")
    sidecar(path, "a.example")
    assert "a.xml" in runs.run() and runs.run() == []
    sidecar(path, "z.example")
    assert "a.xml" in runs.run()
    assert "a.xml" in runs.run(feeds="--feeds=raw") and runs.run(feeds="--feeds=raw") == []
    assert "a.xml" in runs.run("--versions", "ignore", feeds="--feeds=raw")


def test_files_that_give_dead_letters_are_read_each_time(runs):
    feed(runs.path / "a.xml", "a.example", "One")
    (runs.path / "bad.xml").write_text("<rss")
    (runs.path / "no.xml").write_text("none")
    assert runs.run() == ["a.xml", "bad.xml", "no.xml"]
    assert runs.run() == ["bad.xml", "no.xml"] and runs.dead == 2


def test_what_is_noted_of_files_is_forgotten_with_them(runs, monkeypatch):
    for name in "abc":
        feed(runs.path / f"{name}.xml", f"{name}.example", name)
    runs.run()
    assert len(runs.noted()) == 3
    monkeypatch.setattr("mmqjp.commands.run.PRUNE_INTERVAL", 1)
    monkeypatch.setattr("mmqjp.state.eviction.OFFSETS_COMPACTED_AFTER", -10)
    for name in "ab":
        (runs.path / f"{name}.xml").unlink()
    runs.run()
    assert list(runs.noted()) == ["c.xml"]


def test_without_a_state_everything_is_read(runs):
    feed(runs.path / "a.xml", "a.example", "One")
    for _ in range(2):
        runs.read.clear()
        assert mmqjp(*runs.arguments, "--feeds", "--engine", "duckdb").exit_code == 0 and runs.read == ["a.xml"]


def test_pipes_and_what_cannot_be_looked_at_have_no_stamp(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.xml").write_text("<a/>")
    assert [stamp_of(tmp_path / name, "", LATER) is None for name in ("pipe", "gone", "a.xml")] == [True, True, False]

    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refused)
    assert stamp_of(tmp_path / "a.xml", "", LATER) is None


def test_many_runs_as_files_come_find_what_one_run_over_all_finds(runs, tmp_path):
    random = Random(3)
    for number in range(8):
        host = random.choice(("a.example", "b.example"))
        path = feed(runs.path / f"{number:02}.xml", host, *random.choices(("One", "Two", "Three"), k=3))
        sidecar(path, host, f"2026-01-02T{number:02}:00:00Z")
        runs.run()
    apart = lines_of(runs.output)
    runs.state, runs.output = tmp_path / "other", tmp_path / "other.jsonl"
    runs.run()
    assert apart == lines_of(runs.output) and len(apart) > 20


def lines_of(output: Path) -> list[str]:
    lines = map(json.loads, output.read_text().splitlines())
    return sorted(json.dumps({**line, "seq": 0}) for line in lines)


def test_an_entry_that_was_late_is_taken_by_a_run_that_lets_it_be(runs, tmp_path):
    for number, entries in enumerate(([("a", NEW)], [("a", NEW), ("b", OLD)], [("a", NEW), ("b", OLD)]), 1):
        runs.fetch(number, *entries)
    for _ in range(2):
        runs.run("--lateness", "1h", "--batch-size", "1")
        assert runs.dead == 1 and len(runs.stored()) == 1 and "2.xml" not in runs.noted()
    runs.run("--lateness", "INF")
    assert runs.dead == 0 and runs.noted().keys() >= {"1.xml", "2.xml", "3.xml"}
    stored, runs.state = runs.stored(), tmp_path / "new"
    runs.run("--lateness", "INF")
    assert runs.stored() == stored and len(stored) == 2


def test_a_run_that_was_killed_reads_what_it_had_not_noted(runs, monkeypatch):
    for name in "abc":
        feed(runs.path / f"{name}.xml", f"{name}.example", "One")
    killed(runs, monkeypatch, after=lambda session: True)
    assert {"b.xml", "c.xml"} <= set(runs.run())
    assert runs.lines() == 6 and runs.run() == []


def test_a_kill_right_after_the_batch_of_a_refused_entry_loses_nothing(runs, monkeypatch):
    runs.fetch(1, ("a", NEW))
    runs.fetch(2, ("b", OLD), ("a", NEW))
    killed(runs, monkeypatch, after=Session.last_dead_letters)
    runs.run("--lateness", "INF")
    assert len(runs.stored()) == 2 and runs.noted().keys() >= {"1.xml", "2.xml"}


@pytest.mark.parametrize("feeds", ["--feeds", ""])
def test_a_name_so_long_that_no_sidecar_can_have_it_is_read_and_noted(runs, feeds):
    name = "a" * 251 + ".xml"
    feed(runs.path / name, "a.example", "One")
    assert runs.run(feeds=feeds) == [name] and runs.dead == 0
    assert len(runs.stored()) == 1 and list(runs.noted()) == [name]


@pytest.mark.parametrize("clock", [LATER, 0], ids=["times", "digests"])
@pytest.mark.parametrize("until_end", [True, False], ids=["until its end", "while it is read"])
def test_a_file_that_was_another_while_it_was_read_is_read_again(runs, monkeypatch, clock, until_end):
    for name in "ab":
        (runs.path / f"{name}.old").write_text(LINE.format(name))
    link, real = runs.path / "now.jsonl", Tail.drain

    def point_to(name: str) -> None:
        link.unlink(missing_ok=True)
        link.symlink_to(runs.path / f"{name}.old")

    def switched(items):
        yield from items
        if not until_end:
            point_to("a")

    def drain(self, is_wanted):
        for file, items in real(self, is_wanted):
            point_to("b")
            yield file, switched(items)

    point_to("a")
    monkeypatch.setattr("mmqjp.service.drops.time_ns", lambda: clock)
    with monkeypatch.context() as patched:
        patched.setattr(Tail, "drain", drain)
        runs.run(feeds="")
    point_to("a")
    runs.run(feeds="")
    assert [id for id, _ in runs.stored()] == ["a", "b"] and list(runs.noted()) == ["now.jsonl"]


def test_files_whose_names_are_one_as_text_do_not_share_a_stamp(runs):
    place = os.fsencode(runs.path)
    for name, content in ((b"\xfe", LINE.format("a")), (b"\xff", LINE.format("b") + "none\n")):
        with open(place + b"/" + name + b".jsonl", "w") as file:  # noqa: PTH123  # a name in bytes
            file.write(content)
    for _ in range(3):
        runs.run("--batch-size", "1", feeds="")
        assert (runs.dead, runs.noted(), len(runs.stored())) == (1, {}, 2)


BLOGS = "FROM S//blog->b PUBLISH blogs"
BOOKS = "FROM S//book->b PUBLISH books"

Document = dict[str, str]


@pytest.fixture
def run(tmp_path):
    def call(queries: str | None, documents: list[Document], *options: object) -> Result:
        path = write_documents(tmp_path / "documents.jsonl", documents)
        asked = () if queries is None else ("--queries", write_queries(tmp_path, queries))
        arguments = (*asked, "--documents", path, "--engine", "duckdb", "--state", tmp_path / "state")
        return mmqjp("run", *arguments, "--output", tmp_path / "out.jsonl", *map(str, options))

    return call


def lines(tmp_path: Path) -> list[str]:
    return (tmp_path / "out.jsonl").read_text().splitlines()


def found(tmp_path: Path) -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in lines(tmp_path)]
    return [(row["query"], row["documents"][-1]) for row in rows]


EVERYTHING, FIRST, REST, NONE = DOCUMENTS, DOCUMENTS[:3], DOCUMENTS[3:], list[Document]()


def test_a_run_with_nothing_new_leaves_the_file_as_it_is(run, tmp_path):
    for time in (0, 1):
        result = run(QUERIES, EVERYTHING)
        assert (result.exit_code, result.stderr, lines(tmp_path)) == (0, "", LINES)
        assert ((tmp_path / "out.jsonl").stat().st_mtime == 1) == (time == 1)
        os.utime(tmp_path / "out.jsonl", (1, 1))


def test_each_run_appends_its_lines_in_their_order(run, tmp_path):
    documents = [{"id": f"d{n}", "time": f"2026-01-{n:02}", "xml": "<blog/>"} for n in range(1, 9)]
    for part in (documents[7:3:-1], documents[3::-1]):  # the first run has the later ones, each the last one first
        assert run(BLOGS, part, "--batch-size", "1").exit_code == 0
    assert [document for _, document in found(tmp_path)] == ["d5", "d6", "d7", "d8", "d1", "d2", "d3", "d4"]


def test_a_file_that_was_there_or_was_cut_is_appended_to(run, tmp_path):
    (tmp_path / "out.jsonl").write_text("mine")
    run(QUERIES, FIRST)
    run(QUERIES, FIRST)
    assert lines(tmp_path) == ["mine", *LINES[:2]]
    (tmp_path / "out.jsonl").write_text("")
    result = run(QUERIES, REST)
    assert (result.exit_code, lines(tmp_path)) == (0, LINES[2:])
    assert result.stderr.startswith(f"mmqjp: {tmp_path / 'out.jsonl'} was cut to 0 of ")
    assert run(QUERIES, REST).stderr == ""


def test_standard_output_and_a_file_share_what_is_found(run, tmp_path):
    run(QUERIES, FIRST)
    assert run(QUERIES, REST, "--output", "-").stdout.splitlines() == LINES[2:]
    run(QUERIES, EVERYTHING)
    assert lines(tmp_path) == LINES[:2]


def test_the_queries_are_those_of_the_file(run, tmp_path):
    assert run(f"{BOOKS}; {BLOGS}; FROM S//blog->b", FIRST).stderr == ""
    result = run(f"{BLOGS}; FROM S//blog->b[./author]; FROM S//blog->b[./author->a] PUBLISH books", EVERYTHING)
    path = tmp_path / "queries.xscl"
    assert result.stderr.splitlines() == [
        f"mmqjp: 1 query of the state ended (not in {path}): q3",
        f"mmqjp: 1 query replaced by those in {path}: books",
    ]
    first = [("books", "d1"), ("books", "d2"), ("blogs", "d3"), ("q3", "d3")]
    assert found(tmp_path) == [*first, ("blogs", "d4"), ("books", "d4"), ("q4", "d4")]
    with Session("duckdb", state=tmp_path / "state") as engine:
        assert sorted(engine.queries()) == ["blogs", "books", "q4"]


def test_queries_that_are_the_same_stay_wherever_they_stand(run, tmp_path):
    run(f"FROM S//book->b; {BLOGS}; FROM S//blog->b", FIRST)
    result = run(f"FROM S//blog->b; FROM S//book->b; {BLOGS}", REST)
    assert result.stderr == ""
    assert found(tmp_path) == [("q1", "d1"), ("q1", "d2"), ("blogs", "d3"), ("q3", "d3"), ("blogs", "d4"), ("q3", "d4")]


def test_of_equal_queries_as_many_stay_as_the_file_has(run, tmp_path):
    run("; ".join(["FROM S//blog->b"] * 3), NONE)
    assert "1 query of the state ended (not in" in run("; ".join(["FROM S//blog->b"] * 2), EVERYTHING).stderr
    assert len(lines(tmp_path)) == 4
    run("; ".join(["FROM S//blog->b"] * 3), NONE)
    with Session("duckdb", state=tmp_path / "state") as engine:
        assert len(engine.queries()) == 3


def test_what_an_ended_query_had_found_is_still_written(run, tmp_path, monkeypatch):
    def fail(*arguments: object) -> int:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("mmqjp.commands.run.deliver", fail)
        assert run(f"{BOOKS}; {BLOGS}", FIRST).exit_code == 1
    assert lines(tmp_path) == []
    run(BLOGS, EVERYTHING)
    assert found(tmp_path) == [("books", "d1"), ("books", "d2"), ("blogs", "d3"), ("blogs", "d4")]


def test_without_a_file_the_queries_of_the_state_are_answered(run, tmp_path):
    run(QUERIES, FIRST)
    result = run(None, REST)
    assert (result.exit_code, result.stderr, lines(tmp_path)) == (0, "", LINES)


def test_without_any_queries_there_is_nothing_to_run(run, tmp_path):
    nowhere = run(None, FIRST)
    assert nowhere.exit_code == 2 and "name the queries with --queries" in nowhere.stderr
    assert not (tmp_path / "state").exists()
    Session("duckdb", state=tmp_path / "state").close()
    none = run(None, FIRST)
    expected = f"mmqjp: error: {tmp_path / 'state'} has no queries; name a file of queries with --queries\n"
    assert (none.exit_code, none.stderr) == (1, expected)


def test_queries_that_cannot_be_kept_leave_those_that_were_there(run, tmp_path):
    run(BLOGS, FIRST)
    with FaultySession("duckdb", state=tmp_path / "state") as engine:
        with engine.store.failing("commit"), pytest.raises(Injected):
            engine.ensure(parse_script(BOOKS), "exact")
        assert list(engine.queries()) == ["blogs"]
    assert run(None, REST).exit_code == 0
    assert found(tmp_path) == [("blogs", "d3"), ("blogs", "d4")]


def test_a_service_replaces_the_names_of_its_file_and_leaves_the_others(tmp_path):
    place = Directory(tmp_path)

    def stream(queries: str) -> list[str]:
        options = ["--queries", write_queries(tmp_path, queries), "--source", place.drops, "--state", place.state]
        more = ["--output", place.output, "--trigger", "available-now", "--log", "json", "--engine", "duckdb"]
        result = mmqjp("stream", *map(str, [*options, *more]))
        assert result.exit_code == 0
        events = map(json.loads, result.stderr.splitlines())
        return [event["what"] for event in events if event["event"] == "queries"]

    assert stream(f"{PAIRS}; FROM S//a->x") == []
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe("FROM S//b->x PUBLISH live")
    assert stream(f"FROM S//a->x; {PAIRS}") == []
    narrower = PAIRS.replace("10", "5")
    assert stream(f"{narrower}; FROM S//a->x; FROM S//c->x") == [
        f"1 query replaced by those in {tmp_path / 'queries.xscl'}: pairs"
    ]
    with Session("duckdb", state=place.state) as engine:
        kept = engine.queries()
    assert sorted(kept) == ["live", "pairs", "q2", "q3"] and "5" in kept["pairs"][0] and len(kept["pairs"]) == 1
