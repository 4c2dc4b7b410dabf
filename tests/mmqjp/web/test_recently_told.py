"""What the service answered is kept for a moment, and no longer than until something changes."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from queue import Queue
from threading import Event, Thread, current_thread

import pytest

from mmqjp.web.readers import MAX_CACHED_REPLIES, REPLY_FRESH_SECONDS, REPLY_STALE_SECONDS, RecentlyTold


def test_an_answer_serves_for_a_moment_and_until_a_change():
    now, numbers = [0.0], count(1)
    told = RecentlyTold(lambda do, given: next(numbers), lambda: now[0])
    assert [told.ask("status", {}), told.ask("status", {}), told.ask("sinks", {"name": "a"})] == [1, 1, 2]
    now[0] = REPLY_STALE_SECONDS
    assert told.ask("status", {}) == 3
    told.forget()
    assert told.ask("status", {}) == 4
    for number in range(MAX_CACHED_REPLIES):
        told.ask("sinks", {"name": str(number)})
    assert told.ask("status", {}) == MAX_CACHED_REPLIES + 5, "a bounded number is kept"


def test_after_a_second_an_answer_serves_while_it_is_asked_for_again():
    now, asked, goes_on = [0.0], Queue[Thread | None](), Event()

    def ask(do, given):
        number = asked.qsize()
        if number:
            goes_on.wait(60)
        asked.put(current_thread())
        return number

    told = RecentlyTold(ask, lambda: now[0])
    assert told.ask("status", {}) == 0
    asked.get()
    asked.put(None)
    now[0] = REPLY_FRESH_SECONDS
    assert [told.ask("status", {}), told.ask("status", {})] == [0, 0], "nobody waits"
    goes_on.set()
    asked.get(timeout=60)
    asking = asked.get(timeout=60)
    assert asking is not None
    asking.join(60)
    assert told.ask("status", {}) == 1


def test_an_error_is_not_kept():
    asked = []

    def ask(do, given):
        asked.append(do)
        raise OSError("gone")

    told = RecentlyTold(ask, lambda: 0.0)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            told.ask("status", {})
    assert len(asked) == 2


def test_what_was_asked_before_a_change_is_not_shown_after_it():
    begun, goes_on, asked = Event(), Event(), []

    def ask(do, given):
        asked.append(do)
        if len(asked) == 1:
            begun.set()
            goes_on.wait(60)
        return len(asked)

    told = RecentlyTold(ask, lambda: 0.0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(told.ask, "status", {})
        begun.wait(60)
        told.forget()  # what is under way may be of before
        assert told.ask("status", {}) == 2
        goes_on.set()
        first.result(60)
    assert told.ask("status", {}) == 2 and len(asked) == 2
