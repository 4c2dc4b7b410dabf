"""Output files and standard output: killed, left by the terminal, closed, full; and a service that is out of room."""

import json
import os
import pty
import signal
import subprocess
from itertools import combinations
from pathlib import Path
from typing import BinaryIO

import pytest

from join_stage.store.protocol import DUCKDB_FILE
from mmqjp.engine import Session
from mmqjp.sinks.files import GrowingFile
from tests.processes import nursery
from tests.processes.programs import command, in_terminal, without_files
from tests.support.cli import LINES, PROGRAM, mmqjp, write_documents, write_queries
from tests.support.faults import Killed, armed, killed
from tests.support.service import PAIRS, Directory, StopAfter, events_of


def test_what_an_earlier_process_left_is_written_once_although_it_is_killed_then(place: Directory):
    place.drop("1.jsonl", range(3))
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        place.service(engine).run(None, StopAfter(10**9))
        engine.subscribe(PAIRS.replace("pairs", "more"), backfill=True)
    place.output = place.path / "new.jsonl"
    place.output.write_text("what was there\n")
    for _ in range(2):
        dying = armed((GrowingFile, "write"), killed, after=True)
        with Session("duckdb", state=place.state) as engine, dying, pytest.raises(Killed):
            place.service(engine)
        assert place.output.read_text().count("more") == 2 * 3  # the query stands in a line twice
    place.run()
    first, *lines = place.output.read_text().splitlines()
    assert first == "what was there" and len(lines) == 3


def test_sighup_opens_the_output_of_the_command_anew_and_a_closed_terminal_ends_it(place: Directory):
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
    place.drop("1.jsonl", range(3))
    terminal, slave = pty.openpty()
    options = ["--source", place.drops, "--state", place.state, "--output", place.output, "--log", "json"]
    arguments = ["stream", "--engine", "duckdb", "--trigger", "10ms", *options]
    with nursery.start(in_terminal, os.ttyname(slave), *arguments) as process:
        next(events_of(process, "batch"))
        place.output.rename(place.path / "out.jsonl.1")
        process.send_signal(signal.SIGHUP)
        assert "was gone: appending to a new file" in next(events_of(process, "output"))["what"]
        place.drop("2.jsonl", range(3, 6))
        next(events_of(process, "batch"))
        os.close(slave)
        os.close(terminal)
        assert next(events_of(process, "stopped"))["documents"] == 6
    assert process.returncode == 0
    old = (place.path / "out.jsonl.1").read_text().splitlines()
    assert (len(old), len(place.pairs())) == (3, 12)
    pairs = {*place.pairs(), *(tuple(json.loads(line)["documents"]) for line in old)}
    assert pairs == {(f"d{a}", f"d{b}") for a, b in combinations(range(6), 2)}


# ------------------------------------------------------------ standard output that is closed, full, or without a reader

CLOSED = "mmqjp: error: standard output: closed; open it, or redirect it\n"


@pytest.fixture(autouse=True)
def on_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMQJP_ENGINE", "duckdb")


def program(*arguments: object, out: BinaryIO) -> tuple[int, str]:
    with nursery.start(command, *arguments, out=out) as process:
        assert process.stderr is not None
        return process.wait(), process.stderr.read()


@pytest.fixture
def run(tmp_path: Path) -> list[object]:
    return ["run", "--queries", write_queries(tmp_path), "--documents", write_documents(tmp_path / "documents.jsonl")]


def test_a_closed_standard_output_is_said_and_a_file_needs_no_standard_files(tmp_path: Path, run: list[object]):
    for arguments in (run, ["check", write_queries(tmp_path)]):
        done = nursery.run(without_files, 1, 2, *arguments)
        assert (done.returncode, done.stderr) == (1, CLOSED)
    version = subprocess.run(
        [*PROGRAM, "--version"], check=False, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: os.close(1)
    )
    assert (version.returncode, version.stderr) == (1, CLOSED)
    target = tmp_path / "out.jsonl"
    assert nursery.run(without_files, 0, 3, *run, "--output", target).returncode == 0
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


# DuckDB's file is there: what is less than it cuts into blocks that are in use, as no full disk does.
@pytest.mark.parametrize(("more", "documents"), [(20_000, 40), pytest.param(300_000, 150, marks=pytest.mark.soak)])
def test_a_service_whose_files_cannot_grow_says_so_and_goes_on(more: int, documents: int, place: Directory):
    options = ["--engine", "duckdb", "--source", place.drops, "--state", place.state, "--output", place.output]
    options += ["--trigger", "available-now", "--batch-size", "5", "--lateness", "INF", "--log", "json"]
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
    place.drop("1.jsonl", range(documents), text="v" * 2_000)
    done = nursery.run(command, "stream", *options, most=(place.state / DUCKDB_FILE).stat().st_size + more)
    (error,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert done.returncode == 1 and error.startswith("mmqjp: error: ") and "unexpected" not in error
    assert "File too large" in error and str(place.path) in error and "make room" in error
    done = nursery.run(command, "stream", *options)
    assert done.returncode == 0, done.stderr
    pairs = place.pairs()
    assert len(pairs) == len(set(pairs)) == sum(min(10, documents - 1 - n) for n in range(documents))
