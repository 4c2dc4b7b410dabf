"""Random worlds of events, as documents that an engine takes in batches: what it tells is what brute force finds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.answers.events import Patterns
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from tests.generate.documents import SECOND, chance
from tests.generate.event_worlds import world
from tests.generate.seeds import seeds
from tests.oracle.events import Event, World
from xscl.algebra.values import number_text

SETTLE = 4 * SECOND


class Told(NamedTuple):
    """A result of a statement, by values."""

    statement: str
    values: frozenset[tuple[str, str]]
    t0: int
    t1: int
    documents: frozenset[str]


def script(found: World) -> str:
    """Definitions of the given streams, each of documents of its own, and the statements, all under names."""
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
            (id,) = _documents(one.parts)
            children = "".join(
                f"<{attribute}>{number_text(value) if isinstance(value, float) else value}</{attribute}>"
                for attribute, value in sorted(one.attributes, key=str)
                if value is not None
            )
            made.append((one.t1, Document(id, f"<e>{children}</e>", f"documents_{name}", (one.t0, one.t1))))
    return made


def batches(rng: Random, made: Sequence[tuple[int, Document]], late: int = SETTLE - 1) -> Iterator[list[Document]]:
    """The documents in batches, each at most so late."""
    arriving = [one for _, one in sorted(made, key=lambda one: one[0] + rng.randint(0, late))]
    while arriving:
        size = rng.randint(1, 9)
        yield arriving[:size]
        arriving = arriving[size:]


def told(output: Output) -> Told:
    values = frozenset((child.tag, child.text or "") for child in etree.fromstring(output.xml))
    return Told(output.query, values, output.t0, output.t1, frozenset(output.documents))


def wanted(names: Sequence[str], found: World) -> set[Told]:
    return {one for place, name in enumerate(names) for one in results_of(name, found.results(place))}


def results_of(name: str, events: Iterable[Event]) -> Iterator[Told]:
    """Results of a statement, by values."""
    for one in events:
        yield Told(name, frozenset(_values(one)), one.t0, one.t1, frozenset(_documents(one.parts)))


def _values(one: Event) -> Iterator[tuple[str, str]]:
    for name, value in one.attributes:
        if value is not None:
            yield name, number_text(value) if isinstance(value, float) else str(value)


def _documents(parts: Iterable[Hashable]) -> Iterator[str]:
    """The documents behind parts: a part is a stream and a number, or ends with an event that was published."""
    for part in parts:
        assert isinstance(part, tuple)
        if isinstance(part[-1], Event):
            yield from _documents(part[-1].parts)
        else:
            yield f"{part[0]}-{part[1]}"


@pytest.mark.parametrize("seed", seeds(5, 40))
def test_worlds_are_told(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = Patterns.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "snapshot_every", 4)
    rng, found = Random(seed), world(seed)
    engine = Session("duckdb", state=tmp_path, settle=SETTLE, quiet=True)
    names = engine.subscribe(script(found), add=True)
    for batch in batches(rng, documents(found)):
        engine.process(batch)
        if chance(rng, 20):
            engine.close()
            engine = Session("duckdb", state=tmp_path, settle=SETTLE, quiet=True)
    end = 10**6 * SECOND
    engine.process([Document(f"end {name}", "<end/>", f"documents_{name}", (end, end)) for name in found.given])
    outputs = list(engine.outputs())
    engine.close()
    results = [told(one) for one in outputs]
    assert set(results) == wanted(names, found)
    assert len({one.id for one in outputs}) == len(outputs)
