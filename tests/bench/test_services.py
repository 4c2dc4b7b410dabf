from dataclasses import replace
from itertools import count

import pytest

from bench import services
from tests.generate.seeds import at_length

LATENCY = services.LatencyCase(500, before=150, at_once=30, idle=6, half=30)
SERVE = services.ServeCase(60, outputs=300, rate=20, turns=1, files=1, documents=150)
PAGES = {
    *("/", "/?search=", "/q/NAME", "/o/ID", "/f/KEY/NAME.atom", "/live", "/new", "/feeds", "/engine", "/sinks", "/sql"),
}


@pytest.mark.soak
def test_a_service_that_is_told_of_files_gives_the_lines_of_a_batch_run(monkeypatch):
    """The trigger is longer than the benchmark waits: only the watcher makes the service look."""
    monkeypatch.setattr(services, "GAP", (0.0, 0.0))
    idle, half = services.measure_latency(replace(LATENCY, trigger="10h"))
    assert (idle.case["load"], idle.case["documents"], half.case["load"]) == ("idle", 6, "half")
    for line in (idle, half):
        assert 0 < line.rows <= 30
        percentiles = [float(str(line.details[name])) for name in ("p50_ms", "p95_ms", "p99_ms")]
        assert percentiles[0] > 0 and percentiles == sorted(percentiles)


@pytest.mark.soak  # it runs the whole benchmark
def test_other_lines_are_an_error(monkeypatch):
    monkeypatch.setattr(services, "GAP", (0.0, 0.0))
    numbers = count()
    monkeypatch.setattr(services, "_line_ids", lambda lines: next(numbers))
    with pytest.raises(AssertionError, match="different lines"):
        services.measure_latency(LATENCY)


def test_a_service_that_cannot_start_is_an_error(tmp_path):
    options = ["--engine", "duckdb", "--state", tmp_path]
    with (
        services.RunningService(services.ServiceFiles(tmp_path), options) as service,
        pytest.raises(services.ServiceFailed, match="status 2"),
    ):
        service.wait_until_ready(60)


@pytest.mark.soak
def test_there_is_a_line_for_the_engine_and_for_each_page(monkeypatch, tmp_path):
    monkeypatch.setattr(services, "STEP", 200)
    engine, *pages = services.measure_serve(SERVE, tmp_path / "kept")
    if at_length():
        monkeypatch.setattr(services, "_fill", None)
        again, *_ = services.measure_serve(SERVE, tmp_path / "kept")
        assert again.rows == engine.rows, "it begins with the same store and documents"
    assert engine.case["page"] == "" and engine.baseline == "nobody visits" and engine.rows >= 300
    assert {str(line.case["page"]) for line in pages} <= PAGES
    assert all(0 < line.number("p50_ms") <= line.number("p95_ms") for line in pages)


@pytest.mark.soak  # it runs the whole benchmark
def test_pages_that_show_something_else_are_an_error(monkeypatch):
    def check(pages, state):
        raise AssertionError("shows other outputs")

    monkeypatch.setattr(services.Pages, "check", check)
    monkeypatch.setattr(services, "STEP", 200)
    with pytest.raises(AssertionError, match="other outputs"):
        services.measure_serve(SERVE)
