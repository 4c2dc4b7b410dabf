"""The benchmark of latency, with a tiny case: a real service gives the lines of a batch run."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from bench import latency
from bench.latency import Case, measure
from bench.latency_service import Place, RunningService, ServiceFailed

SMALL = Case(500, before=150, at_once=30, idle=6, half=30)


@pytest.mark.soak
def test_a_service_that_is_told_of_files_gives_the_lines_of_a_batch_run(monkeypatch: pytest.MonkeyPatch):
    """The trigger is longer than the benchmark waits: only the watcher makes the service look."""
    monkeypatch.setattr(latency, "GAP", (0.0, 0.0))
    idle, half = measure(replace(SMALL, trigger="10h"))
    assert (idle.case["load"], idle.case["documents"], half.case["load"]) == ("idle", 6, "half")
    for line in (idle, half):
        assert 0 < line.rows <= 30
        percentiles = [float(str(line.details[name])) for name in ("p50_ms", "p95_ms", "p99_ms")]
        assert percentiles[0] > 0 and percentiles == sorted(percentiles)


@pytest.mark.soak  # it runs the whole benchmark
def test_other_lines_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(latency, "GAP", (0.0, 0.0))
    numbers = count()
    monkeypatch.setattr(latency, "_ids", lambda lines: next(numbers))
    with pytest.raises(AssertionError, match="different lines"):
        measure(SMALL)


def test_a_service_that_cannot_start_is_an_error(tmp_path: Path):
    place = Place(tmp_path)
    options = ["--engine", "duckdb", "--state", tmp_path]
    with RunningService(place, options) as service, pytest.raises(ServiceFailed, match="status 2"):
        service.wait_until_ready(60)
