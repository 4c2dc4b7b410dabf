"""The kind `webhook`: posts each message to an address, as Standard Webhooks 1.0 has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpcore
import httpx

from feeds.fetch.failures import FetchError
from feeds.fetch.hints import retry_after
from feeds.fetch.network import open_client
from feeds.times import Now, now_us
from mmqjp.present.item import clipped
from mmqjp.sinks.message import Message, Verdict, acknowledged, down, gone, refused
from mmqjp.sinks.options import WebhookOptions
from mmqjp.sinks.payload import payload
from mmqjp.sinks.secrets import SecretError, Secrets
from mmqjp.sinks.signature import signature, signing_key
from mmqjp.text import printable_line

SILENCE, ATTEMPT = 20.0, 60.0
"""Seconds: no connection or answer is waited for longer, and no attempt takes longer, however slowly bytes come."""

MOST_READ = 2_000
"""So many bytes of an answer are read: they say why a message was refused."""

MOST_TOLD = 200
"""So many characters of a reason are kept."""

ASKED_TO_WAIT = frozenset((408, 425, 429))
"""The statuses of the 4xx that concern the receiver and not the message."""

NOT_PUBLIC = ("and only public addresses are fetched from", "which is not a public address")
"""What a fetch and a delivery say of an address that is refused."""

OpenClient = Callable[[bool, int], httpx.AsyncClient]


class WebhookReceiver:
    """Posts messages to the address of a webhook."""

    def __init__(
        self,
        options: WebhookOptions,
        secrets: Secrets,
        open_client: OpenClient = open_client,
        now: Now = now_us,
        silence: float = SILENCE,
        attempt: float = ATTEMPT,
    ) -> None:
        self._options, self._secrets, self._now = options, secrets, now
        self._open_client, self._silence, self._attempt = open_client, silence, attempt
        self._client: httpx.AsyncClient | None = None

    async def send(self, message: Message) -> Verdict:
        """Makes one attempt. Follows no redirects."""
        body = _text(message) if self._options.format == "text" else payload(message)
        try:
            url, headers = self._secrets.address(self._options.url), self._headers(message, body)
        except SecretError as error:
            return down(str(error))
        if self._client is None:
            self._client = self._open_client(self._options.allow_private, 2)
        try:
            async with asyncio.timeout(self._attempt):
                return await self._post(self._client, url, body, headers)
        except (httpx.TimeoutException, httpcore.TimeoutException):
            return down(f"no answer in {self._silence:g} s")
        except TimeoutError:
            return down(f"no whole answer in {self._attempt:g} s")
        except FetchError as error:
            return down(self._told(str(error).replace(*NOT_PUBLIC)))
        except (httpx.HTTPError, httpx.InvalidURL, httpcore.ConnectError, httpcore.NetworkError) as error:
            return down(self._told(f"no connection: {error or type(error).__name__}"))
        except (httpcore.ProtocolError, httpcore.ProxyError, httpcore.UnsupportedProtocol, OSError) as error:
            return down(self._told(f"no answer in HTTP: {error or type(error).__name__}"))

    async def _post(self, client: httpx.AsyncClient, url: str, body: bytes, headers: dict[str, str]) -> Verdict:
        async with client.stream("POST", url, content=body, headers=headers, timeout=self._silence) as response:
            status = response.status_code
            if 200 <= status < 300:
                return acknowledged()
            after = retry_after(response.headers, now := self._now())
            reason = self._told(f"HTTP {status}{await _beginning(response)}")
        if status == 410:
            return gone(reason)
        if 400 <= status < 500 and status not in ASKED_TO_WAIT:
            return refused(reason)
        return down(reason, None if after is None else max(after - now, 0))

    def _headers(self, message: Message, body: bytes) -> dict[str, str]:
        """Returns the headers. Raises SecretError."""
        seconds = self._now() // 1_000_000
        kind = "text/plain; charset=utf-8" if self._options.format == "text" else "application/json"
        headers = {
            "Content-Type": kind,
            "User-Agent": "mmqjp",
            "webhook-id": message.id,
            "webhook-timestamp": str(seconds),
        }
        keys = []
        for name in self._options.secret:
            key = signing_key(self._secrets.value(name))
            if key is None:
                raise SecretError(f"the secret {name.name} is no Base64, as Standard Webhooks wants it")
            keys.append(key)
        if keys:
            headers["webhook-signature"] = signature(keys, message.id, seconds, body)
        return headers

    def _told(self, reason: str) -> str:
        return clipped(self._secrets.redacted(printable_line(reason)), MOST_TOLD)

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None


async def _beginning(response: httpx.Response) -> str:
    """Returns the beginning of an answer, as it came: what is packed is not unpacked."""
    found = b""
    if "content-encoding" not in response.headers:
        async for part in response.aiter_raw():
            found += part[:MOST_READ]
            if len(found) >= MOST_READ:
                break
    text = printable_line(found[:MOST_READ].decode("utf-8", "replace"))
    return f": {text}" if text else ""


def _text(message: Message) -> bytes:
    """Returns a message as plain text: a line for each item, under the names of the queries."""
    lines = []
    for match in message.matches:
        lines.append(f"{match.output.query}:")
        for item in match.items:
            of = item.feed or item.site
            lines.append(" ".join(filter(None, (item.title, f"({of})" if of else "", item.link))))
    if message.more:
        lines.append(f"and {message.more:,} more")
    if message.is_test:
        lines.append(f"This is a test of the sink {message.sink}.")
    return "\n".join(lines).encode()
