"""The benchmark of registering very many queries, with few of them."""

from __future__ import annotations

import pytest

from bench import registration_rates
from bench.registration_commands import measure_commands
from bench.registration_rates import RATES, Rate, compare, measure_rate
from bench.registration_scripts import KINDS, WRONG, queries, script
from xscl.parser import parse_script
from xscl.problems import XsclErrors


@pytest.mark.parametrize("kind", RATES)
def test_a_script_gives_what_its_queries_give_one_by_one(kind: str):
    line = measure_rate(Rate(kind, 50))
    assert line.rows == 50
    # The documents have nothing that the queries of the expert ask for.
    assert bool(line.details["compared_outputs"]) == (kind != "expert")


def test_a_difference_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registration_rates, "queries", lambda kind, number: list(queries(kind, number))[1:])
    with pytest.raises(AssertionError, match="something else if they are registered one by one"):
        compare("names")


@pytest.mark.parametrize("kind", WRONG)
def test_the_mistakes_are_mistakes(kind: str):
    with pytest.raises(XsclErrors) as caught:
        parse_script(script(kind, 300))
    assert len(caught.value.errors) == (300 if kind == "all-wrong" else 3)


def test_no_two_queries_are_equal():
    for kind in KINDS:
        assert len(set(queries(kind, 300))) == 300


@pytest.mark.soak
def test_the_commands_do_what_is_measured():
    assert [line.case["what"] for line in measure_commands("windows", 20)] == [
        "check",
        "run",
        "run, new state",
        "run, that state",
    ]
    assert [line.rows for line in measure_commands("all-wrong", 5)] == [5]
