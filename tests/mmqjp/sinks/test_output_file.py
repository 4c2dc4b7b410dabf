"""Output files and standard output: killed, moved away while a service writes, left by the terminal, closed, full."""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from mmqjp.engine import Session
from mmqjp.sinks.deliverer import OUTPUT_SINK
from mmqjp.sinks.files import GrowingFile
from tests.processes import nursery
from tests.processes.programs import command
from tests.support.cli import LINES, PROGRAM, mmqjp, write_documents, write_queries
from tests.support.faults import Killed, armed, killed
from tests.support.service import PAIRS, Directory, StopAfter, events_of


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def left_undelivered(place: Directory) -> None:
    """A state that another process left with outputs that nobody has written."""
    place.drop("1.jsonl", range(3))
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        place.service(engine).run(None, StopAfter(10**9))
        engine.subscribe(PAIRS.replace("pairs", "more"), backfill=True)


@pytest.mark.parametrize("old", ["", "what was there\n"])
def test_what_an_earlier_process_left_is_written_once_although_it_is_killed_then(place: Directory, old: str):
    left_undelivered(place)
    place.output = place.path / "new.jsonl"
    if old:
        place.output.write_text(old)
    for _ in range(2):
        dying = armed((GrowingFile, "write"), killed, after=True)
        with Session("duckdb", state=place.state) as engine, dying, pytest.raises(Killed):
            place.service(engine)
        assert place.output.read_text().count("more") == 2 * 3  # the query stands in a line twice
    place.run()
    text = place.output.read_text()
    assert text.startswith(old) and len(text.removeprefix(old).splitlines()) == 3


def test_a_service_whose_output_was_moved_goes_on_in_a_new_file(place: Directory):
    moved = place.path / "out.jsonl.1"
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        asked = False
        service = place.service(engine, should_reopen=lambda: asked)
        place.drop("1.jsonl", range(3))
        service.drain(StopAfter(10**9))
        place.output.rename(moved)
        place.drop("2.jsonl", range(3, 4))
        service.drain(StopAfter(10**9))
        place.output.rename(place.path / "out.jsonl.2")
        asked = True
        service.drain(StopAfter(10**9))
        assert place.output.read_bytes() == b""
        noted = engine.position(OUTPUT_SINK).details
        assert (noted["inode"], noted["bytes"]) == (place.output.stat().st_ino, 0)
    assert place.output.with_suffix(".jsonl.2").read_text().count("\n") == 3
    assert moved.read_text().count("\n") == 3


def test_sighup_opens_the_output_of_the_command_anew(place: Directory):
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
    place.drop("1.jsonl", range(3))
    with place.start("--output", place.output, "--trigger", "10ms") as process:
        next(events_of(process, "batch"))
        place.output.rename(place.path / "out.jsonl.1")
        process.send_signal(signal.SIGHUP)
        assert "was gone: appending to a new file" in next(events_of(process, "output"))["what"]
        place.drop("2.jsonl", range(3, 6))
        next(events_of(process, "batch"))
        process.send_signal(signal.SIGTERM)
        assert next(events_of(process, "stopped"))["documents"] == 6
    assert process.returncode == 0
    old = (place.path / "out.jsonl.1").read_text().splitlines()
    pairs = place.pairs()
    assert len(old) == 3 and len(pairs) == 12
    assert {*pairs, *(tuple(json.loads(line)["documents"]) for line in old)} == {
        (f"d{a}", f"d{b}") for a, b in combinations(range(6), 2)
    }


def take_terminal() -> None:
    """Makes standard input the terminal of the session, whose hangup is heard, also under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.close(os.open(os.ttyname(0), os.O_RDWR))


def test_a_terminal_that_is_closed_ends_the_command(place: Directory):
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
    place.drop("1.jsonl", range(3))
    terminal, slave = pty.openpty()
    options = ["--source", place.drops, "--state", place.state, "--output", place.output, "--log", "json"]
    asked = [*PROGRAM, "stream", "--engine", "duckdb", *map(str, options)]
    apart: dict[str, Any] = {"start_new_session": True, "preexec_fn": take_terminal}
    with subprocess.Popen(asked, stdin=slave, stderr=subprocess.PIPE, text=True, **apart) as process:
        os.close(slave)
        next(events_of(process, "batch"))
        os.close(terminal)
        assert next(events_of(process, "stopped"))["outputs"] == 3
    assert process.returncode == 0


# ------------------------------------------------------------ standard output that is closed, full, or without a reader

CLOSED = "mmqjp: error: standard output: closed; open it, or redirect it\n"


@pytest.fixture(autouse=True)
def on_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMQJP_ENGINE", "duckdb")


def closed(*arguments: object, close: Callable[[], object]) -> tuple[int, str]:
    """Status and standard error of the command that starts without some standard files."""
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)], check=False, stderr=subprocess.PIPE, text=True, preexec_fn=close
    )
    return done.returncode, done.stderr


def program(*arguments: object, out: BinaryIO) -> tuple[int, str]:
    """Status and standard error of the command that writes to a file."""
    with nursery.start(command, *arguments, out=out) as process:
        assert process.stderr is not None
        return process.wait(), process.stderr.read()


@pytest.fixture
def run(tmp_path: Path) -> list[object]:
    return ["run", "--queries", write_queries(tmp_path), "--documents", write_documents(tmp_path / "documents.jsonl")]


@pytest.mark.parametrize("asked", [["run"], pytest.param(["check"], marks=pytest.mark.soak), ["--version"]], ids=str)
def test_a_closed_standard_output_is_said(tmp_path: Path, run: list[object], asked: list[str]):
    arguments = {"run": run, "check": ["check", write_queries(tmp_path)]}.get(str(asked[0]), asked)
    assert closed(*arguments, close=lambda: os.close(1)) == (1, CLOSED)


def test_a_file_needs_no_standard_files(tmp_path: Path, run: list[object]):
    target = tmp_path / "out.jsonl"
    assert closed(*run, "--output", target, close=lambda: os.closerange(0, 3)) == (0, "")
    assert target.read_text().splitlines() == LINES


@pytest.mark.parametrize("asked", ["run", pytest.param("check", marks=pytest.mark.soak), "--help"])
def test_a_full_standard_output_is_said(tmp_path: Path, run: list[object], asked: str):
    arguments = {"run": run, "check": ["check", write_queries(tmp_path)]}.get(asked, [asked])
    with Path("/dev/full").open("wb") as full:
        status, errors = program(*arguments, out=full)
    assert status == 1 and errors.endswith("No space left on device; make room on the disk, or write elsewhere\n")
    assert errors.startswith("mmqjp: error: ") and errors.count("\n") == 1


def test_a_service_says_that_its_reader_has_gone_and_writes_it_again(tmp_path: Path):
    (tmp_path / "drops").mkdir()
    write_documents(tmp_path / "drops" / "documents.jsonl")
    arguments: list[str | Path] = ["stream", "--queries", write_queries(tmp_path), "--source", tmp_path / "drops"]
    arguments += ["--state", tmp_path / "state", "--trigger", "available-now", "--lateness", "INF"]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        status, errors = program(*arguments, out=pipe)
    assert status == 1
    assert errors.splitlines()[1:] == [
        "mmqjp: error: the reader of standard output has gone; what it missed is written after a restart"
    ]
    target = tmp_path / "out.jsonl"
    assert mmqjp(*arguments, "--output", target).exit_code == 0
    assert target.read_text().splitlines() == LINES
