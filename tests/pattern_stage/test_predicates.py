"""Compiled conditions and values against the oracle, row by row."""

import math
import random
from typing import Any

import numpy as np
import pytest

from pattern_stage.clauses import MAX_CLAUSES, TooManyClauses, dnf_clauses, split_condition, static_clauses
from pattern_stage.values import Texts, compile_condition, compile_value
from tests.generate.seeds import seeds
from tests.pattern_stage.row_by_row import Row, condition_of, pairs_of, random_condition, random_value
from tests.support.event_algebra import value_of
from xscl.algebra.events import (
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Constant,
    Duration,
    Function,
    Gap,
    NullTest,
    Parameter,
    Schema,
    TextTest,
)

SCHEMA: Schema = (("s", "string"), ("t", "string"), ("n", "number"), ("m", "number"))
N = Attribute("left", "n", "number")
S = Attribute("right", "s", "string")


def random_row(chance: random.Random) -> Row:
    def event() -> dict[str, Any]:
        texts = ["a", "ab", "1", "1.0", " 7", "", "http://www.a.org/b", None]
        numbers = [0.0, -0.0, 1.0, 7.0, -2.5, 1e308, None]
        values = {name: chance.choice(texts if kind == "string" else numbers) for name, kind in SCHEMA}
        begin = chance.randrange(10**7)
        return {**values, "t0": begin, "t1": begin + chance.choice([0, 500_000, 1_000_000])}

    parameters = (chance.choice(["a", "1", None]), chance.choice([1.0, 7.0, None]))
    return Row(event(), event(), event(), parameters)


@pytest.mark.parametrize("seed", seeds(15, 150))
def test_conditions_hold_as_row_by_row(seed):
    chance = random.Random(seed)
    rows = [random_row(chance) for _ in range(chance.choice([0, 1, 60]))]
    texts = Texts()
    pairs = pairs_of(rows, SCHEMA, texts)
    condition = random_condition(chance, SCHEMA)
    holds = compile_condition(condition, SCHEMA, SCHEMA, texts)
    wanted = [condition_of(condition, row) for row in rows]
    with np.errstate(all="raise"):
        assert holds(pairs).tolist() == wanted, condition
    texts.keep([])
    assert holds(pairs_of(rows, SCHEMA, texts)).tolist() == wanted, "constants outlive what is forgotten"
    try:
        clauses = dnf_clauses(condition)
    except TooManyClauses:
        return
    assert [condition_of(AnyOf(tuple(map(AllOf, clauses))), row) for row in rows] == wanted


@pytest.mark.parametrize("seed", seeds(15, 150))
def test_values_are_those_of_row_by_row(seed):
    chance = random.Random(seed)
    rows = [random_row(chance) for _ in range(40)]
    texts = Texts()
    value = random_value(chance, SCHEMA, 3, chance.choice(["string", "number"]))
    found: Any = compile_value(value, SCHEMA, SCHEMA, texts)(pairs_of(rows, SCHEMA, texts))
    wanted = [value_of(value, row.pair()) for row in rows]
    if found.dtype == np.int64:
        assert texts.texts(found) == wanted, value
    else:
        assert [None if math.isnan(number) else number for number in found.tolist()] == wanted, value


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Arithmetic("/", Constant(1.0), Constant(0.0)), None),
        (Arithmetic("*", Constant(1e308), Constant(10.0)), None),
        (Arithmetic("%", Constant(-5.0), Constant(3.0)), -2.0),
        (Arithmetic("%", Constant(5.0), Constant(-3.0)), 2.0),
        (Arithmetic("%", Constant(5.0), Constant(0.0)), None),
        (Function("coalesce", (Constant(math.nan), Constant(0.8)), "number"), 0.8),
        (Function("abs", (Constant("-2"),), "number"), 2.0),
        (Function("concat", (Constant("a"), Constant(1.50)), "string"), "a1.5"),
        (Function("concat", (Constant("a"), Parameter(1, "number")), "string"), None),
        (Duration(), 3.5),
        (Gap(), 0.5),
    ],
)
def test_values_of_one_pair(value, wanted):
    def event(t0: int, t1: int) -> dict[str, Any]:
        return {"s": None, "t": None, "n": None, "m": None, "t0": t0, "t1": t1}

    row = Row(event(0, 10**6), event(0, 2 * 10**6), event(2_500_000, 3_500_000), ("a", None))
    texts = Texts()
    found = compile_value(value, SCHEMA, SCHEMA, texts)(pairs_of([row], SCHEMA, texts))
    one = texts.text(int(found[0])) if found.dtype == np.int64 else None if np.isnan(found[0]) else found[0]
    assert one == wanted


def test_costly_atoms_are_tested_only_where_it_matters(monkeypatch):
    chance = random.Random(5)
    texts = Texts()
    rows = [random_row(chance) for _ in range(200)]
    asked = []
    tested = texts.tested

    def counted(name, args):
        asked.append(len(args[0]))
        return tested(name, args)

    monkeypatch.setattr(texts, "tested", counted)
    condition = AllOf((TextTest("contains", (S, Constant("a"))), Comparison("=", N, Constant(7.0))))
    holds = compile_condition(condition, SCHEMA, SCHEMA, texts)(pairs_of(rows, SCHEMA, texts))
    assert holds.tolist() == [condition_of(condition, row) for row in rows]
    assert asked == [sum(row.left["n"] == 7 for row in rows)]


def test_a_condition_is_split_by_what_tests_its_atoms():
    static = Comparison("=", S, Constant("a"))
    unknown = NullTest(Attribute("right", "n", "number"))
    same = Comparison("=", S, Attribute("left", "s", "string"))
    longer = Comparison("<", Duration(), Constant(3.0))
    (clause,) = split_condition(AllOf((same, static, longer, AllOf((static, unknown)))))
    assert clause.static == (static, unknown) and clause.rest == (longer,)
    assert clause.equalities == ((same.right, same.left),)
    both = split_condition(AllOf((static, AnyOf((same, longer, AllOf((same, longer)))))))
    assert [(len(one.equalities), len(one.rest)) for one in both] == [(1, 0), (0, 1), (1, 1)]
    assert static_clauses(both) == ((static,),)
    (alone,) = split_condition(AllOf((Comparison(">", N, Constant(1.0)), longer)), "left")
    assert len(alone.static) == 2
    assert split_condition(AllOf()) and not split_condition(AnyOf(()))


def test_too_many_clauses_are_an_error_and_soon():
    either = [AnyOf((Comparison("=", N, Constant(float(i))), NullTest(S))) for i in range(40)]
    assert len(dnf_clauses(AllOf(tuple(either[:5])))) <= MAX_CLAUSES
    distinct = [AnyOf(tuple(Comparison("=", N, Constant(float(2 * i + j))) for j in range(2))) for i in range(40)]
    with pytest.raises(TooManyClauses, match="more than 64 clauses"):
        dnf_clauses(AllOf(tuple(distinct)))
