"""The kind `webhook`: what an endpoint gets, held against another implementation, and what comes of its answers. The
endpoints are real servers on loopback that misbehave."""

import asyncio
import base64
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from feeds.fetch.http import open_client
from mmqjp.sinks.definition import WebhookOptions
from mmqjp.sinks.secrets import FileSecret, SecretName, Secrets, signing_key
from mmqjp.sinks.sink import DeliveryResult, Message
from mmqjp.sinks.webhook import WebhookReceiver
from tests.support.messages import match, message

MESSAGE = message(match(1), match(2))

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Server:
    """An endpoint on loopback. It keeps the requests that it got, each as headers and body."""

    def __init__(self, answer: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self._answer = answer
        self.port = 0

    def url(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}/hook"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.got.append((head[0], headers, body))
            if callable(self._answer):
                await self._answer(writer)
            else:
                writer.write(self._answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(answer: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[Server]:
    server = Server(answer)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


def reply(status: int, body: str = "", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", body]).encode()


def sent(
    answer: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]],
    given: Message = MESSAGE,
    *,
    secrets: Secrets | None = None,
    times: int = 1,
    **options: object,
) -> tuple[DeliveryResult, Server]:
    """What comes of a message, and the server that got it."""

    async def run() -> tuple[DeliveryResult, Server]:
        async with serving(answer) as server:
            chosen = {"url": server.url(), "allow_private": True} | options
            receiver = WebhookReceiver(WebhookOptions(**chosen), secrets or Secrets(), silence=0.3, attempt=0.6)  # type: ignore[arg-type]  # they are a test's
            try:
                for _ in range(times):
                    verdict = await receiver.send(given)
                return verdict, server
            finally:
                await receiver.close()

    return asyncio.run(run())


def key_file(path: Path, value: str) -> FileSecret:
    path.write_text(value)
    path.chmod(0o600)
    return FileSecret(path)


def new_key() -> str:
    return "whsec_" + base64.b64encode(os.urandom(32)).decode()


def test_every_secret_signs_as_standard_webhooks_has_it(tmp_path: Path):
    old, new = new_key(), new_key()
    secrets = Secrets({"old": key_file(tmp_path / "old", old), "new": key_file(tmp_path / "new", new)})
    verdict, server = sent(reply(200), secrets=secrets, secret=(SecretName("old"), SecretName("new")))
    assert verdict.kind == "acknowledged"
    ((line, headers, body),) = server.got
    assert line == "POST /hook HTTP/1.1" and headers["content-type"] == "application/json"
    for key in (old, new):
        assert Webhook(key).verify(body, headers) == json.loads(body)
    with pytest.raises(WebhookVerificationError):
        Webhook(new_key()).verify(body, headers)
    assert headers["webhook-id"] == MESSAGE.id and json.loads(body)["type"] == "mmqjp.outputs"


def test_every_attempt_has_the_same_id_and_body():
    _, server = sent(reply(500), times=3)
    assert len(server.got) == 3 and len({(headers["webhook-id"], body) for _, headers, body in server.got}) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [(200, "acknowledged"), (204, "acknowledged"), (299, "acknowledged"), (410, "gone")]
    + [(status, "down") for status in (301, 302, 307, 308, 408, 425, 429, 500, 502, 503, 504)]
    + [(status, "refused") for status in (400, 401, 403, 404, 405, 413, 422)],
)
def test_each_answer_has_its_consequence(status: int, kind: str):
    verdict, _ = sent(reply(status, "not today\r\n"))
    assert verdict.kind == kind
    assert kind == "acknowledged" or verdict.reason == f"HTTP {status}: not today"


@pytest.mark.parametrize(
    ("header", "seconds"), [("17", 17), ("0", 0), ("soon", None), ("Thu, 01 Jan 1970 00:00:00 GMT", 0), ("-5", None)]
)
def test_a_receiver_says_when_to_come_again(header: str, seconds: int | None):
    verdict, _ = sent(reply(503, Retry_After=header))
    assert verdict.retry_after == (None if seconds is None else seconds * 1_000_000)


def test_redirects_are_not_followed():
    async def run() -> tuple[DeliveryResult, Server]:
        async with serving(reply(200)) as other:
            answer = reply(302, Location=other.url())
            verdict = await asyncio.to_thread(lambda: sent(answer)[0])
            return verdict, other

    verdict, other = asyncio.run(run())
    assert verdict.kind == "down" and not other.got


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def drip(writer: asyncio.StreamWriter, start: bytes) -> None:
    writer.write(start)
    for _ in range(1_000):
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def flood(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 No\r\n\r\n")
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


async def nonsense(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\x01 what is this\r\n\r\n")


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (hang, "down", "no answer in 0.3 s"),
        (partial(drip, start=b"HTTP/1.1 200 "), "down", "no whole answer in 0.6 s"),
        (partial(drip, start=b"HTTP/1.1 400 No\r\n\r\n"), "down", "no whole answer in 0.6 s"),
        (partial(drip, start=b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"), "acknowledged", ""),
        (flood, "refused", "HTTP 400: " + "x" * 189 + "…"),
        (nonsense, "down", "no answer in HTTP"),
        (hang_up, "down", "no "),
        (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 2_000_000 + b"\r\n\r\n", "down", "no answer in HTTP"),
        (reply(400, "<\x1b[31m\x00>\n\u202e"), "refused", "HTTP 400: <\ufffd[31m\ufffd>"),
    ],
)
def test_a_hostile_endpoint_is_no_more_than_down(answer: bytes, kind: str, reason: str):
    verdict, _ = sent(answer)
    assert verdict.kind == kind and verdict.reason.startswith(reason) and len(verdict.reason) <= 200


def test_packed_answers_are_not_unpacked():
    verdict, _ = sent(reply(400, "not gzip", Content_Encoding="gzip"))
    assert (verdict.kind, verdict.reason) == ("refused", "HTTP 400")


def test_nobody_listening_is_down():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    verdict, _ = sent(reply(200), url=f"http://127.0.0.1:{port}/")
    assert verdict.kind == "down" and verdict.reason.startswith("no connection")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "name.example"])
def test_private_addresses_are_reached_only_if_the_file_allows_it(host: str):
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async def run() -> tuple[DeliveryResult, Server]:
        async with serving(reply(200)) as server:
            client = partial(open_client, resolve=resolve)
            receiver = WebhookReceiver(WebhookOptions(server.url(host)), Secrets(), client)
            try:
                return await receiver.send(MESSAGE), server
            finally:
                await receiver.close()

    verdict, server = asyncio.run(run())
    assert verdict.kind == "down" and "not a public address" in verdict.reason and not server.got


def test_a_secret_that_an_endpoint_repeats_is_not_told(tmp_path: Path):
    key = new_key()
    secrets = Secrets({"hook": key_file(tmp_path / "hook", key)})
    verdict, _ = sent(reply(401, f"bad signature for {key}"), secrets=secrets, secret=(SecretName("hook"),))
    assert verdict.kind == "refused" and key.removeprefix("whsec_") not in verdict.reason


def test_a_secret_address_is_read_when_it_is_used(tmp_path: Path):
    secrets = Secrets({"where": FileSecret(tmp_path / "where")})
    verdict, _ = sent(reply(200), secrets=secrets, url=SecretName("where"))
    assert verdict.kind == "down" and "where" in verdict.reason


def test_what_is_no_key_is_told_by_its_name(tmp_path: Path):
    secrets = Secrets({"hook": key_file(tmp_path / "hook", "not base64!")})
    verdict, server = sent(reply(200), secrets=secrets, secret=(SecretName("hook"),))
    assert verdict.kind == "down" and "hook" in verdict.reason and "not base64" not in verdict.reason and not server.got
    assert signing_key("whsec_") is None and signing_key("whsec_QUJD") == signing_key("QUJD") == b"ABC"


def test_plain_text_for_receivers_like_ntfy():
    _, server = sent(reply(200), message(match(1, "One"), match(2, "Two\nlines"), more=3), format="text")
    ((_, headers, body),) = server.got
    assert headers["content-type"] == "text/plain; charset=utf-8"
    lines = body.decode().splitlines()
    assert lines[0] == "q1:" and lines[1] == "One (A feed) https://a.example/1" and lines[-1] == "and 3 more"


def test_a_test_message_says_so():
    _, server = sent(reply(200), message())
    assert json.loads(server.got[0][2])["type"] == "mmqjp.test"
    _, server = sent(reply(200), message(), format="text")
    assert server.got[0][2] == b"This is a test of the sink alerts."
