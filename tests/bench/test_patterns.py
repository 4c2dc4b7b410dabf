import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
import pytest

from bench import patterns, patterns_peers, patterns_sequences, patterns_streams, patterns_synthetic, patterns_windows
from bench.patterns import BENCHMARKS
from bench.patterns_kernel import PatternOptions, lower_texts
from bench.patterns_peers import PatternPeersCase, PlacesCase, measure_pattern_peers, measure_places
from bench.patterns_sequences import (
    ErrorsCase,
    HeldCase,
    KleeneCase,
    measure_budgets,
    measure_errors,
    measure_held,
    measure_kleene,
)
from bench.patterns_streams import PROCESSES, StreamWorkload, measure_streams
from bench.patterns_synthetic import MemoryCase, SyntheticCase, measure_synthetic, memory_statements
from bench.patterns_windows import DAY, PatternVariable, WindowsCase, measure_windows
from bench.peer_protocol import TASK_TEMPLATES, PatternTask, read_task, read_task_rows, task_ranges
from mmqjp.answers.events_run import kernels
from pattern_stage.partition.kernel import SparkRunner
from pattern_stage.plan import RULE_NAMES
from tests.oracle.cases import case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

soak = pytest.mark.soak


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    for module, sizes in (
        (patterns_sequences, {"ROUND": 20}),  # many prices are round
        (patterns_streams, {"SITES": 4, "INTERVAL": 5 * PROCESSES, "VOLATILITY": 0.2, "AGGREGATE_INTERVAL": 300}),
        (patterns_streams, {"AGGREGATE_TURNS": 1}),
        (patterns_synthetic, {"INTERVAL": 70}),
        (patterns_peers, {"KEYS": 3}),
    ):
        for name, size in sizes.items():
            monkeypatch.setattr(module, name, size)


def kleene(case, turns=1):
    return measure_kleene(case, turns=turns, sample=6)


def streams(figure, template, queries, events, **more):
    return measure_streams(StreamWorkload(figure, template, queries, events, **more), sample_size=queries, turns=1)


BASE = KleeneCase("E1", "p1", "s3", 30, 1_500)
BESIDE = PatternPeersCase("first after", 3, 400, "expert")
ONCO, NYSE = ["no pruning", "f", "fp", "fpc"], ["no pruning", "f", "fc"]
ALONE, CHANNELS, MERGED = ["together", "one at a time"], "without channels", ["together", "without merging"]
IN_SQL = ["SQL, then kernel", "kernel"]


def every(step, runs):
    """Cases of one kind: every third, say, by default, and the others in the long run."""
    return [pytest.param(*run, marks=soak if number % step else ()) for number, run in enumerate(runs)]


def synthetic(template, without=""):
    case = SyntheticCase(template, 20, 120, 1, 0.9, 2)
    if without:
        return measure_synthetic(replace(case, queries=30, events=200, selectivity=0.7, without=without), False, 30)
    return measure_synthetic(case, sample_size=20)


STREAMS = "Stateless", "Concatenation", "Parameterization", "Iteration"
KLEENE = [(one, by) for one in patterns_sequences.PREDICATES for by in get_args(patterns_sequences.Strategy)]
ALL_WAYS, BY_HAND = [*MERGED, "backtracking"], [*ALONE, "one by hand"]
RUNS = [
    *every(3, ((ALONE, partial(streams, "5.9", one, 20, 600, domain=5)) for one in ("NEXT", "FOLD", "constants"))),
    (["together", CHANNELS, "one at a time"], lambda: streams("5.9", "channel", 20, 600, domain=5, capacity=3)),
    (["together", CHANNELS, "one at a time"], lambda: streams("5.10a", "hybrid", 4, 12 * PROCESSES)),
    *every(3, ((ALONE, partial(streams, "4.18", one, 12, 400)) for one in STREAMS)),
    (["s_alpha", "without"], lambda: patterns_streams.measure_aggregates(patterns_streams.AggregateCase(200, 1_000))),
    *every(3, ((ALL_WAYS, partial(kleene, replace(BASE, predicate=one, strategy=by))) for one, by in KLEENE)),
    (MERGED, lambda: kleene(replace(BASE, figure="E4", apart=True, three=True))),
    (ALONE, lambda: kleene(replace(BASE, figure="many", queries=6))),
    (["100", "1,000"], lambda: measure_held(HeldCase("equal+", "any", 3_000), quick=True)),
    *every(3, ((BY_HAND, partial(synthetic, one)) for one in patterns_synthetic.TEMPLATES)),
    *every(3, ((["together"], partial(synthetic, "Filter", one)) for one in patterns_synthetic.SWITCHES if one)),
    ([*ONCO, *IN_SQL], lambda: measure_windows(WindowsCase("", "Ponco", "onco", 800, 0, 20))),
    ([*NYSE, *IN_SQL], lambda: measure_windows(WindowsCase("", "Pnyse", "nyse", 1_200, 0, 60))),
    ([*ONCO, *IN_SQL], lambda: measure_windows(WindowsCase("", "Pset", "onco", 1_200, 3, 0, 2))),
    ([*NYSE, *IN_SQL], lambda: measure_windows(WindowsCase("", "Pseq", "nyse", 1_500, 2, 0, 2))),
    (["mmqjp", "SQL, rank", "SQL, arg_min"], lambda: measure_pattern_peers(BESIDE, sys.executable, 1)),
    (["mmqjp", "SQL, lead"], lambda: measure_pattern_peers(replace(BESIDE, template="rising runs"), sys.executable, 1)),
]


@pytest.mark.parametrize(("plans", "measure"), RUNS)
def test_all_ways_have_the_same_rows(plans, measure):
    lines = list(measure())
    assert [line.plan for line in lines] == plans
    assert len({line.rows for line in lines}) == 1 and lines[0].rows > 0 and not lines[0].extrapolated
    assert [bool(line.speedup) for line in lines] == [line.baseline is not None for line in lines]
    assert len({line.baseline for line in lines} - {None}) == (plans != ["together"] or lines[0].baseline is not None)


@pytest.mark.parametrize(
    ("name", "options", "printed", "drawn"),
    [
        ("double-top", "--events 500", "SQL, self-joins", "4.17"),
        ("aggregates", "--events 300", "s_alpha", "events at one time"),
        pytest.param("indexes", "--queries 20 --events 100", "dynamic index", "without all", marks=soak),
        pytest.param("feeds", "--queries 20 --events 200", "Iteration", "4.18", marks=soak),
        pytest.param("technical", "--queries 20 --events 100", "LinearDyn", "4.13a", marks=soak),
        pytest.param("rumor", "--queries 5 --events 200", "channel", "5.9d", marks=soak),
        pytest.param("kleene", "--queries 5 --events 300", "backtracking", "E1", marks=soak),
        pytest.param("held", "--events 3000", "no end", None, marks=soak),
        ("trends", "", "together", None),
        pytest.param("errors", "--events 300", "recall", "missing letters", marks=soak),
        pytest.param("windows", "--events 300", "no pruning", "times as fast", marks=soak),
        pytest.param("memory", "--queries 5", "different", None, marks=soak),
    ],
)
def test_the_command_prints_a_table_and_draws_every_figure(
    name, options, printed, drawn, tmp_path, monkeypatch, capsys
):
    plot = ["--plot", str(tmp_path / "drawn")] if drawn else []
    monkeypatch.setattr(sys, "argv", ["bench", name, "--quick", *options.split(), *plot])
    patterns.bench_patterns()
    assert printed in capsys.readouterr().out
    if drawn:
        assert drawn in (tmp_path / "drawn.svg").read_text() and (tmp_path / "drawn.png").exists()


def test_make_bench_runs_all_and_draws_what_has_a_plot():
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    drawn, others = (
        set(names.split()) for names in re.findall(r"for name in ([^;]+); do .\n\t+\S+ bench patterns", makefile)
    )
    assert drawn == {name for name, one in BENCHMARKS.items() if one.drawn} and drawn | others == set(BENCHMARKS)
    for name, one in BENCHMARKS.items():
        quick, every = (len(one.cases(PatternOptions(events=50, quick=quick))) for quick in (True, False))
        assert 0 < quick < every or name in ("indexes", "errors"), name


def test_workloads_are_what_they_say():
    sweeps = patterns_synthetic.technical_sweeps(PatternOptions(queries=[100, 400], events=10))
    assert [(one.queries, one.domain) for one in sweeps[-2:]] == [(100, 100), (400, 200)], "as many hits"
    first, second = memory_statements(MemoryCase("different", 2))
    assert first != second and len(list(memory_statements(MemoryCase("LinearStat", 5)))) == 5
    apart = StreamWorkload("5.9d", "channel", 6, 40, capacity=3, channels=False)
    assert list(patterns_streams.stream_events(apart)) == ["S0", "S1", "S2", "T"] and apart.rules == RULE_NAMES
    asked = [text.split("}")[1].split()[0] for text in patterns_streams.stream_statements(apart)]
    assert asked == ["S0", "S1", "S2"] * 2
    assert next(streams("5.10b", "hybrid", 4, 12 * PROCESSES, sel=0.0)).rows == 0
    one, other = patterns_streams.measure_aggregates(patterns_streams.AggregateCase(200, 1_000))
    assert 0 < one.number("kept") < other.number("kept"), "AGGREGATEs share partial ones"
    prices = patterns_sequences.stock_events(4_000, 0.7).columns[1]
    steps = (prices[patterns_sequences.SYMBOLS :] - prices[: -patterns_sequences.SYMBOLS]).tolist()
    assert set(steps) == {1, -1, 0, -999} and 0.65 < steps.count(1) / len(steps) < 0.75
    trades = patterns_windows.window_events("nyse", 2_000)
    assert set(np.diff(trades.times).tolist()) == {1_000}, "a millisecond each"
    assert np.sum(trades.columns[1] == "s0") > np.sum(trades.columns[1] == "s5")
    patients = patterns_windows.window_events("onco", 3_000)
    assert np.all(np.diff(patients.times) > 0)
    owners, kinds, _ = patients.columns
    drugs = "".join(name for name in kinds[owners == np.bincount(owners).argmax()].tolist() if len(name) == 1)
    assert re.search("cd[pr]{5}bh", drugs), "the protocol"
    assert 20 < len(patients) / ((patients.times[-1] - patients.times[0]) / DAY) < 150


@pytest.mark.parametrize("smoothing", [1, pytest.param(2, marks=soak)])
def test_all_forms_of_double_tops_are_those_of_a_loop(smoothing):
    case = patterns_streams.DoubleTopCase(smoothing, 2_000)
    lines = list(patterns_streams.measure_double_tops(case, quick=True))
    assert len({line.plan for line in lines}) == 8 and {line.rows for line in lines} == {_double_tops(case)} != {0}


def _double_tops(case):
    days, companies, prices = patterns_streams.closes(case)
    found = 0
    for company in range(patterns_streams.COMPANIES):
        price = prices[companies == company]
        assert np.all(np.diff(days[companies == company]) == 1)
        at = [i for i in range(1, len(price) - 1) if (price[i] - price[i - 1]) * (price[i + 1] - price[i]) < 0]
        for a, b, c, d, e in zip(*(price[at[k : len(at) - 4 + k]] for k in range(5)), strict=True):
            low = b > a and b >= 1.2 * a and 0.9 * a <= c <= 1.1 * a
            found += bool(low and 0.9 * b <= d <= 1.1 * b and e <= a)
    return found


def test_other_matches_are_told(monkeypatch):
    wrong = patterns_sequences.KleeneRun(found={0: set()})
    monkeypatch.setattr(patterns_sequences, "run_backtracking", lambda *rest: wrong)
    with pytest.raises(AssertionError, match="backtracking has other matches"):
        list(kleene(BASE))
    monkeypatch.setattr(patterns_sequences, "EXACT", patterns_sequences.EXACT.replace("C c", "A c"))
    with pytest.raises(AssertionError, match="match"):
        list(measure_errors([ErrorsCase("errors", 0, 1_500)], 1))


def test_a_budget_has_a_part_of_the_matches_and_a_history_more_than_chance():
    cases = [ErrorsCase("errors", 0, 1_200), ErrorsCase("errors", 1, 1_200), ErrorsCase("budget", 1, 1_200, 2)]
    exact, every, few = measure_errors(cases, 1)
    assert 0 < exact.rows < every.rows and exact.details["recall"] is None
    assert 0 < few.rows < every.rows and few.details["recall"] == few.rows / every.rows
    lines = list(measure_budgets([ErrorsCase("drift", 1, 3_000, 1)], 1))
    history, rank, chance = (one.number("recall") for one in lines)
    assert history > rank > 0 and history > chance and lines[0].details["bundles"] == lines[2].details["bundles"]


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
    sets = (PatternVariable("c", "C"), PatternVariable("p", "P", kleene=True, rises=True)), (PatternVariable("b", "B"),)
    rows = [row.replace("@", "").split() for row in case("patterns", "Chemo")[1].partition(") ")[2].split(" | ")]
    events = [
        patterns_windows.WindowEvent(number, int(day) * DAY, int(patient), kind, float(value))
        for number, (patient, kind, value, day) in enumerate(rows, 1)
    ]
    pattern = patterns_windows.WindowPattern(sets, 15 * DAY, together=True)
    found = patterns_windows.window_matches(pattern, events, pruned)
    assert found == {((1,), (3, 9), (11,)), ((7,), (5, 8), (12,)), ((7,), (8,), (12,))}
    assert seen[:3] == windows and (pruned != "fpc" or len(seen) == 3)


@pytest.mark.parametrize("template", TASK_TEMPLATES)
def test_rows_of_a_task_are_those_of_a_loop(template, tmp_path):
    task = PatternTask(template, task_ranges(BESIDE.queries))
    task.write(tmp_path)
    assert read_task(tmp_path) == task
    events = patterns_peers.peer_events(replace(BESIDE, events=200))
    given = patterns_peers.task_streams(events)
    schemas = {name: some.schema for name, some in given.items()}
    ready = patterns_peers.ready_kernel(lower_texts(patterns_peers.task_statements(task), schemas), given)
    found = set(map(tuple, patterns_peers.kernel_rows(ready, 30).tolist()))
    assert found == set(_by_loop(task, events.to_pylist())) != set()
    (tmp_path / "rows.csv").write_text("0,1,2,3\n")
    assert read_task_rows(tmp_path) == {(0, 1, 2, 3)}


def _by_loop(task, rows):
    for number, (low, high) in enumerate(task.ranges):
        for first in rows:
            if first["kind"] != "A" or not low <= first["x"] < high:
                continue
            later = [row for row in rows if row["t"] > first["t"] and row["k"] == first["k"]]
            if task.template == "first after":
                after = [row for row in later if row["kind"] == "B" and row["x"] > first["x"]]
                if after:
                    yield number, first["id"], after[0]["id"], 0
                continue
            latest = first
            for row in (row for row in later if row["kind"] == "A"):
                if row["x"] <= latest["x"]:
                    if latest is not first:
                        yield number, first["id"], latest["id"], row["id"]
                    break
                latest = row


@pytest.mark.soak
def test_flink_is_a_program_beside_ours(monkeypatch):
    # Where Flink is not installed, ours stands for it: what is tested is how programs are run and compared.
    if patterns_peers.FLINK.lacking(sys.executable):
        monkeypatch.setattr(patterns_peers, "FLINK", replace(patterns_peers.OURS, name="flink"))
    ours, flink = measure_pattern_peers(replace(BESIDE, beside="flink"), sys.executable, 1)
    assert flink.rows == ours.rows > 0 and ours.seconds > 0 and flink.details["over_ours"]


def test_without_flink_it_is_left_out(monkeypatch, capsys):
    monkeypatch.setattr(patterns_peers, "FLINK", replace(patterns_peers.FLINK, needs="no_such_package"))
    monkeypatch.setattr(sys, "argv", ["bench", "peers", "--quick", "--queries", "2", "--events", "200"])
    patterns.bench_patterns()
    printed = capsys.readouterr()
    assert "Flink is left out" in printed.err and "SQL, arg_min" in printed.out


@pytest.mark.soak
@pytest.mark.parametrize("template", get_args(patterns_peers.PlacesTemplate))
def test_all_places_have_the_same_results(template, spark, monkeypatch):
    monkeypatch.setitem(SparkRunner.__init__.__kwdefaults__, "least", 0)
    case = PlacesCase(template, 3, events=300, keys=2, intervals=1 if template == "first after" else 2)
    lines = {line.plan: line for line in measure_places(case, spark, 1)}
    assert list(lines) == ["driver", "executors"] + ["sql", "sql on spark"] * (template == "first after")
    assert len({line.rows for line in lines.values()}) == 1
    assert lines["driver"].rows > 0 or template == "rare partners"
    assert lines["driver"].speedup is None and lines["executors"].speedup


class Silent:
    """A kernel that has no events."""

    def __init__(self, kernel):
        self.add, self.begin, self.feed = kernel.add, kernel.begin, lambda events: kernel.feed({})
        self.end = list


def test_places_are_compared(monkeypatch):
    driver = kernels("driver", None)
    ways: dict[str, Any] = {"driver": driver}
    monkeypatch.setattr(patterns_peers, "places_ways", lambda case, session: ways)
    session, case = cast("SparkSession", None), PlacesCase("rising runs", 1, events=300, keys=2)  # nobody asks for it
    (line,) = measure_places(case, session, 1)
    assert line.rows > 0 and line.plan == "driver"
    ways["executors"] = lambda texts, lineage: Silent(driver(texts, lineage))
    with pytest.raises(AssertionError, match="executors has other results"):
        list(measure_places(case, session, 1))
