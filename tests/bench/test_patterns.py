import re
import sys
from pathlib import Path

import pytest

from bench import patterns, patterns_streams
from bench.patterns import BENCHMARKS
from bench.patterns_kernel import PatternOptions
from bench.patterns_streams import StreamWorkload, measure_streams
from bench.plots import draw_patterns

soak = pytest.mark.soak


@pytest.mark.parametrize(
    ("name", "options", "printed", "drawn"),
    [
        ("indexes", "--queries 20 --events 100", "dynamic index", "without all"),
        ("double-top", "--events 500", "SQL, self-joins", "4.17"),
        ("feeds", "--queries 20 --events 200", "Iteration", "4.18"),
        ("aggregates", "--events 300", "s_alpha", "events at one time"),
        pytest.param("technical", "--queries 20 --events 100", "LinearDyn", "4.13a", marks=soak),
        pytest.param("rumor", "--queries 5 --events 200", "channel", "5.9d", marks=soak),
        pytest.param("kleene", "--queries 5 --events 300", "backtracking", "E1", marks=soak),
        pytest.param("errors", "--events 300", "recall", "missing letters", marks=soak),
        pytest.param("windows", "--events 300", "no pruning", "times as fast", marks=soak),
        pytest.param("memory", "--queries 5", "different", None, marks=soak),
    ],
)
def test_the_command_prints_a_table_and_draws_every_figure(
    name, options, printed, drawn, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(patterns_streams, "AGGREGATE_TURNS", 1)
    plot = ["--plot", str(tmp_path / "drawn")] if drawn else []
    monkeypatch.setattr(sys, "argv", ["bench", name, "--quick", *options.split(), *plot])
    patterns.bench_patterns()
    assert printed in capsys.readouterr().out
    if drawn:
        assert drawn in (tmp_path / "drawn.svg").read_text() and (tmp_path / "drawn.png").exists()


def test_what_has_one_name_has_one_colour_in_all_panels(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    found: dict[str, set[str]] = {}
    plot = Axes.plot

    def noted(self, *values, label, color):
        found.setdefault(label, set()).add(color)
        return plot(self, *values, label=label, color=color)

    monkeypatch.setattr(Axes, "plot", noted)
    cases = [StreamWorkload("5.8a", "NEXT", 3, 100), StreamWorkload("5.9c", "channel", 3, 100, capacity=2)]
    lines = [line for one in cases for line in measure_streams(one, sample_size=2, turns=1)]
    draw_patterns(lines, tmp_path / "drawn")
    assert all(len(colours) == 1 for colours in found.values())
    assert len(set.union(*found.values())) == len(found) == 3, "together, without channels, one at a time"


def test_make_bench_runs_all_and_draws_what_has_a_plot():
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    drawn, others = (
        set(names.split()) for names in re.findall(r"for name in ([^;]+); do .\n\t+\S+ bench patterns", makefile)
    )
    assert drawn == {name for name, one in BENCHMARKS.items() if one.drawn} and drawn | others == set(BENCHMARKS)


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("technical", "figure", {"4.13a", "4.13b", "4.13c", "4.13, equal hits"}),
        ("indexes", "without", {"", "merging", "static index", "dynamic index", "all"}),
        ("feeds", "queries", {10_000, 20_000, 40_000}),
        ("rumor", "figure", {"5.8a", "5.8b", "5.8c", "5.8d", "5.9a", "5.9b", "5.9c", "5.9d"}),
        ("hybrid", "figure", {"5.10a", "5.10b"}),
        ("kleene", "figure", {"E1", "E2", "E4", "many"}),
        ("errors", "figure", {"errors", "budget", "drift"}),
        ("windows", "size", set(range(11))),
        ("windows", "window", {0, 5, 10, 20, 30, 40, 50, 60, 80, 100}),
        ("places", "intervals", {1, 20}),
    ],
)
def test_cases_are_those_of_the_figures(name, key, values):
    assert {getattr(one, key) for one in BENCHMARKS[name].cases(PatternOptions())} == values
    quick = BENCHMARKS[name].cases(PatternOptions(events=50, quick=True))
    assert 0 < len(quick) < len(BENCHMARKS[name].cases(PatternOptions())) or name in ("indexes", "errors")
