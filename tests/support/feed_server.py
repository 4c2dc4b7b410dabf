"""A server on loopback for feeds and webhooks that misbehaves as told, a clock that jumps, a fetch in this process."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from pathlib import Path
from ssl import SSLContext
from typing import Any

from common.dates import SECOND
from feeds.fetch.fetcher import Archive, DropArchive, FetchReport, Settings, World, fetch_feeds
from feeds.fetch.http import Clock, ReplyLimits
from feeds.fetch.settings import NONE, NOTHING_SET, FeedSettings, SecretValue, SettingsOf, no_secret
from feeds.fetch.state import STATE_FILE, FeedState, FetchStore, Pace, source_name

START = 1_778_068_800_000_000  # 2026-05-06T12:00:00Z, a Wednesday


@dataclass
class Request:
    """What the server saw of a request that came whole, its own answer, and how many bytes it sent."""

    path: str
    host: str
    headers: dict[str, str]
    body: bytes
    server: "FeedServer" = field(repr=False)
    handler: BaseHTTPRequestHandler = field(repr=False)
    status: int = 0
    sent: int = 0

    def write(self, data: bytes) -> None:
        self.sent += len(data)
        self.handler.wfile.write(data)

    def answer(self, status: int, body: bytes = b"", **headers: str | int) -> None:
        """Sends a correct answer. Names of headers have `_` for `-`."""
        self.status = status
        closes = {"Connection": "close"} if self.handler.close_connection else {}
        fields = {"Content_Length": len(body)} | closes | headers
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
        self.write("\r\n".join([f"HTTP/1.1 {status} Status", *lines, "", ""]).encode() + body)


Behaviour = Callable[[Request], object]


class FeedServer:
    """Answers each path with its function in `routes`, others with `otherwise`. `log` has all requests, in order."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.routes: dict[str, Behaviour] = {}
        self.otherwise: Behaviour = answer(404)
        self.log: list[Request] = []
        self.released = threading.Event()
        """Set when the test is over. A route that keeps a client waiting waits for this."""

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def serve(self, path: str, body: bytes | str, status: int = 200, **headers: str | int) -> str:
        """Always gives the same answer. Returns the address."""
        data = body.encode() if isinstance(body, str) else body
        self.routes[path] = lambda request: request.answer(status, data, **headers)
        return self.url(path)

    def validated(self, path: str, body: str, etag: str) -> str:

        def answer(request: Request) -> None:
            if request.headers.get("If-None-Match") == etag:
                request.answer(304, ETag=etag)
            else:
                request.answer(200, body.encode(), ETag=etag, Content_Type="application/rss+xml")

        self.routes[path] = answer
        return self.url(path)

    def paths(self) -> list[str]:
        return [request.path for request in self.log]

    def taken(self) -> list[Request]:
        return [request for request in self.log if 200 <= request.status < 300]


def answer(status: int, body: bytes = b"", **headers: str | int) -> Behaviour:
    return lambda request: request.answer(status, body, **headers)


def reset(request: Request) -> None:
    request.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.handler.connection.close()


def hang(request: Request) -> None:
    request.server.released.wait()


def drip(start: bytes = b"HTTP/1.1 200 OK\r\nX: ") -> Behaviour:
    """Goes on byte by byte after a start, until the client has gone."""

    def behave(request: Request) -> None:
        request.write(start)
        while not request.server.released.wait(0.02):
            request.write(b"x")

    return behave


def flood(status: int) -> Behaviour:
    """Answers with a body without an end, until the client has gone."""

    def behave(request: Request) -> None:
        request.write(f"HTTP/1.1 {status} Status\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        while not request.server.released.is_set():
            request.write(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")

    return behave


def babble(request: Request) -> None:
    request.write(b"220 mail.example ESMTP\r\n\r\n")


@contextmanager
def running_server(tls: SSLContext | None = None) -> Iterator[FeedServer]:

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.close_connection = self.command == "GET"
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            if len(body) < length:
                return  # the client has gone
            host = self.headers.get("Host", "")
            request = Request(self.path, host, dict(self.headers), body, server, self)
            server.log.append(request)
            server.routes.get(self.path, server.otherwise)(request)

        do_POST = do_GET  # noqa: N815  # the library's name

        def handle(self) -> None:
            with suppress(OSError):  # the client has gone, as it should
                super().handle()

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing on standard error."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as http:
        if tls is not None:
            http.socket = tls.wrap_socket(http.socket, server_side=True)
        server = FeedServer(http.server_address[1])
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            http.shutdown()
            thread.join()


@contextmanager
def hook_server(*script: Behaviour) -> Iterator[FeedServer]:
    """An endpoint of webhooks: each request gets the next of the script, and once that is over, 200."""
    left = chain(script, repeat(answer(200)))
    with running_server() as server:
        server.otherwise = lambda request: next(left)(request)
        yield server


class Hours(Clock):
    """A clock that jumps to whatever time is waited for."""

    def __init__(self, start: int = START) -> None:
        self.time = start

    def now(self) -> int:
        return self.time

    async def sleep_until(self, moment: int) -> None:
        self.time = max(self.time, moment)
        await asyncio.sleep(0)


async def to_loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


SMALL = ReplyLimits(body=100_000, hops=5)
"""Limits that little data reaches."""
QUICK = ReplyLimits(body=100_000, read=0.2, total=0.4, hops=5)
"""The same, with short times for slow servers."""


@dataclass
class Fetching:
    """A directory to fetch into repeatedly, as `mmqjp fetch` would. Each run continues from the one before."""

    directory: Path
    clock: Hours = field(default_factory=Hours)
    limits: ReplyLimits = SMALL
    pace: Pace = field(default_factory=Pace)
    courtesy: Mapping[str, int] = field(default_factory=dict)
    robots: bool = False
    agent: str = "test"
    allow_private: bool = True
    own: FeedSettings = NONE
    feeds: SettingsOf = NOTHING_SET
    secret: SecretValue = no_secret
    archive: Callable[[Path, FetchStore], Archive] = lambda directory, store: DropArchive(directory)
    world: Mapping[str, object] = field(default_factory=dict)

    def run(self, *urls: str) -> FetchReport:
        with FetchStore(self.directory / STATE_FILE, write=True) as store:
            store.add(FeedState(url, source_name(url)) for url in urls)
            archive = self.archive(self.directory, store)
            of_feeds = SettingsOf({}, {"": self.own}) if self.own != NONE else self.feeds
            rules: dict[str, Any] = {"allow_private": self.allow_private, "feeds": of_feeds, "secret": self.secret}
            rules |= self.courtesy
            settings = Settings(self.agent, self.limits, self.pace, self.robots, **rules)
            values: dict[str, object] = {"clock": self.clock, "random": lambda: 0.0, "resolve": to_loopback}
            world = World(**(values | dict(self.world)))  # type: ignore[arg-type]
            try:
                report = asyncio.run(fetch_feeds(store.feeds(), store, archive, settings, world=world))
                archive.finish()
                return report
            finally:
                archive.close()

    def later(self, seconds: int) -> None:
        self.clock.time += seconds * SECOND

    def feed(self, url: str) -> FeedState:
        with FetchStore(self.directory / STATE_FILE) as store:
            return next(feed for feed in store.feeds() if feed.url == url)

    def bodies(self, url: str) -> list[bytes]:
        return [path.read_bytes() for path in sorted((self.directory / source_name(url)).glob("*.xml"))]


def rss(*titles: str, extra: str = "", guid: str = "") -> str:
    """A feed with an entry for each title. A guid is the title after the prefix `guid`."""
    entries = "".join(
        f"<item><title>{title}</title><guid isPermaLink='false'>{guid}{title}</guid>"
        f"<link>https://site.example/{title}</link><pubDate>Wed, 06 May 2026 10:00:00 GMT</pubDate></item>"
        for title in titles
    )
    return (
        f'<rss version="2.0"><channel><title>Site</title><link>https://site.example/</link>{extra}{entries}'
        "</channel></rss>"
    )


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def outcomes(report: FetchReport) -> dict[str, int]:
    return {outcome.value: count for outcome, count in report.counts.items()}


def failures(fetching: Fetching, *urls: str) -> list[str]:
    """Fetches feeds that must fail, and returns the last error of each."""
    assert outcomes(fetching.run(*urls)) == {"failed": len(urls)}
    assert [fetching.bodies(url) for url in urls] == [[]] * len(urls)
    return [fetching.feed(url).last_error for url in urls]
