"""The benchmarks of event patterns over feeds, channels and hybrids, with tiny cases."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import patterns, patterns_aggregates, patterns_plot, patterns_sweeps, patterns_thesis
from bench.patterns_sweeps import measure
from bench.patterns_thesis import PROCESSES, Workload, cases, statements, streams
from pattern_stage.plan import RULE_NAMES


@pytest.mark.parametrize("template", ["constants", "NEXT", "FOLD", "channel"])
def test_rumor_statements_get_what_they_get_alone(template):
    one = Workload("5.9", template, 20, 600, domain=5, capacity=3)
    together, *apart, alone = measure(one, 20, 1)
    assert [line.plan for line in apart] == ["without channels"] * (template == "channel")
    assert {line.rows for line in (together, *apart)} == {alone.rows} != {0} and not together.extrapolated


def test_without_a_channel_each_stream_comes_for_itself():
    one = Workload("5.9d", "channel", 6, 40, capacity=3, channels=False)
    assert list(streams(one)) == ["S0", "S1", "S2", "T"] and one.rules == RULE_NAMES
    assert [text.split("}")[1].split()[0] for text in statements(one)] == ["S0", "S1", "S2"] * 2


@pytest.mark.parametrize("template", ["Stateless", "Concatenation", "Parameterization", "Iteration"])
def test_feed_statements_get_what_they_get_alone(template, monkeypatch):
    monkeypatch.setattr("bench.patterns_thesis.SITES", 4)
    together, alone = measure(Workload("4.18", template, 12, 400), 12, 1)
    assert together.rows == alone.rows > 0


def test_hybrid_statements_get_what_they_get_alone(monkeypatch):
    monkeypatch.setattr(patterns_sweeps, "INTERVAL", 5 * PROCESSES)
    one = Workload("5.10a", "hybrid", 4, 12 * PROCESSES)
    together, apart, alone = measure(one, 4, 1)
    assert together.rows == apart.rows == alone.rows > 0 and together.details["over_channels"]
    assert next(measure(replace(one, sel=0.0), 4, 1)).rows == 0


def test_cases_are_those_of_the_figures():
    figures = {one.figure for one in cases("rumor", None, None, quick=False)}
    assert figures == {"5.8a", "5.8b", "5.8c", "5.8d", "5.9a", "5.9b", "5.9c", "5.9d"}
    assert {one.figure for one in cases("hybrid", None, None, quick=True)} == {"5.10a", "5.10b"}
    assert max(one.queries for one in cases("feeds", None, None, quick=False)) == 40_000


def test_aggregates_find_the_same_with_and_without_partial_ones(monkeypatch):
    monkeypatch.setattr(patterns_aggregates, "TURNS", 1)
    monkeypatch.setattr(patterns_aggregates, "INTERVAL", 300)
    one, other = patterns_aggregates.measure(patterns_aggregates.Case(200, 1_000))
    assert (one.plan, other.plan) == ("s_alpha", "without") and one.rows == other.rows > 0
    fewer, all_of_them = (int(str(line.details["kept"])) for line in (one, other))
    assert 0 < fewer < all_of_them


def test_the_command_prints_a_table(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "feeds", "--quick", "--queries", "20", "--events", "200"])
    patterns.main()
    assert "Iteration" in capsys.readouterr().out


def test_what_has_one_name_has_one_colour_in_all_panels(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    found: dict[str, set[str]] = {}
    plot = Axes.plot

    def noted(self, *values, label, color):
        found.setdefault(label, set()).add(color)
        return plot(self, *values, label=label, color=color)

    monkeypatch.setattr(Axes, "plot", noted)
    made = [Workload("5.8a", "NEXT", 3, 100), Workload("5.9c", "channel", 3, 100, capacity=2)]
    patterns_plot.draw([line for one in made for line in measure(one, 2, 1)], tmp_path / "drawn")
    assert all(len(colours) == 1 for colours in found.values())
    assert len(set.union(*found.values())) == len(found) == 3, "together, without channels, one at a time"


def test_aggregates_are_drawn(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(patterns_aggregates, "TURNS", 1)
    options = ["--quick", "--events", "300", "--plot", str(tmp_path / "drawn")]
    monkeypatch.setattr(sys, "argv", ["bench", "aggregates", *options])
    patterns.main()
    drawn = (tmp_path / "drawn.svg").read_text()
    assert all(text in drawn for text in ("s_alpha", "without", "events at one time"))


def test_make_bench_runs_all_and_draws_what_has_a_plot():
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    drawn, others = (
        set(names.split()) for names in re.findall(r"for name in ([^;]+); do .\n\t+\S+ bench patterns", makefile)
    )
    assert drawn == set(patterns.NAMES) - set(patterns.NOT_DRAWN) and others == set(patterns.NOT_DRAWN)


@pytest.mark.soak
def test_the_command_draws_every_figure(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    made = [Workload(figure, "NEXT", 3, 300) for figure in ("5.8a", "5.9a")]
    monkeypatch.setattr(patterns_thesis, "cases", lambda *rest, **named: made)
    monkeypatch.setattr(sys, "argv", ["bench", "rumor", "--quick", "--plot", str(tmp_path / "drawn")])
    patterns.main()
    drawn = (tmp_path / "drawn.svg").read_text()
    assert "5.8a" in drawn and "5.9a" in drawn and (tmp_path / "drawn.png").exists()
