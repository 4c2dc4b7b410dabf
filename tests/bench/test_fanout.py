"""The benchmark of many queries over the same matches, with tiny cases."""

from __future__ import annotations

import pytest

from bench import fanout
from bench.fanout import KINDS, Case, beside_one, documents, measure, script
from xscl.parser import parse_script


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_gets_what_its_queries_get_alone(kind: str):
    lines = list(beside_one([measure(Case(kind, queries, pairs=20)) for queries in (1, 7)]))
    if kind != "keywords":
        assert [line.rows for line in lines] == [20, 140]
    assert lines[1].baseline == "one query" and lines[0].baseline is None
    assert lines[1].details["over_one_query"] == lines[1].seconds / lines[0].seconds


def test_each_word_is_asked_for():
    case = Case("keywords", 1_000, pairs=200)
    assert len(parse_script(script(case, range(1_000))).queries) == 1_000
    assert measure(case).rows == 200, documents(case)


def test_a_difference_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fanout, "_alone", lambda case, number, given: [])
    with pytest.raises(AssertionError, match="gets something else alone"):
        measure(Case("same", 2, pairs=3))
