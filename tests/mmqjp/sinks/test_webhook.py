"""The kind `webhook`: what an endpoint gets, held against another implementation, and what comes of its answers. The
endpoints are real servers on loopback that misbehave."""

import asyncio
import base64
import json
import os
from functools import partial
from pathlib import Path

import pytest
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from feeds.fetch.http import open_client
from mmqjp.sinks.definition import WebhookOptions
from mmqjp.sinks.secrets import FileSecret, SecretName, Secrets, signing_key
from mmqjp.sinks.sink import MOST_BYTES, DeliveryResult, Message, payload
from mmqjp.sinks.webhook import WebhookReceiver
from tests.support.feed_server import closed_port
from tests.support.hook_server import (
    Behaviour,
    HookServer,
    answer,
    babble,
    drip,
    flood,
    hang,
    hook_server,
    redirect,
    reset,
)
from tests.support.messages import match, message

MESSAGE = message(match(1), match(2))


def sent(
    *script: Behaviour, given: Message = MESSAGE, secrets: Secrets | None = None, times: int = 1, **options: object
) -> tuple[DeliveryResult, HookServer]:
    """What comes of a message, and the server that got it."""

    async def run(url: str) -> DeliveryResult:
        chosen = WebhookOptions(**{"url": url, "allow_private": True} | options)  # type: ignore[arg-type]  # they are a test's
        receiver = WebhookReceiver(chosen, secrets or Secrets(), silence=0.3, attempt=0.6)
        try:
            for _ in range(times):
                verdict = await receiver.send(given)
            return verdict
        finally:
            await receiver.close()

    with hook_server(*script) as server:
        return asyncio.run(run(server.url)), server


def key_file(path: Path, value: str) -> FileSecret:
    path.write_text(value)
    path.chmod(0o600)
    return FileSecret(path)


def new_key() -> str:
    return "whsec_" + base64.b64encode(os.urandom(32)).decode()


def test_every_secret_signs_as_standard_webhooks_has_it(tmp_path: Path):
    old, new = new_key(), new_key()
    secrets = Secrets({"old": key_file(tmp_path / "old", old), "new": key_file(tmp_path / "new", new)})
    verdict, server = sent(secrets=secrets, secret=(SecretName("old"), SecretName("new")))
    assert verdict.kind == "acknowledged"
    (request,) = server.received
    assert request.path == "/hook" and request.headers["content-type"] == "application/json"
    for key in (old, new):
        assert Webhook(key).verify(request.body, request.headers) == json.loads(request.body)
    with pytest.raises(WebhookVerificationError):
        Webhook(new_key()).verify(request.body, request.headers)
    assert request.id == MESSAGE.id and request.body == payload(MESSAGE)


def test_every_attempt_has_the_same_id_and_body():
    _, server = sent(*3 * [answer(500)], times=3)
    assert len(server.received) == 3 and len({(request.id, request.body) for request in server.received}) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [(200, "acknowledged"), (204, "acknowledged"), (299, "acknowledged"), (410, "gone")]
    + [(status, "down") for status in (301, 302, 307, 308, 408, 425, 429, 500, 502, 503, 504)]
    + [(status, "refused") for status in (400, 401, 403, 404, 405, 413, 422)],
)
def test_each_answer_has_its_consequence(status: int, kind: str):
    verdict, _ = sent(answer(status, b"not today\r\n"))
    assert verdict.kind == kind
    assert kind == "acknowledged" or verdict.reason == f"HTTP {status}: not today"


@pytest.mark.parametrize(
    ("header", "seconds"), [("17", 17), ("0", 0), ("soon", None), ("Thu, 01 Jan 1970 00:00:00 GMT", 0), ("-5", None)]
)
def test_a_receiver_says_when_to_come_again(header: str, seconds: int | None):
    verdict, _ = sent(answer(503, Retry_After=header))
    assert verdict.retry_after == (None if seconds is None else seconds * 1_000_000)


def test_redirects_are_not_followed():
    with hook_server() as other:
        verdicts = [sent(redirect(other.url, status))[0] for status in (302, 308)]
    assert [verdict.kind for verdict in verdicts] == ["down", "down"] and not other.received


@pytest.mark.parametrize(
    ("behaviour", "kind", "reason"),
    [
        (hang, "down", "no answer in 0.3 s"),
        (drip(b"HTTP/1.1 200 "), "down", "no whole answer in 0.6 s"),
        (drip(b"HTTP/1.1 400 No\r\n\r\n"), "down", "no whole answer in 0.6 s"),
        (drip(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"), "acknowledged", ""),
        (flood(200), "acknowledged", ""),
        (flood(400), "refused", "HTTP 400: " + "x" * 189 + "…"),
        (babble, "down", "no answer in HTTP"),
        (lambda exchange: exchange.write(b"\x00\x01 what is this\r\n\r\n"), "down", "no answer in HTTP"),
        (reset, "down", "no "),
        (answer(200, X="y" * 2_000_000), "down", "no answer in HTTP"),
        (answer(400, "<\x1b[31m\x00>\n\u202e".encode()), "refused", "HTTP 400: <\ufffd[31m\ufffd>"),
        (answer(400, b"not gzip", Content_Encoding="gzip"), "refused", "HTTP 400"),
    ],
)
def test_a_hostile_endpoint_is_no_more_than_down(behaviour: Behaviour, kind: str, reason: str):
    verdict, server = sent(behaviour)
    assert verdict.kind == kind and verdict.reason.startswith(reason) and len(verdict.reason) <= 200
    assert server.flooded < 32 << 20 and "gzip" not in verdict.reason


def test_nobody_listening_is_down():
    verdict, _ = sent(url=f"http://127.0.0.1:{closed_port()}/")
    assert verdict.kind == "down" and verdict.reason.startswith("no connection")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "name.example"])
def test_private_addresses_are_reached_only_if_the_file_allows_it(host: str):
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async def run(url: str) -> DeliveryResult:
        receiver = WebhookReceiver(WebhookOptions(url), Secrets(), partial(open_client, resolve=resolve))
        try:
            return await receiver.send(MESSAGE)
        finally:
            await receiver.close()

    with hook_server() as server:
        verdict = asyncio.run(run(server.url.replace("127.0.0.1", host)))
    assert verdict.kind == "down" and "not a public address" in verdict.reason and not server.received


def test_a_secret_that_an_endpoint_repeats_is_not_told(tmp_path: Path):
    key = new_key()
    secrets = Secrets({"hook": key_file(tmp_path / "hook", key)})
    verdict, _ = sent(answer(401, f"bad signature for {key}".encode()), secrets=secrets, secret=(SecretName("hook"),))
    assert verdict.kind == "refused" and key.removeprefix("whsec_") not in verdict.reason


def test_a_secret_address_is_read_when_it_is_used(tmp_path: Path):
    secrets = Secrets({"where": FileSecret(tmp_path / "where")})
    verdict, _ = sent(secrets=secrets, url=SecretName("where"))
    assert verdict.kind == "down" and "where" in verdict.reason


def test_what_is_no_key_is_told_by_its_name(tmp_path: Path):
    secrets = Secrets({"hook": key_file(tmp_path / "hook", "not base64!")})
    verdict, server = sent(secrets=secrets, secret=(SecretName("hook"),))
    assert (
        verdict.kind == "down"
        and "hook" in verdict.reason
        and "not base64" not in verdict.reason
        and not server.received
    )
    assert signing_key("whsec_") is None and signing_key("whsec_QUJD") == signing_key("QUJD") == b"ABC"


def test_plain_text_for_receivers_like_ntfy():
    given = message(match(1, "One"), match(2, "Two\nlines"), more=3)
    (request,) = sent(given=given, format="text")[1].received
    assert request.headers["content-type"] == "text/plain; charset=utf-8"
    lines = request.body.decode().splitlines()
    assert lines[0] == "q1:" and lines[1] == "One (A feed) https://a.example/1" and lines[-1] == "and 3 more"
    (request,) = sent(given=message(), format="text")[1].received
    assert request.body == b"This is a test of the sink alerts."


# ------------------------------------------------------------ the JSON of a message


def read(given: Message):
    text = payload(given)
    assert text.endswith(b"\n") and text.count(b"\n") == 1 and text == payload(given)
    return json.loads(text)


def test_a_message_has_output_lines_and_their_items():
    one, noon = match(7, "Grüße \u2028 <b>"), "2026-05-06T12:00:00Z"
    item = {"id": "d7", "stream": "S", "time": noon, "title": "Grüße \u2028 <b>"}
    item |= {"url": "https://a.example/7", "feed": "A feed"}
    outputs = [json.loads(one.output.to_line()) | {"items": [item]}]
    expected = {"type": "mmqjp.outputs", "timestamp": noon, "sink": "alerts", "more": 3, "outputs": outputs}
    assert read(message(one, more=3)) == expected
    test = read(message())
    assert (test["type"], test["outputs"]) == ("mmqjp.test", [])


def test_xml_that_would_make_it_too_large_is_left_out():
    large = "é" * (MOST_BYTES // 2)
    found = read(message(match(0), match(1, xml=large), match(2), match(3, xml=large)))["outputs"]
    assert ["xml" in one for one in found] == [True, False, True, False]
    assert [one.get("xml_bytes") for one in found] == [None, MOST_BYTES, None, MOST_BYTES]
    many = payload(message(*(match(seq, xml="x" * 1_000) for seq in range(40))))
    assert len(many) < 2 * MOST_BYTES and len(json.loads(many)["outputs"]) == 40
