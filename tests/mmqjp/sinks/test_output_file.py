"""Output files in the life of a state: killed, moved away while a service writes, left by the terminal."""

import json
import os
import pty
import signal
import subprocess
from itertools import combinations
from pathlib import Path

import pytest

from mmqjp.engine import Session
from mmqjp.sinks.deliverer import OUTPUT_SINK
from mmqjp.sinks.files import GrowingFile
from tests.support.cli import PROGRAM
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
    command = [*PROGRAM, "stream", "--engine", "duckdb", *map(str, options)]
    with subprocess.Popen(
        command, stdin=slave, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=take_terminal,
    ) as process:  # fmt: skip
        os.close(slave)
        next(events_of(process, "batch"))
        os.close(terminal)
        assert next(events_of(process, "stopped"))["outputs"] == 3
    assert process.returncode == 0
