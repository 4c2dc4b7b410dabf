"""The kernel finds what the oracle does, whatever the intervals, what comes and goes, the m-rules, and restarts."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from pattern_stage.plan import RULE_NAMES
from tests.generate.event_worlds import world
from tests.generate.events import LENGTH
from tests.generate.seeds import seeds
from tests.support.event_agreement import Run, Trial, assert_finds, random_run

WHOLE = ((LENGTH + 1) * 10**6,)


@pytest.mark.parametrize("seed", seeds(16, 4_000, first=10_000))
def test_random_statements(seed: int):
    made = world(seed)
    assert_finds(made, random_run(Random(seed), len(made.statements), LENGTH))


@pytest.mark.parametrize("seed", seeds(1, 500, first=20_000))
@pytest.mark.parametrize("on", [(), *((name,) for name in RULE_NAMES)], ids=lambda on: "".join(on) or "none")
def test_each_rule_alone_and_none(on, seed: int):
    assert_finds(world(seed), Run(WHOLE, rules=on))


@pytest.mark.parametrize("seed", seeds(4, 600, first=30_000))
def test_many_statements_of_one_template(seed: int, monkeypatch: pytest.MonkeyPatch):
    """In some cases two at a time come into the plan, filters are found by an index, and blocks of events are small."""
    if seed % 2:
        monkeypatch.setattr("pattern_stage.statements._MANY", 2)
        monkeypatch.setattr("pattern_stage.select._DEAR", 0)
        monkeypatch.setattr("pattern_stage.select._BLOCK", 5)
        monkeypatch.setattr("pattern_stage.index._BLOCK", 3)
        monkeypatch.setattr("pattern_stage.index._MANY_REMOVED", 3)
    made = world(seed, templates=3, statements=40, most=12, depth=2)
    assert_finds(made, random_run(Random(seed), len(made.statements), LENGTH))


@pytest.mark.parametrize("seed", seeds(8, 1_000, first=40_000))
def test_dense_streams(seed: int, monkeypatch: pytest.MonkeyPatch):
    """Many events, most of which end with others, and many statements with one operator each."""
    monkeypatch.setattr("pattern_stage.select._DEAR", seed % 4)
    made = world(seed, templates=10, statements=50, most=30, depth=1)
    assert_finds(made, random_run(Random(seed), len(made.statements), LENGTH))


def test_a_state_of_another_version_is_refused():
    with pytest.raises(ValueError, match="has format 99; this version reads 1"):
        Trial({}).kernel.restore({"format": pa.table({"version": [99]})})
