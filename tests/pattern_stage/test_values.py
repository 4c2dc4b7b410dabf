"""Texts as codes: what is derived and tested, and forgetting; conditions, cut into clauses."""

import numpy as np
import pytest

from pattern_stage.clauses import MAX_CLAUSES, TooManyClauses, dnf_clauses, split_condition, static_clauses
from pattern_stage.columns import NULL_TEXT, Columns
from pattern_stage.values import TRUE, UNDECIDED, Pairs, Texts, compile_value
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
