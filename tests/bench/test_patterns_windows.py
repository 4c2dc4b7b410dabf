import re

import numpy as np
import pytest

from bench import patterns_windows
from tests.oracle.test_pattern_sets import CHEMO

ONCO = patterns_windows.WindowsCase("Ponco", "Ponco", "onco", 800, window=20)


@pytest.mark.parametrize(
    "case",
    [
        ONCO,
        patterns_windows.WindowsCase("Pnyse", "Pnyse", "nyse", 1_200, window=60),
        patterns_windows.WindowsCase("Pset, onco", "Pset", "onco", 1_200, 3, questions=2),
        patterns_windows.WindowsCase("Pseq, nyse", "Pseq", "nyse", 1_500, 2, questions=2),
    ],
    ids=lambda case: case.figure,
)
def test_all_ways_have_the_same_matches(case):
    lines = list(patterns_windows.measure_windows(case))
    pruned = ["f", "fp", "fpc"] if case.data == "onco" else ["f", "fc"]
    assert [line.plan for line in lines] == [patterns_windows.UNPRUNED, *pruned, "SQL, then kernel", "kernel"]
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
    automaton = patterns_windows.SetAutomaton.matches

    def called(self, window):
        seen.append(" ".join(str(event.number) for event in window))
        return automaton(self, window)

    monkeypatch.setattr(patterns_windows.SetAutomaton, "matches", called)
    rising = patterns_windows.PatternVariable("p", "P", kleene=True, rises=True)
    sets = (patterns_windows.PatternVariable("c", "C"), rising), (patterns_windows.PatternVariable("b", "B"),)
    rows = [row.replace("@", "").split() for row in CHEMO[2].split(" | ")]
    events = [
        patterns_windows.WindowEvent(number, int(day) * patterns_windows.DAY, int(patient), kind, float(value))
        for number, (patient, kind, value, day) in enumerate(rows, 1)
    ]
    found = patterns_windows.window_matches(
        patterns_windows.WindowPattern(sets, 15 * patterns_windows.DAY, together=True), events, pruned
    )
    assert found == {((1,), (3, 9), (11,)), ((7,), (5, 8), (12,)), ((7,), (8,), (12,))}
    assert seen[:3] == windows and (pruned != "fpc" or len(seen) == 3)


def test_events_of_patients_follow_the_protocol():
    events = patterns_windows.window_events("onco", 3_000)
    assert np.all(np.diff(events.times) > 0)
    owners, kinds, _ = events.columns
    drugs = "".join(name for name in kinds[owners == np.bincount(owners).argmax()].tolist() if len(name) == 1)
    assert re.search("cd[pr]{5}bh", drugs)
    assert 20 < len(events) / ((events.times[-1] - events.times[0]) / patterns_windows.DAY) < 150


def test_trades_have_a_millisecond_each():
    events = patterns_windows.window_events("nyse", 2_000)
    assert set(np.diff(events.times).tolist()) == {1_000}
    assert np.sum(events.columns[1] == "s0") > np.sum(events.columns[1] == "s5")
