"""Comparisons of node sets: as if each value were held against each, in linear time and with one text in memory."""

from __future__ import annotations

import tracemalloc
from itertools import product
from random import Random

import pytest
from lxml import etree

from tests.oracle.values import compare as oracle
from xpath_stage import filters
from xpath_stage.filters import compare_times_of, compare_values, xpath_holds
from xscl.algebra.values import ORDER, CompareOp, compare_times

TEXTS = ("1", "1.0", " 1", "2", "-0", "0", "", "x", "y", "x" * 100, "x" * 99 + "y")
TIMES = ("2026-07-16", "2026-07-16T00:00:00Z", "2026-07-17", "soon", "")


@pytest.mark.parametrize("op", ORDER)
def test_sets_are_compared_as_each_value_with_each(op: CompareOp) -> None:
    rng = Random(op)
    for _ in range(500):
        left, right = (rng.choices(TEXTS, k=rng.randrange(4)) for _ in range(2))
        number = rng.choice((1.0, 0.0, float("nan"), 2.0))
        assert compare_values(op, left, right) is any(oracle(op, *pair) for pair in product(left, right))  # type: ignore[arg-type]  # lists are not covariant
        assert compare_values(op, left, number) is any(oracle(op, one, number) for one in left)  # type: ignore[arg-type]  # as above
        assert compare_values(op, number, right) is any(oracle(op, number, one) for one in right)  # type: ignore[arg-type]  # as above
        left, right = (rng.choices(TIMES, k=rng.randrange(4)) for _ in range(2))
        assert compare_times_of(op, left, right) is any(compare_times(op, *pair) for pair in product(left, right))  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("op", ["=", "!="])
def test_two_paths_are_compared_as_libxml2_does(op: str) -> None:
    rng = Random(op)
    for _ in range(200):
        names = rng.choices("ab", k=rng.randrange(6))
        xml = f"<r k='1'>{''.join(f'<{name}>{rng.choice(TEXTS)}</{name}>' for name in names)}</r>"
        root = etree.fromstring(xml)
        for left, right in (("./a", "./b"), (".", ".//b"), ("./@k", ".//a[boolean(. = ../b)]")):
            assert xpath_holds(f"{left} {op} {right}", root) is root.xpath(f"{left} {op} {right}")
            assert xpath_holds(f"not({left} {op} {right})", root) is root.xpath(f"not({left} {op} {right})")


@pytest.mark.parametrize(
    "condition", ['mmqjp:compare(./a, "<", ./b)', 'mmqjp:compare-times(./a, ">=", ./b)', "./a = ./b", "not(./a != ./b)"]
)
def test_each_text_is_read_once(condition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[etree._Element] = []

    def text_of(node: etree._Element) -> str:
        read.append(node)
        return str(node.text)

    monkeypatch.setattr(filters, "element_text", text_of)
    xpath_holds(condition, etree.fromstring("<r>" + "<a>1</a><b>1</b>" * 50 + "</r>"))
    assert 0 < len(read) == len(set(read)) <= 100


@pytest.mark.parametrize(
    "condition",
    ['mmqjp:compare-times(.//a, ">=", "2026-07-16")', 'mmqjp:compare(.//a, ">", 5)', ".//a = ./b", "not(.//a != .//a)"],
)
def test_one_text_at_a_time_is_in_memory(condition: str) -> None:
    size = 1 << 20
    root = etree.fromstring("<r>" + "<a>" * 50 + "x" * size + "</a>" * 50 + "<b/></r>")
    tracemalloc.start()
    try:
        xpath_holds(condition, root)
        assert tracemalloc.get_traced_memory()[1] < 8 * size
    finally:
        tracemalloc.stop()


def test_only_comparisons_of_two_paths_become_ours() -> None:
    others = ['./a = "./b = ./c"', ".5 = 0.5", "./a = 1 and ./b = ./c", 'contains(./a, " = ./b")']
    for condition in (*others, '*[local-name() = "a" and . = "b"]', 'concat("a", \'"\', " = ") = ./b'):
        assert filters._by_sets(condition) == condition
