"""The static index against conditions tested row by row, while targets come and go."""

import random
from typing import Any

import numpy as np
import pytest

from pattern_stage import index as index_module
from pattern_stage.clauses import dnf_clauses
from pattern_stage.index import StaticIndex
from pattern_stage.values import Texts
from tests.generate.seeds import seeds
from tests.pattern_stage.row_by_row import Row, column_of, columns_of, condition_of
from xscl.algebra.events import (
    AllOf,
    AnyOf,
    Arithmetic,
    Atom,
    Attribute,
    Comparison,
    Constant,
    Duration,
    EventCondition,
    Function,
    Kind,
    NullTest,
    Parameter,
    Schema,
    TextTest,
    Value,
)

SCHEMA: Schema = (("s", "string"), ("t", "string"), ("n", "number"), ("m", "number"))
TEXTS: list[Any] = ["a", "b", "1", "1.0", "02", "", None]
NUMBERS: list[Any] = [0.0, -0.0, 1.0, 2.0, 2.5, -3.0, None]
PARAMETERS = (TEXTS, NUMBERS, NUMBERS)
KINDS: tuple[Kind, ...] = ("string", "number", "number")


def attribute(name: str) -> Value:
    return Attribute("right", name, dict(SCHEMA)[name])


def random_atom(chance: random.Random) -> Atom:
    """An atom about one event: of each kind that the index treats in a way of its own."""
    text = chance.choice([attribute("s"), attribute("t"), Function("lower-case", (attribute("s"),), "string")])
    number = chance.choice([attribute("n"), attribute("m"), Arithmetic("+", attribute("n"), attribute("m")), text])
    sources: list[Value] = [Parameter(0, "string"), Parameter(1, "number"), Parameter(2, "number"), Constant(1.0)]
    given = chance.choice(sources)
    number = chance.choice([number, number, Duration()])
    match chance.randrange(8):
        case 0:
            return NullTest(chance.choice([text, number, given]), chance.random() < 0.5)
        case 1:
            return TextTest(chance.choice(["contains", "starts-with"]), (text, given), chance.random() < 0.5)
        case 2:
            return Comparison("!=", number, given)
        case 3 | 4:
            sides = (text, chance.choice([Parameter(0, "string"), Constant("a"), given]))
            return Comparison("=", *(sides if chance.random() < 0.7 else sides[::-1]))
        case _:
            order = chance.choice(["<", "<=", ">", ">=", "="])
            return Comparison(order, *((number, given) if chance.random() < 0.6 else (given, number)))  # type: ignore[arg-type]


def random_condition(chance: random.Random) -> EventCondition:
    count = chance.choice([1, 1, 2])
    clauses = [AllOf(tuple(random_atom(chance) for _ in range(chance.randrange(4)))) for _ in range(count)]
    return AnyOf(tuple(clauses))


def random_event(chance: random.Random) -> dict[str, Any]:
    values = {name: chance.choice(TEXTS if kind == "string" else NUMBERS) for name, kind in SCHEMA}
    return {**values, "t0": 0, "t1": chance.choice([0, 1_000_000, 2_500_000])}


IS_N = AllOf((Comparison("=", attribute("n"), Parameter(0, "number")),))


def numbered(number: float) -> dict[str, Any]:
    return {"s": None, "t": None, "n": number, "m": None, "t0": 0, "t1": 0}


class Naive:
    """The index by its definition."""

    def __init__(self) -> None:
        self.targets: dict[int, list[tuple[EventCondition, tuple[Any, ...]]]] = {}

    def hits(self, events: list[dict[str, Any]], active: np.ndarray | None) -> list[tuple[int, int]]:
        return [
            (place, target)
            for place, event in enumerate(events)
            for target in sorted(self.targets)
            if (active is None or active[target])
            and any(condition_of(of, Row(event, event, event, given)) for of, given in self.targets[target])
        ]


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("seed", seeds(6, 40))
def test_hits_are_those_of_each_row(seed, hashed, monkeypatch):
    chance = random.Random(seed)
    monkeypatch.setattr(index_module, "_BLOCK", chance.choice([3, 100, 1 << 18]))
    monkeypatch.setattr(index_module, "_MANY_REMOVED", 3)
    texts, naive = Texts(), Naive()
    index = StaticIndex(SCHEMA, texts, hashed=hashed)
    templates = [random_condition(chance) for _ in range(chance.choice([1, 3, 8]))]
    for _ in range(chance.choice([3, 12])):
        for _ in range(chance.randrange(4)):
            template = chance.choice(templates)
            free = [target for target in range(60) if target not in naive.targets]
            if chance.random() < 0.1:
                free = [target for target in range(60) if target in naive.targets]
            targets = chance.sample(free, min(len(free), chance.choice([1, 1, 10])))
            given: list[tuple[Any, ...]] = [tuple(map(chance.choice, PARAMETERS)) for _ in targets]
            for target, row in zip(targets, given, strict=True):
                naive.targets.setdefault(target, []).append((template, row))
            columns = tuple(column_of([row[place] for row in given], kind, texts) for place, kind in enumerate(KINDS))
            index.add(np.array(targets, np.int64), dnf_clauses(template), columns)
        gone = [target for target in range(60) if chance.random() < 0.15]
        for target in gone:
            naive.targets.pop(target, None)
        index.remove(np.array([*gone, 99], np.int64))
        assert len(index) == len(naive.targets)
        texts.codes(f"passing {chance.random()}" for _ in range(5))
        texts.keep(index.used())
        events = [random_event(chance) for _ in range(chance.choice([0, 1, 20]))]
        active = np.array([chance.random() < 0.5 for _ in range(100)]) if chance.random() < 0.5 else None
        places, targets_hit = index.hits(columns_of(events, SCHEMA, texts), active)
        assert list(zip(places.tolist(), targets_hit.tolist(), strict=True)) == naive.hits(events, active)


def test_keys_with_equal_hashes_are_told_apart(monkeypatch):
    hashed = index_module._hashed
    monkeypatch.setattr(index_module, "_hashed", lambda keys, seed: hashed(keys, seed) % (7 if seed < 3 else 2**40))
    texts = Texts()
    index = StaticIndex(SCHEMA, texts)
    index.add(np.arange(100), dnf_clauses(IS_N), (np.arange(100.0),))
    events = [numbered(float(n)) for n in range(-10, 120)]
    places, targets = index.hits(columns_of(events, SCHEMA, texts))
    assert [events[place]["n"] for place in places.tolist()] == targets.tolist() == list(range(100))


def test_runs_stay_few_when_rows_come_one_by_one():
    texts = Texts()
    index = StaticIndex(SCHEMA, texts)
    event = columns_of([numbered(7.0)], SCHEMA, texts)
    for target in range(300):
        index.add(np.array([target]), dnf_clauses(IS_N), (np.array([7.0]),))
        assert len(index.hits(event)[1]) == target + 1
    (shape,) = index._shapes.values()
    assert len(shape.runs) <= 9


def test_what_was_removed_is_forgotten():
    texts = Texts()
    index = StaticIndex(SCHEMA, texts)
    for turn in range(20):
        limit = Comparison("<", Arithmetic("*", attribute("n"), Constant(float(turn))), Parameter(0, "number"))
        both = AllOf((limit, Comparison("=", Function("number", (attribute("s"),), "number"), Constant(float(turn)))))
        targets = np.arange(2000) + 2000 * (turn % 2)
        index.add(targets, dnf_clauses(both), (np.arange(2000.0),))
        index.hits(columns_of([], SCHEMA, texts))
        index.remove(targets)
    assert len(index) == 0 and not index._shapes and not index._numbers and not index._keys
    assert len(index._target_of) <= 6000
