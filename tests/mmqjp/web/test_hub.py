"""The hub: who listens gets each output once, in order, or is told which are left out."""

import asyncio

import pytest

from mmqjp.answers.output import Output
from mmqjp.present.item import ShownMatch
from mmqjp.web import site
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


def test_listeners_get_what_comes_from_now_on():
    async def run():
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

    asyncio.run(run())


def test_who_comes_back_gets_what_it_missed_and_then_what_comes():
    async def run():
        store = Numbers(300)
        stream = Hub(store, look=0.001).listen(9, 20.0)
        assert await take(stream, 290) == list(range(10, 300))
        store.count = 303
        stream = Hub(store, look=0.001).listen(297, 20.0)
        assert await take(stream, 5) == [298, 299, 300, 301, 302]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("oldest", "seen", "expected"),
    [
        (0, 10, OutputGap(11, 2999)),  # too far behind: it goes on with what comes
        (2500, 2400, OutputGap(2401, 2499)),  # what it missed is not kept any more
        (0, 3000 - MOST_BEHIND - 1, 3000 - MOST_BEHIND),
        (0, 5000, None),  # another store
    ],
)
def test_what_cannot_be_told_is_a_gap(oldest, seen, expected):
    async def run():
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

    asyncio.run(run())


def test_a_flood_is_told_in_part_and_costs_little():
    async def run():
        store = Numbers(1)
        made = Hub(store, look=0.001)
        stream = made.listen(None, 20.0)
        (first,) = await begun(made, stream)
        store.count = 100_001
        assert await first == OutputGap(1, 100_000 - PAGE)
        assert await take(stream, PAGE) == list(range(100_001 - PAGE, 100_001))
        assert sum(until - after for after, until in store.asked) == PAGE
        await stream.aclose()

    asyncio.run(run())


def test_a_slow_listener_is_closed_and_the_others_go_on():
    async def run():
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

    asyncio.run(run())


def test_there_are_so_many_listeners_and_no_more():
    async def run():
        made = Hub(Numbers(), look=0.001)
        streams = [made.listen(None, 20.0) for _ in range(MOST_LISTENERS)]
        tasks = await begun(made, *streams)
        with pytest.raises(TooManyListeners):
            await anext(made.listen(None, 20.0))
        made.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


def test_closing_ends_all_at_once():
    async def run():
        made = Hub(Numbers(3), look=0.001)
        (first,) = await begun(made, made.listen(None, 20.0))
        await asyncio.to_thread(made.close)
        with pytest.raises(StopAsyncIteration):
            await first
        assert await take(made.listen(0, 20.0), 10) == []

    asyncio.run(run())


def test_a_store_that_cannot_be_read_ends_the_listeners():
    async def run():
        store = Numbers(3)
        made = Hub(store, look=0.001)
        (first,) = await begun(made, made.listen(None, 20.0))
        store.fails, store.count = True, 4
        with pytest.raises(StopAsyncIteration):
            await first
        store.fails = False
        assert await take(made.listen(2, 20.0), 1) == [3]

    asyncio.run(run())


def test_silence_is_told():
    async def run():
        stream = Hub(Numbers(3), look=0.001).listen(None, 0.001)
        assert [await anext(stream) for _ in range(3)] == [None] * 3
        await stream.aclose()

    asyncio.run(run())


def test_a_client_that_takes_nothing_is_left(monkeypatch):
    monkeypatch.setattr(site, "SEND_SECONDS", 0.01)
    ended = []

    async def messages():
        try:
            yield b"data: x\n\n"
        finally:
            ended.append(True)

    async def send(message):
        if b"data" in message.get("body", b""):
            await asyncio.Event().wait()

    async def receive():
        await asyncio.Event().wait()

    async def run():
        async with asyncio.timeout(20):
            await ServerSentEvents(messages())({"type": "http"}, receive, send)

    asyncio.run(run())
    assert ended == [True]


def test_a_client_that_goes_ends_its_messages():
    ended = []

    async def messages():
        try:
            yield b"data: x\n\n"
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def run():
        sent = asyncio.Event()

        async def send(message):
            if b"data" in message.get("body", b""):
                sent.set()

        async def receive():
            await sent.wait()
            return {"type": "http.disconnect"}

        async with asyncio.timeout(20):
            await ServerSentEvents(messages())({"type": "http"}, receive, send)

    asyncio.run(run())
    assert ended == [True]
