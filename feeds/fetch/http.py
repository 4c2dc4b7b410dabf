"""HTTP for untrusted feeds: connects to public addresses only, follows redirects, decodes and inspects bodies.

A name is resolved once, the address checked against IANA's registries of special-purpose addresses (2025), and that
address connected to. This happens below TLS and HTTP, so it covers every redirect, and DNS rebinding gains nothing; TLS
and Host still use the name. Time, size and decompression are bounded, because a small body may expand enormously.
Headers and bodies also say how often a feed may be fetched.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

import brotli
import certifi
import httpcore
import httpx
import zstandard
from lxml import etree

from common.dates import DAY, HOUR, MINUTE, SECOND, parse_timestamp
from common.errors import InputError, OperationalError
from common.xml import xml_parser
from feeds.decoding import codec_of
from feeds.documents import now_us
from feeds.files import BodyKind, kind_of_body
from feeds.items import WRITE_ENCODED, absolute, is_url, one_line, redact_userinfo
from feeds.xml_feed import undated_entries

_NOT_PUBLIC = [
    ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by a carrier's customers
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # the host of a virtual machine in Azure
        "169.254.0.0/16",  # link-local
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4, deprecated
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
]

_UNICAST_6 = IPv6Network("2000::/3")  # all global unicast addresses of IANA; all others are special

_SIX_TO_FOUR, _NAT64 = IPv6Network("2002::/16"), IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an IPv4 or IPv6 address is public: not private, shared, loopback, link-local, multicast, reserved or
    unspecified. An IPv6 address that embeds an IPv4 address (mapped, 6to4, NAT64) is public if that is.

    >>> is_public("93.184.215.14"), is_public("127.0.0.1"), is_public("::ffff:10.0.0.1")
    (True, False, False)
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address):
        inner = _inner(ip)
        if ip.scope_id is not None or (inner is None and ip not in _UNICAST_6):
            return False
        ip = inner or ip
    return not any(ip in network for network in _NOT_PUBLIC)


def _inner(ip: IPv6Address) -> IPv4Address | None:
    if ip in _NAT64:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    if ip in _SIX_TO_FOUR:
        return IPv4Address(int(ip) >> 80 & 0xFFFFFFFF)
    return ip.ipv4_mapped


_INSIDE = (".localhost", ".local", ".lan", ".home", ".internal", ".intranet", ".corp", ".private", ".home.arpa")
"""Suffixes of names that are never public, or that private networks use."""


def is_inside(host: str) -> bool:
    """Whether a host is inside a private network, judging by its spelling; other names may resolve there too.

    >>> [is_inside(host) for host in ("192.168.1.5", "nas", "nas.lan", "2130706433", "a.example")]
    [True, True, True, True, False]
    """
    name = host.strip("[]").rstrip(".").lower()
    try:
        return not is_public(str(ip_address(name)))
    except ValueError:
        with suppress(OSError):  # 127.1 and 0x7f000001 are addresses, too
            return not is_public(socket.inet_ntoa(socket.inet_aton(name)))
        return "." not in name or name.endswith(_INSIDE)


def is_allowed(host: str, address: str, allowed: Iterable[str]) -> bool:
    """Whether an address may be connected to: it is public, or `allowed` has its host, itself or its network."""
    name = host.strip("[]").rstrip(".").lower()
    try:
        found = ip_address(address.strip("[]"))
    except ValueError:
        return name in allowed
    if is_public(str(found)):
        return True
    networks = (ip_network(one) for one in allowed if "/" in one)
    return name in allowed or str(found) in allowed or any(found in network for network in networks)


class Clock:
    def now(self) -> int:
        return now_us()

    async def sleep_until(self, moment: int) -> None:
        """Returns at or after the moment, at once if it has passed."""
        while (left := moment - self.now()) > 0:
            # In steps, because time asleep, or skipped by setting the clock, does not count towards a sleep.
            await asyncio.sleep(min(left / SECOND, 60))


MOST_MEMBERS = 1_000
"""Maximum number of gzip members or zstd frames: each costs a copy, and a million empty ones fit into a body."""

ACCEPT_ENCODING = "gzip, deflate, br, zstd"

_ZLIB_STEP = 64 * 1024  # bytes passed to zlib at once: it copies everything after the end of a member
_ZSTD_STEP = 256  # Bytes passed to the zstd decompressor at once. At most 8 MiB come out.
_ZSTD_WINDOW = 8 * 1024 * 1024  # maximum window that RFC 9659 allows a server


class DecodeError(InputError, ValueError):
    """The bytes are not in the coding, or end too early. The message is the cause."""


_NO_CODINGS = frozenset({"", "identity", "none", "null", "aws-chunked", "chunked", "binary", "7bit", "8bit", "utf-16"})
_PLAIN = re.compile(rb"\xef\xbb\xbf|\xff\xfe|\xfe\xff|[\s\0]*+[<{]")
"""The beginning of XML or JSON, also in UTF-16."""


def decode(data: bytes, codings: str, limit: int) -> bytes:
    """Decodes a body by its Content-Encoding: all of it, or at least its first `limit` + 1 bytes and never much more.
    Raises DecodeError for invalid bytes or an unknown coding. Charsets and the like, which some servers name, are
    ignored, and so is any coding if the body is plain XML or JSON."""
    for coding in reversed([name.partition(";")[0].strip(" \t\"'").lower() for name in codings.split(",")]):
        if coding in _NO_CODINGS or codec_of(coding) is not None:
            continue
        if coding not in _DECODERS:
            if _PLAIN.match(data):
                continue
            raise DecodeError(f"the content coding {coding!r:.40} is not known")
        try:
            data = _DECODERS[coding](data, limit + 1)
        except (zlib.error, brotli.error, zstandard.ZstdError, EOFError) as error:
            raise DecodeError(f"the body is not {coding}: {str(error) or 'it ends too early'}") from None
    return data


_Expand = Callable[[Any, bytes, int], bytes]
"""Passes bytes to a decoder, and returns its output, of at most about that many bytes."""


def _members(data: bytes, size: int, start: Callable[[], Any], expand: _Expand, step: int, magic: bytes) -> bytes:
    """Decodes any number of gzip members or zstd frames; anything that lacks the magic is padding."""
    out, members, place = bytearray(), 0, 0
    while place < len(data) and len(out) < size and (not members or data.startswith(magic, place)):
        if members == MOST_MEMBERS:
            raise DecodeError(f"the body has more than {MOST_MEMBERS:,} compressed parts")
        members += 1
        part, place = _member(data, place, size - len(out), start(), expand, step)
        out += part
    return bytes(out)


def _member(data: bytes, place: int, size: int, decoder: Any, expand: _Expand, step: int) -> tuple[bytes, int]:
    """Decodes one member, or its beginning; also returns the position after it."""
    out = bytearray()
    while not decoder.eof and len(out) < size:
        if place >= len(data):
            raise EOFError
        out += expand(decoder, data[place : place + step], size - len(out))
        place = min(place + step, len(data))
    return bytes(out), place - len(decoder.unused_data)


def _inflate(decoder: Any, data: bytes, size: int) -> bytes:
    return bytes(decoder.decompress(data, size))


def _gzip(data: bytes, size: int) -> bytes:
    return _members(data, size, lambda: zlib.decompressobj(31), _inflate, _ZLIB_STEP, b"\x1f\x8b")


def _deflate(data: bytes, size: int) -> bytes:
    """Decodes with zlib's header, as in the standard, or without, as some servers send it."""
    wrapped = len(data) > 1 and data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
    return _member(data, 0, size, zlib.decompressobj(15 if wrapped else -15), _inflate, _ZLIB_STEP)[0]


def _zstd(data: bytes, size: int) -> bytes:
    """Decodes in small steps, which bound the output: the library's bounded reader cannot tell the end from a cut."""
    reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    return _members(data, size, reader.decompressobj, lambda one, part, most: one.decompress(part), _ZSTD_STEP, b"")


def _brotli(data: bytes, size: int) -> bytes:
    decoder = brotli.Decompressor()
    out = bytes(decoder.process(data, output_buffer_limit=size))
    while len(out) < size and not decoder.is_finished():
        more = decoder.process(b"", output_buffer_limit=size - len(out))
        if not more:
            raise EOFError
        out += more
    return out


_DECODERS = {"gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate, "br": _brotli, "zstd": _zstd}


_FEED_TYPES = frozenset(
    {"application/rss+xml", "application/atom+xml", "application/feed+json", "application/rdf+xml"}
    | {"application/json", "application/xml", "text/xml"}
)


def feeds_of_page(body: bytes, url: str) -> list[str]:
    """The http(s) addresses of a page's `<link rel=alternate>` feeds, in page order, comment feeds last."""
    try:
        page = etree.fromstring(body, etree.HTMLParser(no_network=True, huge_tree=False))
    except (etree.XMLSyntaxError, ValueError):
        return []
    if page is None:  # the recovering parser found nothing at all
        return []
    base = absolute(url, next((element.get("href", "") for element in page.iter("base")), ""))
    found = []
    for link in page.iter("link"):
        kind = link.get("type", "").partition(";")[0].strip().lower()
        if "alternate" in link.get("rel", "").lower().split() and kind in _FEED_TYPES and link.get("href"):
            found.append((absolute(base, link.get("href", "")), "comment" in link.get("title", "").lower()))
    return list(dict.fromkeys(address for address, _ in sorted(found, key=lambda named: named[1]) if is_url(address)))


class FetchError(OperationalError, RuntimeError):
    """A fetch failed; the message is the cause. `status` is the answer's, 0 if there was none. `not_before` is the
    earliest time (microseconds) of the next request, if the server gives one."""

    def __init__(self, cause: str, status: int = 0, not_before: int | None = None) -> None:
        super().__init__(cause, status, not_before)
        self.cause, self.status, self.not_before = cause, status, not_before

    def __str__(self) -> str:
        return self.cause


class Gone(FetchError):
    """The server says that the feed is gone for good."""


class HostPaused(Exception):
    """The host is paused until a time (microseconds): the visit is postponed. Never leaves `feeds.fetch`."""

    def __init__(self, until: int) -> None:
        super().__init__(until)
        self.until = until


class FetchedAlready(Exception):
    """`address` is already fetched as feed `url`: the visit is postponed. Never leaves `feeds.fetch`."""

    def __init__(self, url: str, address: str) -> None:
        super().__init__(url, address)
        self.url, self.address = url, address

    def __str__(self) -> str:
        return f"fetched as {self.url}"


ACCEPT = (
    "application/atom+xml, application/rss+xml, application/feed+json, application/rdf+xml;q=0.9, "
    "application/xml;q=0.8, text/xml;q=0.8, text/html;q=0.5, */*;q=0.1"
)
_BROKEN = httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException
_TROUBLE = httpx.HTTPError, httpx.InvalidURL, httpcore.ProxyError, *_BROKEN, OSError


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    """The limits of one exchange: `body` in bytes, before and after decompression, times in seconds. `total` bounds a
    slow answer that never stops; `hops` bounds the redirects."""

    body: int = 15 * 1024 * 1024
    connect: float = 10.0
    read: float = 20.0
    total: float = 60.0
    hops: int = 10


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its final address, status, headers, and decoded body (b"" unless the status is 200)."""

    url: str
    status: int
    headers: httpx.Headers
    body: bytes


def web_address(text: str) -> httpx.URL:
    """The normalised address. Raises FetchError, without credentials, if it is not http or https."""
    try:
        url = httpx.URL(text.strip())
    except (httpx.InvalidURL, ValueError) as error:
        raise _no_address(text, str(error)) from None
    if url.scheme not in ("http", "https") or not url.host:
        raise FetchError(f"{redact_userinfo(text)!r:.200} is not an http or https address")
    if url.port is not None and not 0 < url.port < 65536:
        raise _no_address(text, f"{url.port} is not a port")
    return url.copy_with(fragment=None, path="/") if url.path == "/" else url.copy_with(fragment=None)


def _no_address(text: str, cause: str) -> FetchError:
    """Omits the cause, which may quote part of a password, if there are credentials."""
    return FetchError(f"{redact_userinfo(text)!r:.200} is not an address: {WRITE_ENCODED if '@' in text else cause}")


async def exchange(
    client: httpx.AsyncClient,
    url: httpx.URL,
    headers: Mapping[str, str],
    limits: ReplyLimits,
    auth: httpx.Auth | None = None,
    form: Mapping[str, str] | None = None,
) -> Reply:
    """GETs an address, or POSTs a form to it, by default with the credentials in it. Raises FetchError for any failure,
    but any status is returned."""
    timeout = httpx.Timeout(limits.read, connect=limits.connect, pool=None)
    sent = {"Accept": ACCEPT, "Accept-Encoding": ACCEPT_ENCODING, **headers}
    about: dict[str, Any] = {"headers": sent, "data": form, "timeout": timeout} | ({"auth": auth} if auth else {})
    asked = client.stream("GET" if form is None else "POST", url, **about)
    try:
        async with asyncio.timeout(limits.total), asked as answer:
            raw = await _read(answer, limits.body) if answer.status_code == 200 else b""
            return Reply(str(url), answer.status_code, answer.headers, await _decoded(answer, raw, limits.body))
    except TimeoutError:
        raise FetchError(f"no complete answer within {limits.total:g} s") from None
    except (httpcore.ConnectTimeout, httpcore.ReadTimeout, httpcore.WriteTimeout) as error:
        raise FetchError(one_line(str(error)) or "the server does not answer") from None
    except _TROUBLE as error:
        raise FetchError(one_line(str(error)) or type(error).__name__) from None


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
        # The thread ends on its own: its input and output are bounded.
        body = await asyncio.to_thread(decode, raw, codings, limit) if codings and raw else raw
    except DecodeError as error:
        raise FetchError(str(error), answer.status_code) from None
    if len(body) > limit:
        raise FetchError(f"the body is larger than {limit:,} bytes once decompressed", answer.status_code)
    return body


PERMANENT = frozenset({301, 308})
REDIRECTS = frozenset({302, 303, 307}) | PERMANENT


async def follow_redirects(
    get: Callable[[httpx.URL], Awaitable[Reply]],
    address: str,
    hops: int,
    moved: Callable[[str], None] = lambda address: None,
) -> tuple[Reply, str]:
    """Fetches an address and follows its redirects. Returns the last answer, and the address reached by permanent
    redirects alone. Raises FetchError for more than `hops` redirects or a cycle. `moved` is called with each such
    address, the first included, before it is fetched."""
    url = web_address(address)
    lasting, for_ever = address, True
    met = {url}
    moved(address)
    while (reply := await get(url)).status in REDIRECTS:
        target = reply.headers.get("Location", "")
        if not target:
            raise FetchError(f"{url} redirects ({reply.status}) without saying where", reply.status)
        try:
            url = web_address(str(url.join(target)))
        except (httpx.InvalidURL, ValueError):
            cause = f"{url} redirects to {redact_userinfo(target)!r:.200}, which is not an address"
            raise FetchError(cause, reply.status) from None
        for_ever = for_ever and reply.status in PERMANENT
        if url in met:
            raise FetchError(f"the redirects lead back to {url}", reply.status)
        met.add(url)
        if len(met) > hops + 1:
            raise FetchError(f"more than {hops} redirects", reply.status)
        if for_ever:
            moved(lasting := str(url))
    return reply, lasting


_SYNDICATION = "{http://purl.org/rss/1.0/modules/syndication/}"
_PERIODS = {"hourly": HOUR, "daily": DAY, "weekly": 7 * DAY, "monthly": 30 * DAY, "yearly": 365 * DAY}
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MAX_AGE = re.compile(r"""(?:^|[,\s])max-age\s*=\s*"?(\d{1,10})\b""", re.IGNORECASE)
_LONGEST = 366 * DAY


@dataclass(frozen=True, slots=True)
class Hints:
    """The schedule in a feed's body: at least `interval` microseconds between fetches, and none in these hours (0 to
    23, UTC) or on these days (0 is Monday). `undated` counts entries with unreadable dates. `wait` is the effective
    interval, in microseconds from the last complete visit to the next; 0 if unknown."""

    interval: int = 0
    skip_hours: frozenset[int] = frozenset()
    skip_days: frozenset[int] = frozenset()
    undated: int = 0
    wait: int = 0

    def to_json(self) -> str:
        return json.dumps([self.interval, sorted(self.skip_hours), sorted(self.skip_days), self.undated, self.wait])

    @classmethod
    def from_json(cls, text: str) -> Hints:
        interval, hours, days, *others = json.loads(text)
        return cls(interval, frozenset(hours), frozenset(days), *others)


def body_hints(data: bytes) -> Hints:
    """RSS `ttl`, `skipHours`, `skipDays`, the syndication module's `updatePeriod`, and dates; empty if not XML."""
    try:
        root = etree.fromstring(data.lstrip(), xml_parser(entities=False, recover=True))
    except (etree.XMLSyntaxError, ValueError):
        return Hints()
    if root is None:  # the recovering parser found nothing at all
        return Hints()
    channel = next((child for child in root if child.tag in ("channel", "{http://purl.org/rss/1.0/}channel")), root)
    texts = {str(child.tag): (child.text or "").strip() for child in channel if isinstance(child.tag, str)}
    ttl = _number(texts.get("ttl", ""), 0) * MINUTE
    period = _PERIODS.get(texts.get(f"{_SYNDICATION}updatePeriod", "").lower(), 0)
    frequency = max(1, _number(texts.get(f"{_SYNDICATION}updateFrequency", ""), 1))
    # Some write midnight as 24.
    hours = (_number(hour.text or "", -1) for hour in channel.iterfind("skipHours/hour"))
    skipped = frozenset(hour % 24 for hour in hours if 0 <= hour <= 24)
    named = {(day.text or "").strip().lower() for day in channel.iterfind("skipDays/day")}
    days = {number for number, name in enumerate(_DAYS) if name in named}
    interval = min(max(ttl, period // frequency), _LONGEST)
    return Hints(interval, skipped, frozenset(days), undated_entries(root))


def _number(text: str, otherwise: int) -> int:
    stripped = text.strip()
    return int(stripped) if stripped.isascii() and stripped.isdecimal() and len(stripped) < 10 else otherwise


def fresh_for(headers: Mapping[str, str], now: int) -> int:
    """Microseconds for which an answer is fresh: `Cache-Control: max-age` less `Age`, else `Expires`, else 0."""
    control = headers.get("Cache-Control", "")
    if re.search(r"(?:^|[,\s])no-(?:cache|store)\b", control, re.IGNORECASE):
        return 0
    if found := _MAX_AGE.search(control):
        return min(max(0, int(found[1]) - _number(headers.get("Age", ""), 0)) * SECOND, _LONGEST)
    expires = parse_timestamp(headers.get("Expires", ""))
    return 0 if expires is None else min(max(0, expires - now), _LONGEST)


def retry_after(headers: Mapping[str, str], now: int) -> int | None:
    """`Retry-After` (seconds or a date) as a time in microseconds, at most a year from now; None if invalid."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdecimal():
        return now + min(int(text[:12]) * SECOND, _LONGEST)
    date = parse_timestamp(text)
    return None if date is None else min(max(date, now), now + _LONGEST)


@dataclass(frozen=True, slots=True)
class BodySummary:
    """The feeds that a page links to, or the hash and the hints of a feed."""

    kind: BodyKind
    feeds: list[str] = field(default_factory=list)
    sha256: str = ""
    hints: Hints = field(default_factory=Hints)

    @classmethod
    def from_json(cls, answer: object) -> BodySummary:
        """The inverse of `look`. Raises FetchError for malformed values."""
        match answer:
            case [("feed" | "page" | "other") as kind, [*feeds], str(sha256), str(hints)]:
                return cls(kind, list(map(str, feeds)), sha256, Hints.from_json(hints))
        raise FetchError("the process that parsed the answer gave an invalid result")


def look(body: bytes, url: str) -> list[object]:
    """Summarises a body, as JSON for `BodySummary.from_json`. Slow on hostile input: see `feeds.confined`."""
    kind = kind_of_body(body)
    feeds = feeds_of_page(body, url) if kind == "page" else []
    sha256, hints = (hashlib.sha256(body).hexdigest(), body_hints(body)) if kind == "feed" else ("", Hints())
    return [kind, feeds, sha256, hints.to_json()]


Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Maps a host and a port to the host's addresses. Raises OSError if it has none."""


async def resolve_host(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


ONLY_PUBLIC = "only public addresses are allowed"


class InsideError(FetchError):
    """The host has no public address."""


def refused_host(host: str, addresses: Iterable[str]) -> InsideError:
    return InsideError(f"{host} resolves to {', '.join(addresses) or 'nothing'}, and {ONLY_PUBLIC}")


@dataclass(frozen=True, slots=True)
class Route:
    """How a feed is reached: the hosts that may have private addresses, a proxy's address, and whom TLS trusts: also
    the authorities in a file `ca`, or everybody without `verify`. A proxy resolves names itself, so it decides which
    addresses are allowed."""

    allowed: tuple[str, ...] = ()
    proxy: str = ""
    ca: str = ""
    verify: bool = True


class GuardedBackend(httpcore.AsyncNetworkBackend):
    def __init__(self, allow_private: bool, resolve: Resolve = resolve_host, allowed: tuple[str, ...] = ()) -> None:
        self._allow_private, self._resolve, self._allowed = allow_private, resolve, allowed
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises FetchError if no address of the host is allowed, and httpcore's errors if none can be reached."""
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._resolve(host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"{host} was not resolved in {timeout:g} s") from None
        except (OSError, UnicodeError) as error:
            cause = getattr(error, "strerror", "") or error
            raise httpcore.ConnectError(f"{host} cannot be resolved: {cause}") from None
        allowed = [address for address in addresses if self._allow_private or is_allowed(host, address, self._allowed)]
        if not allowed:
            raise refused_host(host, addresses)
        trouble: Exception | None = None
        for address in allowed:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                trouble = error
        assert trouble is not None
        raise trouble


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._response.aiter_stream().__aiter__()

    async def aclose(self) -> None:
        await self._response.aclose()


class GuardedTransport(httpx.AsyncBaseTransport):
    """httpx over a GuardedBackend, and the route's proxy if it has one. Errors are httpcore's or a FetchError."""

    def __init__(self, allow_private: bool, connections: int, resolve: Resolve, route: Route) -> None:
        self._allow_private, self._route = allow_private, route
        about: dict[str, Any] = {
            "ssl_context": tls_context(route.ca, route.verify), "max_connections": connections, "keepalive_expiry": 5.0,
        }  # fmt: skip
        if not route.proxy:
            backend = GuardedBackend(allow_private, resolve, route.allowed)
            self._pool: httpcore.AsyncConnectionPool = httpcore.AsyncConnectionPool(network_backend=backend, **about)
            return
        proxy = httpx.Proxy(route.proxy)
        self._pool = httpcore.AsyncHTTPProxy(
            httpcore.URL(
                scheme=proxy.url.raw_scheme, host=proxy.url.raw_host, port=proxy.url.port, target=proxy.url.raw_path
            ),
            proxy_auth=proxy.raw_auth, network_backend=GuardedBackend(True, resolve),
            proxy_ssl_context=about["ssl_context"] if proxy.url.scheme == "https" else None, **about,
        )  # fmt: skip

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        is_unguarded = self._route.proxy and not self._allow_private  # the backend checks only the proxy's own address
        if is_unguarded and is_inside(url.host) and not is_allowed(url.host, url.host, self._route.allowed):
            raise refused_host(url.host, [url.host])
        address = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        sent = httpcore.Request(
            request.method, address, headers=request.headers.raw, content=request.stream, extensions=request.extensions
        )
        answer = await self._pool.handle_async_request(sent)
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer), extensions=answer.extensions)

    async def aclose(self) -> None:
        await self._pool.aclose()


@lru_cache(100)
def _tls_context(usual: str, ca: str, changed: int, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=usual)
    if ca:
        context.load_verify_locations(cafile=ca)
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def tls_context(ca: str = "", verify: bool = True) -> ssl.SSLContext:
    """Trusts the well-known authorities and those in a file. Raises FetchError if that cannot be read."""
    try:
        return _tls_context(certifi.where(), ca, Path(ca).stat().st_mtime_ns if ca else 0, verify)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        cause = getattr(error, "strerror", None) or error
        raise FetchError(f"ca: {ca} cannot be read as certificates in PEM: {cause}") from None


DIRECT_ROUTE = Route()


def open_client(
    allow_private: bool, connections: int, resolve: Resolve = resolve_host, route: Route = DIRECT_ROUTE
) -> httpx.AsyncClient:
    """A client whose every connection is guarded, without redirects and cookies. Raises FetchError."""
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    transport = GuardedTransport(allow_private, connections, resolve, route)
    return httpx.AsyncClient(transport=transport, trust_env=False, cookies=no_cookies)
