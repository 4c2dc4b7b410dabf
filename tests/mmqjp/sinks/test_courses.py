"""What a sink does after each answer, how it groups, and how far it may fall behind. The clock is the tests'."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from mmqjp.sinks.definition import Start
from mmqjp.sinks.manager import NotASink, SinkManager
from mmqjp.sinks.positions import SinkExists, SinkState, UnknownSink
from mmqjp.sinks.sink import DeliveryResult, Message, acknowledged, down, gone, refused
from tests.support.fake_sinks import DAY, SECOND, Clock, Disk, Endpoint, FakeStore, definition, manager, position

HOUR = 3_600 * SECOND


def shown(sinks: SinkManager, name: str = "s") -> SinkState:
    return next(state for state in sinks.list() if state.name == name)


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
    store, endpoint = FakeStore(Clock()), Endpoint(lambda message: gone("410"))
    sinks = manager(store, {"s": endpoint}, [definition("s")])
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
    store = FakeStore(Clock())
    sinks = manager(store, {"s": Endpoint(lambda message: down("429", asked * SECOND))}, [definition("s")])
    sinks.committed(store.commit(["a"]))
    turns(sinks)
    assert (shown(sinks).next or 0) - store.clock.time == waits * SECOND


def test_a_refused_message_is_tried_five_times_in_two_minutes_and_the_next_one_follows():
    store = FakeStore(Clock())
    endpoint = Endpoint(lambda message: refused("422") if message.first == 0 else acknowledged())
    sinks = manager(store, {"s": endpoint}, [definition("s")])
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
    store, answers = FakeStore(Clock()), [refused("400"), down("500")] * 500
    endpoint = Endpoint(lambda message: answers.pop(0))
    sinks = manager(store, {"s": endpoint}, [definition("s")])
    sinks.committed(store.commit(["a"] * 500))
    for _ in range(600):
        turns(sinks, 2)
        store.clock.time += SECOND
    assert len(endpoint.got) < 30


def test_a_group_is_what_was_committed_within_the_wait_and_shows_the_first_of_it():
    store, endpoint = FakeStore(Clock()), Endpoint()
    sinks = manager(store, {"s": endpoint}, [definition("s", wait="30s", most=3)])
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
        store, endpoint = FakeStore(Clock()), Endpoint()
        sinks = manager(store, {"s": endpoint}, [definition("s", wait="1min", most=2)])
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
    store, endpoint = FakeStore(Clock()), Endpoint()
    sinks = manager(store, {"s": endpoint}, [definition("s", backlog_outputs=1_000)])
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
    store, endpoint = FakeStore(Clock()), Endpoint()
    sinks = manager(store, {"s": endpoint}, [definition("s", backlog_outputs=1_000)])
    sinks.committed(store.commit(["a"] * 5_000))
    turns(sinks, 100)
    assert len(endpoint.got) == 5_000 and not store.gaps


def test_outputs_that_are_too_old_are_given_up():
    store, endpoint = FakeStore(Clock()), Endpoint()
    sinks = manager(store, {"s": endpoint}, [definition("s", backlog="1h")])
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
    store, endpoint = FakeStore(Clock()), Endpoint()
    sinks = manager(store, {"s": endpoint}, [definition("s", backlog="1h", backlog_outputs=1_000)])
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
    store, endpoint = (
        FakeStore(Clock()),
        Endpoint(lambda message: refused("400") if message.is_test else acknowledged()),
    )
    sinks = manager(store, {"s": endpoint}, [definition("s")])
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
    store, endpoint = FakeStore(Clock()), Endpoint()
    sinks = manager(store, {"s": endpoint}, [definition("s")])
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
    store, refusals = FakeStore(Clock()), iter(["bob refused it", "", ""])
    endpoint = Endpoint(lambda message: DeliveryResult("acknowledged", next(refusals)))
    sinks = manager(store, {"s": endpoint}, [definition("s", wait="1s", most=2)])
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
