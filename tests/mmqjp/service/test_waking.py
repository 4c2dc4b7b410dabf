"""How a service waits: it looks when its watcher calls, rests after calls in vain, and its outputs are the same."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from mmqjp.engine import Session
from mmqjp.service import loop
from mmqjp.service.loop import Stop
from tests.support.service import PAIRS, Directory, Events

NEVER = 1e9
"""A trigger, in seconds, that no test lives to see."""


class Calls:
    """A watcher that does what the test says in each wait, and then calls for a look. At the end it sets the stop."""

    def __init__(self, stop: Event, *steps: Callable[[], object]) -> None:
        self._stop, self._steps, self.waits = stop, list(steps), 0

    def wait(self, seconds: float, stop: Stop) -> bool:
        self.waits += 1
        if not self._steps:
            self._stop.set()
            return False
        self._steps.pop(0)()
        return True

    def close(self) -> None:
        pass


class Rests(Event):
    """A stop that is set after so many waits. It does not wait."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        if not self.left:
            self.set()
        return self.is_set()


@pytest.fixture
def place(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def dropping(place: Directory, firsts: list[int], count: int) -> list[Callable[[], object]]:
    """Steps that drop a file each, with documents from a number on."""
    return [partial(place.drop, f"{first}.jsonl", range(first, first + count)) for first in firsts]


def lines(place: Directory) -> list[tuple[str, ...]]:
    return sorted(place.pairs())


def test_a_service_looks_when_it_is_called(place: Directory):
    stop, events = Event(), Events()
    idle: list[Session] = []
    watcher = Calls(stop, *dropping(place, [0, 2], 2), lambda: place.ask("pause", name="pairs"))
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        place.service(engine, events, watcher=watcher, on_idle=idle.append).run(NEVER, stop)
    assert [event["documents"] for event in events.named("batch")] == [2, 2]
    assert [event["do"] for event in events.named("command")] == ["pause"] and len(place.pairs()) == 6
    assert len(idle) == 1, "what only time calls for is left to the regular looks"


def test_the_outputs_do_not_depend_on_the_watcher(place: Directory, tmp_path: Path):
    stop = Event()
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        place.service(engine, watcher=Calls(stop, *dropping(place, [6, 0, 3], 3))).run(NEVER, stop)
    polled = Directory(tmp_path / "polled")
    for drop in dropping(polled, [6, 0, 3], 3):
        drop()
    with Session("duckdb", state=polled.state) as engine:
        engine.subscribe(PAIRS)
        polled.service(engine).run(1e-3, Rests(3))
    assert lines(place) == lines(polled) and len(lines(place)) == 36


def test_a_call_in_vain_is_followed_by_a_rest(place: Directory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "SHARE", 1e12)
    stop = Rests(20)
    watcher = Calls(stop, lambda: place.drop("1.jsonl", range(2)), lambda: None, lambda: place.drop("2.jsonl", [2]))
    with Session("duckdb", state=place.state) as engine:
        engine.subscribe(PAIRS)
        place.service(engine, watcher=watcher).run(NEVER, stop)
        assert engine.counters().documents == 2 and watcher.waits == 2
    assert stop.left == 0, "the rest is made of short waits, between which commands are run"


def test_a_service_that_rests_runs_commands(place: Directory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "SHARE", 1e12)
    events = Events()
    asked = iter([True, False])

    class Asking(Rests):
        def wait(self, timeout: float | None = None) -> bool:
            if next(asked, False):
                place.ask("list")
            return super().wait(timeout)

    stop = Asking(3)
    with Session("duckdb", state=place.state) as engine:
        place.service(engine, events, watcher=Calls(stop, lambda: None)).run(NEVER, stop)
    assert [event["do"] for event in events.named("command")] == ["list"]
