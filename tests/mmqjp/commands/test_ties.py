"""Pairs with equal times are told: by `run` at its end, by `store_status`, and by the metrics of a service."""

import json
from pathlib import Path

import pytest

from mmqjp.commands.run import equal_time_lines
from mmqjp.engine import Session
from mmqjp.service.log import NullLog
from mmqjp.service.metrics import Metrics
from mmqjp.service.status import store_status
from tests.support.cli import mmqjp

QUERIES = "S//a->x FOLLOWED BY {x = y, 1 h} S//a->y PUBLISH later; S//a->x JOIN {x = y, 1 h} S//a->y PUBLISH both"
TOLD = (
    "mmqjp: later: 3 pairs have equal times, so that neither document follows the other; "
    "JOIN UNORDERED matches them, too\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "queries.xscl").write_text(QUERIES)
    lines = [json.dumps({"id": f"d{n}", "time": time, "xml": "<a>v</a>"}) for n, time in enumerate([5, 5, 5, 6])]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines))
    return tmp_path


def run(folder: Path, *more: str):
    paths = "--queries", str(folder / "queries.xscl"), "--documents", str(folder / "docs.jsonl")
    return mmqjp("run", *paths, "--engine", "duckdb", "--output", str(folder / "out.jsonl"), *more)


def test_a_run_tells_them_once(folder):
    state = "--state", str(folder / "state")
    assert run(folder, *state).stderr == TOLD
    assert run(folder, *state).stderr == "", "nothing new was left out"
    shown = mmqjp("status", *state)
    assert "equal times    later: 3 pairs that FOLLOWED BY left out\n" in shown.stdout
    assert json.loads(mmqjp("status", *state, "--json").stdout)["ties"] == {"later": 3}
    with Session("duckdb", state=folder / "state") as engine:
        metrics = Metrics(NullLog())
        metrics.update(store_status(engine))
        assert metrics.registry.get_sample_value("mmqjp_equal_times_pairs", {"query": "later"}) == 3


def test_a_count_that_was_bounded_is_told_as_such(folder, monkeypatch):
    monkeypatch.setattr("mmqjp.answers.quota.MOST_PAIRS", 1)
    state = "--state", str(folder / "state")
    assert run(folder, *state).stderr.startswith("mmqjp: later: at least 1 pair has equal times")
    assert "equal times    later: at least 1 pairs that" in mmqjp("status", *state).stdout
    assert json.loads(mmqjp("status", *state, "--json").stdout)["ties_at_least"] == ["later"]


def test_a_run_without_equal_times_says_nothing(folder):
    lines = (folder / "docs.jsonl").read_text().splitlines()
    (folder / "docs.jsonl").write_text("\n".join(lines[2:]))
    assert run(folder).stderr == ""


def test_of_many_queries_the_worst_are_named():
    lines = list(equal_time_lines({"a": 1_000, "b": 20, "c": 1, "d": 1, "e": 1}))
    assert [line.partition(" ")[0] for line in lines] == ["a:", "b:", "c:", "2"]
    assert "1,000 pairs have" in lines[0] and "1 pair has" in lines[2]
    assert lines[3] == "2 more pairs with equal times of 2 other queries"
