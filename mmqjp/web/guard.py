"""ASGI middleware before all pages: checks hosts, origins, sizes and authentication; sets response headers."""

from __future__ import annotations

import asyncio
from urllib.parse import quote, urlsplit, urlunsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from feeds.fetch.hubs import CALLBACK
from mmqjp.service.pushes import MOST_BYTES
from mmqjp.web.site import (
    API,
    ATTEMPTS_SECONDS,
    STATIC,
    Access,
    Hosts,
    TooManyAttempts,
    plain_error_response,
    prefix_of,
)

OPEN, OPEN_BELOW = ("/login", "/healthz"), (STATIC, "/f/", CALLBACK)
"""Paths and prefixes that need no token: static files, and feeds and hub callbacks, whose addresses have keys."""

DATA = (API, "/sql/answer")
"""Prefixes for scripts and downloads of this site, refused to requests from other pages."""

SAFE = frozenset(("GET", "HEAD", "OPTIONS"))  # the methods that change nothing
LARGEST = 1 << 20  # maximum size of a request body, in bytes, except for pushed documents

PUSH_PATH = f"{API}v1/documents"  # where clients push documents, with a token that may do nothing else

BODY_SECONDS, STRANGER_SECONDS = 30.0, 10.0
"""Time limit for receiving a request body, and for one from a client without a token or login."""

KNOW = "know"
"""The key of a function in a scope's state, to call once a token or login was presented on its connection."""

POLICY = "; ".join((
    "default-src 'none'", "style-src 'self'", "script-src 'self'", "img-src 'self' data:", "connect-src 'self'",
    "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
))  # fmt: skip

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, forms have the Origin "null", all there is over plain HTTP
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

PRIVATE = "private, no-cache"  # the default Cache-Control of pages


class _BadBody(Exception):
    """A request body is too large, or too slow. The argument is the status."""


def is_push(scope: Scope) -> bool:
    return bool(scope["method"] == "POST" and scope["path"] == PUSH_PATH)


def is_hub(scope: Scope) -> bool:
    """Whether a hub calls; its pushes have a signature and are read in parts."""
    return bool(scope["path"].startswith(CALLBACK))


def needs_no_token(path: str) -> bool:
    return path in OPEN or path.startswith(OPEN_BELOW)


class Guard:
    """ASGI middleware that passes on allowed requests only. The app inside does not know the public URL's path: it is
    removed from requests, if a proxy passes it on, and prepended to redirections."""

    def __init__(
        self, app: ASGIApp, access: Access, hosts: Hosts, *, largest: int = LARGEST, seconds: float = BODY_SECONDS
    ) -> None:
        self._app, self._access, self._hosts = app, access, hosts
        self._largest, self._seconds = largest, seconds
        self._prefix = prefix_of(hosts.public_url)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # web sockets are not used
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["path"].startswith(f"{self._prefix}/") or scope["path"] == self._prefix:
            scope = {**scope, "path": scope["path"].removeprefix(self._prefix) or "/"}
        response = self._refusal(scope)
        is_known = response is None and (  # allowed requests have a token or login, or nobody needs one
            self._access.is_open or not needs_no_token(scope["path"]) or self._has_cookie(Headers(scope=scope))
        )
        if is_known and KNOW in (state := scope.get("state", {})):
            state[KNOW]()
        largest = self._most_bytes(scope)
        body = _Body(receive, largest, self._seconds if is_known else min(self._seconds, STRANGER_SECONDS))
        begun = False

        async def send_headed(message: Message) -> None:
            """Adds common headers; sends nothing if the body is unreadable, which the app may misreport."""
            nonlocal begun
            if body.status and not begun:
                return
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", PRIVATE)
                if "location" in headers:
                    headers["location"] = self._public(headers["location"])
            await send(message)

        if response is None:
            try:
                await self._app(scope, body.receive, send_headed)
            except _BadBody:
                if begun:
                    raise
            if body.status:
                too_large = f"a request has at most {largest:,} bytes"
                text = too_large if body.status == 413 else "the request was sent too slowly"
                response = plain_error_response(scope["path"], body.status, text)
                response.headers["Connection"] = "close"
        if response is not None and not begun:
            body.status = 0
            await response(scope, receive, send_headed)

    def _public(self, address: str) -> str:
        """An address of this site for browsers, which may have the scheme and host of the proxy's request."""
        parts = urlsplit(address)
        return urlunsplit(parts._replace(scheme="", netloc="", path=f"{self._prefix}/{parts.path.lstrip('/')}"))

    def _most_bytes(self, scope: Scope) -> int:
        return MOST_BYTES if is_push(scope) or is_hub(scope) else self._largest

    def _refusal(self, scope: Scope) -> Response | None:
        """Returns the response to a refused request; None if it is allowed."""
        headers, path = Headers(scope=scope), scope["path"]
        if len(headers.getlist("host")) != 1 or not self._hosts.has(headers["host"]):
            text = "this host is unknown here: use the printed link, or start with --public-url"
            return plain_error_response(path, 421, text)
        length = headers.get("content-length", "0")
        largest = self._most_bytes(scope)
        if not length.isdecimal() or len(length) > 15 or int(length) > largest:
            return plain_error_response(path, 413, f"a request has at most {largest:,} bytes")
        kind, _, token = headers.get("authorization", "").partition(" ")
        bearer = token.strip() if kind.lower() == "bearer" else None
        # Browsers send at least one of two headers with a form; scripts send a token and neither.
        unsaid = bearer is not None or not self._has_cookie(headers)
        if scope["method"] not in SAFE and not is_hub(scope) and not self._comes_from_here(headers, unsaid=unsaid):
            text = "this form belongs to another page: open the page here, and send it again"
            return plain_error_response(path, 403, text)
        if path.startswith(DATA) and not self._comes_from_here(headers, unsaid=True):
            return plain_error_response(path, 403, "another site must not request this: open the page here")
        if needs_no_token(path) or self._access.is_open:
            return None
        if bearer is None:
            return None if self._has_cookie(headers) else _log_in(scope)
        if self._access.is_push_token(bearer):
            return None if is_push(scope) else plain_error_response(path, 403, "this token may only push documents")
        client = scope.get("client")
        try:
            if self._access.is_token(bearer, client[0] if client else ""):
                return None
        except TooManyAttempts as error:
            response = plain_error_response(path, 429, str(error))
            response.headers["Retry-After"] = f"{ATTEMPTS_SECONDS:.0f}"
            return response
        return _unauthorized(path, "the token is wrong: it is in the file secrets/token of the state directory")

    def _comes_from_here(self, headers: Headers, *, unsaid: bool) -> bool:
        """Whether a request comes from a page of this site or from no browser; `unsaid` if no header says so."""
        if (site := headers.get("sec-fetch-site")) is not None:
            return site in ("same-origin", "none")
        origin = _origin(headers)
        return unsaid if origin is None else self._hosts.is_origin(origin)

    def _has_cookie(self, headers: Headers) -> bool:
        found = cookie_parser(headers.get("cookie", "")).get(self._access.cookie)
        return found is not None and self._access.is_cookie(found)


class _Body:
    """Receives a request body, limited in size and time. `status` is that of a bad one, else 0."""

    def __init__(self, receive: Receive, largest: int, seconds: float) -> None:
        self._receive, self._left, self._seconds = receive, largest, seconds
        self._is_whole = False
        self.status = 0

    async def receive(self) -> Message:
        if self._is_whole:  # after that it only reports that the client has gone
            return await self._receive()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            async with asyncio.timeout(self._seconds):
                message = await self._receive()
        except TimeoutError:
            raise self._failed(408) from None
        self._seconds -= loop.time() - begun
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            self._is_whole = not message.get("more_body", False)
            if self._left < 0:
                raise self._failed(413)
        return message

    def _failed(self, status: int) -> _BadBody:
        self.status = status
        return _BadBody(status)


def _origin(headers: Headers) -> str | None:
    """The origin of the page that makes a request, if the browser sends it."""
    if (origin := headers.get("origin")) is not None or (page := headers.get("referer")) is None:
        return origin
    return "/".join(page.split("/", 3)[:3])


def _log_in(scope: Scope) -> Response:
    """Redirects a browser to the login page, and from there back. Scripts get an error."""
    path = scope["path"]
    if path.startswith(API):
        return _unauthorized(path, "send the header Authorization: Bearer TOKEN")
    if scope["method"] not in SAFE:
        advice = "open the page, log in, and send it again"
        return plain_error_response(path, 401, f"you are no longer logged in: {advice}")
    wanted = path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
    return RedirectResponse("/login" if wanted == "/" else f"/login?next={quote(wanted, safe='')}", 303)


def _unauthorized(path: str, message: str) -> Response:
    response = plain_error_response(path, 401, message)
    response.headers["WWW-Authenticate"] = 'Bearer realm="mmqjp"'
    return response
