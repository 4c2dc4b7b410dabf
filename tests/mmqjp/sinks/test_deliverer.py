"""The deliverer: jobs in real threads. One that hangs, fails or raises holds up no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from threading import Event as Flag

import pytest

from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.sinks.deliverer import Deliverer
from mmqjp.sinks.sink import DeliveryResult, JobEvent, Message, Pending, acknowledged, refused
from tests.support.messages import match, message, output

MESSAGES = [message(match(1)), message(match(2)), message(match(3))]


class Answering:
    """A receiver that answers as told."""

    def __init__(self, answer: Callable[[Message], DeliveryResult] = lambda message: acknowledged()) -> None:
        self.got: list[int] = []
        self.answer, self.closed = answer, Flag()

    async def send(self, message: Message) -> DeliveryResult:
        self.got.append(message.first)
        return self.answer(message)

    async def close(self) -> None:
        self.closed.set()


class Hanging(Answering):
    """A receiver that never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.cancelled = Flag(), Flag()

    async def send(self, message: Message) -> DeliveryResult:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        raise AssertionError


class Lines:
    """A sink of files that asks first for what follows its position, and may wait or fail."""

    def __init__(self, *, asks: bool = False, fail: Exception | None = None, go: Flag | None = None) -> None:
        self.seen: list[int] = []
        self.written: list[int] = []
        self._asks, self._fail, self._go = asks, fail, go

    def prepare(self, pending: Pending) -> bool:
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

    def close(self) -> None:
        pass


@pytest.fixture
def deliverer() -> Iterator[Deliverer]:
    made = Deliverer()
    yield made
    made.close(5)


Read = Callable[[int, int], list[Output]]


def until_ended(deliverer: Deliverer, *jobs: int, read: Read | None = None) -> list[JobEvent]:
    """The events until some jobs have ended."""
    found: list[JobEvent] = []
    while not set(jobs) <= {event.job for event in found if event.kind == "ended"}:
        deliverer.wait(1)
        found += deliverer.events(read or (lambda job, after: []))
    return found


def kinds(events: list[JobEvent], job: int) -> list[tuple[str, int]]:
    return [(event.kind, event.last) for event in events if event.job == job]


def test_messages_are_sent_in_order_until_one_is_not_acknowledged(deliverer: Deliverer):
    receiver = Answering(lambda message: refused("no") if message.first == 2 else acknowledged())
    deliverer.send(1, receiver, MESSAGES)
    events = until_ended(deliverer, 1)
    assert kinds(events, 1) == [("acknowledged", 1), ("failed", -1), ("ended", -1)] and receiver.got == [1, 2]


def test_a_receiver_that_hangs_holds_up_no_other_and_can_be_ended(deliverer: Deliverer):
    hanging, other = Hanging(), Answering()
    deliverer.send(1, hanging, MESSAGES)
    hanging.began.wait()
    deliverer.send(2, other, MESSAGES)
    assert kinds(until_ended(deliverer, 2), 1) == [] and other.got == [1, 2, 3]
    deliverer.cancel(1)
    assert kinds(until_ended(deliverer, 1), 1) == [("ended", -1)]


def test_a_job_that_is_ended_before_it_begins_ends(deliverer: Deliverer):
    for job in range(1, 50):
        deliverer.send(job, Hanging(), MESSAGES)
        deliverer.cancel(job)
    until_ended(deliverer, *range(1, 50))


def test_a_receiver_that_raises_or_takes_too_long_is_down():
    deliverer = Deliverer(attempt_seconds=0.05)

    def broken(message: Message) -> DeliveryResult:
        raise ValueError("a\nbug")

    deliverer.send(1, Answering(broken), MESSAGES)
    deliverer.send(2, Hanging(), MESSAGES)
    events = until_ended(deliverer, 1, 2)
    verdicts = {event.job: event.verdict for event in events if event.kind == "failed"}
    assert verdicts == {1: DeliveryResult("down", "a bug"), 2: DeliveryResult("down", "no answer in 0.05 s")}
    deliverer.close(5)


def test_a_sink_of_files_gets_what_it_asks_for_before_it_writes(deliverer: Deliverer):
    def read(job: int, after: int) -> list[Output]:
        return [output(seq) for seq in range(after + 1, min(after + 3, 6))]

    sink = Lines(asks=True)
    deliverer.write(1, sink, [match(6)])
    events = until_ended(deliverer, 1, read=read)
    assert kinds(events, 1) == [("prepared", -1), ("ended", -1)] and sink.seen == [0, 1, 2, 3, 4, 5]
    assert not sink.written and events[0].position == Position(-1, {"here": 1})


def test_a_full_disk_is_a_failure_of_its_sink_alone(deliverer: Deliverer):
    full, other = Lines(fail=OSError(28, "No space left on device")), Lines()
    deliverer.write(1, full, [match(1)])
    deliverer.write(2, other, [match(1), match(2)])
    events = until_ended(deliverer, 1, 2)
    (failed,) = [event for event in events if event.kind == "failed"]
    assert failed.verdict is not None and "No space" in failed.verdict.reason
    assert kinds(events, 2) == [("written", 2), ("ended", -1)]


def test_a_disk_that_hangs_holds_up_no_other_and_not_the_end():
    deliverer, go, other, push = Deliverer(), Flag(), Lines(), Answering()
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
