"""A site: the reader, commands, access, templates and caches that the pages and the API of one store share. Access
needs the token of the state, a single-use code, or a cookie obtained with either; the host names of requests are
checked against DNS rebinding. Also has static files at content-hashed addresses, cursors of lists, error responses
(pages, or JSON under `/api/`), one-time messages, and server-sent events. A listener reads new outputs at its own pace;
if they were dropped or are too many, it gets a gap."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache, partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from jinja2 import ChoiceLoader, Environment, PackageLoader, PrefixLoader
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from common.dates import DAY
from common.errors import InputError, InvalidValue, MmqjpError, OperationalError
from common.files import SECRETS, make_inside, make_secret_file
from common.tools import LruCache, gc_paused
from feeds.documents import Now, now_us
from feeds.fetch.settings import NOTHING_SET, SettingsOf
from join_stage.store.protocol import StoreError
from mmqjp.backtest import BACKTEST_SECONDS
from mmqjp.explain.terms import duration_text
from mmqjp.present.item import IN_UTC, ShownMatch
from mmqjp.present.newest import NewestMatches
from mmqjp.present.recent import RecentAnswers
from mmqjp.present.terminal import TITLES, funnel_notes, sections, stage_name, template_environment
from mmqjp.queries.changes import UnknownQuery
from mmqjp.service.commands import Client
from mmqjp.service.pushes import PushClient, PushRefused
from mmqjp.service.spool import SendCommand
from mmqjp.service.sql_question import BACKTEST
from mmqjp.state.engine_choice import is_held
from mmqjp.syndication.atom import Links, load_feed_links
from mmqjp.syndication.serve_feeds import FeedPages, StoreFeeds
from mmqjp.tables.lookup import items_by_feed
from mmqjp.tables.schema import SCHEMA
from mmqjp.web.readers import Busy, SharedCache, StoreReader, TooSlow
from mmqjp.web.tallies import DAYS, FeedItems, Tallies, tally_feeds
from xscl.text import XsclErrors

TOKEN, PUSH_TOKEN = "token", "push-token"
"""The files of the token and of the push-only token in the state's directory of secrets."""

BYTES, SHORTEST = 32, 20
"""Random bytes of a token or code. A shorter token, in characters, was not made here and could be guessed."""

COOKIE_SECONDS = 30 * 24 * 3600  # lifetime of a login

ATTEMPTS, ATTEMPTS_SECONDS = 10, 60.0
"""Maximum number of wrong tokens from an address within a number of seconds; further ones are not even counted."""

MOST_ADDRESSES = 1000  # maximum number of addresses whose wrong tokens are counted

Seconds = Callable[[], float]  # returns the seconds since 1970


class TooManyAttempts(OperationalError, RuntimeError):
    """There were too many wrong tokens from one address."""


def token_of(state: Path, name: str = TOKEN) -> str:
    """Returns a token of a state, creating it if missing. Raises StoreError, OSError."""
    path = make_inside(state, SECRETS) / name
    if not path.exists():
        make_secret_file(path, f"{secrets.token_urlsafe(BYTES)}\n".encode())  # unless another process was faster
    token = path.read_text("utf-8", "replace").strip()
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable():
        raise StoreError(f"{path} holds no token: remove the file, and a new one is created")
    path.chmod(0o600)
    return token


class Access:
    """Checks tokens, codes and cookies; open without a token. Ports of a host share cookies: each has its own name."""

    def __init__(
        self, token: str | None, cookie: str = "mmqjp", *, push_token: str | None = None, clock: Seconds = time.time
    ) -> None:
        self._token, self._push_token, self.cookie, self._clock = token, push_token, cookie, clock
        self._key = sha256(f"cookie {token}".encode()).digest()
        self._lock = Lock()
        self._codes = set[str]()
        self._wrong = LruCache[str, list[float]](MOST_ADDRESSES)

    @property
    def is_open(self) -> bool:
        return self._token is None

    def link(self, url: str) -> str:
        """Returns a link to the page at `url` that logs in once, if needed, with a new code."""
        if self.is_open:
            return url
        code = secrets.token_urlsafe(BYTES)
        with self._lock:
            self._codes.add(_digest(code))
        return f"{url.rstrip('/')}/login?code={quote(code)}"

    def use_code(self, code: str) -> bool:
        """Checks a code and invalidates it."""
        with self._lock:
            is_known = _digest(code) in self._codes
            self._codes.discard(_digest(code))
        return is_known

    def is_push_token(self, text: str) -> bool:
        return self._push_token is not None and hmac.compare_digest(_digest(text), _digest(self._push_token))

    def is_token(self, text: str, address: str) -> bool:
        """Whether a text sent from a client's address is the token. Raises TooManyAttempts."""
        if self._token is not None and hmac.compare_digest(_digest(text), _digest(self._token)):
            return True  # however many wrong ones came from that address, which many may share
        now = self._clock()
        with self._lock:
            wrong = [moment for moment in self._wrong.get(address) or () if moment > now - ATTEMPTS_SECONDS]
            if len(wrong) >= ATTEMPTS:
                raise TooManyAttempts(f"there were too many wrong tokens: wait {ATTEMPTS_SECONDS:g} s and try again")
            self._wrong.put(address, [*wrong, now])
        return False

    def make_cookie(self) -> str:
        end = str(int(self._clock()) + COOKIE_SECONDS)
        return f"{end}.{self._sign(end)}"

    def is_cookie(self, value: str) -> bool:
        """Whether a cookie's value is ours and has not expired."""
        end, _, digest = value.partition(".")
        if not (end.isascii() and end.isdecimal() and len(end) < 20):
            return False
        return hmac.compare_digest(digest.encode(), self._sign(end).encode()) and int(end) > self._clock()

    def _sign(self, end: str) -> str:
        return hmac.new(self._key, end.encode(), sha256).hexdigest()


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


HTTP_PORT = 80

_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{1,5}))?", re.ASCII)


def is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts that requests may name: those of the listening address and of the public URL. When listening on all
    addresses, any IP address is allowed, as these cannot be rebound."""

    host: str
    port: int
    public_url: str = ""

    def has(self, header: str) -> bool:
        """Whether a Host header, or host and port of an Origin, is allowed."""
        if self.public_url and header.lower() == urlsplit(self.public_url).netloc.lower():
            return True
        if (parts := _HOST.fullmatch(header)) is None or int(parts["port"] or HTTP_PORT) != self.port:
            return False
        host = parts["host"].lower().strip("[]")
        listening, address = _address(self.host), _address(host)
        if listening is not None and listening.is_unspecified and address is not None:
            return True
        return host == self.host.lower() or is_loopback(host)

    def is_origin(self, origin: str) -> bool:
        scheme, _, host = origin.partition("://")
        return scheme in ("http", "https") and self.has(host)


@lru_cache(100)
def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


WAIT = 30.0  # seconds that a page waits for the service's answer


def asking(client_that_waits: Callable[[float], Client]) -> SendCommand:
    """Returns a function that submits commands, with a longer timeout for back-tests."""
    soon, later = client_that_waits(WAIT), client_that_waits(WAIT + BACKTEST_SECONDS)

    def ask(do: str, arguments: Mapping[str, Any]) -> Any:
        return (later if do == BACKTEST else soon).ask(do, arguments)

    return ask


async def form_values(request: Request) -> dict[str, str]:
    """Returns the texts of a form with dynamic fields."""
    return {key: value for key, value in (await request.form()).items() if isinstance(value, str)}


def prefix_of(public_url: str) -> str:
    """The path below which browsers find the site, such as "/stories"; "" if it has a host of its own."""
    return urlsplit(public_url).path.rstrip("/")


_ROOTED = re.compile(r'(\s(?:href|src|action|formaction)=")/(?!/)')  # never matches text, whose quotes are escaped

STATIC = "/static/"  # the path of static files

TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "woff2": "font/woff2",
}
"""Media types of the files served. Others are ignored."""

YEAR = 365 * 24 * 3600


class Assets:
    """The files in `static/`. Their addresses share one digest, so that they can refer to each other relatively."""

    def __init__(self) -> None:
        look = files("mmqjp.present").joinpath("templates", "page.css")  # also embedded in HTML files of matches
        found = [look, *files("mmqjp.web").joinpath("static").iterdir()]
        self._content = {file.name: file.read_bytes() for file in found if file.name.rpartition(".")[2] in TYPES}
        every = b"\0".join(name.encode() + b"\0" + text for name, text in sorted(self._content.items()))
        self._digest = sha256(every).hexdigest()[:16]

    def url(self, name: str) -> str:
        """Raises KeyError if there is no such file."""
        if name not in self._content:
            raise KeyError(name)
        return f"{STATIC}{self._digest}/{name}"

    def response(self, digest: str, name: str) -> Response | None:
        """Returns a cacheable file; None if it is missing or its content has changed."""
        if digest != self._digest or name not in self._content:
            return None
        kept = {"Cache-Control": f"public, max-age={YEAR}, immutable"}
        return Response(self._content[name], headers=kept, media_type=TYPES[name.rpartition(".")[2]])


def cursor(*values: int | str) -> str:
    """Returns a list cursor.

    >>> decode_cursor(cursor(-3, "a'b"), int, str), decode_cursor(None, int)
    ((-3, "a'b"), None)
    """
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def decode_cursor(text: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """Returns the values of a cursor, of these kinds; None for None. Raises InvalidValue."""
    if not text:
        return None
    with suppress(binascii.Error, ValueError, RecursionError):
        found = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True))
        is_known = isinstance(found, list) and list(map(type, found)) == list(kinds)
        if is_known and all(isinstance(one, str) or -(1 << 63) <= one < 1 << 63 for one in found):
            return tuple(found)
    raise InvalidValue(f"after={text[:80]!r} is not the next of a list")


MOST_LISTENERS, MOST_READ, MOST_BEHIND = 100, 10, 1_000
"""Maximum number of listeners, of cached reads that they share, and of missed outputs, beyond which there is a gap."""

LOOK, PAGE, MOST_NUMBERS = 0.5, 50, 20_000
"""Seconds between two polls for outputs, maximum number sent per poll (nobody reads faster), and maximum numbers
searched for them, since outputs of hidden queries have numbers too."""

_Read = TypeVar("_Read")


class TooManyListeners(OperationalError, RuntimeError):
    """The limit of listeners is reached."""


@dataclass(frozen=True, slots=True)
class OutputGap:
    """Omitted outputs: the first and last number."""

    first: int
    last: int


class Hub:
    """The listeners of a site, for the server's event loop, each at its own pace. Reads are shared."""

    def __init__(self, outputs: NewestMatches, look: float = LOOK) -> None:
        self._outputs, self._look = outputs, look
        self._read = SharedCache(MOST_READ)
        self.listeners = 0
        self._is_closed = False

    def close(self) -> None:
        """Ends all listeners, from any thread, and refuses new ones."""
        self._is_closed = True

    def check(self) -> None:
        """Raises TooManyListeners if the limit is reached."""
        if self.listeners >= MOST_LISTENERS:
            shown = f"{MOST_LISTENERS} pages that show live outputs are open"
            raise TooManyListeners(f"{shown}: close one, or reload later")

    async def listen(self, seen: int | None, quiet: float) -> AsyncGenerator[ShownMatch | OutputGap | None, None]:
        """Yields the outputs after the number `seen` (None: from now on), and None after `quiet` seconds without one.
        Ends when the hub is closed. Raises TooManyListeners, and what reading the store raises."""
        self.check()
        self.listeners += 1
        now, version = asyncio.get_running_loop().time, None
        try:
            _, missed = await self._shared("span", self._outputs.version(), self._outputs.span)
            position, told_at = missed if seen is None else min(seen, missed), now()
            while not self._is_closed:
                if (newer := self._outputs.version()) != version:
                    oldest, newest = await self._shared("span", newer, self._outputs.span)
                    first = max(position + 1, oldest, newest - MOST_NUMBERS + 1)
                    numbers: Sequence[int] = range(first, newest + 1)
                    if len(numbers) > PAGE:
                        make = partial(self._outputs.numbers, first - 1, newest)
                        numbers = await self._shared((first, newest, "numbers"), newer, make)
                    if len(numbers) > MOST_BEHIND:
                        numbers = numbers[-PAGE:]
                        first = numbers[0]
                    last = numbers[PAGE - 1] if len(numbers) > PAGE else newest
                    if position + 1 < first <= newest:
                        yield OutputGap(position + 1, first - 1)
                    read = partial(self._outputs.between, first - 1, last)
                    for match in await self._shared((first, last), newer, read) if numbers else ():
                        yield match
                        told_at = now()
                    position = max(position, last)
                    version = newer if position >= newest else None
                elif now() >= told_at + quiet:
                    yield None
                    told_at = now()
                if position >= missed:
                    await asyncio.sleep(self._look)
        finally:
            self.listeners -= 1

    async def _shared(self, key: Hashable, version: object, make: Callable[[], _Read]) -> _Read:
        return await asyncio.to_thread(self._read.get, key, version, make)


def format_bytes(count: int | None) -> str:
    """Formats a number of bytes.

    >>> format_bytes(None), format_bytes(900), format_bytes(48_100_000)
    ('–', '900 B', '45.9 MiB')
    """
    if count is None:
        return "–"
    number, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            break
        number /= 1024
    return f"{count:,} B" if unit == "B" else f"{number:,.1f} {unit}"


def format_duration(microseconds: int | None) -> str:
    """Formats a duration with its two largest units, or as seconds.

    >>> format_duration(None), format_duration(1_500_000), format_duration(90_000_000), format_duration(200_000_000_000)
    ('–', '1.5 s', '1 min 30 s', '2 d 7 h')
    """
    if microseconds is None:
        return "–"
    seconds = max(microseconds, 0) / 1_000_000
    return f"{seconds:.1f} s" if seconds < 60 else duration_text(microseconds)


_ROW_PART = re.compile(r"<(tr|th|td)\b")


def labelled(rows: Markup | str, labels: Sequence[str]) -> Markup:
    """Marks the cells of table rows with their columns' labels, for narrow screens, where each row is a card. Roles
    keep the table a table there.

    >>> str(labelled("<tr><th>a</th><td>1</td></tr>", ["Name", "Count"]))
    '<tr role="row"><th role="rowheader">a</th><td role="cell" data-label="Count">1</td></tr>'
    """
    cell = 0

    def mark(part: re.Match[str]) -> str:
        nonlocal cell
        cell = 0 if part[1] == "tr" else cell + 1
        label = escape(labels[cell - 1]) if 0 < cell <= len(labels) and part[1] == "td" else ""
        role = {"tr": "row", "th": "rowheader", "td": "cell"}[part[1]]
        return f'{part[0]} role="{role}"' + (f' data-label="{label}"' if label else "")

    return Markup(_ROW_PART.sub(mark, str(rows)))


def segment(text: str) -> str:
    return quote(text, safe="")


def with_query(path: str, **fields: object) -> str:
    """Returns an address with the fields that are neither None nor "".

    >>> with_query("/", search="a b", after=None, state="")
    '/?search=a+b'
    """
    given: Mapping[str, object] = {key: value for key, value in fields.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


MOST_ROWS, SECONDS = 100_000, 10.0  # limits of a page's SELECT
MOST_CACHED = 5_000_000  # maximum number of rows that a cache reads at once

CACHED_REPLIES = 200, 1.0, 10.0
"""Maximum number of cached replies, and seconds for which one is fresh, and served stale while it is renewed."""

NO_STORE = {"Cache-Control": "no-store"}
"""The header of responses that change without a commit and so cannot be cached."""

MOST_SLOW = 10  # maximum number of concurrent slow requests: a quarter of the threads
TOLD = "told"  # the query parameter with the key of a one-time message
MOST = 1_000  # maximum number of unseen one-time messages; the oldest are evicted


@dataclass(frozen=True, slots=True)
class Link:
    """An entry of the navigation, sorted by `place`."""

    path: str
    label: str
    place: int


@dataclass(frozen=True)
class Site:
    """The state shared by pages. `reader` reads the store, and `ask` submits commands to its holder, through the spool.
    `access` checks clients; `public_url` is the site's address without a final slash. `state` is the state directory;
    `holds`: this process holds it. `now` is the clock in microseconds. `feed_settings` are the configuration file's;
    `allow_private`: feeds may be on private hosts."""

    reader: StoreReader
    ask: SendCommand
    access: Access
    public_url: str
    state: Path
    holds: bool = True
    now: Now = now_us
    feed_settings: SettingsOf = NOTHING_SET
    allow_private: bool = False
    assets: Assets = field(default_factory=Assets)
    links: list[Link] = field(default_factory=list)
    kept: SharedCache = field(init=False, default_factory=SharedCache)
    replies: SharedCache = field(init=False, default_factory=partial(SharedCache, *CACHED_REPLIES))
    """Replies without a version. Cleared after this site changes something, so that later reads show it."""
    _told: LruCache[str, str] = field(init=False, default_factory=partial(LruCache, MOST))
    _slow_places: BoundedSemaphore = field(init=False, default_factory=partial(BoundedSemaphore, MOST_SLOW))

    @property
    def prefix(self) -> str:
        return prefix_of(self.public_url)

    def select(self, sql: str, limit: int = MOST_ROWS, seconds: float = SECONDS) -> pa.Table:
        """Returns the rows of SQL of our own."""
        return self.reader.select(sql, limit, seconds, own=True)

    @cached_property
    def columns(self) -> dict[str, Sequence[str]]:
        """The columns of the tables and views that users may query."""
        return {name: self.select(f"SELECT * FROM {name} LIMIT 0").column_names for name in SCHEMA.documented}

    @contextmanager
    def slow(self) -> Iterator[None]:
        """For requests that may wait for seconds. Raises Busy if there are too many."""
        if not self._slow_places.acquire(blocking=False):
            raise Busy("too many searches are running: try again in a moment")
        try:
            yield
        finally:
            self._slow_places.release()

    @cached_property
    def tallies(self) -> Tallies:
        return Tallies(self.select, self.now, self.recent)

    @cached_property
    def recent(self) -> RecentAnswers:
        return RecentAnswers(partial(self.select, limit=MOST_CACHED), self.reader.version, self.reader.committed)

    @cached_property
    def matches(self) -> NewestMatches:
        return NewestMatches(self.recent)

    @cached_property
    def feeds(self) -> StoreFeeds:
        return StoreFeeds(self.recent)

    @cached_property
    def feed_pages(self) -> FeedPages:
        return FeedPages(self.feeds, self.feed_links, self.public_url, self.now)

    def prepare(self) -> None:
        """Loads new data that most pages need."""
        with gc_paused():  # the loaded data is permanent, and scanning it would hold up all pages
            self.tallies.current()
            self.matches.forget_what_was_dropped()
            self.feeds.revoked_links()

    def prepare_templates(self) -> None:
        """Compiles all templates, to speed up first requests."""
        for name in self._templates.list_templates(["html"]):
            self._templates.get_template(name)

    @cached_property
    def feed_links(self) -> Links:
        return load_feed_links(self.state)

    def look(self, do: str, arguments: Mapping[str, Any]) -> Any:
        """Sends a read-only command. A cached reply may be seconds old, but not older than this site's last change."""
        return self.replies.get((do, json.dumps(arguments, sort_keys=True)), None, partial(self.ask, do, arguments))

    def look_up(self, sql: str, limit: int, seconds: float) -> pa.Table:
        """Returns rows of SQL, cached like `look`."""
        return self.replies.get((sql, limit, seconds), None, partial(self.select, sql, limit, seconds))

    def feed_items(self) -> dict[str, FeedItems]:
        """Returns the items of each feed, by address, cached like `look`."""
        today = self.now() // DAY
        return tally_feeds(self.look_up(items_by_feed(today - DAYS + 1), MOST_CACHED, SECONDS).to_pylist(), today)

    @cached_property
    def pushes(self) -> PushClient:
        return PushClient(self.state, lambda: self.holds or is_held(self.state))

    @cached_property
    def hub(self) -> Hub:
        return Hub(self.matches)

    @cached_property
    def _templates(self) -> Environment:
        """The templates of pages, with those of `mmqjp.present` below `present/`."""
        loaders = [PackageLoader("mmqjp.web"), PrefixLoader({"present": PackageLoader("mmqjp.present")})]
        made = template_environment(ChoiceLoader(loaders))
        made.auto_reload = False
        made.globals |= {
            "clock": IN_UTC, "with_query": with_query, "sections": partial(sections, clock=IN_UTC),
            "stage_name": stage_name, "notes": funnel_notes, "verdict_titles": TITLES, "asset": self.assets.url,
        }  # fmt: skip
        made.filters |= {
            "number": "{:,}".format, "segment": segment, "bytes": format_bytes, "duration": format_duration,
            "labelled": labelled,
        }  # fmt: skip
        return made

    def add_links(self, links: Sequence[Link]) -> None:
        self.links.extend(links)
        self.links.sort(key=lambda link: link.place)

    def render(
        self, request: Request, template: str, status: int = 200, *, changes: bool = False, **context: object
    ) -> HTMLResponse:
        """Renders a template with its context and one-time `message`; not cached if it `changes` without a commit."""
        message = self._told.pop(request.query_params.get(TOLD, "")) or ""
        known = {"here": request.url.path, "links": self.links, "site": self, "message": message}
        text = self.piece(template, **known | context)
        return HTMLResponse(text, status, NO_STORE if message or changes else None)

    def show(self, path: str, message: str, fragment: str = "", **fields: str) -> RedirectResponse:
        """Returns the response to a form: a redirection to a page that shows a message once."""
        key = secrets.token_urlsafe(9)  # cannot be guessed
        self._told.put(key, message)
        return RedirectResponse(with_query(path, **fields, **{TOLD: key}) + fragment, 303)

    def piece(self, template: str, **context: object) -> str:
        """Renders a template, without the public prefix in its addresses."""
        text = self._templates.get_template(template).render(context)
        return _ROOTED.sub(rf"\1{self.prefix}/", text) if self.prefix else text


API = "/api/"  # below this path, errors are JSON
MOST_MISTAKES = 100  # maximum number of mistakes in an answer

HEADINGS = {
    400: "That cannot be done",
    401: "You are not logged in",
    403: "That is not allowed",
    404: "There is no such page",
    405: "That cannot be done here",
    408: "That took too long",
    409: "That cannot be done now",
    410: "That is gone",
    413: "That is too large",
    415: "That has an unknown type",
    421: "Wrong address",
    429: "Too many attempts",
    503: "Try again in a moment",
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in the input: line and column from 1 (None: no particular place), message and hint."""

    line: int | None
    column: int | None
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The body of the API's error responses."""

    error: str
    errors: Sequence[Mistake] = ()


def problem_response(site: Site, request: Request, status: int, problem: ErrorBody) -> Response:
    """Returns an error as a page, or as JSON for the API."""
    if request.url.path.startswith(API):
        return JSONResponse(asdict(problem), status)
    heading = HEADINGS.get(status, "Something went wrong")
    return site.render(request, "error.html", status, heading=heading, problem=problem)


def status_of(error: MmqjpError) -> int:
    match error:
        case PushRefused():
            return error.status
        case UnknownQuery():
            return 404
        case TooManyAttempts():
            return 429
        case Busy() | TooSlow():
            return 503
        case InputError():
            return 400
        case OperationalError():
            return 503
    return 500


def handle_errors(app: FastAPI, site: Site) -> None:
    def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, MmqjpError)
        known = error.errors[:MOST_MISTAKES] if isinstance(error, XsclErrors) else ()
        mistakes = [Mistake(one.line, one.column, one.message, one.hint or None) for one in known]
        status = status_of(error)
        response = problem_response(site, request, status, ErrorBody(str(error), mistakes))
        if status in (429, 503):
            wait = error.wait if isinstance(error, PushRefused) else ATTEMPTS_SECONDS if status == 429 else 1
            response.headers["Retry-After"] = f"{wait:.0f}"
        return response

    def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = problem_response(site, request, error.status_code, ErrorBody(str(error.detail)))
        response.headers.update(error.headers or {})
        return response

    def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        texts = (f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}"[:500] for one in error.errors())
        mistakes = [Mistake(None, None, text) for text in texts]
        return problem_response(site, request, 400, ErrorBody("the request is malformed", mistakes))

    def unexpected(request: Request, error: Exception) -> Response:
        text = f"unexpected {type(error).__name__}; the log of the server has more"
        return problem_response(site, request, 500, ErrorBody(text))

    handlers = {MmqjpError: ours, HTTPException: http, RequestValidationError: invalid, Exception: unexpected}
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def plain_error_response(path: str, status: int, message: str) -> Response:
    if path.startswith(API):
        return Response(json.dumps({"error": message, "errors": []}), status, media_type="application/json")
    return Response(f"{message}\n", status, media_type="text/plain; charset=utf-8")


SEND_SECONDS = 20.0  # a client that receives nothing for this many seconds is dropped

COMMENT, RETRY = b": still there\n\n", b"retry: 3000\n\n"
"""The keep-alive comment, and the instruction to reconnect after 3 s."""


class ServerSentEvents(StreamingResponse):
    """A response that sends each of `messages`, and ends with them or its client; a stalled client is dropped."""

    media_type = "text/event-stream"

    def __init__(self, messages: AsyncGenerator[bytes, None]) -> None:
        # Without the last one, some proxies buffer messages.
        super().__init__(self._retried(), headers=NO_STORE | {"X-Accel-Buffering": "no"})
        self._messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        try:
            with suppress(OSError, ClientDisconnect):
                await super().__call__(scope, receive, send_in_time)
        finally:
            await self._messages.aclose()

    async def _retried(self) -> AsyncIterator[bytes]:
        yield RETRY
        async for message in self._messages:
            yield message


def message(event: str, id: int, data: str) -> bytes:
    """Returns a message with its number. `data` may have several lines.

    >>> message("output", 7, "a\\nb")
    b'id: 7\\nevent: output\\ndata: a\\ndata: b\\n\\n'
    """
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return f"id: {id}\nevent: {event}\n{lines}\n".encode()
