"""Serves the page of a store: builds the app, listens, and runs uvicorn in a thread or a child process. The app has
guard, page cache, routes and API description; rendered pages are cached until the next commit. The child process
(python -m mmqjp.web.serving OPTIONS SOCKET PIPE) ends on SIGTERM or with the service, which Ctrl-C is left to."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from common.errors import MmqjpError, OperationalError
from common.tools import JsonRecord, LruCache, gc_frozen
from feeds.fetch.settings import NOTHING_SET, SettingsOf
from mmqjp.engine import Session
from mmqjp.process import end_without_freeing, printable_line
from mmqjp.service.commands import Client
from mmqjp.service.log import Log, SharedLog, in_background, records_in, standard_log
from mmqjp.service.sql_question import MonotonicClock
from mmqjp.state.engine_choice import SPARK, stored_engine
from mmqjp.web import areas, readers
from mmqjp.web.guard import KNOW, PUSH_PATH, SAFE, Guard
from mmqjp.web.site import API, NO_STORE, PUSH_TOKEN, Access, Hosts, Site, asking, handle_errors, token_of

if TYPE_CHECKING:
    from mmqjp.service.spool import SendCommand

MOST_SECONDS = 10.0  # maximum age of cached pages, which also show data outside of commits, such as the time

MOST_BYTES, LARGEST, LONGEST_ADDRESS = 32 << 20, 1 << 20, 4_000
"""Size of the page cache and of the largest page in it, in bytes, and longest address in characters."""

READS = ("/sql", f"{API}v1/sql", PUSH_PATH)
"""Paths whose requests, whatever the method, change nothing outside of commits."""

KEPT_TYPES = ("text/html", "application/json")


@dataclass(slots=True)
class _Page:
    version: object
    made_at: float
    messages: list[Message] = field(default_factory=list)
    size: int = 0


class PageCache:
    """ASGI middleware that caches responses to GET with status 200, unless marked `no-store`. Concurrent requests for a
    page share one rendering. A changing request invalidates all earlier pages."""

    def __init__(
        self,
        app: ASGIApp,
        reader: readers.StoreReader,
        clock: MonotonicClock = time.monotonic,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` is called after a changing request, before it is answered."""
        self._app, self._reader, self._clock, self._on_change = app, reader, clock, on_change
        self._pages = LruCache[tuple[str, bytes], _Page](MOST_BYTES, lambda page: page.size)
        self._changes = 0
        self._making: dict[tuple[str, bytes], asyncio.Event] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in SAFE and not scope["path"].startswith(READS):
            await self._change(scope, receive, send)
            return
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        key = scope["path"], scope["query_string"]
        if await self._sent(key, send):
            return
        if (making := self._making.get(key)) is not None:
            await making.wait()
            if await self._sent(key, send):
                return
        making = self._making[key] = asyncio.Event()
        try:
            await self._make(key, scope, receive, send, making)
        finally:
            making.set()
            if self._making.get(key) is making:
                del self._making[key]

    async def _sent(self, key: tuple[str, bytes], send: Send) -> bool:
        page = self._pages.get(key)
        if page is None or page.version != self._version() or self._clock() >= page.made_at + MOST_SECONDS:
            return False
        for message in page.messages:
            await send(_copied(message))
        return True

    async def _make(
        self, key: tuple[str, bytes], scope: Scope, receive: Receive, send: Send, made: asyncio.Event
    ) -> None:
        """Renders, sends and possibly caches a page. Sets `made` once others need not wait."""
        page = _Page(self._version(), self._clock())
        address = sum(map(len, key))
        page.size, keeps = 2 * address, address <= LONGEST_ADDRESS

        async def note(message: Message) -> None:
            nonlocal keeps
            if message["type"] == "http.response.start":
                keeps = keeps and message["status"] == 200 and _is_kept(message)
            page.size += len(message.get("body", b"")) + 200
            keeps = keeps and page.size <= LARGEST
            if keeps:
                page.messages.append(_copied(message))
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    self._pages.put(key, page)
            if not keeps or key in self._pages:
                made.set()  # before sending, which may take as long as the client likes
            await send(message)

        await self._app(scope, receive, note)

    def _version(self) -> object:
        return self._changes, self._reader.version()

    async def _change(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on a changing request. Its client sees the change from then on."""

        async def changed(message: Message) -> None:
            if message["type"] == "http.response.start":
                await run_in_threadpool(self._reader.refresh)
                self._on_change()
                self._changes += 1
            await send(message)

        await self._app(scope, receive, changed)


def _copied(message: Message) -> Message:
    """A message with its own list of headers, as the guard adds some."""
    return {**message, "headers": list(message["headers"])} if "headers" in message else message


def _is_kept(message: Message) -> bool:
    headers = Headers(raw=message["headers"])
    is_marked = "no-store" in headers.get("cache-control", "") or "set-cookie" in headers
    return headers.get("content-type", "").startswith(KEPT_TYPES) and not is_marked


DESCRIPTION = """The API behind the page of `mmqjp serve`. Send the header `Authorization: Bearer TOKEN`; the token is
in the file `secrets/token` of the state directory. Times are microseconds since 1970, in UTC. Lists have a `next`,
which gives the next page as the parameter `after`; it is null at the end."""


def make_app(site: Site, hosts: Hosts) -> Guard:
    """Returns the app of a site, which answers requests that name one of `hosts`."""
    app = make_routes(site)
    return Guard(PageCache(app, site.reader, on_change=site.replies.clear), site.access, hosts)


def make_routes(site: Site) -> FastAPI:
    # FastAPI's own pages about the API load scripts from other sites.
    app = FastAPI(title="mmqjp", docs_url=None, redoc_url=None, openapi_url=None)
    handle_errors(app, site)
    for found in sorted(pkgutil.iter_modules(areas.__path__), key=lambda found: found.name):
        area = import_module(f"{areas.__name__}.{found.name}")
        site.add_links(getattr(area, "LINKS", ()))
        for router in area.ROUTERS:
            router(site, app.router)

    described: dict[str, Any] = {}

    @app.get("/api/v1/openapi.json", include_in_schema=False)
    def openapi() -> JSONResponse:
        if not described:
            routes = [route for route in app.routes if getattr(route, "path", "").startswith(API)]
            described.update(get_openapi(title="mmqjp", version="1", description=DESCRIPTION, routes=routes))
            described["servers"] = [{"url": site.prefix or "/"}]
        return JSONResponse(described)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> PlainTextResponse:
        return PlainTextResponse("ok\n", headers=NO_STORE)

    @app.get("/static/{digest}/{name}", include_in_schema=False)
    async def static(digest: str, name: str) -> Response:
        found = site.assets.response(digest, name)
        if found is None:
            raise HTTPException(404, "there is no such file: reload the page")
        return found

    return app


ONCE = " (this link logs in once; later, the token in secrets/token of the state does)"
"""The note on a printed link."""


@dataclass(frozen=True, slots=True)
class PageOptions(JsonRecord):
    """How the page is served. `public_url` is "" for none; `opens`: opens a browser. `feed_settings` are the
    configuration's, in JSON; `allow_private`: feeds may be on private hosts."""

    state: str
    host: str
    public_url: str = ""
    no_token: bool = False
    opens: bool = False
    log_form: str = "text"
    feed_settings: str = ""
    allow_private: bool = False


@contextmanager
def page_served(
    options: PageOptions,
    listening: socket.socket,
    reader: readers.StoreReader,
    ask: SendCommand,
    log: Log,
    stop: Event,
    *,
    holds: bool,
) -> Iterator[None]:
    """Serves the page in the block; closes `reader`. Sets `stop` on failure. `holds`: this command holds the store."""
    host, port, state = options.host, listening.getsockname()[1], Path(options.state)
    url = options.public_url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
    tokens = (None, None) if options.no_token else (token_of(state), token_of(state, PUSH_TOKEN))
    access = Access(tokens[0], f"mmqjp-{port}", push_token=tokens[1])
    configured = SettingsOf.from_json(options.feed_settings) if options.feed_settings else NOTHING_SET
    of_feeds: dict[str, Any] = {"feed_settings": configured, "allow_private": options.allow_private}
    site = Site(reader, ask, access, url, state, holds, **of_feeds)
    if isinstance(reader, readers.SteadyReader):
        reader.prepare_by(site.prepare)
        reader.begin()
    app = make_app(site, Hosts(host, port, options.public_url))
    Thread(target=site.prepare_templates, name="mmqjp templates", daemon=True).start()
    said = records_in(log, "uvicorn", "asyncio")
    with closing(reader), said, app_served(app, listening, log, stop), closing(site.hub):
        log.event("serving", url=url, **({} if holds else {"beside": "a running service"}))
        link = access.link(url)
        sys.stderr.write(f"mmqjp: open {link}{'' if access.is_open else ONCE}\n")
        sys.stderr.flush()
        if options.opens:
            Thread(target=webbrowser.open, args=(link,), daemon=True).start()
        yield


NICE, TAKE_TURNS = 5, 0.001
"""Niceness of the page's process, and its thread switch interval in seconds: rendering has many small steps."""


def main(text: str, listening: str, pipe: str) -> int:
    """Serves until stopped. Returns the exit status."""
    stop = Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    os.nice(NICE)
    sys.setswitchinterval(TAKE_TURNS)
    options = PageOptions.from_dict(json.loads(text))
    state = Path(options.state)
    questions = readers.PipeReader(Connection(int(pipe)))

    def end_with_the_service() -> None:
        questions.wait()
        if not stop.is_set():
            os._exit(1)  # open connections would hold the address for seconds, and a restarted service needs it

    Thread(target=end_with_the_service, name="mmqjp end", daemon=True).start()

    def nobody() -> Session:
        raise readers.StoreProcessGone

    reader = readers.SteadyReader(readers.FilesReader(state) if stored_engine(state) == SPARK else questions)
    log = SharedLog(standard_log(options.log_form))
    asks = asking(lambda wait: Client(state, nobody, wait))
    with (
        socket.socket(fileno=int(listening)) as opened,
        page_served(options, opened, reader, asks, log, stop, holds=True),
        gc_frozen(),
    ):
        stop.wait()
    return 0


class CannotListen(OperationalError, OSError):
    """The server cannot listen at its address."""


ADDRESS_SECONDS, END_SECONDS = 5.0, 15.0
"""Seconds to wait for an address, which a killed service's page may still hold, and for the process to end."""


def listen(host: str, port: int, sleep: Callable[[float], object] = time.sleep) -> socket.socket:
    """Raises CannotListen."""
    tries = int(ADDRESS_SECONDS * 10)
    while True:
        try:
            return _bound(host, port)
        except OSError as error:
            tries -= 1
            if error.errno != errno.EADDRINUSE or tries == 0:
                reason = error.strerror or str(error)
                raise CannotListen(f"cannot listen at {host}:{port}: {reason}; choose another --address") from error
        sleep(0.1)


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
    )[0]
    # For a socket declared as TCP, asyncio sends small answers at once, not after 40 ms.
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(place)
        found.listen(BACKLOG)
    except BaseException:
        found.close()
        raise
    return found


class PageEnded(OperationalError, RuntimeError):
    """The process that serves the page has ended by itself."""


@contextmanager
def page_process(
    options: PageOptions, listening: socket.socket, reader: readers.CursorReader | None, log: Log, stop: Event
) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    """Serves the page in another process; `stop` is set if that ends early. `reader` answers its questions over the
    pipe; None if it reads files itself. Raises PageEnded at the end of the block."""
    ours, theirs = socket.socketpair()
    with theirs:
        kept = listening.fileno(), theirs.fileno()
        command = [sys.executable, "-m", "mmqjp.web.serving", json.dumps(options.to_dict()), *map(str, kept)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=kept)
    pipe, ending = Connection(ours.detach()), Event()

    def answer() -> None:
        try:
            readers.QuestionServer(pipe, reader).run()
        finally:
            if not ending.is_set():
                log.event("serve-failed", status=process.wait())
                stop.set()

    thread = Thread(target=answer, name="mmqjp page", daemon=True)
    thread.start()
    try:
        yield process, pipe
    finally:
        ended_before = process.poll()
        ending.set()
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        thread.join(END_SECONDS)
        pipe.close()
    if ended_before is not None:
        raise PageEnded(f"the page is no longer served: its process ended with status {ended_before}")


MOST_CONNECTIONS = 500
"""Maximum number of connections. Another one replaces one that waits for a request, or gets 503."""

MOST_STRANGERS, MOST_OF_CLIENT = 100, 50
"""Maximum number of connections without token or login: in total, and from one address. Another one closes one."""

ACCEPTED_AT_ONCE, BACKLOG = 2, 128
"""Number of connections that the event loop accepts before it reads from open ones, and the length of the system's
queue. If it accepted MOST_OF_CLIENT at once, a flood would displace a connection before its request is read."""

HEAD_SECONDS, STRANGER_SECONDS = 20.0, 5.0  # time limit for a request's head, and for a stranger's

IDLE_SECONDS, STOP_SECONDS = 15, 3
"""Seconds until an idle connection is closed (not a stranger's), and that a stopping server waits for connections."""


class Connections:
    """The open connections. A new one displaces a waiting one, else one without requests, else the oldest."""

    def __init__(
        self, most: int = MOST_CONNECTIONS, strangers: int = MOST_STRANGERS, of_client: int = MOST_OF_CLIENT
    ) -> None:
        self._most, self._most_strangers, self._of_client = most, strangers, of_client
        self._strangers: dict[PatientProtocol, None] = {}
        self._known: dict[PatientProtocol, None] = {}

    def add(self, connection: PatientProtocol) -> None:
        of_client = [one for one in self._strangers if one.host == connection.host]
        if len(of_client) >= self._of_client:
            self._drop_one(of_client)
        elif len(self._strangers) >= self._most_strangers:
            self._drop_one(list(self._strangers))
        elif len(self._strangers) + len(self._known) >= self._most - 1:  # at `most`, uvicorn answers 503
            self._drop_one([one for one in (*self._strangers, *self._known) if one.is_waiting])
        self._strangers[connection] = None

    def know(self, connection: PatientProtocol) -> None:
        """Marks a connection whose client has presented a token or login."""
        del self._strangers[connection]
        self._known[connection] = None

    def remove(self, connection: PatientProtocol) -> None:
        self._strangers.pop(connection, None)
        self._known.pop(connection, None)

    def _drop_one(self, among: list[PatientProtocol]) -> None:
        if among:
            chosen = min(among, key=lambda one: (not one.is_waiting, one.has_asked))
            self.remove(chosen)
            chosen.drop()


class PatientProtocol(H11Protocol):
    """Closes a connection whose next request head is late; uvicorn would wait forever. Strangers get less time."""

    _head: asyncio.TimerHandle | None = None
    host = ""

    def __init__(self, *arguments: Any, opened: Connections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._opened, self._is_stranger = opened, True
        self.app_state = {**self.app_state, KNOW: self._know}
        self.timeout_keep_alive = STRANGER_SECONDS  # type: ignore[assignment]  # asyncio takes fractions

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a request, or for the rest of one."""
        return not self.has_asked or self.cycle.response_complete or self.cycle.more_body

    @property
    def has_asked(self) -> bool:
        return self.cycle is not None

    def drop(self) -> None:
        self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.host = self.client[0] if self.client else ""
        self._opened.add(self)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            if self._head is None:
                self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.remove(self)
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _know(self) -> None:
        """Called by the guard once it has authenticated the client."""
        if self._is_stranger and not self.transport.is_closing():
            self._opened.know(self)
            self._is_stranger, self.timeout_keep_alive = False, IDLE_SECONDS

    def _wait_for_head(self) -> None:
        self._head = self.loop.call_later(STRANGER_SECONDS if self._is_stranger else HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._head = None
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():  # uvicorn's configuration has one number for both
            listening.listen(BACKLOG)


@contextmanager
def app_served(app: ASGIApp, listening: socket.socket, log: Log, stop: Event) -> Iterator[None]:
    """Serves an app over a socket in a thread inside the block. `stop` is set when it ends."""
    config = uvicorn.Config(
        app,
        http=partial(PatientProtocol, opened=Connections()),  # type: ignore[arg-type]  # it only calls it
        ws="none", lifespan="off", log_config=None, access_log=False, server_header=False, proxy_headers=False,
        backlog=ACCEPTED_AT_ONCE, limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=STOP_SECONDS,
    )  # fmt: skip
    server = _Server(config)

    def serve() -> None:
        # `Server.run` would install signal handlers in place of the service's.
        asyncio.run(server.serve([listening]))
        stop.set()

    with in_background("mmqjp serve", serve, partial(setattr, server, "should_exit", True), log, "serve-failed", stop):
        yield


if __name__ == "__main__":
    try:
        status = main(*sys.argv[1:])
    except (MmqjpError, OSError) as error:
        sys.exit(f"mmqjp: error: the page cannot be served: {printable_line(str(error))}")
    end_without_freeing(status)  # the service waits for this process, and freeing its memory takes half a second
    sys.exit(status)
