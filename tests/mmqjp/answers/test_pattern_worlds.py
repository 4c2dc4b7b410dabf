"""Random worlds of events with PATTERN statements, told by an engine as brute force tells them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from feeds.documents import Document
from mmqjp.answers.events import Patterns
from mmqjp.engine import Session
from tests.generate.documents import SECOND, chance
from tests.generate.pattern_worlds import pattern_world
from tests.generate.seeds import seeds
from tests.mmqjp.answers.test_event_backfill import reads
from tests.mmqjp.answers.test_event_queries import Fault
from tests.mmqjp.answers.test_event_worlds import SETTLE, batches, documents, script
from tests.oracle.bindings import Stored
from tests.oracle.event_documents import in_time
from tests.oracle.pattern_world import PatternWorld
from tests.support.pattern_outputs import assert_told

END = 10**6 * SECOND


@pytest.fixture(autouse=True)
def few_batches_to_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = Patterns.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "snapshot_every", 4)


def fault(_: object) -> None:
    raise Fault


@pytest.mark.parametrize("seed", seeds(4, 1_000))
def test_worlds_are_told(seed: int, tmp_path: Path) -> None:
    rng, found = Random(seed), pattern_world(seed)
    late = 3 * SETTLE if chance(rng, 30) else SETTLE - 1
    arriving = list(batches(rng, documents(found), late))
    engine = Session("duckdb", state=tmp_path, settle=SETTLE, quiet=True)
    names = engine.subscribe(script(found), add=True)
    for batch in arriving:
        if chance(rng, 15):
            with pytest.raises(Fault):
                engine.process(batch, fault)  # type: ignore[arg-type]  # it returns nothing
        engine.process(batch)
        if chance(rng, 20):
            engine.close()
            engine = Session("duckdb", state=tmp_path, settle=SETTLE, quiet=True)
    engine.process([Document(f"end {name}", "<end/>", f"documents_{name}", (END, END)) for name in found.given])
    outputs = list(engine.outputs())
    engine.close()
    assert_told(outputs, names, in_time_only(found, arriving))


def in_time_only(found: PatternWorld, arriving: Sequence[Sequence[Document]]) -> PatternWorld:
    """A world without the events of documents that came too late."""
    read = {f"documents_{name}" for one in found.statements for name in reads(one) if name in found.given}
    stored = [[Stored(one.stream, one.id, one.t0, one.t1, b"<e/>", ()) for one in batch] for batch in arriving]
    kept = {one.id for one in in_time(stored, read, dict.fromkeys(read, SETTLE))[0]}
    given = {
        name: [one for one in events if all(f"{part[0]}-{part[1]}" in kept for part in one.parts)]  # type: ignore[index]
        for name, events in found.given.items()
    }
    return PatternWorld(found.schemas, given, found.statements)
