"""Benchmarks in which one of two ways has other results: each stops, and says it."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from bench import (
    absence,
    fanout,
    feeds,
    near,
    patterns_peers,
    patterns_synthetic,
    patterns_windows,
    stage1,
    stage1_workload,
    technical,
    whole_path,
)

EXPERT, FLAT = whole_path.ExpertCase(600, items=700, batch=700, singles=1), replace(technical.TWO_LEVEL, queries=30)
BESIDE = patterns_peers.PatternPeersCase("first after", 4, 600, "expert")
ONCO = patterns_windows.WindowsCase("Ponco", "Ponco", "onco", 800, window=20)
rows_of, window_matches, feed_files = stage1_workload.rows_of, patterns_windows.window_matches, feeds.feed_files

CASES = [
    (absence, "expected_absences", lambda case: [], "other outputs",
     lambda: absence.measure_absence(absence.AbsenceCase("first", 3, 1, 50))),
    (fanout, "_alone", lambda *case: [], "gets something else alone",
     lambda: fanout.measure_fanout(fanout.FanoutCase("same", 2, pairs=3))),
    (near, "expected_pairs", lambda *given: set(), "other pairs than sets give",
     lambda: near.measure_near(near.NearCase("0.6", 1, 300))),
    (feeds, "feed_files", lambda format, *rest: feed_files("rss", 20, 0)[: format == "rss"], "the same entries",
     lambda: feeds.check_formats(20, 0)),
    (stage1, "rows_of", lambda batch, groups: (rows_of(batch, groups), id(groups)), "the shape cache errs",
     lambda: stage1.measure_attack(stage1.AttackCase("fields", "default"), 3, 1)),
    (technical, "_VIEWS", technical._VIEWS | {"r_r": f"{technical._VIEWS['r_r']} LIMIT 0"}, "rows over the views",
     lambda: technical.measure_split(FLAT, "duckdb", 1)),
    (whole_path, "script_of", lambda asked: "FROM S//nothing;\n" * len(asked), "write different lines",
     lambda: whole_path.measure_expert(EXPERT, rounds=1)),
    (patterns_peers, "sql_rows", lambda *rest: np.zeros((1, 4), np.int64), "SQL, rank has other rows",
     lambda: list(patterns_peers.measure_pattern_peers(BESIDE, sys.executable, 1))),
    (patterns_synthetic, "match_by_hand", lambda *rest: {(0, 0, 0)}, "has something else alone",
     lambda: list(patterns_synthetic.measure_synthetic(patterns_synthetic.SyntheticCase("Filter", 2, 50), False, 1))),
    (patterns_windows, "window_matches", lambda *case: set() if case[2] == "fpc" else window_matches(*case),
     "fpc has other matches",
     lambda: list(patterns_windows.measure_windows(ONCO))),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "wrong", "message", "measure"), CASES, ids=lambda one: str(one)[:20])
def test_a_difference_is_an_error(module, name, wrong, message, measure, monkeypatch):
    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(AssertionError, match=message):
        measure()
