"""The benchmark of the page, with a tiny case: visitors change nothing, and pages show what the store has."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import serve
from bench.serve import Case, measure
from bench.serve_pages import Pages
from tests.generate.seeds import at_length

SMALL = Case(60, outputs=300, rate=20, turns=1, files=1, documents=150)

KINDS = {
    "/",
    "/?search=",
    "/q/NAME",
    "/o/ID",
    "/f/KEY/NAME.atom",
    "/live",
    "/new",
    "/feeds",
    "/engine",
    "/sinks",
    "/sql",
}


@pytest.mark.soak
def test_there_is_a_line_for_the_engine_and_for_each_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(serve, "STEP", 200)
    engine, *pages = measure(SMALL, tmp_path / "kept")
    if at_length():
        monkeypatch.setattr(serve, "_fill", None)
        again, *_ = measure(SMALL, tmp_path / "kept")
        assert again.rows == engine.rows, "it begins with the same store and documents"
    assert engine.case["page"] == "" and engine.baseline == "nobody visits" and engine.rows >= 300
    assert {str(line.case["page"]) for line in pages} <= KINDS
    assert all(0 < line.details["p50_ms"] <= line.details["p95_ms"] for line in pages)  # type: ignore[operator]  # numbers


@pytest.mark.soak  # it runs the whole benchmark
def test_pages_that_show_something_else_are_an_error(monkeypatch: pytest.MonkeyPatch):
    def check(pages: Pages, state: object) -> None:
        raise AssertionError("shows other outputs")

    monkeypatch.setattr(Pages, "check", check)
    monkeypatch.setattr(serve, "STEP", 200)
    with pytest.raises(AssertionError, match="other outputs"):
        measure(SMALL)
