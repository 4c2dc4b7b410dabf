"""Webhooks against a real endpoint that misbehaves, and a service that is killed at its worst moments.

The ids that are received are the ids that are committed. Without a kill each comes once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from tests.support.hook_server import (
    Behaviour,
    HookServer,
    answer,
    babble,
    drip,
    hang,
    hook_server,
    kill,
    redirect,
    reset,
    taken_and_kill,
)
from tests.support.pushing import SECRET, Pushing, first_times

SPEED = 2_000
"""Five minutes are over in 0.15 s."""

DOCUMENTS, OUTPUTS = 6, 9
"""So many outputs come of so many documents."""

WEBHOOK = """[sinks.{name}]
kind = "webhook"
url = "{url}"
secret = ["hook"]
allow_private = true
{more}
"""


def webhook(url: str, name: str = "alerts", more: str = "") -> str:
    return WEBHOOK.format(name=name, url=url, more=more)


@pytest.fixture
def pushing(tmp_path: Path) -> Iterator[Pushing]:
    place = Pushing(tmp_path, SPEED)
    yield place
    place.end()
    assert place.files_with(SECRET) == []


def all_taken(server: HookServer, count: int = OUTPUTS) -> None:
    server.wait_until(lambda: len(set(server.taken_ids())) >= count)


def assert_sound(server: HookServer) -> None:
    """Asserts that all requests are signed, and those of one message the same. (`verify` wants the true time.)"""
    bodies: dict[str, bytes] = {}
    for request in server.received:
        signed_at = datetime.fromtimestamp(int(request.headers["webhook-timestamp"]), UTC)
        expected = Webhook(SECRET).sign(request.id, signed_at, request.body.decode())
        assert request.headers["webhook-signature"] == expected
        assert bodies.setdefault(request.id, request.body) == request.body


def waits(pushing: Pushing) -> list[float]:
    """After how many seconds the service said that it tries again."""
    return [event["again_in_seconds"] for event in pushing.events("sink") if "again_in_seconds" in event]


FAULTS: dict[str, Behaviour] = {
    "hangs": hang,
    "drips": drip(),
    "resets": reset,
    "babbles": babble,
    "500": answer(500),
    "503 for an hour": answer(503, Retry_After=3600),
    "408": answer(408),
    "425": answer(425),
    "429 for a minute": answer(429, b"slow down", Retry_After=60),
    "301": redirect("http://127.0.0.1:1/trap", 301),
    "400 once": answer(400, b"what?"),
}
"""What is wrong once."""


def test_each_output_comes_once_after_each_fault(pushing: Pushing):
    with hook_server(*[behaviour for fault in FAULTS.values() for behaviour in (fault, answer(200))]) as server:
        pushing.configure(webhook(server.url))
        pushing.drop(DOCUMENTS)
        pushing.drop(DOCUMENTS)
        pushing.start()
        all_taken(server, 2 * OUTPUTS)
        pushing.stop()
        assert server.taken_ids() == pushing.committed()
        assert_sound(server)
        tries = [request.id for request in server.received[: 2 * len(FAULTS)]]
        assert tries[::2] == tries[1::2]
    for fault, wait in zip(FAULTS, waits(pushing), strict=True):
        least = {"503 for an hour": 3_600, "429 for a minute": 60}.get(fault, 5)
        assert least - 1 <= wait <= max(least, 6), fault


KILLS: list[list[Behaviour]] = [
    [answer(200), kill],  # before an answer
    [answer(200), answer(200), taken_and_kill],  # with the answer
    [answer(500), kill],  # in the second attempt
]


@pytest.mark.soak
@pytest.mark.parametrize("more", ["", 'wait = "30s"\nmost = 3'], ids=["one by one", "in groups"])
def test_nothing_is_lost_when_the_service_is_killed(more: str, pushing: Pushing):
    with hook_server() as server:
        pushing.configure(webhook(server.url, more=more))
        kills = KILLS[:2] if more else KILLS
        for script in kills:
            server.script[:] = script[-1:] if more else script
            pushing.drop(DOCUMENTS)
            server.pid = pushing.start().pid
            pushing.wait_for_kill()
        server.script.clear()
        server.kills_on_connection = True  # before it sends
        server.pid = pushing.start().pid
        pushing.wait_for_kill()
        server.kills_on_connection, server.pid = False, 0
        pushing.start()
        expected = len(kills) * OUTPUTS
        server.wait_until(lambda: sum(counted(server).values()) >= expected)
        pushing.stop()
        if not more:
            assert first_times(server.taken_ids()) == pushing.committed()
        assert_sound(server)
        assert sum(counted(server).values()) == expected


def counted(server: HookServer) -> dict[str, int]:
    """The number of outputs of each message that was taken."""
    bodies = {request.id: json.loads(request.body) for request in server.taken}
    return {id: len(body["outputs"]) + body["more"] for id, body in bodies.items()}
