"""Random worlds of events, as documents that an engine takes in batches: outputs are those of brute force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from feeds.documents import Document
from mmqjp.answers.events_run import kernels
from mmqjp.answers.kernels import MakeKernel, PatternKernel
from mmqjp.engine import Session
from pattern_stage.lineage import Lineage
from pattern_stage.partition.kernel import HereRunner, PartitionedKernel
from pattern_stage.values import Texts
from tests.generate.documents import SECOND, chance
from tests.generate.event_worlds import world
from tests.generate.pattern_worlds import pattern_world
from tests.generate.seeds import A_DAY, seeds
from tests.mmqjp.answers.event_world import END
from tests.oracle.bindings import Stored
from tests.oracle.event_documents import in_time
from tests.oracle.event_syntax import Cel, reads
from tests.oracle.events import World
from tests.oracle.pattern_syntax import Statement
from tests.oracle.pattern_world import PatternWorld
from tests.support.faults import Injected, fail
from tests.support.pattern_outputs import assert_told
from xscl.algebra.values import number_text

SETTLE = 4 * SECOND
FIRST_PATTERNS = 1_000
"""Worlds of this seed and of later ones of its day have PATTERN statements."""


def some_world(seed: int) -> PatternWorld:
    if seed % A_DAY >= FIRST_PATTERNS:
        return pattern_world(seed)
    made = world(seed)
    return PatternWorld(made.schemas, made.given, made.statements)


def script(found: World) -> str:
    """Definitions of the given streams, each of documents of its own, and the statements."""
    definitions = []
    for name in found.given:
        attributes = (
            f"{attribute} := number(e/{attribute})" if kind == "number" else f"{attribute} := e/{attribute}"
            for attribute, kind in found.schemas[name].items()
        )
        definitions.append(f"DEFINE EVENT {name} FROM documents_{name}//e->e ({', '.join(attributes)})")
    return ";\n".join([*definitions, *(statement.text() for statement in found.statements)])


def documents(found: World) -> list[tuple[int, Document]]:
    """A document for each event, with its t1."""
    made = []
    for name, events in found.given.items():
        for one in sorted(events, key=lambda event: sorted(map(str, event.parts))):
            (part,) = one.parts
            assert isinstance(part, tuple)
            children = "".join(
                f"<{attribute}>{number_text(value) if isinstance(value, float) else value}</{attribute}>"
                for attribute, value in sorted(one.attributes, key=str)
                if value is not None
            )
            id = f"{part[0]}-{part[1]}"
            made.append((one.t1, Document(id, f"<e>{children}</e>", f"documents_{name}", (one.t0, one.t1))))
    return made


def batches(rng: Random, made: Sequence[tuple[int, Document]], late: int = SETTLE - 1) -> Iterator[list[Document]]:
    """The documents in batches, each at most `late` behind those of later times."""
    arriving = [one for _, one in sorted(made, key=lambda one: one[0] + rng.randint(0, late))]
    while arriving:
        size = rng.randint(1, 9)
        yield arriving[:size]
        arriving = arriving[size:]


def ends(found: World) -> list[Document]:
    """A document on each stream behind which no event is."""
    return [Document(f"end {name}", "<end/>", f"documents_{name}", (END, END)) for name in found.given]


def read_by(one: Statement) -> set[str]:
    return {*(reads(one) if isinstance(one, Cel) else one.streams)}


def in_order(found: PatternWorld) -> list[int]:
    """The places of statements, each behind those that publish what it reads."""
    names = {one.publish for one in found.statements}
    ordered: list[int] = []
    while len(ordered) < len(found.statements):
        done = {found.statements[place].publish for place in ordered}
        left = {one.publish for place, one in enumerate(found.statements) if place not in ordered}
        for place, one in enumerate(found.statements):
            wanted = {name for name in read_by(one) if name in names}
            if place not in ordered and wanted <= done - left:
                ordered.append(place)
    return ordered


def in_time_only(found: PatternWorld, arriving: Sequence[Sequence[Document]]) -> PatternWorld:
    """A world without the events of documents that came too late."""
    read = {f"documents_{name}" for one in found.statements for name in read_by(one) if name in found.given}
    stored = [[Stored(one.stream, one.id, one.t0, one.t1, b"<e/>", ()) for one in batch] for batch in arriving]
    kept = {one.id for one in in_time(stored, read, dict.fromkeys(read, SETTLE))[0]}
    given = {
        name: [one for one in events if all(f"{part[0]}-{part[1]}" in kept for part in one.parts)]  # type: ignore[index]
        for name, events in found.given.items()
    }
    return PatternWorld(found.schemas, given, found.statements)


def in_parts(parts: int) -> MakeKernel:
    def make(texts: Texts, lineage: Lineage) -> PatternKernel:
        return PartitionedKernel(texts, lineage, HereRunner(parts))

    return make


@pytest.mark.parametrize("seed", [*seeds(2, 500), *seeds(4, 1_000, first=FIRST_PATTERNS)])
def test_worlds(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches fail, stores are opened again, documents may come too late. In every other world each kernel works in
    other parts, or in none."""
    rng, found = Random(seed), some_world(seed)
    makers = [kernels("driver", None), *(map(in_parts, (1, 3, 7)) if seed % 2 else ())]
    monkeypatch.setattr("mmqjp.engine.kernels", lambda place, session, quota: rng.choice(makers))
    arriving = list(batches(rng, documents(found), 3 * SETTLE if chance(rng, 30) else SETTLE - 1))
    engine = Session("duckdb", state=tmp_path, settle=SETTLE, quiet=True)
    names = engine.subscribe(script(found), add=True)
    for batch in arriving:
        if chance(rng, 15):
            with pytest.raises(Injected):
                engine.process(batch, fail)
        engine.process(batch)
        if chance(rng, 20):
            engine.close()
            engine = Session("duckdb", state=tmp_path, settle=SETTLE, quiet=True)
    engine.process(ends(found))
    outputs = list(engine.outputs())
    engine.close()
    assert_told(outputs, names, in_time_only(found, arriving))


@pytest.mark.parametrize("seed", [*seeds(1, 8, first=200), *seeds(1, 500, first=2000)])
def test_worlds_as_sql(seed: int) -> None:
    rng, found = Random(seed), some_world(seed)
    with Session("duckdb", settle=None, patterns="sql", quiet=True) as engine:
        names = engine.subscribe(script(found), add=True)
        for batch in batches(rng, documents(found)):
            engine.process(batch)
        outputs = list(engine.finish())
        assert not list(engine.finish())
    assert_told(outputs, names, found)
