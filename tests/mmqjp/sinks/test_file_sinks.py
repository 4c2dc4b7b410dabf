"""Sinks of files that acknowledge later than they write, and the real sink of lines in real threads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from feeds.documents import Document
from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.sinks.definition import SinkDefinition, read_sink
from mmqjp.sinks.deliverer import Deliverer
from mmqjp.sinks.kinds import Kinds
from mmqjp.sinks.manager import SinkManager
from mmqjp.sinks.secrets import Secrets
from mmqjp.sinks.sink import Receiver, Sink, Warn
from tests.support.fake_sinks import SECOND, Clock, Events, FakeJobs, FakeStore, definition


class Bundles:
    """Writes outputs into a bundle, which is kept when it is closed: at 10 outputs, or a minute after its first. All
    that no closed bundle has is lost when the sink is opened anew."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.closed: list[int] = []
        self.open: list[int] = []
        self.closes_at: int | None = None
        self.is_full = False

    def opened(self) -> Bundles:
        self.open, self.closes_at = [], None
        return self

    def prepare(self, pending: object) -> bool:
        return False

    def write(self, outputs: Iterable[Output]) -> int:
        self.open += [output.seq for output in outputs]
        if self.closes_at is None and self.open:
            self.closes_at = self.clock() + 60 * SECOND
        if len(self.open) >= 10 or (self.closes_at or 0) <= self.clock():
            if self.is_full:
                self.open = []
                raise OSError(28, "No space left on device")
            self.closed, self.open, self.closes_at = self.closed + self.open, [], None
        return 0

    def position(self) -> Position:
        return Position(max(self.closed, default=-1), {"bundles": 1})

    def close(self) -> None:
        pass


class Opener:
    def __init__(self, bundles: Bundles) -> None:
        self._bundles = bundles

    def receiver(self, definition: SinkDefinition) -> Receiver:
        raise AssertionError

    def file_sink(self, definition: SinkDefinition, position: Position, warn: Warn) -> Sink:
        return cast(Sink, self._bundles.opened())


def bundled(store: FakeStore, bundles: Bundles) -> SinkManager:
    given = definition("f", kind="jsonl", path="x", backlog_outputs=1_000)
    jobs = FakeJobs()
    read = lambda name, table: given  # noqa: E731  # there is one
    return SinkManager(cast(Session, store), [given], Opener(bundles), jobs, Events(), read, now=store.clock)


def turns(sinks: SinkManager, count: int = 6) -> None:
    for _ in range(count):
        sinks.turn()


def test_what_is_written_but_could_be_lost_is_owed_until_it_is_closed():
    store = FakeStore(Clock())
    bundles = Bundles(store.clock)
    sinks = bundled(store, bundles)
    sinks.committed(store.commit(["a"] * 3))
    turns(sinks)
    (state,) = sinks.list()
    assert bundles.open == [0, 1, 2] and (state.acked, state.behind) == (-1, 3)
    owed = sinks.owed()
    assert owed is not None and owed.t0 == 0
    store.clock.time += 61 * SECOND
    turns(sinks)
    (state,) = sinks.list()
    assert bundles.closed == [0, 1, 2] and (state.acked, state.behind) == (2, 0) and sinks.owed() is None


def test_what_was_not_closed_is_written_again_after_a_kill():
    store = FakeStore(Clock())
    bundles = Bundles(store.clock)
    sinks = bundled(store, bundles)
    sinks.committed(store.commit(["a"] * 3))
    turns(sinks)
    sinks = bundled(store, bundles)
    sinks.committed(store.commit(["a"] * 8))
    turns(sinks, 8)
    assert bundles.closed == [*range(11)]


def test_a_full_disk_under_an_open_bundle_does_not_keep_outputs_from_being_given_up():
    store = FakeStore(Clock())
    bundles = Bundles(store.clock)
    sinks = bundled(store, bundles)
    sinks.committed(store.commit(["a"] * 3))
    turns(sinks)
    bundles.is_full = True
    for _ in range(30):
        sinks.committed(store.commit(["a"] * 100))
        turns(sinks)
        store.clock.time += 61 * SECOND
    turns(sinks, 60)
    (state,) = sinks.list()
    assert state.state == "waiting" and "No space" in state.reason
    assert state.given_up == 3_003 - 1_000 and state.behind == 1_000
    bundles.is_full = False
    sinks.resume("f")
    store.clock.time += 61 * SECOND
    turns(sinks, 20)
    store.clock.time += 61 * SECOND
    turns(sinks, 20)
    assert bundles.closed == [*range(2_003, 3_003)]
    assert sum(row.count for row in store.gaps) == 2_003 and store.gaps[0].first == 0


def test_lines_that_were_not_noted_as_written_are_written_again_in_their_place(tmp_path: Path):
    given = read_sink("lines", {"kind": "jsonl", "path": "lines.jsonl"}, tmp_path, file="mmqjp.toml")
    path, clock = tmp_path / "lines.jsonl", Clock()
    read = lambda name, table: given  # noqa: E731  # there is one
    for start in range(0, 30, 10):
        with Session("duckdb", state=tmp_path / "state", now=clock) as engine:
            if not engine.registry.subscriptions:
                engine.subscribe("FROM S//a->x PUBLISH every")
            deliverer = Deliverer()
            sinks = SinkManager(engine, [given], Kinds(Secrets()), deliverer, Events(), read, now=clock)
            clock.time += 2 * SECOND  # what must be stored before it goes on is
            sinks.committed(engine.process([Document(f"d{n}", "<a/>", time=n) for n in range(start, start + 10)]))
            while sinks.list()[0].behind:
                deliverer.wait(1)
                sinks.turn()
                clock.time += 10_000
            deliverer.close(5)  # the process ends before it stores the position
            before = json.loads(engine.settings("sink:")["lines"])["acked"]
        assert before < start + 9
        assert [json.loads(line)["seq"] for line in path.read_text().splitlines()] == [*range(start + 10)]
