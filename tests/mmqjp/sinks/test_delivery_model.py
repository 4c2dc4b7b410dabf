"""Random lives of sinks against an oracle: whatever receivers answer and wherever the process is killed, each wanted
output is received, or told to be given up."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from mmqjp.sinks.definition import SinkDefinition
from mmqjp.sinks.manager import SinkManager
from mmqjp.sinks.sink import DeliveryResult, Message, acknowledged, down, gone, refused
from tests.generate.seeds import seeds
from tests.support.fake_sinks import DAY, SECOND, Clock, Disk, Endpoint, FakeJobs, FakeStore, definition, manager
from tests.support.faults import Killed

HOUR = 3_600 * SECOND

DEFINITIONS = [
    definition("each"),
    definition("some", queries=["a*"], backlog="1h"),
    definition("group", queries=["b", "c"], wait="45s", most=3),
    definition("digest", wait="6h", most=2, backlog="INF"),
    definition("narrow", wait="10s", backlog_outputs=1_000),
    definition("file", kind="jsonl", path="x.jsonl"),
]


@dataclass
class Life:
    """A random life of a service with sinks. The oracle knows what was committed, and what endpoints have seen."""

    random: Random
    kills: bool
    is_over: bool = False
    clock: Clock = field(default_factory=Clock)
    killed: int = 0
    added: dict[str, int] = field(default_factory=dict)
    removed: dict[str, list[range]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = FakeStore(self.clock, self._kill)
        self.endpoints: dict[str, Endpoint | Disk] = {d.name: Endpoint(self._answer) for d in DEFINITIONS}
        self.endpoints["file"] = Disk(self._is_full)
        self.marks: dict[int, int] = {}
        self.sinks = self._opened()

    def _kill(self, place: str) -> None:
        if self.kills and not self.is_over and self.random.random() < 0.01:
            raise Killed(place)

    def _is_full(self) -> bool:
        return not self.is_over and self.random.random() < 0.02

    def _answer(self, message: Message) -> DeliveryResult:
        self.marks[id(message)] = self.killed
        if self.is_over or self.random.random() < 0.6:
            return acknowledged()
        verdicts = [refused("400"), down("500"), down("429", self.random.randrange(2 * DAY)), gone("410")]
        return self.random.choices(verdicts, [6, 3, 2, 0.3])[0]

    def _opened(self) -> SinkManager:
        while True:
            try:
                steps = FakeJobs(self._kill, lambda: self.random.randrange(40))
                return manager(self.store, self.endpoints, jobs=steps)
            except Killed:
                self.killed += 1

    def live(self, steps: int) -> None:
        weights = {
            self._commit: 5, self._turn: 20, self._pass: 8, self._add: 2, self._pause: 0.5, self._resume: 2,
            self._close: 0.5, self._remove: 0.3,
        }  # fmt: skip
        for _ in range(steps):
            try:
                self.random.choices([*weights], [*weights.values()])[0]()
            except Killed:
                self.killed += 1
                self.sinks = self._opened()
        self.is_over = True
        for _ in range(3_000):
            for state in self.sinks.list():
                if state.state in ("paused", "stopped"):
                    self.sinks.resume(state.name)
            self._turn()
            self.clock.time += self.random.choice([20 * SECOND, HOUR])
            if not any(state.behind for state in self.sinks.list()):
                break
        self.sinks.close()

    def _commit(self) -> None:
        count = self.random.choice([0, 1, 2, 5, 30, 300, 1_200])
        notes = self.sinks.notes()
        self._kill("before a batch")
        outputs = self.store.commit(self.random.choices(["a", "ab", "b", "c"], k=count), notes)
        self._kill("after a batch")
        self.sinks.noted(notes)
        self.sinks.committed(*self.random.choice([(outputs,), ()]))

    def _turn(self) -> None:
        self.sinks.turn()

    def _pass(self) -> None:
        self.clock.time += self.random.choice([1, 5 * SECOND, 20 * SECOND, 70 * SECOND, HOUR, DAY])

    def _add(self) -> None:
        missing = [given for given in DEFINITIONS if given.name not in self.added]
        if missing:
            chosen = self.random.choice(missing)
            self.sinks.committed()
            self.added[chosen.name] = len(self.store.all)
            if chosen.name not in {state.name for state in self.sinks.list()}:
                try:
                    self.sinks.add(chosen)
                    self.sinks.save()
                except Killed:
                    if f"sink-definition:{chosen.name}" not in self.store.kept:
                        del self.added[chosen.name]
                    raise

    def _remove(self) -> None:
        if not self.added:
            return
        name = self.random.choice(sorted(self.added))
        try:
            self.sinks.remove(name)
            self.sinks.save()
        finally:
            if not self.store.kept[f"sink-definition:{name}"]:
                self.removed.setdefault(name, []).append(range(self.added.pop(name), len(self.store.all)))

    def _pause(self) -> None:
        if states := self.sinks.list():
            self.sinks.pause(self.random.choice(states).name)

    def _resume(self) -> None:
        for state in self.sinks.list():
            self.sinks.resume(state.name)

    def _close(self) -> None:
        self.sinks.close()
        self.sinks = self._opened()

    # ------------------------------------------------------------ the oracle

    def wanted(self, given: SinkDefinition, first: int = 0) -> list[int]:
        """The numbers of the outputs, from one on, that a sink wanted while it was there, in order."""
        lives = [*self.removed.get(given.name, ()), range(self.since(given), len(self.store.all))]
        names = {"some": ("a", "ab"), "group": ("b", "c")}.get(given.name, ("a", "ab", "b", "c"))
        seqs = (seq for life in lives for seq in life if seq >= first)
        return [seq for seq in seqs if self.store.all[seq][0].query in names]

    def since(self, given: SinkDefinition) -> int:
        """The number of the first output since a sink was added last: it must get these."""
        return self.added.get(given.name, len(self.store.all))

    def lost(self, name: str) -> set[int]:
        """The numbers between which a sink was told that it does not get some."""
        gaps = [seq for row in self.store.gaps if row.sink == name for seq in range(row.first, row.last + 1)]
        return {*gaps, *(row.seq for row in self.store.undelivered if row.sink == name)}

    def check_push(self, given: SinkDefinition, endpoint: Endpoint) -> None:
        wanted = self.wanted(given)
        firsts: dict[int, Message] = {}
        received: dict[int, int] = {}
        newest = -1
        for message, verdict in endpoint.got:
            covered = between(wanted, message.first, message.last)
            assert [match.output.seq for match in message.matches] == covered[: len(message.matches)]
            assert len(message.matches) == min(len(covered), given.most if given.wait_us else 1)
            assert len(message.matches) + message.more == len(covered)
            assert firsts.setdefault(message.first, message) == message, "an attempt is like those before"
            if verdict.kind == "acknowledged":
                if message.first in received:
                    assert received[message.first] < self.marks[id(message)], "none twice without a kill between"
                else:
                    assert message.first > newest or self.kills, "in order"
                    newest = max(newest, message.first)
                received[message.first] = self.marks[id(message)]
        got = {seq for first in received for seq in between(wanted, first, firsts[first].last)}
        lost = self.lost(given.name)
        assert set(self.wanted(given, self.since(given))) <= got | lost
        if not self.kills:
            assert not got & lost & set(wanted)
        rows = [row for row in self.store.gaps if row.sink == given.name]
        for row in rows:
            assert row.count == len(between(wanted, row.first, row.last))
        told = [(row.first, row.last) for row in rows]
        told += [(row.seq, row.seq) for row in self.store.undelivered if row.sink == given.name]
        ordered = sorted(told)
        assert all(one[1] < other[0] for one, other in pairwise(ordered)), "each is told once"

    def check_file(self, given: SinkDefinition, disk: Disk) -> None:
        lines = [int(line.removeprefix("id")) for line in disk.lines]
        since, lost = self.since(given), self.lost(given.name)
        assert lines == sorted(set(lines)) and set(lines) <= set(self.wanted(given))
        assert [seq for seq in lines if seq >= since] == [seq for seq in self.wanted(given, since) if seq not in lost]


def between(numbers: list[int], first: int, last: int) -> list[int]:
    return numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("seed", seeds(3, 20))
def test_each_wanted_output_is_received_or_told_to_be_given_up(seed: int, kills: bool):
    life = Life(Random(f"{seed} {kills}"), kills)
    life.live(150)
    assert not any(state.behind for state in life.sinks.list())
    for given in DEFINITIONS:
        endpoint = life.endpoints[given.name]
        if isinstance(endpoint, Disk):
            life.check_file(given, endpoint)
        else:
            life.check_push(given, endpoint)
