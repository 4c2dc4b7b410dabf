"""The benchmark of where event queries are answered, with tiny cases."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast, get_args

import pytest

from bench import patterns, patterns_places
from bench.patterns_places import Case, Template, cases, measure
from mmqjp.answers.events_run import kernels
from pattern_stage.partition.kernel import SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.soak
@pytest.mark.parametrize("template", get_args(Template))
def test_all_ways_have_the_same_results(template, spark: SparkSession, monkeypatch):
    monkeypatch.setitem(SparkRunner.__init__.__kwdefaults__, "least", 0)
    case = Case(template, 3, events=300, keys=2, intervals=1 if template == "first after" else 2)
    lines = {line.plan: line for line in measure(case, spark, 1)}
    ways = ["driver", "executors"] + ["sql", "sql on spark"] * (template == "first after")
    assert list(lines) == ways
    assert len({line.rows for line in lines.values()}) == 1
    assert lines["driver"].rows > 0 or template == "rare partners"
    assert lines["driver"].speedup is None and lines["executors"].speedup


@pytest.mark.soak
def test_a_difference_is_an_error(spark: SparkSession, monkeypatch):
    monkeypatch.setattr(patterns_places, "ways", lambda case, session: _other_ways(case, session))
    with pytest.raises(AssertionError, match="executors has other results"):
        list(measure(Case("rising runs", 1, events=300, keys=2), spark, 1))


def _other_ways(case, session):
    class Silent:
        def __init__(self, kernel):
            self.add, self.begin, self.feed = kernel.add, kernel.begin, lambda events: kernel.feed({})
            self.end = list

    driver = kernels("driver", None)
    return {"driver": driver, "executors": lambda texts, lineage: Silent(driver(texts, lineage))}


def test_cases():
    assert {case.template for case in cases(None, None, quick=True)} == set(get_args(Template))
    assert {case.intervals for case in cases(None, None, quick=False)} == {1, 20}
    assert {case.events for case in cases([1], 50, quick=False)} == {50}


def test_the_command_prints_a_table(monkeypatch, capsys):
    driver = {"driver": kernels("driver", None)}
    monkeypatch.setattr(patterns_places, "ways", lambda case, session: driver)
    session = cast("SparkSession", None)  # nothing asks for it
    monkeypatch.setattr(
        patterns_places,
        "measured",
        lambda some, *, quick: [line for case in some for line in measure(case, session, 1)],
    )
    monkeypatch.setattr(sys, "argv", ["bench", "places", "--quick", "--queries", "2", "--events", "200"])
    patterns.main()
    assert "rising averages" in capsys.readouterr().out
