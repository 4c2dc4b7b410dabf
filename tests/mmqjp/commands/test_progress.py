"""The progress bar of many queries, and what commands print about very many of them."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from common.tools import EVERY, observed, track_progress
from mmqjp.cli import main
from mmqjp.commands.console import console, progress_shown
from mmqjp.engine import Session
from tests.support.cli import Terminal
from xscl.parser import parse_script
from xscl.problems import MOST_SHOWN, XsclErrors


class Clock:
    """Moves on by a step whenever it is read."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def drawn(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, step: float) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_shown(Clock(step)):
        assert list(track_progress("parsing", range(5 * EVERY))) == list(range(5 * EVERY))
    return stream.getvalue()


def test_a_loop_says_how_far_it_is():
    told: list[tuple[str, int, int]] = []
    with observed(lambda *how_far: told.append(how_far)):
        assert list(track_progress("parsing", "a" * (EVERY + 1))) == ["a"] * (EVERY + 1)
    assert told == [("parsing", 0, EVERY + 1), ("parsing", EVERY, EVERY + 1)]
    assert list(track_progress("parsing", "ab")) == ["a", "b"] and len(told) == 2


def test_a_terminal_gets_a_bar_that_goes_away_after_the_first_second(monkeypatch: pytest.MonkeyPatch):
    text = drawn(monkeypatch, Terminal(), 0.6)
    assert "parsing" in text and f"{2 * EVERY}/{5 * EVERY}" in text
    assert text.endswith("\x1b[2K"), "the line is cleared"
    assert drawn(monkeypatch, Terminal(), 0.01) == drawn(monkeypatch, io.StringIO(), 0.6) == ""


def test_parsing_registering_and_opening_a_store_are_followed(tmp_path: Path):
    (tmp_path / "q.xscl").write_text("//a;\n//b")
    told: list[str] = []
    with observed(lambda what, done, total: told.append(f"{what} {total}")):
        assert CliRunner().invoke(main, ["check", str(tmp_path / "q.xscl")]).exit_code == 0
    with Session("duckdb", state=tmp_path / "state") as engine:
        engine.subscribe("//a; //b; //c")
    with observed(lambda what, done, total: told.append(f"{what} {total}")):
        Session("duckdb", state=tmp_path / "state").close()
    assert told == ["parsing 2", "checking 2", "compiling 2", "registering 2", "opening 3"]


def test_the_first_queries_are_listed_and_the_others_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mmqjp.commands.check.MOST_LISTED", 3)
    (tmp_path / "q.xscl").write_text(";\n".join(f"//a PUBLISH n{n}" for n in range(1_200)))
    output = CliRunner().invoke(main, ["check", str(tmp_path / "q.xscl")]).output
    assert ": 1,200 queries, no mistakes" in output and output.endswith("and 1,197 queries more\n")
    assert re.findall(r"^ (n\d+) ", output, re.MULTILINE) == ["n0", "n1", "n2"]


def test_the_first_mistakes_are_shown_and_the_others_counted():
    for more, counted in ((0, []), (1, ["and 1 more mistake"]), (1_900, ["and 1,900 more mistakes"])):
        with pytest.raises(XsclErrors) as caught:
            parse_script(";\n".join(["//a["] * (MOST_SHOWN + more)))
        shown = str(caught.value).splitlines()
        assert len(caught.value.errors) == MOST_SHOWN + more
        assert sum(": error: " in line for line in shown) == MOST_SHOWN
        assert [line for line in shown if line.startswith("and ")] == counted


def test_tables_are_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch):
    for told, width in (("60", 60), ("150", 150), ("", 100), ("wide", 100), ("0", 100)):
        monkeypatch.setenv("COLUMNS", told)
        assert console().width == width
