"""The hub: who listens gets each output once, in order, or is told which are left out."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

import pytest

from mmqjp.answers.output import Output
from mmqjp.present.item import ShownMatch
from mmqjp.web.site import (
    MOST_BEHIND,
    MOST_LISTENERS,
    MOST_QUEUED,
    PAGE,
    Hub,
    OutputGap,
    ServerSentEvents,
    TooManyListeners,
)

P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Runs a test in an event loop of its own."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Numbers:
    """A store with outputs of these numbers. `asked` has what was read."""

    def __init__(self, count=0, oldest=0):
        self.count, self.oldest, self.asked = count, oldest, []
        self.fails = False

    def version(self):
        return self.count

    def span(self):
        if self.fails:
            raise OSError("the disk is gone")
        return (self.oldest, self.count - 1) if self.count > self.oldest else (0, -1)

    def after(self, seq, until):
        self.asked.append((seq, until))
        return [ShownMatch(Output("q", 0, 0, (), (), {}, "", str(n), n), ()) for n in range(seq + 1, until + 1)]


async def take(events, count):
    found = []
    async with asyncio.timeout(20):
        async for event in events:
            if event is not None:
                found.append(event if isinstance(event, OutputGap) else event.output.seq)
            if len(found) == count:
                break
    return found


async def begun(made, *streams):
    """The tasks of listeners that have begun to listen: their first events."""
    tasks = [asyncio.ensure_future(anext(stream)) for stream in streams]
    async with asyncio.timeout(20):
        while made.begun < len(streams):
            await asyncio.sleep(0)
    return tasks


@in_loop
async def test_listeners_get_what_comes_from_now_on():
    store = Numbers(5)
    made = Hub(store, look=0.001)
    streams = [made.listen(None, 20.0) for _ in range(2)]
    firsts = await begun(made, *streams)
    store.count = 8
    for stream, first in zip(streams, firsts, strict=True):
        assert [(await first).output.seq, *await take(stream, 2)] == [5, 6, 7]
    assert store.asked == [(4, 7)]  # once for all
    for stream in streams:
        await stream.aclose()
    assert made.listeners == 0


@in_loop
async def test_who_comes_back_gets_what_it_missed_and_then_what_comes():
    store = Numbers(300)
    stream = Hub(store, look=0.001).listen(9, 20.0)
    assert await take(stream, 290) == list(range(10, 300))
    store.count = 303
    stream = Hub(store, look=0.001).listen(297, 20.0)
    assert await take(stream, 5) == [298, 299, 300, 301, 302]


@pytest.mark.parametrize(
    ("oldest", "seen", "expected"),
    [
        (0, 10, OutputGap(11, 2999)),  # too far behind: it goes on with what comes
        (2500, 2400, OutputGap(2401, 2499)),  # what it missed is not kept any more
        (0, 3000 - MOST_BEHIND - 1, 3000 - MOST_BEHIND),
        (0, 5000, None),  # another store
    ],
)
@in_loop
async def test_what_cannot_be_told_is_a_gap(oldest, seen, expected):
    store = Numbers(3000, oldest)
    made = Hub(store, look=0.001)
    stream = made.listen(seen, 20.0)
    if expected is None:
        (first,) = await begun(made, stream)
        store.count += 1
        assert (await first).output.seq == 3000
    else:
        assert await take(stream, 1) == [expected]
    await stream.aclose()


@in_loop
async def test_a_flood_is_told_in_part_and_costs_little():
    store = Numbers(1)
    made = Hub(store, look=0.001)
    stream = made.listen(None, 20.0)
    (first,) = await begun(made, stream)
    store.count = 100_001
    assert await first == OutputGap(1, 100_000 - PAGE)
    assert await take(stream, PAGE) == list(range(100_001 - PAGE, 100_001))
    assert sum(until - after for after, until in store.asked) == PAGE
    await stream.aclose()


@in_loop
async def test_a_slow_listener_is_closed_and_the_others_go_on():
    store = Numbers(1)
    made = Hub(store, look=0.001)
    slow, quick = made.listen(None, 20.0), made.listen(None, 20.0)
    first, other = await begun(made, slow, quick)
    told = 1
    for count in (2, *range(2 + PAGE, 3 * MOST_QUEUED, PAGE)):  # no more come before quick has those that came
        store.count = count
        found = [(await other).output.seq] if told == 1 else await take(quick, count - told)
        assert found == list(range(told, count))
        told = count
    await first
    assert await take(slow, 10**6) == list(range(2, MOST_QUEUED + 2))  # it ends, and comes back with its last one
    await quick.aclose()


@in_loop
async def test_there_are_so_many_listeners_and_no_more():
    made = Hub(Numbers(), look=0.001)
    streams = [made.listen(None, 20.0) for _ in range(MOST_LISTENERS)]
    tasks = await begun(made, *streams)
    with pytest.raises(TooManyListeners):
        await anext(made.listen(None, 20.0))
    made.close()
    await asyncio.gather(*tasks, return_exceptions=True)


@in_loop
async def test_closing_ends_all_at_once():
    made = Hub(Numbers(3), look=0.001)
    (first,) = await begun(made, made.listen(None, 20.0))
    await asyncio.to_thread(made.close)
    with pytest.raises(StopAsyncIteration):
        await first
    assert await take(made.listen(0, 20.0), 10) == []


@in_loop
async def test_a_store_that_cannot_be_read_ends_the_listeners():
    store = Numbers(3)
    made = Hub(store, look=0.001)
    (first,) = await begun(made, made.listen(None, 20.0))
    store.fails, store.count = True, 4
    with pytest.raises(StopAsyncIteration):
        await first
    store.fails = False
    assert await take(made.listen(2, 20.0), 1) == [3]


@in_loop
async def test_silence_is_told():
    stream = Hub(Numbers(3), look=0.001).listen(None, 0.001)
    assert [await anext(stream) for _ in range(3)] == [None] * 3
    await stream.aclose()


class Client:
    """The server's side of a response; notes when the messages end."""

    def __init__(self, *, takes: bool) -> None:
        self.takes, self.sent, self.ended = takes, asyncio.Event(), False

    async def messages(self):
        try:
            yield b"data: x\n\n"
            await asyncio.Event().wait()
        finally:
            self.ended = True

    async def send(self, message):
        if b"data" in message.get("body", b""):
            self.sent.set()
            if not self.takes:
                await asyncio.Event().wait()

    async def receive(self):
        await self.sent.wait()
        if not self.takes:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}


@pytest.mark.parametrize("takes", [True, False])
@in_loop
async def test_a_client_that_goes_or_takes_nothing_is_left(monkeypatch, takes):
    monkeypatch.setattr("mmqjp.web.site.SEND_SECONDS", 60 if takes else 0.01)
    client = Client(takes=takes)
    async with asyncio.timeout(20):
        await ServerSentEvents(client.messages())({"type": "http"}, client.receive, client.send)
    assert client.ended
