"""The benchmark of match windows, with tiny cases: all ways have the same matches."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from bench import patterns, patterns_windows
from bench.patterns_windows import UNPRUNED, Case, cases, measure
from bench.patterns_windows_data import DAY, Component, Question, given
from bench.patterns_windows_matcher import Automaton, Event, matches
from tests.oracle.test_pattern_sets import CHEMO

ONCO = Case("Ponco", "Ponco", "onco", 800, window=20)
NYSE = Case("Pnyse", "Pnyse", "nyse", 1_500, window=60)


@pytest.mark.parametrize(
    "case",
    [
        ONCO,
        NYSE,
        Case("Pset, onco", "Pset", "onco", 1_500, 3, questions=2),
        Case("Pseq, nyse", "Pseq", "nyse", 1_500, 2, questions=2),
    ],
    ids=lambda case: case.figure,
)
def test_all_ways_have_the_same_matches(case):
    lines = list(measure(case, 1))
    pruned = ["f", "fp", "fpc"] if case.data == "onco" else ["f", "fc"]
    assert [line.plan for line in lines] == [UNPRUNED, *pruned, "SQL, then kernel", "kernel"]
    assert len({line.rows for line in lines}) == 1 and lines[0].rows > 0
    assert [line.speedup is None for line in lines] == [True] + [False] * (len(lines) - 1)


@pytest.mark.parametrize(
    ("pruned", "windows"),
    [
        ("", ["1 2 3 4 5 6 7 8 9 10 11 12", "2 3 4 5 6 7 8 9 10 11 12 13", "3 4 5 6 7 8 9 10 11 12 13"]),
        ("f", ["1 2 3 4 5 7 8 9 10 11 12", "2 3 4 5 7 8 9 10 11 12 13", "3 4 5 7 8 9 10 11 12 13"]),
        ("fp", ["1 2 3 9 11", "2 3 9 11", "3 9 11"]),
        ("fpc", ["1 2 3 9 11", "5 7 8 10 12 13", "7 8 10 12 13"]),
    ],
)
def test_the_paper_s_windows_are_matched(pruned, windows, monkeypatch):
    """M3 to M5: which windows the matcher is called for, the first ones in the order of calls, and with all pruning
    all of them."""
    seen = []
    automaton = Automaton.matches

    def called(self, window):
        seen.append(" ".join(str(event.number) for event in window))
        return automaton(self, window)

    monkeypatch.setattr(Automaton, "matches", called)
    sets = (Component("c", "C"), Component("p", "P", kleene=True, rises=True)), (Component("b", "B"),)
    rows = [row.replace("@", "").split() for row in CHEMO[2].split(" | ")]
    events = [
        Event(number, int(day) * DAY, int(patient), kind, float(value))
        for number, (patient, kind, value, day) in enumerate(rows, 1)
    ]
    found = matches(Question(sets, 15 * DAY, together=True), events, pruned)
    assert found == {((1,), (3, 9), (11,)), ((7,), (5, 8), (12,)), ((7,), (8,), (12,))}
    assert seen[:3] == windows and (pruned != "fpc" or len(seen) == 3)


def test_other_matches_are_told(monkeypatch):
    def less(question, events, pruned):
        return matches(question, events, pruned) if pruned != "fpc" else set()

    monkeypatch.setattr(patterns_windows, "matches", less)
    with pytest.raises(AssertionError, match="fpc has other matches"):
        list(measure(ONCO, 1))


def test_events_of_patients_follow_the_protocol():
    made = given("onco", 3_000)
    assert np.all(np.diff(made.times) > 0)
    names = np.array(made.names)[made.kinds]
    patient = np.bincount(made.of).argmax()
    drugs = "".join(name for name in names[made.of == patient].tolist() if len(name) == 1)
    assert re.search("cd[pr]{5}bh", drugs)
    assert 20 < len(made) / ((made.times[-1] - made.times[0]) / DAY) < 150


def test_trades_have_a_millisecond_each():
    made = given("nyse", 2_000)
    assert set(np.diff(made.times).tolist()) == {1_000}
    assert made.kinds.min() == 0 and np.bincount(made.kinds)[0] > np.bincount(made.kinds)[5]


def test_cases_are_those_of_the_paper():
    made = cases(None, quick=False)
    assert {one.size for one in made if one.shape in ("Pseq", "Pset")} == set(range(1, 11))
    assert {one.window for one in made if one.shape == "Ponco"} == {5, 10, 20, 30, 40, 50}
    assert max(one.events for one in made if one.figure == "Pnyse, events") == 1_000_000


@pytest.mark.soak
def test_the_command_draws_every_figure(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    made = [replace(ONCO, events=300), replace(NYSE, figure="Pnyse, events", events=300)]
    monkeypatch.setattr(patterns_windows, "cases", lambda *rest, **named: made)
    monkeypatch.setattr(sys, "argv", ["bench", "windows", "--quick", "--plot", str(tmp_path / "drawn")])
    patterns.main()
    assert UNPRUNED in capsys.readouterr().out
    drawn = (tmp_path / "drawn.svg").read_text()
    assert "Ponco" in drawn and "times as fast" in drawn
