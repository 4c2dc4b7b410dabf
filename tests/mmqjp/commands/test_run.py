"""`mmqjp run`: documents in, output lines out, whatever happens on the way."""

import errno
import json
import os
import signal
import stat
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from feeds.tail import Tail
from mmqjp import demo
from mmqjp.cli import main
from mmqjp.commands.run import equal_time_lines
from mmqjp.engine import Session
from mmqjp.service.log import NullLog
from mmqjp.service.metrics import Metrics
from mmqjp.service.status import store_status
from tests.support.cli import DOCUMENTS, LINES, Terminal, mmqjp, write_documents, write_queries

DEMO = Path(demo.__file__).parent
BROKEN = {"id": "bad", "time": "2026-01-02T12:00:00Z", "xml": "<a><b></a>"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("MMQJP_ENGINE", "duckdb")
    queries = write_queries(tmp_path)

    def call_run(*options, documents=DOCUMENTS, name="documents.jsonl"):
        path = write_documents(tmp_path / name, documents)
        return mmqjp("run", "--queries", queries, "--documents", path, *options)

    return call_run


def lines(text):
    return text.splitlines()


@pytest.mark.parametrize("options", [(), ("--output", "-"), ("--batch-size", "1")])
def test_output_lines_go_to_standard_output_and_nothing_else_is_said(run, options):
    result = run(*options)
    assert (result.exit_code, lines(result.stdout), result.stderr) == (0, LINES, "")


def test_output_file_is_replaced_whole(run, tmp_path):
    target, link = tmp_path / "out.jsonl", tmp_path / "link"
    link.symlink_to(target)
    for output in (target, link):
        target.write_text("what an earlier run wrote")
        result = run("--output", output)
        assert (result.exit_code, result.stdout, lines(target.read_text())) == (0, "", LINES)
    assert link.is_symlink()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"documents.jsonl", "link", "out.jsonl", "queries.xscl"}


def test_output_to_a_device_does_not_replace_the_device(run):
    assert run("--output", os.devnull).exit_code == 0
    assert not Path(os.devnull).is_file()


def test_batch_size_is_what_is_processed_together(run, monkeypatch):
    sizes = []
    process = Session.process

    def counted(self, batch, notes):
        sizes.append(len(batch))
        return process(self, batch, notes)

    monkeypatch.setattr(Session, "process", counted)
    assert lines(run("--batch-size", "3").stdout) == LINES
    assert sizes == [3, 1]


def test_documents_may_be_repeated(run, tmp_path):
    rest = write_documents(tmp_path / "rest.jsonl", DOCUMENTS[2:])
    assert lines(run("--documents", rest, documents=DOCUMENTS[:2]).stdout) == LINES


def test_documents_in_directories_have_their_time_from_an_xpath(tmp_path):
    (tmp_path / "xml").mkdir()
    for day, document in enumerate(DOCUMENTS, 1):
        dated = str(document["xml"]).replace(">", f' on="2026-01-0{day}">', 1)
        (tmp_path / "xml" / f"{document['id']}.xml").write_text(dated)
    queries = write_queries(tmp_path)
    arguments = ["run", "--queries", queries, "--documents", tmp_path / "xml", "--engine", "duckdb"]
    found = [json.loads(line) for line in lines(mmqjp(*arguments, "--time-xpath", "/*/@on").stdout)]
    assert [(row["query"], row["documents"], row["t1"]) for row in found] == [
        ("book_blog", ["d1.xml", "d3.xml"], 1767398400000000),
        ("q2", ["d3.xml"], 1767398400000000),
        ("book_blog", ["d2.xml", "d4.xml"], 1767484800000000),
    ]
    result = mmqjp(*arguments, "--time-xpath", "/*[")
    assert result.exit_code == 1
    assert result.stderr.startswith("mmqjp: error: /*[: not an XPath expression")


def test_feeds_with_and_without_a_form(tmp_path):
    for feeds, root in ((["--feeds"], "item"), (["--feeds=item"], "item"), (["--feeds", "raw"], "entry")):
        queries = write_queries(tmp_path, f"FROM S/*:{root}->entry PUBLISH every")
        result = mmqjp(
            "run", "--engine", "duckdb", "--queries", queries, *feeds, "--documents", DEMO / "northline.atom"
        )
        assert (result.exit_code, len(lines(result.stdout))) == (0, 5), result.stderr
    result = mmqjp("run", "--engine", "duckdb", "--queries", queries, "--documents", DEMO / "northline.atom")
    assert result.exit_code == 1 and result.stderr.endswith("add --feeds\n") and result.stderr.count("\n") == 1


def test_a_cycle_with_queries_of_an_earlier_run(tmp_path):
    (tmp_path / "drops").mkdir()
    arguments = ("--source", tmp_path / "drops", "--state", tmp_path / "state", "--trigger", "available-now")

    def stream(text):
        return mmqjp("stream", "--engine", "duckdb", "--queries", write_queries(tmp_path, text), *arguments)

    assert stream("FROM b//x->l JOIN {l = r, 1} S//y->r PUBLISH a").exit_code == 0
    result = stream("FROM a//x->l JOIN {l = r, 1} S//y->r PUBLISH b")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    said = result.stderr.replace("a -> b -> a", "b -> a -> b")
    assert "a cycle of PUBLISHed names: b -> a -> b, with queries registered earlier" in said


def test_a_state_that_is_no_store(run, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "mmqjp.duckdb").write_bytes(b"this is not a database" * 1000)
    result = run("--state", tmp_path / "state")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("mmqjp: error: cannot open the store in ")


@pytest.mark.parametrize(("state", "before"), [(False, 0), (True, 0), (True, 3)])
def test_what_could_not_be_written_is_written_by_the_next_run(run, tmp_path, monkeypatch, state, before):
    target = tmp_path / "out.jsonl"
    options = ("--output", target, *(("--state", tmp_path / "state") if state else ()))
    if before:
        assert run(*options, documents=DOCUMENTS[:before]).exit_code == 0
    written = target.read_text() if before else ""
    assert len(lines(written)) == (2 if before else 0)
    fsync = os.fsync

    def full(handle):
        if stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        failed = run(*options)
    expected = f"mmqjp: error: {target}: No space left on device; make room on the disk, or write elsewhere\n"
    assert (failed.exit_code, failed.stderr) == (1, expected)
    assert target.read_text() == written if state else not target.exists()
    assert not list(tmp_path.glob(".*"))
    assert run(*options).exit_code == 0
    assert lines(target.read_text()) == LINES


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
    assert "without --state nothing is kept" in without.stderr
    assert lines(result.stderr)[-1].startswith("mmqjp: interrupted: 2 documents are committed in ")
    again = run(*state, documents=DOCUMENTS[2:], name="rest.jsonl")
    assert lines(again.stdout) == LINES


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
        assert (result.exit_code, lines(result.stdout)) == (0, [])
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("state", [False, True])
def test_sigterm_ends_a_run_as_ctrl_c_does(run, tmp_path, monkeypatch, state):
    fsync, files, target = os.fsync, [], tmp_path / "out.jsonl"

    def terminated(handle):
        if stat.S_ISREG(os.fstat(handle).st_mode):
            files.append(handle)
            signal.raise_signal(signal.SIGTERM)
        fsync(handle)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark's, where another test has started it
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", terminated)
            result = run("--output", target, *(("--state", tmp_path / "state") if state else ()))
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert files and result.exit_code == 130 and result.stderr.startswith("mmqjp: interrupted: ")
    left = {path.name for path in tmp_path.iterdir()} - {"documents.jsonl", "queries.xscl"}
    assert left == ({"state", "out.jsonl"} if state else set())
    assert not state or target.read_text() == ""


def test_a_reader_that_goes_away_gets_its_lines_in_the_next_run(run, tmp_path, monkeypatch, capfd):
    documents = write_documents(tmp_path / "documents.jsonl")
    state = ["--state", str(tmp_path / "state")]
    reader, writer = os.pipe()
    os.close(reader)
    gone = os.fdopen(writer, "w")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", gone)
        with pytest.raises(SystemExit, match="1"):
            main(["run", "--queries", str(tmp_path / "queries.xscl"), "--documents", str(documents), *state])
    with suppress(BrokenPipeError):
        gone.close()
    assert capfd.readouterr() == ("", "")
    assert lines(run(*state).stdout) == LINES


def test_the_first_dead_letters_are_named_and_all_are_counted(run):
    result = run(documents=[*DOCUMENTS, BROKEN])
    assert (result.exit_code, lines(result.stdout)) == (0, LINES)
    head, reason = lines(result.stderr)
    assert head == "mmqjp: 1 dead letter (documents left out); --dead-letters FILE writes them to a file"
    assert reason.startswith("  bad: ")
    result = run(documents=[DOCUMENTS[0], *({**BROKEN, "id": f"bad{i}"} for i in range(5))])
    head, *shown = lines(result.stderr)
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
    raw, broken = sorted(map(json.loads, lines(target.read_text("utf-8"))), key=lambda row: row["id"])
    assert list(raw) == list(broken) == ["id", "stream", "time", "reason", "raw"]
    assert (broken["id"], broken["stream"], broken["raw"]) == ("worse", "S", BROKEN["xml"])
    assert broken["time"] == 1767355200000000
    assert raw["raw"] == '{"id": "raw", "xml": "\\xff"}\n'


def test_no_dead_letters_no_file_or_an_empty_one(run, tmp_path):
    target = tmp_path / "dead.jsonl"
    assert run("--dead-letters", target).exit_code == 0
    assert not target.exists()
    assert run("--dead-letters", target, documents=[BROKEN]).exit_code == 1
    assert target.stat().st_size
    assert run("--dead-letters", target).exit_code == 0
    assert target.read_bytes() == b""
    result = run("--dead-letters", tmp_path / "nowhere" / "dead.jsonl")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("No such file or directory; check the path\n")


def test_lateness_makes_late_documents_dead_letters(run):
    late = [DOCUMENTS[3], DOCUMENTS[2]]
    result = run("--batch-size", "1", "--lateness", "1h", documents=late)
    assert "1 dead letter" in result.stderr and "late" in result.stderr
    unlimited = run("--batch-size", "1", "--lateness", "INF", documents=late)
    assert (unlimited.stderr, len(lines(unlimited.stdout))) == ("", 1)


def test_a_run_that_can_take_in_no_document_has_failed(run, tmp_path):
    result = run(documents=[BROKEN], name="bad.jsonl")
    assert (result.exit_code, result.stdout) == (1, "")
    assert lines(result.stderr)[-1].startswith("mmqjp: error: no document was accepted: ")
    state = ("--state", tmp_path / "state")
    assert run(*state).exit_code == 0
    assert run(*state, documents=[BROKEN, *DOCUMENTS]).exit_code == 0  # those that were met before are no failure
    assert run(documents=[], name="empty.jsonl").exit_code == 0


def test_a_terminal_gets_progress_and_a_summary(tmp_path, monkeypatch, capfd):
    queries = write_queries(tmp_path)
    documents = write_documents(tmp_path / "documents.jsonl", [*DOCUMENTS, DOCUMENTS[0]])
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with pytest.raises(SystemExit, match="0"):
        main(["run", "--queries", str(queries), "--documents", str(documents), "--engine", "duckdb"])
    said = terminal.getvalue()
    assert lines(capfd.readouterr().out) == LINES
    assert "\r\x1b[K4 documents, 3 outputs" in said
    assert said.endswith("mmqjp: 4 documents, 1 already known, 0 dead letters, 3 outputs\n")


TIED = "S//a->x FOLLOWED BY {x = y, 1 h} S//a->y PUBLISH later; S//a->x JOIN {x = y, 1 h} S//a->y PUBLISH both"
TIES = [{"id": f"d{n}", "time": f"2026-01-0{day}", "xml": "<a>v</a>"} for n, day in enumerate([5, 5, 5, 6])]
TOLD = (
    "mmqjp: later: 3 pairs have equal times, so that neither document follows the other; JOIN UNORDERED matches them, "
)


def test_a_run_tells_of_equal_times_once(run, tmp_path):
    write_queries(tmp_path, TIED)
    state = "--state", str(tmp_path / "state")
    assert run(*state, documents=TIES).stderr == f"{TOLD}too\n"
    assert run(*state, documents=TIES).stderr == "", "nothing new was left out"
    assert run(documents=TIES[2:]).stderr == "", "these have none"
    shown = mmqjp("status", *state)
    assert "equal times    later: 3 pairs that FOLLOWED BY left out\n" in shown.stdout
    assert json.loads(mmqjp("status", *state, "--json").stdout)["ties"] == {"later": 3}
    with Session("duckdb", state=tmp_path / "state") as engine:
        metrics = Metrics(NullLog())
        metrics.update(store_status(engine))
        assert metrics.registry.get_sample_value("mmqjp_equal_times_pairs", {"query": "later"}) == 3


def test_a_count_that_was_bounded_is_told_as_such(run, tmp_path, monkeypatch):
    write_queries(tmp_path, TIED)
    monkeypatch.setattr("mmqjp.answers.quota.MOST_PAIRS", 1)
    state = "--state", str(tmp_path / "state")
    assert run(*state, documents=TIES).stderr.startswith("mmqjp: later: at least 1 pair has equal times")
    assert "equal times    later: at least 1 pairs that" in mmqjp("status", *state).stdout
    assert json.loads(mmqjp("status", *state, "--json").stdout)["ties_at_least"] == ["later"]


def test_of_many_queries_the_worst_are_named():
    lines = list(equal_time_lines({"a": 1_000, "b": 20, "c": 1, "d": 1, "e": 1}))
    assert [line.partition(" ")[0] for line in lines] == ["a:", "b:", "c:", "2"]
    assert "1,000 pairs have" in lines[0] and "1 pair has" in lines[2]
    assert lines[3] == "2 more pairs with equal times of 2 other queries"
