"""Absences of a process that is killed, or whose store fails, in the batch that decides them: each is told once."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from tests.generate.seeds import seeds
from tests.oracle.bindings import OutputRow
from tests.oracle.evaluation import comparable, evaluate
from tests.processes import nursery
from tests.processes.absence_engine import LATENESS, SCRIPT, batches, opened
from tests.support.agreement import as_row
from tests.support.faults import FaultySession, Injected
from xscl.parser import parse_script


def expected(given: Sequence[Sequence[Document]]) -> list[OutputRow]:
    arrived = [document for batch in given for document in batch]
    watermark = max((document.t1 for document in arrived), default=0) - LATENESS
    return evaluate(parse_script(SCRIPT), arrived, lambda stream: watermark)


def deciding(given: Sequence[Sequence[Document]]) -> int:
    """The place of a batch that decides what did not come, although none of it may be in the batch."""
    for at in range(3, len(given)):
        before, after = (comparable(expected(given[:end])) for end in (at, at + 1))
        if {"silent", "lone"} & {row[1] for row in after if row not in before}:
            return at
    raise AssertionError("no batch decides anything")


def lived(engine: Session, given: Sequence[Sequence[Document]]) -> None:
    """Asserts that all is told, and no more, when all documents have come, some of them again."""
    for batch in given:
        engine.process(batch)
    assert not list(engine.dead_letters())
    outputs = list(engine.outputs())
    assert len({output.id for output in outputs}) == len(outputs)
    assert comparable(map(as_row, outputs)) == comparable(expected(given))


@pytest.mark.parametrize("point", ["before commit", "after commit"])
@pytest.mark.parametrize("seed", seeds(1, 40))
def test_killed_as_absences_are_decided(seed: int, point: str, tmp_path: Path):
    given = batches(seed)
    at = deciding(given)
    killed = nursery.run("tests.processes.absence_engine", tmp_path, seed, point, at)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with opened(tmp_path) as engine:
        done = engine.sql("SELECT count(*) AS n FROM documents WHERE kind = 'external'").to_pylist()[0]["n"]
        assert done == sum(map(len, given[: at + (point == "after commit")]))
        lived(engine, given)


@pytest.mark.parametrize("call", ["append", "join", "commit"])
@pytest.mark.parametrize("seed", seeds(1, 40, first=1))
def test_a_store_that_fails_as_absences_are_decided(seed: int, call: str, tmp_path: Path):
    """The same process goes on, and decides them when the batch comes again."""
    given = batches(seed)
    at = deciding(given)
    with FaultySession("duckdb", state=tmp_path, lateness=LATENESS) as engine:
        engine.ensure(parse_script(SCRIPT))
        for batch in given[:at]:
            engine.process(batch)
        with engine.store.failing(call), pytest.raises(Injected):
            engine.process(given[at])
        lived(engine, given)
    with opened(tmp_path) as engine:
        lived(engine, given)
