"""Sinks: what each does after each answer, how it groups, how far it may fall behind, and jobs in real threads. Random
lives of sinks against an oracle: whatever receivers answer and wherever the process is killed, each wanted output is
received, or told to be given up."""

import asyncio
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from threading import Event as Flag
from typing import Any, cast
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from feeds.documents import Document
from mmqjp.answers.fan_out import OutputChunk, Position
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.sinks.definition import ParquetOptions, SinkDefinition, Start
from mmqjp.sinks.deliverer import Deliverer, offer
from mmqjp.sinks.manager import NotASink, SinkManager
from mmqjp.sinks.parquet import ParquetSink
from mmqjp.sinks.positions import Course, SinkExists, SinkState, UnknownSink, least
from mmqjp.sinks.sink import ACKNOWLEDGED, DeliveryResult, JobEvent, Message, Receiver, Sink, Warn, down, refused
from tests.generate.seeds import seeds
from tests.support.fake_sinks import DAY, SECOND, Clock, Disk, Endpoint, FakeJobs, FakeStore, definition, manager
from tests.support.faults import Killed
from tests.support.messages import match, message, output, told
from tests.support.service import Events


def shown(sinks: SinkManager, name: str = "s") -> SinkState:
    return next(state for state in sinks.list() if state.name == name)


def with_sink(
    answer: Callable[[Message], DeliveryResult] = lambda message: ACKNOWLEDGED, **table: object
) -> tuple[FakeStore, Endpoint, SinkManager]:
    store, endpoint = FakeStore(Clock()), Endpoint(answer)
    return store, endpoint, manager(store, {"s": endpoint}, [definition("s", **table)])


def turns(sinks: SinkManager, count: int = 6) -> None:
    for _ in range(count):
        sinks.turn()


def go_on(store: FakeStore, sinks: SinkManager, queries: Sequence[str] = (), wait: int = 0, count: int = 6) -> None:
    """Commits outputs of queries, if there are some, lets time pass, and takes turns."""
    if queries:
        sinks.committed(store.commit(queries))
    store.clock.time += wait
    turns(sinks, count)


def ids(endpoint: Endpoint) -> list[str]:
    return [match.output.id for message, verdict in endpoint.got for match in message.matches]


def test_a_receiver_that_is_down_is_asked_at_the_times_of_the_specification_and_then_never():
    store, times = FakeStore(Clock()), []

    def answer(message: Message) -> DeliveryResult:
        times.append(store.clock.time)
        return down("503")

    sinks = manager(store, {"s": Endpoint(answer)}, [definition("s", backlog="INF")])
    sinks.committed(store.commit(["a"]))
    for _ in range(90):
        turns(sinks, 2)
        while shown(sinks).next is not None and store.clock.time < (shown(sinks).next or 0):
            store.clock.time = shown(sinks).next or 0
    waits = [(b - a) / SECOND for a, b in pairwise(times)]
    named = [5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400]
    assert waits == [pytest.approx(wait * 1.05) for wait in named]
    assert shown(sinks).state == "stopped" and shown(sinks).reason == "503" and shown(sinks).failed == 10
    sinks.save()
    kept = json.loads(store.kept["sink:s"])
    assert (kept["state"], kept["acked"]) == ("stopped", -1)


@pytest.mark.parametrize(("asked", "waits"), [(60, 60), (1, 5.25), (3 * 86400, 86400)])
def test_a_receiver_may_ask_for_a_wait_of_up_to_a_day(asked: int, waits: float):
    store, _, sinks = with_sink(lambda message: down("429", asked * SECOND))
    go_on(store, sinks, ["a"])
    assert (shown(sinks).next or 0) - store.clock.time == waits * SECOND


def test_a_refused_message_is_tried_five_times_in_two_minutes_and_the_next_one_follows():
    store, endpoint, sinks = with_sink(lambda message: refused("422") if message.first == 0 else ACKNOWLEDGED)
    began = store.clock.time
    sinks.committed(store.commit(["a", "a"]))
    while not shown(sinks).delivered:
        turns(sinks, 2)
        store.clock.time += SECOND
    assert ids(endpoint) == ["id0"] * 5 + ["id1"] and store.clock.time - began < 121 * SECOND
    sinks.save()
    assert [(row.seq, row.id, row.tries, row.reason) for row in store.undelivered] == [(0, "id0", 5, "422")]
    assert shown(sinks).given_up == 1 and shown(sinks).failed == 5


def test_a_receiver_that_answers_now_this_now_that_is_not_asked_often():
    answers = [refused("400"), down("500")] * 500
    store, endpoint, sinks = with_sink(lambda message: answers.pop(0))
    sinks.committed(store.commit(["a"] * 500))
    for _ in range(600):
        turns(sinks, 2)
        store.clock.time += SECOND
    assert len(endpoint.got) < 30


@pytest.mark.parametrize("is_down", [False, True])
@pytest.mark.parametrize(
    ("table", "first"),
    [
        ({"wait": "1min", "most": 2}, [0, 1]),
        ({"kind": "mail", "every": "1min", "most": 2}, [0, 1]),
        ({"kind": "mail", "every": "1min", "top": 3, "by": "m"}, [1_999, 1_998, 1_997]),
        ({"kind": "mail", "every": "1min", "top": 3, "by": "n"}, [0, 1, 2]),
    ],
)
def test_groups_are_the_same_however_outputs_are_cut_into_batches_and_reads(
    table: dict[str, Any], first: list[int], is_down: bool
):
    found = []
    for size in (7, 40, 500):
        store, endpoint, sinks = with_sink(**table)
        if is_down:
            sinks.pause("s")
        for _ in range(4):
            for start in range(0, 500, size):
                sinks.committed(store.commit(["a"] * min(size, 500 - start)))
            turns(sinks)
            store.clock.time += 20 * SECOND
        sinks.resume("s")
        store.clock.time += 3_600 * SECOND
        for _ in range(60):
            turns(sinks)
            store.clock.time += SECOND
        assert shown(sinks).behind == 0
        found.append([(m.first, m.last, m.more, [one.output.seq for one in m.matches], m.id) for m, _ in endpoint.got])
    assert [group[:4] for group in found[0]] == [(0, 1_999, 2_000 - len(first), first)]
    assert found[1:] == found[:1] * 2


def test_neither_many_outputs_at_once_nor_those_that_are_asked_for_again_are_given_up():
    store, endpoint, sinks = with_sink(backlog="1h", backlog_outputs=1_000)
    go_on(store, sinks, ["a"] * 1_200, count=30)
    assert len(endpoint.got) == 1_200 and not store.gaps
    store.clock.time += 30 * DAY
    sinks.replay("s", Start(seq=0))
    turns(sinks, 30)
    assert len(endpoint.got) == 2_400 and not store.gaps


@pytest.mark.parametrize("start", [Start(seq=2), Start(seq=99), Start(time=10**18), Start()])
def test_what_waits_is_not_passed_over_by_a_replay(start):
    store, endpoint, sinks = with_sink()
    go_on(store, sinks, ["a"])
    sinks.pause("s")
    sinks.committed(store.commit(["a", "a"]))
    sinks.replay("s", start)
    sinks.resume("s")
    turns(sinks)
    assert ids(endpoint) == ["id0", "id1", "id2"]


def test_sinks_are_added_changed_and_removed():
    store, endpoint = FakeStore(Clock()), Endpoint()
    sinks = manager(store, {"s": endpoint})
    sinks.add(definition("s", queries=["a"]))
    with pytest.raises(SinkExists):
        sinks.add(definition("s"))
    go_on(store, sinks, ["a", "b"])
    sinks.close()
    sinks = manager(store, {"s": endpoint})
    sinks.set(definition("s", queries=["b"]))
    go_on(store, sinks, ["a", "b"])
    assert ids(endpoint) == ["id0", "id3"]
    with pytest.raises(NotASink):
        sinks.set(definition("s", kind="jsonl", path="x"))
    sinks.remove("s")
    sinks.save()
    assert not sinks.list() and not manager(store, {"s": endpoint}).list()
    with pytest.raises(UnknownSink):
        sinks.pause("s")
    sinks.committed(store.commit(["b"]))
    sinks.add(definition("s"))
    go_on(store, sinks, ["b"])
    assert ids(endpoint) == ["id0", "id3", "id5"]


def test_a_test_message_stands_outside_of_positions():
    _, _, sinks = with_sink(lambda message: refused("400") if not message.matches else ACKNOWLEDGED)
    sinks.test("s")
    assert sinks.tested("s") is None
    turns(sinks)
    assert sinks.tested("s") == "400" and shown(sinks).failed == 0 and shown(sinks).state == "running"


def test_the_file_is_read_anew():
    store = FakeStore(Clock())
    endpoints: dict[str, Endpoint | Disk] = {"s": Endpoint(), "t": Endpoint()}
    of_file = [replace(definition(name), file="mmqjp.toml") for name in ("s", "t")]
    sinks = manager(store, endpoints, of_file)
    go_on(store, sinks, ["a"])
    sinks.reload([of_file[1]])
    go_on(store, sinks, ["a"])
    sinks.reload(of_file)
    turns(sinks)
    assert ids(endpoints["s"]) == ids(endpoints["t"]) == ["id0", "id1"]  # type: ignore[arg-type]  # both are endpoints


@pytest.mark.parametrize("seed", seeds(20, 500))
def test_a_digest_has_each_story_once(seed: int):
    """Stories come and grow, and take others up, between outputs that are none."""
    rng = Random(seed)
    by, most = rng.choice(["", "members"]), rng.randrange(1, 5)
    table = {"top": most, "by": by} if by else {"most": most}
    store, members, firsts = FakeStore(Clock()), dict[str, int](), dict[str, int]()
    endpoint = Endpoint()
    sinks = manager(store, {"s": endpoint}, [definition("s", kind="mail", every="60s", **table)])
    for seq in range(count := rng.randrange(1, 40)):
        merged: list[str] = []
        if rng.random() < 0.2:
            store.commit(["a"])
            members[f"id{seq}"], firsts[f"id{seq}"] = -1, seq
        else:
            open_now = [id for id in members if len(id) == 32]
            id = rng.choice([*open_now, f"{seq:032x}"])
            merged = [other for other in open_now if other != id and rng.random() < 0.2]
            size = members.get(id, 1) + 1 + sum(members.pop(other) for other in merged)
            members[id], firsts[id] = size, min(firsts.get(one, seq) for one in (id, *merged))
            store.all.append((told(seq, id, size, "merged" if merged else "grew", merged), store.clock.time))
    sinks.committed()
    go_on(store, sinks, wait=61 * SECOND)
    ((found, _),) = endpoint.got
    ranked = sorted(members, key=lambda id: (-members[id] if by else 0, firsts[id]))
    assert [one.output.story or one.output.id for one in found.matches] == ranked[:most]
    assert [one.output.xml.count("<member ") for one in found.matches] == [max(members[id], 0) for id in ranked[:most]]
    assert found.more == max(len(members) - most, 0) and (found.first, found.last) == (0, count - 1)


@pytest.mark.parametrize(
    ("table", "rows", "gap"),
    [
        ({"wait": "1s", "most": 2}, (0, 1), (2, 2, 1)),
        ({"kind": "mail", "every": "60s", "top": 2, "by": "m"}, (), (0, 2, 3)),
    ],
)
def test_who_refused_a_message_that_others_have_is_told_and_it_is_not_sent_again(table, rows, gap):
    refusals = iter(["bob refused it", "", ""])
    store, endpoint, sinks = with_sink(lambda _: DeliveryResult("acknowledged", next(refusals)), **table)
    for expected in ("bob refused it", ""):
        sinks.committed(store.commit(["a", "a", "a"]))
        for _ in range(3):
            go_on(store, sinks, wait=61 * SECOND)
        state = shown(sinks)
        assert (state.state, state.behind, state.failed, state.reason) == ("running", 0, 0, expected)
    assert [message.first for message, _ in endpoint.got] == [0, 3]
    told = [(row.seq, row.tries, row.reason) for row in store.undelivered]
    assert told == [(seq, 1, "bob refused it") for seq in rows]
    assert [(row.first, row.last, row.count) for row in store.gaps] == [gap]


# ------------------------------------------------------------ files that are acknowledged later than they are written


def with_an_open_file(path: Path) -> tuple[FakeStore, SinkManager]:
    """A sink of files that are kept once they have 10 rows or are a minute old."""

    def opened(given: SinkDefinition, position: Position, warn: Warn) -> Sink:
        return ParquetSink(ParquetOptions(path, 10, 60 * SECOND), position, warn, store.clock)

    store = FakeStore(Clock())
    given, session = definition("f", kind="jsonl", path="x", backlog_outputs=1_000), cast(Session, store)
    sinks = SinkManager(session, [given], opened, FakeJobs(), Events(), lambda *_: given, now=store.clock)
    go_on(store, sinks, ["a"] * 3)
    go_on(store, sinks, wait=5 * SECOND)
    return store, sinks


def kept(path: Path) -> list[int]:
    return [seq for file in sorted(path.glob("*.parquet")) for seq in pq.read_table(file)["seq"].to_pylist()]


def test_what_is_written_but_could_be_lost_is_owed_until_it_is_closed(tmp_path):
    store, sinks = with_an_open_file(tmp_path)
    state = shown(sinks, "f")
    assert (kept(tmp_path), state.delivered, state.acked, state.behind) == ([], 3, -1, 3)
    owed = sinks.owed()
    assert owed is not None and owed.t0 == 0
    go_on(store, sinks, wait=61 * SECOND)
    state = shown(sinks, "f")
    assert kept(tmp_path) == [0, 1, 2] and (state.acked, state.behind) == (2, 0) and sinks.owed() is None


def test_a_full_disk_under_an_open_file_does_not_keep_outputs_from_being_given_up(tmp_path, monkeypatch):
    store, sinks = with_an_open_file(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("mmqjp.sinks.parquet.sync_file", Mock(side_effect=OSError(28, "No space left on device")))
        for _ in range(30):
            go_on(store, sinks, ["a"] * 100)
            store.clock.time += 61 * SECOND
        turns(sinks, 60)
        state = shown(sinks, "f")
        assert state.state == "waiting" and "No space" in state.reason
        assert state.given_up == 3_003 - 1_000 and state.behind == 1_000
    sinks.resume("f")
    go_on(store, sinks, wait=61 * SECOND, count=20)
    go_on(store, sinks, wait=61 * SECOND, count=20)
    assert kept(tmp_path) == [*range(2_003, 3_003)]
    assert sum(row.count for row in store.gaps) == 2_003 and store.gaps[0].first == 0


# ------------------------------------------------------------ a chunk at a time it comes to the same as one at a time

QUERIES = """FROM S//a->x PUBLISH a1; FROM S//a->x PUBLISH a2; FROM S//b->x PUBLISH b1;
S//a->x[./k->p] FOLLOWED BY {p = q, 100} S//b->y[./k->q] PUBLISH joined"""


def courses() -> list[Course]:
    patterns = {"all": ["*"], "some": ["a*"], "one": ["joined"], "none": ["zzz"]}
    given = [definition(name, queries=queries) for name, queries in patterns.items()]
    return [Course(one, Position()) for one in [*given, definition("every")]]


@pytest.mark.parametrize("before", [0, 995, pytest.param(3_000, marks=pytest.mark.soak)])
def test_chunks_come_to_the_same_as_single_outputs(before: int):
    given = [Document(f"d{n}", f"<{'ab'[n % 2]}><k>{n % 5}</k></{'ab'[n % 2]}>", time=n * SECOND) for n in range(300)]
    with Session("duckdb") as engine:
        engine.subscribe(QUERIES)
        for start in range(0, before, 500):
            engine.process([Document(f"e{n}", "<a/>", time=0) for n in range(start, start + 500)])
        kept = list(engine.outputs())
        outputs = engine.process(given)
        for chunk in outputs.chunks():
            assert isinstance(chunk, OutputChunk)
            made = list(chunk.outputs())
            t0s: dict[str, list[int]] = {}
            for output in made:
                t0s.setdefault(output.query, []).append(output.t0)
            assert chunk.by_query() == {name: (len(found), min(found)) for name, found in t0s.items()}
            some = [output for output in made if output.query in ("a1", "joined")]
            assert list(chunk.of_queries({"a1", "joined"}).outputs()) == some
        together, each = courses(), courses()
        for one in (together, each):
            offer(one, kept, 5)
        offer(together, outputs, 10)
        offer(each, list(outputs), 10)
        both = [[course.backlog for course in some] for some in (together, each)]
        facts = [
            [(b.count, b.beyond, b.taken, least(b.owed()), [g.id for g in b.groups]) for b in some] for some in both
        ]
        assert facts[0] == facts[1]
        assert together[3].backlog.count == 0 and together[0].backlog.count == len(kept) + len(outputs)


# ------------------------------------------------------------ jobs in real threads

MESSAGES = [message(match(1)), message(match(2)), message(match(3))]


class Hanging(Receiver):
    def __init__(self) -> None:
        self.began, self.cancelled, self.closed = Flag(), Flag(), Flag()

    async def send(self, message: Message) -> DeliveryResult:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        raise AssertionError

    async def close(self) -> None:
        self.closed.set()


class Lines(Sink):
    """A sink of files that asks first for what follows its position, and may wait or fail."""

    def __init__(self, *, asks: bool = False, fail: Exception | None = None, go: Flag | None = None) -> None:
        self.seen, self.written = list[int](), list[int]()
        self._asks, self._fail, self._go = asks, fail, go

    def prepare(self, pending: Callable[[], Iterable[Output]]) -> bool:
        if self._asks:
            self.seen = [one.seq for one in pending()]
        return self._asks

    def write(self, outputs: Iterable[Output]) -> int:
        if self._go is not None:
            self._go.wait()
        if self._fail is not None:
            raise self._fail
        self.written += [one.seq for one in outputs]
        return len(self.written)

    def position(self) -> Position:
        return Position(max(self.written, default=-1), {"here": 1})


@pytest.fixture
def deliverer() -> Iterator[Deliverer]:
    made = Deliverer()
    yield made
    made.close(5)


def until_ended(
    deliverer: Deliverer, *jobs: int, read: Callable[[int, int], list[Output]] = lambda job, after: []
) -> list[JobEvent]:
    found: list[JobEvent] = []
    while not set(jobs) <= {event.job for event in found if event.kind == "ended"}:
        deliverer.wait(1)
        found += deliverer.events(read)
    return found


def kinds(events: list[JobEvent], job: int) -> list[tuple[str, int]]:
    return [(event.kind, event.last) for event in events if event.job == job]


def test_a_receiver_that_hangs_holds_up_no_other_and_can_be_ended(deliverer: Deliverer):
    hanging, other = Hanging(), Endpoint()
    deliverer.send(1, hanging, MESSAGES)
    hanging.began.wait()
    deliverer.send(2, other, MESSAGES)
    assert kinds(until_ended(deliverer, 2), 1) == [] and [message.first for message, _ in other.got] == [1, 2, 3]
    deliverer.cancel(1)
    assert kinds(until_ended(deliverer, 1), 1) == [("ended", -1)]


def test_a_job_that_is_ended_before_it_begins_ends(deliverer: Deliverer):
    for job in range(1, 50):
        deliverer.send(job, Hanging(), MESSAGES)
        deliverer.cancel(job)
    until_ended(deliverer, *range(1, 50))


def test_a_receiver_that_raises_or_takes_too_long_is_down_like_a_sink_whose_disk_is_full():
    deliverer = Deliverer(attempt_seconds=0.05)

    def broken(message: Message) -> DeliveryResult:
        raise ValueError("a\nbug")

    deliverer.send(1, Endpoint(broken), MESSAGES)
    deliverer.send(2, Hanging(), MESSAGES)
    deliverer.write(3, Lines(fail=OSError(28, "No space left on device")), [match(1)])
    deliverer.write(4, Lines(), [match(1), match(2)])
    events = until_ended(deliverer, 1, 2, 3, 4)
    verdicts = {event.job: event.verdict for event in events if event.kind == "failed"}
    reasons = {1: "a bug", 2: "no answer in 0.05 s", 3: "[Errno 28] No space left on device"}
    assert verdicts == {job: DeliveryResult("down", reason) for job, reason in reasons.items()}
    assert kinds(events, 4) == [("written", 2), ("ended", -1)]
    deliverer.close(5)


def test_a_sink_of_files_gets_what_it_asks_for_before_it_writes(deliverer: Deliverer):
    def read(job: int, after: int) -> list[Output]:
        return [output(seq) for seq in range(after + 1, min(after + 3, 6))]

    sink = Lines(asks=True)
    deliverer.write(1, sink, [match(6)])
    events = until_ended(deliverer, 1, read=read)
    assert kinds(events, 1) == [("prepared", -1), ("ended", -1)] and sink.seen == [0, 1, 2, 3, 4, 5]
    assert not sink.written and events[0].position == Position(-1, {"here": 1})


def test_a_disk_that_hangs_holds_up_no_other_and_not_the_end():
    deliverer, go, other, push = Deliverer(), Flag(), Lines(), Endpoint()
    deliverer.write(1, Lines(go=go), [match(1)])
    deliverer.write(2, other, [match(1)])
    deliverer.send(3, push, MESSAGES)
    until_ended(deliverer, 2, 3)
    deliverer.close(0.01)
    go.set()


def test_at_the_end_jobs_are_ended_and_receivers_closed():
    deliverer, hanging, asking = Deliverer(), Hanging(), Lines(asks=True)
    deliverer.send(1, hanging, MESSAGES)
    hanging.began.wait()
    deliverer.write(2, asking, [match(1)])  # nobody answers it any more
    deliverer.close(5, [hanging])
    assert hanging.cancelled.is_set() and hanging.closed.is_set() and not asking.written
    deliverer.close(5)


# ------------------------------------------------------------ random lives against an oracle

HOUR = 3_600 * SECOND

DEFINITIONS = [
    definition("each"),
    definition("some", queries=["a*"], backlog="1h"),
    definition("group", queries=["b", "c"], wait="45s", most=3),
    definition("digest", wait="6h", most=2, backlog="INF"),
    definition("narrow", wait="10s", backlog_outputs=1_000),
    definition("file", kind="jsonl", path="x.jsonl"),
]


class Life:
    """A random life of a service with sinks. The oracle knows what was committed, and what endpoints have seen."""

    def __init__(self, random: Random, kills: bool) -> None:
        self.random, self.kills, self.is_over, self.killed = random, kills, False, 0
        self.clock, self.added, self.removed = Clock(), dict[str, int](), dict[str, list[range]]()
        self.store, self.marks = FakeStore(self.clock, self._kill), dict[int, int]()
        self.endpoints: dict[str, Endpoint | Disk] = {d.name: Endpoint(self._answer) for d in DEFINITIONS}
        self.endpoints["file"] = Disk(self._is_full)
        self.sinks = self._opened()

    def _kill(self, place: str) -> None:
        if self.kills and not self.is_over and self.random.random() < 0.01:
            raise Killed(place)

    def _is_full(self) -> bool:
        return not self.is_over and self.random.random() < 0.02

    def _answer(self, message: Message) -> DeliveryResult:
        self.marks[id(message)] = self.killed
        if self.is_over or self.random.random() < 0.6:
            return ACKNOWLEDGED
        told = [refused("400"), down("500"), down("429", self.random.randrange(2 * DAY)), DeliveryResult("gone", "410")]
        return self.random.choices(told, [6, 3, 2, 0.3])[0]

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
        for sent, verdict in endpoint.got:
            covered = between(wanted, sent.first, sent.last)
            assert [match.output.seq for match in sent.matches] == covered[: len(sent.matches)]
            assert len(sent.matches) == min(len(covered), given.most if given.wait_us else 1)
            assert len(sent.matches) + sent.more == len(covered)
            assert firsts.setdefault(sent.first, sent) == sent, "an attempt is like those before"
            if verdict.kind == "acknowledged":
                if sent.first in received:
                    assert received[sent.first] < self.marks[id(sent)], "none twice without a kill between"
                else:
                    assert sent.first > newest or self.kills, "in order"
                    newest = max(newest, sent.first)
                received[sent.first] = self.marks[id(sent)]
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
