import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, get_args

import pytest

from bench import patterns, patterns_peers
from bench.patterns_kernel import lower_texts
from bench.peer_protocol import TASK_TEMPLATES, PatternTask, read_task, read_task_rows, task_ranges
from mmqjp.answers.events_run import kernels
from pattern_stage.partition.kernel import SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = patterns_peers.PatternPeersCase("first after", 4, 600, "expert")


@pytest.mark.parametrize("template", TASK_TEMPLATES)
def test_an_expert_has_our_rows(template, monkeypatch):
    monkeypatch.setattr(patterns_peers, "KEYS", 3)
    ours, *theirs = patterns_peers.measure_pattern_peers(replace(SMALL, template=template), sys.executable, 1)
    assert ours.rows > 20 and ours.baseline is None
    assert theirs and all(line.details["over_ours"] for line in theirs)


@pytest.mark.parametrize("template", TASK_TEMPLATES)
def test_rows_are_those_of_a_loop(template, monkeypatch):
    monkeypatch.setattr(patterns_peers, "KEYS", 2)
    case = replace(SMALL, template=template, events=200)
    task, events = PatternTask(template, task_ranges(case.queries)), patterns_peers.peer_events(case)
    streams = patterns_peers.task_streams(events)
    schemas = {name: some.schema for name, some in streams.items()}
    ready = patterns_peers.ready_kernel(lower_texts(patterns_peers.task_statements(task), schemas), streams)
    found = set(map(tuple, patterns_peers.kernel_rows(ready, 30).tolist()))
    assert found == set(_by_loop(task, events.to_pylist())) != set()


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
    ours, flink = patterns_peers.measure_pattern_peers(replace(SMALL, beside="flink"), sys.executable, 1)
    assert flink.rows == ours.rows > 0 and ours.seconds > 0 and flink.details["over_ours"]


def test_without_flink_it_is_left_out(monkeypatch, capsys):
    monkeypatch.setattr(patterns_peers, "FLINK", replace(patterns_peers.FLINK, needs="no_such_package"))
    monkeypatch.setattr(sys, "argv", ["bench", "peers", "--quick", "--queries", "2", "--events", "200"])
    patterns.bench_patterns()
    printed = capsys.readouterr()
    assert "Flink is left out" in printed.err and "SQL, arg_min" in printed.out


def test_a_task_is_read_as_it_was_written(tmp_path):
    task = PatternTask("rising runs", task_ranges(3))
    task.write(tmp_path)
    assert read_task(tmp_path) == task
    (tmp_path / "rows.csv").write_text("0,1,2,3\n")
    assert read_task_rows(tmp_path) == {(0, 1, 2, 3)}


@pytest.mark.soak
@pytest.mark.parametrize("template", get_args(patterns_peers.PlacesTemplate))
def test_all_places_have_the_same_results(template, spark, monkeypatch):
    monkeypatch.setitem(SparkRunner.__init__.__kwdefaults__, "least", 0)
    case = patterns_peers.PlacesCase(template, 3, events=300, keys=2, intervals=1 if template == "first after" else 2)
    lines = {line.plan: line for line in patterns_peers.measure_places(case, spark, 1)}
    assert list(lines) == ["driver", "executors"] + ["sql", "sql on spark"] * (template == "first after")
    assert len({line.rows for line in lines.values()}) == 1
    assert lines["driver"].rows > 0 or template == "rare partners"
    assert lines["driver"].speedup is None and lines["executors"].speedup


class Silent:
    """A kernel that has no events."""

    def __init__(self, kernel):
        self.add, self.begin, self.feed = kernel.add, kernel.begin, lambda events: kernel.feed({})
        self.end = list


@pytest.mark.parametrize("silent", [False, True])
def test_places_are_compared(silent, monkeypatch):
    driver = kernels("driver", None)
    ways: dict[str, Any] = {"driver": driver}
    if silent:
        ways["executors"] = lambda texts, lineage: Silent(driver(texts, lineage))
    monkeypatch.setattr(patterns_peers, "places_ways", lambda case, session: ways)
    session = cast("SparkSession", None)  # nothing asks for it
    case = patterns_peers.PlacesCase("rising runs", 1, events=300, keys=2)
    if silent:
        with pytest.raises(AssertionError, match="executors has other results"):
            list(patterns_peers.measure_places(case, session, 1))
    else:
        (line,) = patterns_peers.measure_places(case, session, 1)
        assert line.rows > 0 and line.plan == "driver"
