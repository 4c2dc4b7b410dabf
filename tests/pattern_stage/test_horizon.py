"""Events wait until their time has come, and the horizon never moves back."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from pattern_stage.assemble import END, START, Buffer, last_horizon, next_horizon
from pattern_stage.columns import Columns
from tests.generate.seeds import seeds


def events(times: list[int], first: int) -> Columns:
    t1 = np.array(times, np.int64)
    numbers = np.arange(first, first + len(times), dtype=np.int64)
    return Columns(t1 - 1, t1, (numbers * 2, np.zeros(len(times))), numbers.reshape(-1, 1))


def test_the_horizon_is_the_least_of_the_streams_behind_statements() -> None:
    assert next_horizon(START, {"a": 100, "b": 50}, ("a",), 10) == 90
    assert next_horizon(START, {"a": 100, "b": 50}, ("a", "b"), 10) == 40
    assert next_horizon(START, {"a": 100, "b": 50}, ("a", "b"), {"b": 0, "*": 60}) == 40
    assert next_horizon(70, {"a": 100, "b": 50}, ("a", "b"), 10) == 70, "it never moves back"
    assert next_horizon(7, {"a": 100}, ("a", "b"), 10) == 7, "nothing is known of b"
    assert next_horizon(7, {"a": 100}, (), 10) == 7, "there is no statement"
    assert next_horizon(START, {"a": 100}, ("a",), None) == START
    assert next_horizon(START, {"a": 100, "b": 90}, ("a", "b"), {"a": None, "*": 5}) == START
    assert next_horizon(START, {"a": 100}, ("a",), 10, clock=60) == 50, "not past the clock"


def test_the_end_of_a_run() -> None:
    assert last_horizon(7, {"a": 100, "b": 200}, ("a",), None, lasts=False) == END
    assert last_horizon(7, {"a": 100, "b": 200}, ("a",), None, lasts=True) == 101
    assert last_horizon(7, {"a": 100, "b": 200}, ("a", "b", "c"), None, lasts=True) == 201
    assert last_horizon(7, {"a": 100}, ("a",), 10, lasts=True) == 7


@pytest.mark.parametrize("seed", seeds(8, 60))
def test_events_are_released_by_time(seed: int) -> None:
    rng = Random(seed)
    buffer, waiting, count = Buffer(), set[tuple[str, int, int]](), 0
    for _ in range(20):
        times = [rng.randrange(40) for _ in range(rng.randrange(5))]
        stream = rng.choice("EF")
        buffer.add(stream, events(times, count))
        waiting |= {(stream, time, number) for number, time in enumerate(times, count)}
        count += len(times)
        if rng.random() < 0.4:
            until, streams = rng.randrange(45), rng.choice(("E", "F", "EF", "EFG"))
            due = {one for one in waiting if one[0] in streams and one[1] < until}
            assert buffer.is_due(until) == any(time < until for _, time, _ in waiting)
            released = buffer.release(streams, until)
            waiting -= due
            found = []
            for name, columns in released.items():
                assert len(columns) and columns.t1.tolist() == sorted(columns.t1.tolist())
                assert (columns.values[0] == columns.parts[:, 0] * 2).all()
                found += list(
                    zip([name] * len(columns), columns.t1.tolist(), columns.parts[:, 0].tolist(), strict=True)
                )
            assert sorted(found) == sorted(due)
        assert len(buffer) == len(waiting)
        parts = [number for part in buffer.parts() for number in part.ravel().tolist()]
        assert sorted(parts) == sorted(number for *_, number in waiting)
        assert [len(codes) for codes in buffer.codes()] == [len(part) for part in buffer.parts()]
    buffer.drop("EF")
    assert not len(buffer)
