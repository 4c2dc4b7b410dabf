"""What a sink does after each answer, how it groups, and how far it may fall behind. The clock is the tests'."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from feeds.documents import Document
from mmqjp.answers.fan_out import OutputChunk
from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.sinks.definition import SinkDefinition, Start, read_sink
from mmqjp.sinks.deliverer import Deliverer, offer
from mmqjp.sinks.kinds import Kinds
from mmqjp.sinks.manager import NotASink, SinkManager
from mmqjp.sinks.positions import Course, SinkExists, SinkState, UnknownSink
from mmqjp.sinks.secrets import Secrets
from mmqjp.sinks.sink import DeliveryResult, Message, Receiver, Sink, Warn, acknowledged, down, gone, refused
from tests.support.fake_sinks import (
    DAY,
    SECOND,
    Clock,
    Disk,
    Endpoint,
    Events,
    FakeJobs,
    FakeStore,
    definition,
    manager,
    position,
)

HOUR = 3_600 * SECOND


def shown(sinks: SinkManager, name: str = "s") -> SinkState:
    return next(state for state in sinks.list() if state.name == name)


def with_sink(
    answer: Callable[[Message], DeliveryResult] = lambda message: acknowledged(), **table: object
) -> tuple[FakeStore, Endpoint, SinkManager]:
    """A store with the sink `s`."""
    store, endpoint = FakeStore(Clock()), Endpoint(answer)
    return store, endpoint, manager(store, {"s": endpoint}, [definition("s", **table)])


def turns(sinks: SinkManager, count: int = 6) -> None:
    for _ in range(count):
        sinks.turn()


def ids(endpoint: Endpoint) -> list[str]:
    return [match.output.id for message, verdict in endpoint.got for match in message.matches]


def test_each_output_is_a_message_and_only_wanted_ones_are_sent():
    store, endpoint = FakeStore(Clock()), Endpoint()
    store.commit(["a"])
    sinks = manager(store, {"s": endpoint}, [definition("s", queries=["a*"])])
    sinks.committed(store.commit(["a", "b", "ab", "b"]))
    turns(sinks)
    assert ids(endpoint) == ["id1", "id3"]
    assert [message.id for message, _ in endpoint.got] == ["msg_id1", "msg_id3"]
    assert shown(sinks).acked == 4 and shown(sinks).behind == 0 and shown(sinks).delivered == 2


def test_a_new_sink_begins_now_or_where_it_says():
    store = FakeStore(Clock())
    store.commit(["a", "a"])
    store.clock.time += SECOND
    store.commit(["a"])
    endpoints = {name: Endpoint() for name in ("now", "start", "seq", "time")}
    later = store.clock.time
    starts = {"now": Start(), "start": Start(seq=0), "seq": Start(seq=1), "time": Start(time=later)}
    sinks = manager(store, dict(endpoints), [replace(definition(n), start=start) for n, start in starts.items()])
    turns(sinks)
    assert {name: ids(endpoint) for name, endpoint in endpoints.items()} == {
        "now": [], "start": ["id0", "id1", "id2"], "seq": ["id1", "id2"], "time": ["id2"],
    }  # fmt: skip


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
    assert position(store, "s")["state"] == "stopped" and position(store, "s")["acked"] == -1


def test_a_stopped_sink_keeps_its_position_over_a_restart_until_it_is_resumed():
    store, endpoint, sinks = with_sink(lambda message: gone("410"))
    sinks.committed(store.commit(["a", "a"]))
    turns(sinks)
    assert shown(sinks).state == "stopped" and len(endpoint.got) == 1
    sinks.close()
    endpoint.answer = lambda message: acknowledged()
    sinks = manager(store, {"s": endpoint}, [definition("s")])
    turns(sinks)
    assert len(endpoint.got) == 1
    sinks.resume("s")
    turns(sinks)
    assert ids(endpoint) == ["id0", "id0", "id1"]


@pytest.mark.parametrize(("asked", "waits"), [(60, 60), (1, 5.25), (3 * 86400, 86400)])
def test_a_receiver_may_ask_for_a_wait_of_up_to_a_day(asked: int, waits: float):
    store, _, sinks = with_sink(lambda message: down("429", asked * SECOND))
    sinks.committed(store.commit(["a"]))
    turns(sinks)
    assert (shown(sinks).next or 0) - store.clock.time == waits * SECOND


def test_a_refused_message_is_tried_five_times_in_two_minutes_and_the_next_one_follows():
    store, endpoint, sinks = with_sink(lambda message: refused("422") if message.first == 0 else acknowledged())
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


def test_a_group_is_what_was_committed_within_the_wait_and_shows_the_first_of_it():
    store, endpoint, sinks = with_sink(wait="30s", most=3)
    for _ in range(8):
        sinks.committed(store.commit(["a", "a"]))
        turns(sinks)
        store.clock.time += 10 * SECOND
    turns(sinks)
    store.clock.time += 60 * SECOND
    turns(sinks)
    assert [(m.first, m.last, len(m.matches), m.more) for m, _ in endpoint.got] == [(0, 7, 3, 5), (8, 15, 3, 5)]
    assert shown(sinks).behind == 0 and shown(sinks).delivered == 16


@pytest.mark.parametrize("is_down", [False, True])
def test_groups_are_the_same_however_outputs_are_cut_into_batches_and_reads(is_down: bool):
    found = []
    for size in (1, 7, 40, 500):
        store, endpoint, sinks = with_sink(wait="1min", most=2)
        if is_down:
            sinks.pause("s")
        for _ in range(10):
            for start in range(0, 500, size):
                sinks.committed(store.commit(["a"] * min(size, 500 - start)))
            turns(sinks)
            store.clock.time += 20 * SECOND
        sinks.resume("s")
        store.clock.time += HOUR
        for _ in range(60):
            turns(sinks)
            store.clock.time += SECOND
        assert shown(sinks).behind == 0
        found.append([(m.first, m.last, m.more, m.id) for m, _ in endpoint.got])
    assert [group[:3] for group in found[0]] == [(0, 1_999, 1_998), (2_000, 3_999, 1_998), (4_000, 4_999, 998)]
    assert found[1:] == found[:1] * 3


def test_the_end_of_a_group_is_noted_before_it_is_sent():
    store = FakeStore(Clock())

    def answer(message: Message) -> DeliveryResult:
        assert position(store, "s")["pending"] == message.last
        return down("500")

    sinks = manager(store, {"s": Endpoint(answer)}, [definition("s", wait="30s")])
    sinks.committed(store.commit(["a", "a"]))
    store.clock.time += 31 * SECOND
    turns(sinks)
    assert shown(sinks).failed == 1


@pytest.mark.parametrize("size", [1, 10, 2_500])
def test_past_its_backlog_the_oldest_outputs_are_given_up_and_told(size: int):
    store, endpoint, sinks = with_sink(backlog_outputs=1_000)
    sinks.pause("s")
    for start in range(0, 2_500, size):
        sinks.committed(store.commit(["a"] * min(size, 2_500 - start)))
    store.clock.time += 61 * SECOND
    turns(sinks, 8)
    sinks.save()
    assert sum(row.count for row in store.gaps) == 1_500
    assert store.gaps[0].first == 0 and store.gaps[-1].last == 1_499
    assert shown(sinks).behind == 1_000 and shown(sinks).given_up == 1_500
    sinks.resume("s")
    turns(sinks, 40)
    assert ids(endpoint) == [f"id{seq}" for seq in range(1_500, 2_500)]


def test_many_outputs_at_once_are_no_reason_to_give_up_any():
    store, endpoint, sinks = with_sink(backlog_outputs=1_000)
    sinks.committed(store.commit(["a"] * 5_000))
    turns(sinks, 100)
    assert len(endpoint.got) == 5_000 and not store.gaps


def test_outputs_that_are_too_old_are_given_up():
    store, endpoint, sinks = with_sink(backlog="1h")
    sinks.pause("s")
    sinks.committed(store.commit(["a", "a"]))
    store.clock.time += 40 * 60 * SECOND
    sinks.committed(store.commit(["a", "a"]))
    assert (sinks.owed() or (0, 0))[0] == 0
    store.clock.time += 40 * 60 * SECOND
    turns(sinks)
    assert [(row.first, row.last, row.count) for row in store.gaps] == [(0, 1, 2)]
    owed = sinks.owed()
    assert owed is not None and owed.t0 == 2
    sinks.resume("s")
    turns(sinks)
    assert ids(endpoint) == ["id2", "id3"] and sinks.owed() is None


def test_what_is_asked_for_again_is_not_too_old():
    store, endpoint, sinks = with_sink(backlog="1h", backlog_outputs=1_000)
    sinks.committed(store.commit(["a"] * 3_000))
    turns(sinks, 60)
    store.clock.time += 30 * DAY
    sinks.replay("s", Start(seq=0))
    turns(sinks, 60)
    assert len(endpoint.got) == 6_000 and not store.gaps


def test_files_are_written_once_a_full_disk_waits_and_others_go_on():
    store, endpoint = FakeStore(Clock()), Endpoint()
    full = [False]
    disk = Disk(lambda: full[0])
    given = [definition("s"), definition("f", kind="jsonl", path="x.jsonl")]
    sinks = manager(store, {"s": endpoint, "f": disk}, given)
    sinks.committed(store.commit(["a", "a"]))
    store.clock.time += 2 * SECOND
    turns(sinks)
    assert disk.lines == ["id0", "id1"]
    full[0] = True
    sinks.committed(store.commit(["a"]))
    turns(sinks)
    assert shown(sinks, "f").state == "waiting" and "No space" in shown(sinks, "f").reason
    assert len(endpoint.got) == 3 and shown(sinks, "f").behind == 1
    full[0] = False
    store.clock.time += 6 * SECOND
    turns(sinks)
    assert disk.lines == ["id0", "id1", "id2"] and shown(sinks, "f").state == "running"


def test_sinks_are_added_changed_and_removed():
    store, endpoint = FakeStore(Clock()), Endpoint()
    sinks = manager(store, {"s": endpoint})
    sinks.add(definition("s", queries=["a"]))
    with pytest.raises(SinkExists):
        sinks.add(definition("s"))
    sinks.committed(store.commit(["a", "b"]))
    turns(sinks)
    sinks.close()
    sinks = manager(store, {"s": endpoint})
    sinks.set(definition("s", queries=["b"]))
    sinks.committed(store.commit(["a", "b"]))
    turns(sinks)
    assert ids(endpoint) == ["id0", "id3"]
    with pytest.raises(NotASink):
        sinks.set(definition("s", kind="jsonl", path="x"))
    sinks.remove("s")
    assert not sinks.list() and not manager(store, {"s": endpoint}).list()
    with pytest.raises(UnknownSink):
        sinks.pause("s")
    sinks.committed(store.commit(["b"]))
    sinks.add(definition("s"))
    sinks.committed(store.commit(["b"]))
    turns(sinks)
    assert ids(endpoint) == ["id0", "id3", "id5"]


def test_a_test_message_stands_outside_of_positions():
    _, _, sinks = with_sink(lambda message: refused("400") if message.is_test else acknowledged())
    sinks.test("s")
    assert sinks.tested("s") is None
    turns(sinks)
    assert sinks.tested("s") == "400" and shown(sinks).failed == 0 and shown(sinks).state == "running"


def test_the_file_is_read_anew():
    store = FakeStore(Clock())
    endpoints: dict[str, Endpoint | Disk] = {"s": Endpoint(), "t": Endpoint()}
    of_file = [replace(definition(name), file="mmqjp.toml") for name in ("s", "t")]
    sinks = manager(store, endpoints, of_file)
    sinks.committed(store.commit(["a"]))
    turns(sinks)
    sinks.reload([of_file[1]])
    sinks.committed(store.commit(["a"]))
    turns(sinks)
    sinks.reload(of_file)
    turns(sinks)
    assert ids(endpoints["s"]) == ids(endpoints["t"]) == ["id0", "id1"]  # type: ignore[arg-type]  # both are endpoints


def test_positions_are_noted_with_the_next_batch_or_after_five_seconds():
    store, _, sinks = with_sink()
    sinks.committed(store.commit(["a"]))
    turns(sinks)
    assert position(store, "s")["acked"] == -1
    notes = sinks.notes()
    outputs = store.commit(["a"], notes.metadata())
    sinks.noted(notes)
    assert position(store, "s")["acked"] == 0
    sinks.committed(outputs)
    store.clock.time += 4 * SECOND
    turns(sinks)
    assert position(store, "s")["acked"] == 0
    store.clock.time += SECOND
    turns(sinks)
    assert position(store, "s")["acked"] == 1


def test_who_refused_a_message_that_others_have_is_told_and_it_is_not_sent_again():
    refusals = iter(["bob refused it", "", ""])
    store, endpoint, sinks = with_sink(
        lambda message: DeliveryResult("acknowledged", next(refusals)), wait="1s", most=2
    )
    for expected in ("bob refused it", ""):
        sinks.committed(store.commit(["a", "a", "a"]))
        for _ in range(3):
            store.clock.time += 2 * SECOND
            turns(sinks)
        state = shown(sinks)
        assert (state.state, state.behind, state.failed, state.reason) == ("running", 0, 0, expected)
    assert [message.first for message, _ in endpoint.got] == [0, 3]
    assert [(row.seq, row.tries, row.reason) for row in store.undelivered] == [
        (0, 1, "bob refused it"), (1, 1, "bob refused it")
    ]  # fmt: skip
    assert [(row.first, row.last, row.count) for row in store.gaps] == [(2, 2, 1)]


# ------------------------------------------------------------ files that are acknowledged later than they are written


class Bundles:
    """Writes outputs into a bundle, which is kept when it is closed: at 10 outputs, or a minute after its first. All
    that no closed bundle has is lost when the sink is opened anew."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.is_full = clock, False
        self.closed: list[int] = []
        self.open: list[int] = []
        self.closes_at: int | None = None

    def receiver(self, definition: SinkDefinition) -> Receiver:
        raise AssertionError

    def file_sink(self, definition: SinkDefinition, position: Position, warn: Warn) -> Sink:
        self.open, self.closes_at = [], None
        return cast(Sink, self)

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


def bundled(store: FakeStore, bundles: Bundles) -> SinkManager:
    given = definition("f", kind="jsonl", path="x", backlog_outputs=1_000)
    session = cast(Session, store)
    return SinkManager(session, [given], bundles, FakeJobs(), Events(), lambda *_: given, now=store.clock)


def with_an_open_bundle() -> tuple[FakeStore, Bundles, SinkManager]:
    store = FakeStore(Clock())
    bundles = Bundles(store.clock)
    sinks = bundled(store, bundles)
    sinks.committed(store.commit(["a"] * 3))
    turns(sinks)
    return store, bundles, sinks


def test_what_is_written_but_could_be_lost_is_owed_until_it_is_closed():
    store, bundles, sinks = with_an_open_bundle()
    state = shown(sinks, "f")
    assert bundles.open == [0, 1, 2] and (state.acked, state.behind) == (-1, 3)
    owed = sinks.owed()
    assert owed is not None and owed.t0 == 0
    store.clock.time += 61 * SECOND
    turns(sinks)
    state = shown(sinks, "f")
    assert bundles.closed == [0, 1, 2] and (state.acked, state.behind) == (2, 0) and sinks.owed() is None


def test_what_was_not_closed_is_written_again_after_a_kill():
    store, bundles, _ = with_an_open_bundle()
    sinks = bundled(store, bundles)
    sinks.committed(store.commit(["a"] * 8))
    turns(sinks, 8)
    assert bundles.closed == [*range(11)]


def test_a_full_disk_under_an_open_bundle_does_not_keep_outputs_from_being_given_up():
    store, bundles, sinks = with_an_open_bundle()
    bundles.is_full = True
    for _ in range(30):
        sinks.committed(store.commit(["a"] * 100))
        turns(sinks)
        store.clock.time += 61 * SECOND
    turns(sinks, 60)
    state = shown(sinks, "f")
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
    for start in range(0, 30, 10):
        with Session("duckdb", state=tmp_path / "state", now=clock) as engine:
            if not engine.registry.subscriptions:
                engine.subscribe("FROM S//a->x PUBLISH every")
            deliverer = Deliverer()
            sinks = SinkManager(engine, [given], Kinds(Secrets()), deliverer, Events(), lambda *_: given, now=clock)
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


# ------------------------------------------------------------ a chunk at a time it comes to the same as one at a time

QUERIES = """FROM S//a->x PUBLISH a1; FROM S//a->x PUBLISH a2; FROM S//b->x PUBLISH b1;
S//a->x[./k->p] FOLLOWED BY {p = q, 100} S//b->y[./k->q] PUBLISH joined"""

PATTERNS = {"all": ["*"], "some": ["a*"], "one": ["joined"], "none": ["zzz"]}


def courses() -> list[Course]:
    given = [definition(name, queries=queries) for name, queries in PATTERNS.items()]
    return [Course(one, Position()) for one in [*given, definition("every")]]


@pytest.mark.parametrize("before", [0, 995, 3_000])
def test_chunks_come_to_the_same_as_single_outputs(before: int):
    given = [Document(f"d{n}", f"<{'ab'[n % 2]}><k>{n % 5}</k></{'ab'[n % 2]}>", time=n * SECOND) for n in range(900)]
    with Session("duckdb") as engine:
        engine.subscribe(QUERIES)
        for start in range(0, before, 500):
            engine.process([Document(f"e{n}", "<a/>", time=0) for n in range(start, start + 500)])
        kept = list(engine.outputs())
        outputs = engine.process(given)
        for chunk in outputs.chunks():
            assert isinstance(chunk, OutputChunk)
            made = list(chunk.outputs())
            counted = Counter(output.query for output in made)
            assert chunk.by_query() == {
                name: (count, min(output.t0 for output in made if output.query == name))
                for name, count in counted.items()
            }
            some = [output for output in made if output.query in ("a1", "joined")]
            assert list(chunk.of_queries({"a1", "joined"}).outputs()) == some
        together, each = courses(), courses()
        for found in (together, each):
            offer(found, kept, 5)
        offer(together, outputs, 10)
        offer(each, list(outputs), 10)
        for one, other in zip(together, each, strict=True):
            shown, expected = one.backlog, other.backlog
            assert (shown.count, shown.beyond, shown.taken, shown.t0, shown.since) == (
                expected.count, expected.beyond, expected.taken, expected.t0, expected.since
            )  # fmt: skip
            assert [group.id for group in shown.groups] == [group.id for group in expected.groups]
        assert together[3].backlog.count == 0 and together[0].backlog.count == len(kept) + len(outputs)
