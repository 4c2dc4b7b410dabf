"""`mmqjp run`: documents in, output lines out, whatever happens on the way and however often it runs on a state."""

import errno
import json
import os
import signal
import stat
import sys
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from feeds.tail import Tail
from mmqjp import demo
from mmqjp.cli import main
from mmqjp.commands.run import equal_time_lines
from mmqjp.engine import Session
from mmqjp.service.drops import SETTLED, stamp_of
from mmqjp.service.log import NullLog
from mmqjp.service.status import Metrics, store_status
from tests.support.cli import DOCUMENTS, LINES, QUERIES, Terminal, mmqjp, run_on, write_documents, write_queries
from tests.support.feed_server import rss
from tests.support.in_turn import in_turn
from tests.support.service import PAIRS, Directory

BROKEN = {"id": "bad", "time": "2026-01-02T12:00:00Z", "xml": "<a><b></a>"}


@pytest.fixture
def run(tmp_path):
    return partial(run_on, tmp_path)


def test_output_file_is_replaced_whole_where_a_link_leads(run, tmp_path):
    target, link = tmp_path / "out.jsonl", tmp_path / "link"
    link.symlink_to(target)
    target.write_text("what an earlier run wrote")
    result = run("--output", link)
    assert (result.exit_code, result.stdout, target.read_text().splitlines(), result.stderr) == (0, "", LINES, "")
    assert link.is_symlink()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"documents.jsonl", "link", "out.jsonl", "queries.xscl"}


def test_documents_in_directories_have_their_time_from_an_xpath(run, tmp_path):
    (tmp_path / "xml").mkdir()
    (tmp_path / "xml" / "d5.xml").write_text('<blog on="2026-01-03"><author>Ada</author></blog>')
    found = map(json.loads, run("--documents", tmp_path / "xml", "--time-xpath", "/*/@on").stdout.splitlines())
    assert ("q2", ["d5.xml"], 1767398400000000) in [(row["query"], row["documents"], row["t1"]) for row in found]


def test_feeds_with_and_without_a_form(tmp_path):
    run = ("run", "--engine", "duckdb", "--documents", Path(demo.__file__).with_name("northline.atom"), "--queries")
    for feeds, root in ((["--feeds"], "item"), (["--feeds", "raw"], "entry")):
        queries = write_queries(tmp_path, f"FROM S/*:{root}->entry PUBLISH every")
        assert len(mmqjp(*run, queries, *feeds).stdout.splitlines()) == 6
    result = mmqjp(*run, queries)
    assert result.exit_code == 1 and result.stderr.endswith("add --feeds\n") and result.stderr.count("\n") == 1


@pytest.mark.parametrize("state", [False, True])
def test_a_full_disk_or_sigterm_ends_a_run_and_the_next_one_writes_what_is_left(run, tmp_path, monkeypatch, state):
    target, fsync = tmp_path / "out.jsonl", os.fsync
    options = ("--output", target, *(("--state", tmp_path / "state") if state else ()))

    def terminated(handle):
        if stat.S_ISREG(os.fstat(handle).st_mode):
            signal.raise_signal(signal.SIGTERM)
        fsync(handle)

    def full(handle):
        if stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark's, where another test has started it
    advice = "No space left on device; free some disk space, or write elsewhere"
    try:
        for fails, status, said in (
            (terminated, 130, "mmqjp: interrupted: "),
            (full, 1, f"mmqjp: error: {target}: {advice}\n"),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(os, "fsync", fails)
                result = run(*options)
            assert result.exit_code == status and result.stderr.startswith(said)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            left = {path.name for path in tmp_path.iterdir()} - {"documents.jsonl", "queries.xscl"}
            assert left == ({"state", "out.jsonl"} if state else set())
            assert not state or fails is terminated or target.read_text() == ""
    finally:
        signal.signal(signal.SIGINT, before)
    assert run(*options).exit_code == 0
    assert target.read_text().splitlines() == LINES


def test_interrupted_between_batches_keeps_what_was_committed(run, tmp_path, monkeypatch):
    real = Tail._items

    def interrupted(self, file):
        yield from islice(real(self, file), 3)
        raise KeyboardInterrupt

    state = ("--state", tmp_path / "state", "--batch-size", "2")
    with monkeypatch.context() as patched:
        patched.setattr(Tail, "_items", interrupted)
        without, result = run(), run(*state)
    assert (without.exit_code, result.exit_code, result.stdout) == (130, 130, "")
    assert "without --state nothing is stored" in without.stderr
    assert result.stderr.splitlines()[-1].startswith("mmqjp: interrupted: 2 documents are committed in ")
    again = run(*state, documents=DOCUMENTS[2:])
    assert again.stdout.splitlines() == LINES


def test_interrupted_in_a_query_is_an_interrupt_whatever_the_engine_makes_of_it(run, monkeypatch):
    def interrupted(self, batch, notes):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None

    monkeypatch.setattr(Session, "process", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run().exit_code == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        result = run()
        assert (result.exit_code, result.stdout.splitlines()) == (0, [])
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_reader_that_goes_away_gets_its_lines_in_the_next_run(run, tmp_path, monkeypatch, capfd):
    queries, documents = write_queries(tmp_path), write_documents(tmp_path / "documents.jsonl")
    state = ["--state", str(tmp_path / "state")]
    reader, writer = os.pipe()
    os.close(reader)
    gone = os.fdopen(writer, "w")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", gone)
        with pytest.raises(SystemExit, match="1"):
            main(["run", "--engine", "duckdb", "--queries", str(queries), "--documents", str(documents), *state])
    with suppress(BrokenPipeError):
        gone.close()
    assert capfd.readouterr() == ("", "")
    assert run(*state).stdout.splitlines() == LINES


def test_the_first_dead_letters_are_named_and_all_are_counted(run):
    result = run(documents=[*DOCUMENTS, BROKEN])
    assert (result.exit_code, result.stdout.splitlines()) == (0, LINES)
    head, reason = result.stderr.splitlines()
    assert head == "mmqjp: 1 dead letter (documents left out); --dead-letters FILE writes them to a file"
    assert reason.startswith("  bad: ")
    result = run(documents=[DOCUMENTS[0], *({**BROKEN, "id": f"bad{i}"} for i in range(5))])
    head, *shown = result.stderr.splitlines()
    assert head.startswith("mmqjp: 5 dead letters")
    assert [line.split(":")[0] for line in shown] == ["  bad0", "  bad1", "  bad2", "  and 2 more"]


def test_dead_letters_of_this_run_go_to_a_file(run, tmp_path):
    target = tmp_path / "dead.jsonl"
    options = ("--dead-letters", target, "--state", tmp_path / "state", "--batch-size", "2")
    assert run(*options, documents=[DOCUMENTS[0], BROKEN]).exit_code == 0
    (tmp_path / "raw.jsonl").write_bytes(b'{"id": "raw", "xml": "\xff"}\n')
    worse = write_documents(tmp_path / "worse.jsonl", [{**BROKEN, "id": "worse"}])
    result = run(*options, "--documents", worse, "--documents", tmp_path / "raw.jsonl")
    assert result.stderr == f"mmqjp: 2 dead letters (documents left out) in {target}\n"
    raw, broken = sorted(map(json.loads, target.read_text("utf-8").splitlines()), key=lambda row: row["id"])
    assert list(raw) == list(broken) == ["id", "stream", "time", "reason", "raw"]
    assert (broken["id"], broken["stream"], broken["raw"]) == ("worse", "S", BROKEN["xml"])
    assert broken["time"] == 1767355200000000
    assert raw["raw"] == '{"id": "raw", "xml": "\\xff"}\n'

    assert run("--dead-letters", target).exit_code == 0 and target.read_bytes() == b""
    assert run("--dead-letters", tmp_path / "none.jsonl").exit_code == 0 and not (tmp_path / "none.jsonl").exists()
    result = run("--dead-letters", tmp_path / "nowhere" / "dead.jsonl")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("No such file or directory; check the path\n")


def test_a_run_that_can_take_in_no_document_has_failed(run, tmp_path):
    result = run(documents=[BROKEN])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith("mmqjp: error: no document was accepted: ")
    state = ("--state", tmp_path / "state")
    assert run(*state).exit_code == 0
    assert run(*state, documents=[BROKEN, *DOCUMENTS]).exit_code == 0  # those that were met before are not a failure
    assert run(documents=[]).exit_code == 0


def test_a_terminal_gets_progress_and_a_summary(tmp_path, monkeypatch, capfd):
    queries = write_queries(tmp_path)
    documents = write_documents(tmp_path / "documents.jsonl", [*DOCUMENTS, DOCUMENTS[0]])
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with pytest.raises(SystemExit, match="0"):
        main(["run", "--queries", str(queries), "--documents", str(documents), "--engine", "duckdb"])
    said = terminal.getvalue()
    assert capfd.readouterr().out.splitlines() == LINES
    assert "\r\x1b[K4 documents, 3 outputs" in said
    assert said.endswith("mmqjp: 4 documents, 1 already known, 0 dead letters, 3 outputs\n")


TIED = "S//a->x FOLLOWED BY {x = y, 1 h} S//a->y PUBLISH later; S//a->x JOIN {x = y, 1 h} S//a->y PUBLISH both"
TIES = [{"id": f"d{n}", "time": f"2026-01-0{day}", "xml": "<a>v</a>"} for n, day in enumerate([5, 5, 5, 6])]


def test_a_run_tells_of_equal_times_once(run, tmp_path, monkeypatch):
    state = "--state", tmp_path / "state"
    assert run(*state, queries=TIED, documents=TIES).stderr.startswith("mmqjp: later: 3 pairs have equal times, ")
    assert run(*state, queries=TIED, documents=TIES).stderr == "", "nothing new was left out"
    assert "equal times    later: 3 pairs that FOLLOWED BY left out\n" in mmqjp("status", *state).stdout
    assert json.loads(mmqjp("status", *state, "--json").stdout)["ties"] == {"later": 3}
    with Session("duckdb", state=tmp_path / "state") as engine:
        metrics = Metrics(NullLog())
        metrics.update(store_status(engine))
        assert metrics.registry.get_sample_value("mmqjp_equal_times_pairs", {"query": "later"}) == 3
    monkeypatch.setattr("mmqjp.answers.quota.MOST_PAIRS", 1)
    state = "--state", tmp_path / "other"
    assert run(*state, queries=TIED, documents=TIES).stderr.startswith("mmqjp: later: at least 1 pair has equal times")
    assert "equal times    later: at least 1 pairs that" in mmqjp("status", *state).stdout
    assert json.loads(mmqjp("status", *state, "--json").stdout)["ties_at_least"] == ["later"]
    told = list(equal_time_lines({"a": 1_000, "b": 20, "c": 1, "d": 1, "e": 1}))
    assert [line.partition(" ")[0] for line in told] == ["a:", "b:", "c:", "2"]
    assert "1,000 pairs have" in told[0] and "1 pair has" in told[2]
    assert told[3] == "2 more pairs with equal times of 2 other queries"


QUERY = "FROM S//item->a[./title->t] JOIN {t = u, INF} S//item->b[./title->u] PUBLISH same"
LINE = '{{"id": "{0}", "time": "2026-01-01T00:00:00Z", "xml": "<{0}/>"}}\n'
LATER = 10**19
"""A clock by which every file is old."""


def feed(path: Path, host: str, *titles: str) -> Path:
    address = f"<link xmlns='http://www.w3.org/2005/Atom' rel='self' href='http://{host}/feed'/>"
    path.write_text(rss(*titles, extra=address, guid=host))
    return path


def sidecar(path: Path, host: str, fetched_at: str = "2026-01-02T00:00:00Z") -> None:
    path.with_suffix(".json").write_text(json.dumps({"url": f"http://{host}/feed", "fetched_at": fetched_at}))


class Runs:
    """A directory, and runs over it that note which files they read. `dead` counts the dead letters of the last one."""

    def __init__(self, place: Path, read: list[str]) -> None:
        self.path, self.state, self.output, self.dead_letters = (place / n for n in ("in", "state", "out", "dead"))
        self.path.mkdir()
        self.read, self.dead = read, 0
        self.given: list[str | Path] = ["--engine", "duckdb", "--queries", write_queries(place, QUERY)]
        self.given += ["--documents", self.path, "--state", self.state]
        self.given += ["--output", self.output, "--dead-letters", self.dead_letters]

    def run(self, *options: str, feeds: str = "--feeds") -> list[str]:
        self.read.clear()
        result = mmqjp("run", *self.given, *filter(None, [feeds]), *options)
        assert result.exit_code == 0, result.stderr
        self.dead = len(self.dead_letters.read_text().splitlines()) if self.dead_letters.exists() else 0
        return sorted(set(self.read))

    def lines(self) -> int:
        return len(self.output.read_text().splitlines())

    def stored(self) -> Any:
        """The ids of documents."""
        with Session("duckdb", state=self.state, read_only=True) as engine:
            return engine.sql("SELECT id FROM documents WHERE kind = 'external' ORDER BY id")["id"].to_pylist()

    def noted(self) -> dict[str, str]:
        with Session("duckdb", state=self.state, read_only=True) as engine:
            return {offset.file: offset.fingerprint for offset in engine.ledger.offsets().values()}


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


def test_unchanged_files_are_read_once(runs, monkeypatch):
    path = feed(runs.path / "a.xml", "a.example", "One", "Two")
    feed(runs.path / "b.xml", "b.example", "One")

    def nothing_is_opened() -> None:
        with monkeypatch.context() as patched:
            patched.setattr("mmqjp.service.drops._digest", lambda paths: pytest.fail(f"{paths} were read"))
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
    sidecar(path, "z.example")
    assert "a.xml" in runs.run()
    assert "a.xml" in runs.run(feeds="--feeds=raw") and runs.run(feeds="--feeds=raw") == []


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


def test_pipes_and_what_cannot_be_looked_at_have_no_stamp(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.xml").write_text("<a/>")
    assert [stamp_of(tmp_path / name, "", LATER) is None for name in ("pipe", "gone", "a.xml")] == [True, True, False]

    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refused)
    assert stamp_of(tmp_path / "a.xml", "", LATER) is None


def test_a_kill_right_after_the_batch_of_a_refused_entry_loses_nothing(runs, monkeypatch):
    for number, titles in enumerate(("a", "ba"), 1):
        path = feed(runs.path / f"{number}.xml", "a.example", *titles)
        sidecar(path, "a.example", f"2026-06-0{number}T00:00:00Z")
    path.write_text(path.read_text().replace("2026", "2024", 1))  # the date of b
    real = Session.process

    def process(self, *given, **options):
        real(self, *given, **options)
        if self.last_dead_letters():
            raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Session, "process", process)
        with pytest.raises(AssertionError, match="killed"):
            runs.run("--batch-size", "1", "--lateness", "1h", "--belated", "drop")
    runs.run("--lateness", "INF")
    assert len(runs.stored()) == 2 and runs.noted().keys() >= {"1.xml", "2.xml"}


@pytest.mark.parametrize("feeds", ["--feeds", ""])
def test_a_name_so_long_that_no_sidecar_can_have_it_is_read_and_noted(runs, feeds):
    name = "a" * 251 + ".xml"
    feed(runs.path / name, "a.example", "One")
    assert runs.run(feeds=feeds) == [name] and runs.dead == 0
    assert len(runs.stored()) == 1 and list(runs.noted()) == [name]


@pytest.mark.parametrize(("until_end", "clock"), in_turn([True, False], [LATER, 0]))
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
    assert runs.stored() == ["a", "b"] and list(runs.noted()) == ["now.jsonl"]


def test_files_whose_names_are_one_as_text_do_not_share_a_stamp(runs):
    place = os.fsencode(runs.path)
    for name, content in ((b"\xfe", LINE.format("a")), (b"\xff", LINE.format("b") + "none\n")):
        with open(place + b"/" + name + b".jsonl", "w") as file:  # noqa: PTH123  # a name in bytes
            file.write(content)
    for _ in range(2):
        runs.run("--batch-size", "1", feeds="")
        assert (runs.dead, runs.noted(), len(runs.stored())) == (1, {}, 2)


BLOGS = "FROM S//blog->b PUBLISH blogs"
BOOKS = "FROM S//book->b PUBLISH books"


@pytest.fixture
def again(tmp_path):
    options = ("--state", tmp_path / "state", "--output", tmp_path / "out.jsonl")
    return lambda queries, documents: run_on(tmp_path, *options, queries=queries, documents=documents)


def written(tmp_path: Path) -> list[str]:
    return (tmp_path / "out.jsonl").read_text().splitlines()


def found(tmp_path: Path) -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in written(tmp_path)]
    return [(row["query"], row["documents"][-1]) for row in rows]


EVERYTHING, FIRST, REST = DOCUMENTS, DOCUMENTS[:3], DOCUMENTS[3:]


def test_the_queries_are_those_of_the_file(again, tmp_path):
    assert again(f"{BOOKS}; {BLOGS}; FROM S//blog->b", FIRST).stderr == ""
    result = again(f"{BLOGS}; FROM S//blog->b[./author]; FROM S//blog->b[./author->a] PUBLISH books", EVERYTHING)
    path = tmp_path / "queries.xscl"
    assert result.stderr.splitlines() == [
        f"mmqjp: 1 query of the state ended (not in {path}): q3",
        f"mmqjp: 1 query replaced by those in {path}: books",
    ]
    first = [("books", "d1"), ("books", "d2"), ("blogs", "d3"), ("q3", "d3")]
    assert found(tmp_path) == [*first, ("blogs", "d4"), ("books", "d4"), ("q4", "d4")]
    with Session("duckdb", state=tmp_path / "state") as engine:
        assert sorted(engine.queries()) == ["blogs", "books", "q4"]


def test_what_an_ended_query_had_found_is_still_written(again, tmp_path, monkeypatch):
    def fail(*arguments: object) -> int:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("mmqjp.commands.run.OutputDelivery.write", fail)
        assert again(f"{BOOKS}; {BLOGS}", FIRST).exit_code == 1
    assert written(tmp_path) == []
    again(BLOGS, EVERYTHING)
    assert found(tmp_path) == [("books", "d1"), ("books", "d2"), ("blogs", "d3"), ("blogs", "d4")]


def test_without_a_file_the_queries_of_the_state_are_answered(again, tmp_path):
    again(QUERIES, FIRST)
    result = again(None, REST)
    assert (result.exit_code, result.stderr, written(tmp_path)) == (0, "", LINES)


def test_without_any_queries_there_is_nothing_to_run(again, tmp_path):
    nowhere = again(None, FIRST)
    assert nowhere.exit_code == 2 and "name the queries with --queries" in nowhere.stderr
    assert not (tmp_path / "state").exists()
    Session("duckdb", state=tmp_path / "state").close()
    none = again(None, FIRST)
    expected = f"mmqjp: error: {tmp_path / 'state'} has no queries; name a file of queries with --queries\n"
    assert (none.exit_code, none.stderr) == (1, expected)


def test_a_service_replaces_the_names_of_its_file_and_leaves_the_others(tmp_path):
    place = Directory(tmp_path)

    def stream(queries: str) -> list[str]:
        places = ("--source", place.drops, "--state", place.state, "--output", place.output)
        given = ("--queries", write_queries(tmp_path, queries), "--trigger", "available-now", "--engine", "duckdb")
        result = mmqjp("stream", *places, *given, "--log", "json")
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


@pytest.mark.parametrize(
    ("lateness", "end"),
    [("5min", ""), ("INF", "; S may be late without a limit, so that it never comes: give --lateness")],
)
def test_an_absence_that_waits_for_its_deadline_is_told(tmp_path, lateness, end):
    queries = "FROM S/*->a NOT FOLLOWED BY {a/@none = b/@none, 10 d} S/*->b PUBLISH silent"
    options = ("--state", tmp_path / "s", "--lateness", lateness, "--output", tmp_path / "o")
    result = run_on(tmp_path, *options, queries=queries)
    assert result.exit_code == 0, result.stderr
    assert f"mmqjp: silent: 4 documents wait for their deadline{end}\n" in result.stderr
