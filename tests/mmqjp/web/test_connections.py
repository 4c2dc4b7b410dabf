"""Held connections, slow ones and malformed requests shut nobody out who has the token."""

import logging
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from threading import Event
from typing import cast

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from mmqjp.service.log import REPEATED_SECONDS, NullLog, records_in
from mmqjp.web import serving
from mmqjp.web.guard import Guard
from mmqjp.web.serving import (
    MOST_CONNECTIONS,
    MOST_OF_CLIENT,
    MOST_STRANGERS,
    Connections,
    PatientProtocol,
    app_served,
    listen,
)
from mmqjp.web.site import Access, Hosts
from tests.generate.seeds import at_length, seeds
from tests.support.service import Events

TOKEN = "t" * 40


@dataclass(eq=False)
class Fake:
    host: str
    number: int
    is_waiting: bool = True
    has_asked: bool = False
    is_known: bool = False
    is_open: bool = True
    of: "list[Fake]" = field(default_factory=list, repr=False)

    def drop(self) -> None:
        self.is_open = False
        self.of.remove(self)


@pytest.mark.parametrize("seed", seeds(20, 500))
def test_strangers_are_few_and_the_idle_and_old_give_way(seed: int) -> None:
    rng = Random(seed)
    found, there = Connections(most=30, strangers=10, of_client=6), list[Fake]()
    for number in range(400):
        what = rng.choice(("add", "add", "add", "know", "ask", "answer", "end"))
        one = rng.choice(there) if there else None
        if what == "add":
            before = list(there)
            new = Fake(rng.choice(("a", "a", "a", "b", "c", "d")), number, of=there)
            found.add(cast(PatientProtocol, new))
            there.append(new)
            gone = [other for other in before if not other.is_open]
            assert len(gone) <= 1 and new.is_open
            for other in gone:
                rivals = [rival for rival in before if not rival.is_known and rival is not other]
                if sum(rival.host == new.host for rival in rivals) >= 5 and not other.is_known:
                    rivals = [rival for rival in rivals if rival.host == new.host] or rivals
                if not other.is_waiting:  # nobody waits whom this client may displace
                    assert not any(rival.is_waiting for rival in rivals if rival.host == other.host)
        elif one is not None:
            if what == "know" and not one.is_known:
                found.know(cast(PatientProtocol, one))
                one.is_known = one.has_asked = True
            elif what == "ask":
                one.has_asked, one.is_waiting = True, False
            elif what == "answer":
                one.is_waiting = True
            elif what == "end":
                found.remove(cast(PatientProtocol, one))
                there.remove(one)
        strangers = [one for one in there if not one.is_known]
        assert len(strangers) <= 10 and max(Counter(one.host for one in strangers).values(), default=0) <= 6
        assert len(there) <= 30 or not any(one.is_waiting for one in there)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("here\n")(scope, receive, send)


@contextmanager
def page() -> Iterator[int]:
    """The port of a page that needs the token."""
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        guard = Guard(app, Access(TOKEN), Hosts("127.0.0.1", port))
        with app_served(guard, listening, NullLog(), Event()):
            yield port


def ask(port: int) -> int:
    return httpx.get(f"http://127.0.0.1:{port}/", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60).status_code


def opened(port: int, sent: bytes) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=60)
    found.sendall(sent)
    return found


HELD = {
    "silent": b"",
    "slow head": b"GET / HTTP/1.1\r\nHost:",
    "slow body": b"POST /login HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: 9\r\n\r\nt",
    "idle": b"GET /login HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n",
}


@pytest.mark.parametrize("kind", HELD if at_length() else ["slow body", "idle"])
def test_held_connections_shut_out_nobody_who_has_the_token(kind: str) -> None:
    with page() as port, ExitStack() as held:
        known = held.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60))
        known.headers["Authorization"] = f"Bearer {TOKEN}"
        assert known.get("/").status_code == 200
        sent = HELD[kind].replace(b"PORT", b"%d" % port)
        found = [held.enter_context(closing(opened(port, sent))) for _ in range(MOST_CONNECTIONS)]
        assert ask(port) == 200 and known.get("/").status_code == 200
        assert MOST_OF_CLIENT <= MOST_STRANGERS < MOST_CONNECTIONS
        for one in found[: MOST_CONNECTIONS - MOST_OF_CLIENT]:  # the oldest were closed, with or without an answer
            with suppress(ConnectionResetError):
                while one.recv(4_096):
                    pass


def test_who_comes_in_a_crowd_is_heard() -> None:
    """The first of many that the system has queued: its request is read before those behind it displace it."""
    with listen("127.0.0.1", 0) as listening, ExitStack() as held:
        port = listening.getsockname()[1]
        head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        asks = held.enter_context(closing(opened(port, head)))
        for _ in range(2 * MOST_OF_CLIENT):
            held.enter_context(closing(opened(port, b"GET")))
        with app_served(Guard(app, Access(TOKEN), Hosts("127.0.0.1", port)), listening, NullLog(), Event()):
            assert asks.recv(100).startswith(b"HTTP/1.1 200")


def test_strangers_time_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with page() as port, httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as known:
        assert known.get(f"http://127.0.0.1:{port}/").status_code == 200
        monkeypatch.setattr(serving, "STRANGER_SECONDS", 0.0)
        for sent in (b"", b"GET / HTTP/1.1\r\nHost:"):
            with suppress(ConnectionError), closing(opened(port, sent)) as stranger:
                assert stranger.recv(100) == b""
        assert known.get(f"http://127.0.0.1:{port}/").status_code == 200  # on the connection that it has


def test_a_message_is_logged_once_a_minute_with_a_count() -> None:
    now, log = [0.0], Events()
    logger = logging.getLogger("tests.connections")
    with records_in(log, logger.name, clock=lambda: now[0]):
        for number in range(10_000):
            now[0] = number / 100
            logger.warning("Invalid request %s", "a")
            if number % 5_000 == 0:
                logger.warning("another %d", number)
        try:
            raise KeyError("where")
        except KeyError:
            for _ in range(2):
                logger.exception("it failed")
    assert [(fields["text"], fields.get("times")) for _, fields in log] == [
        ("Invalid request a", None),
        ("another 0", None),
        ("Invalid request a", 6_000),
        ("it failed", None),
        ("it failed", None),
        ("Invalid request a", 3_999),
        ("another 5000", 1),
    ]
    assert REPEATED_SECONDS == 60
