"""One request and its answer, within limits of time and size."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import httpcore
import httpx

from feeds.credentials import WRITE_ENCODED, refused
from feeds.fetch.decode import ACCEPT_ENCODING, DecodeError, decode
from feeds.fetch.failures import FetchError
from feeds.text import one_line

ACCEPT = (
    "application/atom+xml, application/rss+xml, application/feed+json, application/rdf+xml;q=0.9, "
    "application/xml;q=0.8, text/xml;q=0.8, text/html;q=0.5, */*;q=0.1"
)
_TROUBLE = (
    httpx.HTTPError,
    httpx.InvalidURL,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    OSError,
)


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    """The limits of one exchange: `body` in bytes, before and after decompression, times in seconds. `total` bounds an
    answer that is slow but never stops. `hops` is how many redirects are followed."""

    body: int = 15 * 1024 * 1024
    connect: float = 10.0
    read: float = 20.0
    total: float = 60.0
    hops: int = 10


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: the address that gave it, status, headers, and the decoded body, b"" unless the status is 200."""

    url: str
    status: int
    headers: httpx.Headers
    body: bytes


def web_address(text: str) -> httpx.URL:
    """The address, normalised. Raises FetchError, without a name or password, if it is not http or https."""
    try:
        url = httpx.URL(text.strip())
    except (httpx.InvalidURL, ValueError) as error:
        raise _no_address(text, str(error)) from None
    if url.scheme not in ("http", "https") or not url.host:
        raise FetchError(f"{refused(text)!r:.200} is not an http or https address")
    if url.port is not None and not 0 < url.port < 65536:
        raise _no_address(text, f"{url.port} is no port")
    return url.copy_with(fragment=None, path="/") if url.path == "/" else url.copy_with(fragment=None)


def _no_address(text: str, cause: str) -> FetchError:
    """The cause may cite a part of a password."""
    return FetchError(f"{refused(text)!r:.200} is no address: {WRITE_ENCODED if '@' in text else cause}")


async def exchange(client: httpx.AsyncClient, url: httpx.URL, headers: Mapping[str, str], limits: ReplyLimits) -> Reply:
    """GETs an address. Raises FetchError for whatever goes wrong. The caller judges the status of the answer."""
    timeout = httpx.Timeout(limits.read, connect=limits.connect, pool=None)
    sent = {"Accept": ACCEPT, "Accept-Encoding": ACCEPT_ENCODING, **headers}
    try:
        async with asyncio.timeout(limits.total), client.stream("GET", url, headers=sent, timeout=timeout) as answer:
            raw = await _read(answer, limits.body) if answer.status_code == 200 else b""
            return Reply(str(url), answer.status_code, answer.headers, await _decoded(answer, raw, limits.body))
    except TimeoutError:
        raise FetchError(f"no whole answer within {limits.total:g} s") from None
    except (httpcore.ConnectTimeout, httpcore.ReadTimeout, httpcore.WriteTimeout) as error:
        raise FetchError(_cause(error, "the server is silent")) from None
    except _TROUBLE as error:
        raise FetchError(_cause(error, type(error).__name__)) from None


async def _read(answer: httpx.Response, limit: int) -> bytes:
    body = bytearray()  # chunks may be one byte long
    async for part in answer.aiter_raw():
        body += part
        if len(body) > limit:
            raise FetchError(f"the body is larger than {limit:,} bytes", answer.status_code)
    return bytes(body)


async def _decoded(answer: httpx.Response, raw: bytes, limit: int) -> bytes:
    codings = answer.headers.get("Content-Encoding", "")
    try:
        # The thread ends: its input and its output are bounded.
        body = await asyncio.to_thread(decode, raw, codings, limit) if codings and raw else raw
    except DecodeError as error:
        raise FetchError(str(error), answer.status_code) from None
    if len(body) > limit:
        raise FetchError(f"the body is larger than {limit:,} bytes once decompressed", answer.status_code)
    return body


def _cause(error: Exception, otherwise: str) -> str:
    return one_line(str(error)) or otherwise
