"""Standard output that is closed, full, or without a reader: one line says so, and nothing is lost."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.processes import nursery
from tests.processes.programs import command
from tests.support.cli import LINES, PROGRAM, mmqjp, write_documents, write_queries

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
