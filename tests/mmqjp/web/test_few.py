"""Slow requests hold up no other pages: there are few at a time, and one more is told to come again."""

from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from threading import Event

import pytest

from mmqjp.service.sql_question import BACKTEST, WHY_NOT
from mmqjp.web.readers import MOST_SLOW
from tests.mmqjp.web.conftest import NOW
from tests.support.web import browser, site_of

THREADS = 40
"""Starlette answers so many requests at the same time. Those for one page are answered together."""

SLOW = {
    "why-not": lambda client, n: client.get(f"/q/book_blog/why-not?document=d{n}"),
    "a back-test": lambda client, n: client.post("/api/v1/backtest", json={"text": f"FROM S//a{n}->x"}),
    "SQL": lambda client, n: client.get(f"/sql?sql=SELECT+{n}"),
}


@pytest.mark.parametrize("kind", SLOW)
def test_others_are_served_while_slow_requests_wait(engine, kind, monkeypatch):
    site = site_of(engine, now=lambda: NOW)
    begun, goes_on = Queue[None](), Event()
    ask, select = site.ask, site.reader.select

    def waits():
        begun.put(None)
        assert goes_on.wait(60)

    def slow_ask(do, arguments):
        if do in (WHY_NOT, BACKTEST):
            waits()
        return {} if do == BACKTEST else ask(do, arguments)

    def slow_select(sql, limit, seconds, *, asked=False, own=False):
        if asked:
            waits()
        return select(sql, limit, seconds, asked=asked, own=own)

    object.__setattr__(site, "ask", slow_ask)
    monkeypatch.setattr(site.reader, "select", slow_select)
    with browser(site) as client, ThreadPoolExecutor(2 * THREADS) as pool:
        waiting = [pool.submit(SLOW[kind], client, n) for n in range(MOST_SLOW)]
        for _ in waiting:
            begun.get(timeout=60)
        more = [pool.submit(SLOW[kind], client, n) for n in range(100, 100 + THREADS)]
        assert {one.result(60).status_code for one in more} == {503}
        assert client.get("/").status_code == 200
        goes_on.set()
        assert 503 not in {one.result(60).status_code for one in waiting}
        assert SLOW[kind](client, 200).status_code != 503
