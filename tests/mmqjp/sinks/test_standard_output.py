"""Standard output that is closed, full, or without a reader: one line says so, and nothing is lost."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cli import LINES, PROGRAM, write_documents, write_queries

CLOSED = "mmqjp: error: standard output: closed; open it, or redirect it\n"


def program(
    *arguments: object, close: Callable[[], object] = lambda: None, stdout: int | None = None
) -> tuple[int, str]:
    """Status and standard error of the command with some standard files closed or elsewhere."""
    command, engine = [*PROGRAM, *map(str, arguments)], {**os.environ, "MMQJP_ENGINE": "duckdb"}
    done = subprocess.run(
        command, check=False, stdout=stdout, stderr=subprocess.PIPE, text=True, preexec_fn=close, env=engine
    )
    return done.returncode, done.stderr


@pytest.fixture
def run(tmp_path: Path) -> list[object]:
    return ["run", "--queries", write_queries(tmp_path), "--documents", write_documents(tmp_path / "documents.jsonl")]


@pytest.mark.parametrize("command", [["run"], pytest.param(["check"], marks=pytest.mark.soak), ["--version"]], ids=str)
def test_a_closed_standard_output_is_said(tmp_path: Path, run: list[object], command: list[object]):
    arguments = {"run": run, "check": ["check", write_queries(tmp_path)]}.get(str(command[0]), command)
    assert program(*arguments, close=lambda: os.close(1)) == (1, CLOSED)


def test_a_file_needs_no_standard_files(tmp_path: Path, run: list[object]):
    target = tmp_path / "out.jsonl"
    assert program(*run, "--output", target, close=lambda: os.closerange(0, 3)) == (0, "")
    assert target.read_text().splitlines() == LINES


@pytest.mark.parametrize("command", ["run", pytest.param("check", marks=pytest.mark.soak), "--help"])
def test_a_full_standard_output_is_said(tmp_path: Path, run: list[object], command: str):
    arguments = {"run": run, "check": ["check", write_queries(tmp_path)]}.get(command, [command])
    with Path("/dev/full").open("wb") as full:
        status, errors = program(*arguments, stdout=full.fileno())
    assert status == 1 and errors.endswith("No space left on device; make room on the disk, or write elsewhere\n")
    assert errors.startswith("mmqjp: error: ") and errors.count("\n") == 1


def test_a_service_says_that_its_reader_has_gone_and_writes_it_again(tmp_path: Path):
    (tmp_path / "drops").mkdir()
    write_documents(tmp_path / "drops" / "documents.jsonl")
    options = ["--queries", write_queries(tmp_path), "--source", tmp_path / "drops", "--state", tmp_path / "state"]
    arguments = ["stream", *options, "--trigger", "available-now", "--lateness", "INF"]
    reader, writer = os.pipe()
    os.close(reader)
    status, errors = program(*arguments, stdout=writer)
    os.close(writer)
    assert status == 1
    assert errors.splitlines()[1:] == [
        "mmqjp: error: the reader of standard output has gone; what it missed is written after a restart"
    ]
    target = tmp_path / "out.jsonl"
    assert program(*arguments, "--output", target)[0] == 0
    assert target.read_text().splitlines() == LINES
