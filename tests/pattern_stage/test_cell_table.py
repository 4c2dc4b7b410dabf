"""Cells found by what an edge asks of an event are those that a scan finds, whatever comes and goes."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from pattern_stage.definition import pattern_template
from pattern_stage.pattern.cells import Cell, CellTable, RegisterTest
from pattern_stage.pattern.program import EventSlots, PatternProgram
from pattern_stage.values import Texts
from tests.generate.seeds import seeds
from tests.support.event_agreement import lowered_texts
from xscl.algebra.events import Pattern, Schema


@pytest.mark.parametrize("seed", seeds(2, 200))
def test_the_cells_that_edges_ask_for_are_those_that_a_scan_finds(seed: int) -> None:
    rng = Random(seed)
    table, there = CellTable((0, 2)), dict[tuple[int, ...], Cell]()
    for _ in range(300):
        name = tuple(rng.randrange(4) for _ in range(3))
        if name in there and rng.random() < 0.6:
            del table[name], there[name]
        else:
            table[name] = there[name] = Cell(name, name)
        event = rng.randrange(4), rng.randrange(4)
        edges = [RegisterTest(rng.choice((0, 2)), rng.randrange(2)) for _ in range(rng.randrange(1, 3))]
        wanted = {name for name in there if any(name[edge.register] == event[edge.slot] for edge in edges)}
        assert {cell.name for cell in table.asked(edges, event)} == wanted
        assert {cell.name for cell in table.asked([*edges, None], event)} == there.keys()


@pytest.mark.parametrize(
    ("where", "hashed"),
    [
        ("b.k = a.k", [True, False]),
        ("a.k = b.k AND b.x > 1", [True, False]),
        ("b.x = a.x AND c.k = b.k", [True, True]),
        ("b.k != a.k", [False, False]),
        ("b.x = a.k", [False, False]),
        ("(b.k = a.k OR b.x > 1) AND c.x = a.x", [False, True]),
        ("c.k = lower-case(a.k)", [False, True]),
    ],
)
def test_which_states_have_a_hash(where: str, hashed: list[bool]) -> None:
    streams: Mapping[str, Schema] = dict.fromkeys("ABC", (("k", "string"), ("x", "number")))
    (pattern,), _ = lowered_texts([f"PATTERN SEQ(A a, B b, C c) WHERE {{{where}}} WITHIN 9 s"], streams)
    assert isinstance(pattern, Pattern)
    numbered = pattern_template(pattern, lambda leaf: leaf)
    assert isinstance(numbered, Pattern)
    assert [bool(some) for some in PatternProgram(numbered, Texts(), EventSlots()).hashed] == [*hashed, False]
