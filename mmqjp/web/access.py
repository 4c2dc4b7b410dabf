"""Who may use the page: whoever has the token of the state, a single-use code, or a cookie obtained by either. Also
checks the host names that requests may use, against DNS rebinding."""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from threading import Lock
from urllib.parse import quote, urlsplit

from common.errors import OperationalError
from common.files import make_inside, make_secret_file
from common.tools import LruCache
from join_stage.store.protocol import StoreError
from mmqjp.syndication.atom import SECRETS

TOKEN = "token"
"""The file with the token, in the state's directory of secrets."""

BYTES, SHORTEST = 32, 20
"""Random bytes of a token or code. A shorter token, in characters, was not made here and could be guessed."""

COOKIE_SECONDS = 30 * 24 * 3600
"""Lifetime of a login."""

ATTEMPTS, ATTEMPTS_SECONDS = 10, 60.0
"""Maximum number of wrong tokens from an address within a number of seconds; further ones are not even counted."""

MOST_ADDRESSES = 1000
"""Maximum number of addresses whose wrong tokens are counted."""

Seconds = Callable[[], float]
"""Returns the seconds since 1970."""


class TooManyAttempts(OperationalError, RuntimeError):
    """There were too many wrong tokens from one address."""


def token_of(state: Path) -> str:
    """Returns the token of a state, creating it if missing. Raises StoreError, OSError."""
    path = make_inside(state, SECRETS) / TOKEN
    if not path.exists():
        make_secret_file(path, f"{secrets.token_urlsafe(BYTES)}\n".encode())  # or another process was faster
    token = path.read_text("utf-8", "replace").strip()
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable():
        raise StoreError(f"{path} holds no token: remove the file, and a new one is made")
    path.chmod(0o600)
    return token


class Access:
    """Checks tokens, codes and cookies. Without a token, access is open. `cookie` is the cookie's name, as pages on
    other ports of a host share its cookies."""

    def __init__(self, token: str | None, cookie: str = "mmqjp", *, clock: Seconds = time.time) -> None:
        self._token, self.cookie, self._clock = token, cookie, clock
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

    def is_token(self, text: str, address: str) -> bool:
        """Whether a text sent from a client's address is the token. Raises TooManyAttempts."""
        if self._token is not None and hmac.compare_digest(_digest(text), _digest(self._token)):
            return True  # however many wrong ones came from there: many may share an address
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
