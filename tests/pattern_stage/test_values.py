"""Texts as codes: what is derived and tested, and forgetting; conditions, cut into clauses; what is found by a hash:
equal hashes of different keys are told apart, and none gathers too many."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from common.arrays import Ints
from pattern_stage import index as index_module
from pattern_stage.clauses import MAX_CLAUSES, TooManyClauses, dnf_clauses, split_condition, static_clauses
from pattern_stage.columns import NULL_TEXT, Columns, Flow, hashes_of, marks_of, mixed, same, sets_of
from pattern_stage.index import StaticIndex
from pattern_stage.pattern.cells import Cell, CellTable, RegisterTest
from pattern_stage.values import TRUE, UNDECIDED, Pairs, Texts, compile_value
from tests.generate.seeds import seeds
from xscl.algebra.events import (
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Constant,
    Duration,
    Function,
    NullTest,
    Parameter,
    Schema,
    Value,
    leaves,
    map_leaves,
)

N, S = Attribute("left", "n", "number"), Attribute("right", "s", "string")


def test_a_regular_expression_that_is_none_or_takes_too_long_is_undecided():
    texts = Texts()
    columns = [texts.codes(["ab", "ab", "a" * 200_000]), texts.codes(["b$", "(", "(a{1,1000}b){1,2}"])]
    assert texts.tested("matches", columns).tolist() == [TRUE, UNDECIDED, UNDECIDED]


def test_what_is_kept_keeps_its_code_and_the_rest_is_forgotten():
    texts = Texts()
    codes = texts.codes(f"text {number}" for number in range(1000))
    texts.derived_numbers("number", codes)
    texts.derived("upper-case", codes)
    kept = np.append(codes[[3, 500, 7]], NULL_TEXT)
    texts.keep([kept, np.zeros(0, np.int64)])
    assert len(texts) == 3 and texts.texts(kept) == ["text 3", "text 500", "text 7", None]
    new = texts.codes(f"{number}" for number in range(2000))
    assert len(set(new.tolist()) | set(kept.tolist())) == 2004, "codes are used again, but not those that are in use"
    assert new.max() < 2010
    assert texts.derived_numbers("number", new).tolist() == list(range(2000)), (
        "nothing of the texts that had the codes before"
    )
    assert texts.texts(texts.derived("upper-case", kept)) == ["TEXT 3", "TEXT 500", "TEXT 7", None]


def test_texts_are_crowded_when_they_have_doubled():
    texts = Texts()
    kept = texts.codes(map(str, range(20_000)))
    assert texts.crowded
    for turn in range(4):
        texts.keep([kept])
        assert not texts.crowded
        texts.codes(f"{turn} {number}" for number in range(30_001))
        assert texts.crowded
    texts.keep([kept])
    assert len(texts) == 20_000 and texts.codes(["new"])[0] <= 80_000


# ---------------------------------------------------------------- conditions


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


def test_an_expression_may_be_as_deep_as_statements_make_it():
    """Each SELECT of a chain may nest a hundred operations, and chains are merged."""
    value: Value = Attribute("left", "n", "number")
    for _ in range(300):
        value = Function("abs", (Arithmetic("+", value, Constant(1.0)),), "number")
    texts, one = Texts(), np.zeros(1, np.int64)
    events = Columns(one, one, (np.array([1.5]),), one.reshape(1, 1))
    computed = compile_value(value, (("n", "number"),), None, texts)
    assert computed(Pairs(events, one, one)).tolist() == [301.5]
    with_constant = map_leaves(value, lambda leaf: Constant(0.5) if isinstance(leaf, Attribute) else leaf)
    assert next(leaves(with_constant)) == Constant(0.5)


# ---------------------------------------------------------------- hashes


SCHEMA: Schema = (("n", "number"), ("s", "string"))
RIGHT_N = Attribute("right", "n", "number")
IS_N = dnf_clauses(AllOf((Comparison("=", RIGHT_N, Parameter(0, "number")),)))


def numbers(found: Ints) -> Columns:
    """Events with these numbers, and the first text that is known."""
    at = np.arange(len(found))
    return Columns(at, at, (found.astype(np.float64), np.zeros(len(at), np.int64)), at.reshape(-1, 1))


@pytest.mark.parametrize("step", [1.0, 0.5, 1e9, 2.0**40])
@pytest.mark.parametrize("before", [False, True])
def test_round_numbers_do_not_gather_in_one_place(step, before):
    keys, other = same(np.arange(1 << 14) * step), np.full(1 << 14, 7)
    marks = marks_of(hashes_of([keys, other] if before else [other, keys]))
    assert np.bincount(marks & (1 << 15) - 1).max() < 12


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("mix", [mixed, lambda keys: np.zeros(len(keys[0]), np.int64)])
def test_equal_sets_of_rows_are_one(most, mix, monkeypatch):
    monkeypatch.setattr("pattern_stage.columns.mixed", mix)
    chance = np.random.default_rng(1)
    sizes = chance.integers(0, most + 1, 50)
    at = np.repeat(np.arange(50), sizes)
    rows = np.concatenate([chance.choice(3, size, replace=False) for size in sizes])
    used, numbers, of, of_rows = sets_of(Flow(Columns(at, at, (), at.reshape(-1, 1)), at, rows))
    assert used.tolist() == np.unique(at).tolist() and np.all(np.diff(of) >= 0)
    assert len(np.unique(of)) < len(used) or mix is not mixed
    for event, number in zip(used.tolist(), numbers.tolist(), strict=True):
        assert of_rows[of == number].tolist() == rows[at == event].tolist()


def test_keys_of_the_index_with_equal_hashes_are_told_apart(monkeypatch):
    monkeypatch.setattr(
        "pattern_stage.columns.mixed", lambda keys, seed=0: mixed(keys, seed) % (7 if seed < 3 else 2**40)
    )
    index = StaticIndex(SCHEMA, Texts())
    index.add(np.arange(100), IS_N, (np.arange(100.0),))
    places, targets = index.hits(numbers(np.arange(-10, 120)))
    assert (places - 10).tolist() == targets.tolist() == list(range(100))


def test_runs_of_the_index_stay_few_when_rows_come_one_by_one():
    index = StaticIndex(SCHEMA, Texts())
    for target in range(300):
        index.add(np.array([target]), IS_N, (np.array([7.0]),))
        assert len(index.hits(numbers(np.array([7])))[1]) == target + 1
    (shape,) = index._shapes.values()
    assert len(shape.runs) <= 9


def test_what_stays_in_the_index_is_found_after_others_were_forgotten(monkeypatch):
    monkeypatch.setattr(index_module, "_MANY_REMOVED", 3)
    index = StaticIndex(SCHEMA, Texts())
    few = Comparison("<", Arithmetic("*", RIGHT_N, Constant(2.0)), Constant(9.0))
    stays = dnf_clauses(AllOf((few, Comparison("=", Attribute("right", "s", "string"), Constant("a")))))
    index.add(np.array([7]), stays, ())
    for targets in (np.arange(0), np.arange(100, 200)):
        index.add(targets, IS_N, (targets.astype(np.float64),))
    index.remove(np.arange(100, 200))
    places, targets = index.hits(numbers(np.arange(3, 150)))
    assert (places + 3).tolist() == [3, 4] and targets.tolist() == [7, 7] and len(index) == 1


def test_what_was_removed_from_the_index_is_forgotten():
    index = StaticIndex(SCHEMA, Texts())
    for turn in range(20):
        limit = Comparison("<", Arithmetic("*", RIGHT_N, Constant(float(turn))), Parameter(0, "number"))
        targets = np.arange(2000) + 2000 * (turn % 2)
        index.add(targets, dnf_clauses(AllOf((limit,))), (np.arange(2000.0),))
        index.hits(numbers(np.arange(0)))
        index.remove(targets)
    assert len(index) == 0 and not index._shapes and not index._numbers and not index._keys
    assert len(index._target_of) <= 6000


@pytest.mark.parametrize("seed", seeds(2, 200))
def test_the_cells_that_edges_ask_for_are_those_that_a_scan_finds(seed: int) -> None:
    rng = Random(seed)
    table, there = CellTable[Cell]((0, 2)), dict[tuple[int, ...], Cell]()
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
