"""Stretches against the pairs that they stand for."""

import numpy as np
import pytest

from pattern_stage.columns import Columns, Flow, Stretches, sets_of
from tests.generate.seeds import seeds


def some(chance: np.random.Generator) -> Stretches:
    """Stretches of a list of distinct rows, those of an event being disjoint; few events, so that some have several."""
    rows = chance.permutation(40)[: chance.integers(1, 12)]
    found = []
    for event in range(6):
        bounds = np.sort(chance.permutation(len(rows) + 1)[: 2 * chance.integers(0, 3)])
        found += [(event, start, end - start) for start, end in bounds[: len(bounds) // 2 * 2].reshape(-1, 2).tolist()]
    at, starts, sizes = np.array(found, np.int64).reshape(-1, 3).T
    return Stretches(at, starts, sizes, rows)


def events(count: int) -> Columns:
    at = np.arange(count)
    return Columns(at, at, (), at.reshape(-1, 1))


@pytest.mark.parametrize("seed", seeds(4, 30))
def test_stretches_are_their_pairs(seed):
    chance = np.random.default_rng(seed)
    one = some(chance)
    ours = [(at, row) for at, start, size in zip(one.at, one.starts, one.sizes, strict=True)
            for row in one.rows[start : start + size]]  # fmt: skip
    assert len(one) == len(ours) and list(zip(*one.pairs(), strict=True)) == ours
    kept = chance.random(len(one.at)) < 0.5
    assert len(one.only(kept)) == one.sizes[kept].sum()
    others = {row: chance.integers(0, 100, chance.integers(0, 3)).tolist() for row in one.rows.tolist()}
    places = np.repeat(np.arange(len(one.rows)), [len(others[row]) for row in one.rows.tolist()])
    stand = np.array([other for row in one.rows.tolist() for other in others[row]], np.int64)
    through = one.through(places, stand)
    assert through.sizes.all()
    assert list(zip(*through.pairs(), strict=True)) == [(at, other) for at, row in ours for other in others[row]]


@pytest.mark.parametrize("seed", seeds(4, 30))
def test_a_flow_of_stretches_is_that_of_its_pairs(seed):
    chance = np.random.default_rng(seed)
    one = some(chance)
    flow, same = Flow.of(events(6), one), Flow(events(6), *one.pairs())
    assert len(flow) == len(same)
    shorter, other = flow.compact(), same.compact()
    assert np.array_equal(shorter.events.parts, other.events.parts) and len(shorter) == len(other)
    assert np.array_equal(shorter.at, other.at) and np.array_equal(shorter.rows, other.rows)
    if len(flow):
        assert members(flow) == members(same)


def members(flow: Flow) -> dict[int, list[int]]:
    """The rows of each event, by way of their sets."""
    at, numbers, of, rows = sets_of(flow)
    return {event: rows[of == number].tolist() for event, number in zip(at.tolist(), numbers.tolist(), strict=True)}
