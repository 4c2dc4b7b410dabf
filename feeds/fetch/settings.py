"""The settings of feeds: how one is requested (proxy, headers, secrets, pace) and read (encoding, identity, rules).

A feed has its own settings; each of its folders has settings for what the feed leaves open. The configuration file
takes precedence over the state. Settings hold the names of secrets, never their values: the fetcher resolves them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import lru_cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import httpx

from common.bounds import INFINITE, duration_us, window_text
from common.dates import DAY, MINUTE
from common.errors import InputError, InvalidValue
from common.files import with_home
from feeds.decoding import codec_of
from feeds.fetch.http import FetchError, Route, web_address
from feeds.items import NESTED, path_parts, redact_userinfo
from feeds.rules import AS_USUAL, ReadingRules, check_identity, check_rule


class BadSettings(InputError, ValueError):
    """The settings of a feed are invalid. The message names the key and says what to write; it never quotes a value
    that may be a secret."""


@dataclass(frozen=True, slots=True)
class SecretRef:
    """A secret by its name."""

    name: str


SettingText = str | SecretRef
NamedTexts = tuple[tuple[str, SettingText], ...]

FILE_ONLY = frozenset({"proxy", "ca", "verify", "allow_private"})
"""Keys that only a user of this machine may set: in the configuration file or on the command line."""

WHOLE = INFINITE  # an unlimited `history`
SHORTEST_INTERVAL = MINUTE
MOST_TEXTS, LONGEST_TEXT, MOST_COOKIE_BYTES = 50, 2_000, 4_096


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """The settings of a feed or folder; UNSET has none. Durations are microseconds.

    `interval` and `longest` bound the time between two fetches. `allow_private` lists hosts that may have private
    addresses (names, addresses or networks). `history` is how far back archives are read, `hub` whether to subscribe at
    a hub that the feed names. `auth`, by default basic, needs `password` and, unless bearer, `user`. In tables the keys
    of `reading` stand among the others.
    """

    proxy: SettingText = ""
    headers: NamedTexts = ()
    cookies: NamedTexts = ()
    user_agent: str = ""
    auth: Literal["", "basic", "digest", "bearer"] = ""
    user: str = ""
    password: SecretRef | None = None
    interval: int | None = None
    longest: int | None = None
    reading: ReadingRules = AS_USUAL
    ca: str = ""
    verify: bool | None = None
    allow_private: tuple[str, ...] = ()
    history: int | None = None
    hub: bool | None = None

    @staticmethod
    def from_table(table: Mapping[str, object], place: str = "") -> FeedSettings:
        """Reads keys and values as parsed from TOML or JSON; None means a missing key. Raises BadSettings with a
        message that begins with `place`."""
        found: dict[str, Any] = {}
        for key, value in table.items():
            if key not in KEYS:
                near = get_close_matches(key, KEYS, 1)
                advice = f"did you mean {near[0]}?" if near else f"the known ones are {', '.join(sorted(KEYS))}"
                raise BadSettings(f"{place}there is no setting {key!r:.60}; {advice}")
            if value is not None:
                try:
                    found[key] = _READERS[key](value)
                except InvalidValue as error:
                    raise BadSettings(f"{place}{key}: {error}") from None
        made = FeedSettings._made(found)
        try:
            _check_together(made)
        except InvalidValue as error:
            raise BadSettings(f"{place}{error}") from None
        return made

    def to_table(self) -> dict[str, object]:
        """The inverse of `from_table`."""
        return {key: _plain(key, value) for key, value in self._values().items() if value not in UNSET}

    def _values(self) -> dict[str, Any]:
        return {key: getattr(self.reading if key in READING_KEYS else self, key) for key in KEYS}

    @staticmethod
    def _made(values: Mapping[str, Any]) -> FeedSettings:
        reading = ReadingRules(**{key: value for key, value in values.items() if key in READING_KEYS})
        return FeedSettings(**{key: value for key, value in values.items() if key not in READING_KEYS}, reading=reading)

    def to_json(self) -> str:
        return json.dumps(self.to_table(), ensure_ascii=False)

    @staticmethod
    def from_json(text: str, place: str = "") -> FeedSettings:
        """The inverse of `to_json`. Raises BadSettings."""
        try:
            return _from_json(text)
        except BadSettings as error:
            raise BadSettings(f"{place}{error}") from None

    def changed(self, table: Mapping[str, object], place: str = "") -> FeedSettings:
        """A copy with some keys changed; None unsets one. Raises BadSettings."""
        return FeedSettings.from_table(self.to_table() | dict(table), place)

    def or_else(self, outer: FeedSettings) -> FeedSettings:
        """A copy with unset keys taken from `outer`. Headers and cookies are merged by name and `block` rules
        concatenated; `auth`, `user` and `password` are taken together."""
        if NONE in (self, outer):
            return outer if self == NONE else self
        ours, theirs = self._values(), outer._values()
        joined = {key: theirs[key] if value in UNSET else value for key, value in ours.items()}
        source = ours if self.auth or self.user or self.password else theirs
        joined |= {key: source[key] for key in ("auth", "user", "password")}
        joined |= {key: _by_name(theirs[key], ours[key]) for key in _NAMED_KEYS}
        joined["block"] = tuple(dict.fromkeys((*ours["block"], *theirs["block"])))
        return FeedSettings._made(joined)

    def without(self, keys: Container[str]) -> FeedSettings:
        return FeedSettings._made({key: value for key, value in self._values().items() if key not in keys})

    def at_home(self, directory: Path) -> FeedSettings:
        """A copy with paths resolved against a directory."""
        return replace(self, ca=str(directory / with_home(self.ca)) if self.ca else "")

    def secrets(self, *keys: str) -> tuple[SecretRef, ...]:
        """The secrets named by these keys, by default by all."""
        values = self._values()
        lists = (dict(values[key]).values() if key in _NAMED_KEYS else (values[key],) for key in keys or KEYS)
        return tuple(one for texts in lists for one in texts if isinstance(one, SecretRef))


@lru_cache(10_000)
def _from_json(text: str) -> FeedSettings:
    """Cached: many feeds have the same settings, and stores are opened often."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise BadSettings("not JSON") from None
    if not isinstance(found, dict):
        raise BadSettings('write a JSON object such as {"interval": "30min"}')
    return FeedSettings.from_table(found)


READING_KEYS = tuple(field.name for field in fields(ReadingRules))
KEYS = tuple(
    key for field in fields(FeedSettings) for key in (READING_KEYS if field.name == "reading" else (field.name,))
)
UNSET: tuple[object, ...] = ("", (), None)
_NAMED_KEYS = "headers", "cookies"
NONE = FeedSettings()


def _by_name(outer: NamedTexts, inner: NamedTexts) -> NamedTexts:
    names = {name.lower() for name, _ in inner}
    return (*(one for one in outer if one[0].lower() not in names), *inner)


@dataclass(frozen=True, slots=True)
class SettingsOf:
    """Settings by the addresses of feeds and the paths of folders; "" is the folder of all feeds."""

    feeds: Mapping[str, FeedSettings]
    folders: Mapping[str, FeedSettings]

    def over(self, lower: SettingsOf) -> SettingsOf:
        """Merges both; for one feed or folder, `lower` applies to what is unset here."""

        def joined(ours: Mapping[str, FeedSettings], theirs: Mapping[str, FeedSettings]) -> dict[str, FeedSettings]:
            return {name: ours.get(name, NONE).or_else(theirs.get(name, NONE)) for name in (*theirs, *ours)}

        return SettingsOf(joined(self.feeds, lower.feeds), joined(self.folders, lower.folders))

    def of(self, url: str, folders: Iterable[str], shown: str = "") -> Iterable[FeedSettings]:
        """Nearest first: the feed's own (by its address, also as shown), then its folders', innermost first."""
        for key in dict.fromkeys((url, shown or url)):
            if key in self.feeds:
                yield self.feeds[key]
        paths: dict[str, None] = {}
        for folder in folders:
            names = path_parts(folder)
            paths |= dict.fromkeys(NESTED.join(names[:depth]) for depth in range(len(names), 0, -1))
        # A stable order by depth: inner folders of all lists before outer ones.
        for path in (*sorted(paths, key=lambda path: -len(path_parts(path))), ""):
            if path in self.folders:
                yield self.folders[path]

    def to_json(self) -> str:
        scopes = (self.feeds, self.folders)
        return json.dumps([{name: one.to_table() for name, one in scope.items()} for scope in scopes])

    @staticmethod
    def from_json(text: str) -> SettingsOf:
        feeds, folders = (
            {name: FeedSettings.from_table(table) for name, table in scope.items()} for scope in json.loads(text)
        )
        return SettingsOf(feeds, folders)


NOTHING_SET = SettingsOf({}, {})


def read_feed_tables(settings: Mapping[str, object], path: Path) -> SettingsOf:
    """The settings of feeds and folders in a configuration file, relative to its directory. Raises BadSettings."""
    found: dict[str, dict[str, FeedSettings]] = {scope: {} for scope in ("feed", "folder")}
    for scope, made in found.items():
        tables = settings.get(scope, {})
        for name, table in tables.items() if isinstance(tables, Mapping) else [("", tables)]:
            place = f'the configuration {path}: {scope}."{redact_userinfo(name):.100}"'
            if not isinstance(table, Mapping):
                raise BadSettings(f'{place}: write a table, as in [{scope}."NAME"]')
            one = FeedSettings.from_table(table, f"{place}.")
            made[_address_of(name, place) if scope == "feed" else name] = one.at_home(path.parent)
    return SettingsOf(found["feed"], found["folder"])


def _address_of(text: str, place: str) -> str:
    try:
        return str(web_address(text))
    except FetchError as error:
        raise BadSettings(f"{place}: {error}") from None


def effective_settings(
    url: str, folders: Iterable[str], file: SettingsOf, state: SettingsOf, shown: str = ""
) -> FeedSettings:
    """Resolves settings: first the feed's, of the file before the state's, then those of its folders likewise."""
    folders = tuple(folders)
    sources = [list(source.of(url, folders, shown)) for source in (file, state)]
    own = [len([key for key in dict.fromkeys((url, shown or url)) if key in source.feeds]) for source in (file, state)]
    ordered = [one for found, count in zip(sources, own, strict=True) for one in found[:count]]
    ordered += [one for found, count in zip(sources, own, strict=True) for one in found[count:]]
    made = NONE
    for one in ordered:
        made = made.or_else(one)
    return made


SecretValue = Callable[[str], str]
"""Returns the value of a secret by name. Raises an InputError with the name but never the value."""


def no_secret(name: str) -> str:
    raise InvalidValue(f"there is no secret {name} here")


@dataclass(frozen=True, slots=True)
class FeedAccess:
    """How the requests of one feed are made. Potential secrets go only to the host of the feed's own address, and never
    with less encryption than that address has."""

    home: httpx.URL
    route: Route
    agent: str
    own: Mapping[str, str] = field(default_factory=dict, repr=False)
    auth: httpx.Auth | None = None

    def headers(self, url: httpx.URL) -> dict[str, str]:
        return {"User-Agent": self.agent, **(self.own if self.is_home(url) else {})}

    def auth_for(self, url: httpx.URL) -> httpx.Auth | None:
        return self.auth if self.is_home(url) else None

    def is_home(self, url: httpx.URL) -> bool:
        ports = {"http": 80, "https": 443}
        here, there = ((one.scheme, one.port or ports[one.scheme]) for one in (self.home, url))
        return self.home.host == url.host and (here == there or (here, there) == (("http", 80), ("https", 443)))


def access_of(settings: FeedSettings, url: str, agent: str, secret: SecretValue) -> FeedAccess:
    """Resolves secrets. Raises InputError for one that is missing or has characters that cannot be sent."""

    def value(text: SettingText, what: str) -> str:
        found = secret(text.name) if isinstance(text, SecretRef) else text
        if not (found.isascii() and found.isprintable()):
            raise InvalidValue(f"{what}: its secret has characters that cannot be sent")
        return found

    own = {name: value(text, name) for name, text in settings.headers}
    if settings.cookies:
        own["Cookie"] = "; ".join(f"{name}={value(text, f'the cookie {name}')}" for name, text in settings.cookies)
    auth: httpx.Auth | None = None
    if settings.password is not None:
        password = secret(settings.password.name)
        if settings.auth == "bearer":
            own["Authorization"] = f"Bearer {value(password, 'password')}"
        else:
            auth = (httpx.DigestAuth if settings.auth == "digest" else httpx.BasicAuth)(settings.user, password)
    proxy = "" if settings.proxy == DIRECT else value(settings.proxy, "proxy")
    if proxy:
        try:
            check_proxy(proxy)
        except InvalidValue as error:
            raise InvalidValue(f"proxy: {error}") from None
    route = Route(settings.allow_private, proxy, settings.ca, settings.verify is not False)
    return FeedAccess(web_address(url), route, settings.user_agent or agent, own, auth)


# ---------------------------------------------------------------- parsing of values

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_COOKIE = re.compile(r"[!#-+\--:<-\[\]-~]*")
SECRET_REF = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_OURS = {
    "authorization": 'write auth, user and password, or name a secret: { secret = "NAME" }',
    "cookie": "write cookies",
    "user-agent": "write user_agent",
    "proxy-authorization": "make the address of the proxy a secret",
}
_OF_THE_TRANSFER = frozenset(
    [
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-range",
        "if-unmodified-since",
        "keep-alive",
        "proxy-connection",
        "range",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)


def _text(value: object, most: int = LONGEST_TEXT) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidValue("write a text")
    if len(value) > most:
        raise InvalidValue(f"write at most {most:,} characters")
    if not value.isprintable():
        raise InvalidValue("it has a line break or control character; write one line")
    return value


def _ascii(value: object) -> str:
    text = _text(value)
    if not text.isascii() or text != text.strip():
        raise InvalidValue("write printable ASCII without surrounding blanks")
    return text


def _secret(value: object) -> SecretRef:
    name = value["secret"] if isinstance(value, Mapping) and value.keys() == {"secret"} else value
    if not isinstance(name, str) or not SECRET_REF.fullmatch(name):
        raise InvalidValue("name a secret, do not write it here: lower-case letters, digits, - and _")
    return SecretRef(name)


def _text_or_secret(value: object) -> SettingText:
    if isinstance(value, Mapping):
        if value.keys() != {"secret"}:
            raise InvalidValue('write a text, or { secret = "NAME" }')
        return _secret(value)
    return _ascii(value)


def _texts(value: object) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not found:
        raise InvalidValue("write a text, or a list of texts")
    if len(found) > MOST_TEXTS:
        raise InvalidValue(f"write at most {MOST_TEXTS} of them")
    return tuple(dict.fromkeys(map(_text, found)))


def _named(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or not value:
        raise InvalidValue('write a table such as { NAME = "VALUE" }')
    if len(value) > MOST_TEXTS:
        raise InvalidValue(f"write at most {MOST_TEXTS} of them")
    return cast(Mapping[str, object], value)


def _headers(value: object) -> NamedTexts:
    found: dict[str, tuple[str, SettingText]] = {}
    for name, given in _named(value).items():
        if not _TOKEN.fullmatch(name):
            raise InvalidValue(f"{name!r:.60} is not a name of a header")
        lower = name.lower()
        if lower in _OF_THE_TRANSFER or (lower in _OURS and not (lower == "authorization" and _is_secret(given))):
            raise InvalidValue(f"{name} cannot be set here; {_OURS.get(lower, 'the fetcher sets it itself')}")
        if lower in found:
            raise InvalidValue(f"{name} is given twice")
        try:
            found[lower] = name, _text_or_secret(given)
        except InvalidValue as error:
            raise InvalidValue(f"{name}: {error}") from None
    return tuple(found.values())


def _is_secret(value: object) -> bool:
    return isinstance(value, Mapping)


def _cookies(value: object) -> NamedTexts:
    found: list[tuple[str, SettingText]] = []
    for name, given in _named(value).items():
        if not _TOKEN.fullmatch(name):
            raise InvalidValue(f"{name!r:.60} is not a name of a cookie")
        text = _text_or_secret(given) if given != "" else ""
        if isinstance(text, str) and not _COOKIE.fullmatch(text):
            raise InvalidValue(
                f"{name}: write no blank, quote, comma, semicolon or backslash; encode them as %20 and so on"
            )
        found.append((name, text))
    if sum(len(name) + len(text) + 3 for name, text in found if isinstance(text, str)) > MOST_COOKIE_BYTES:
        raise InvalidValue(f"together they have more than {MOST_COOKIE_BYTES:,} bytes")
    return tuple(found)


def _proxy(value: object) -> SettingText:
    found = _text_or_secret(value)
    if isinstance(found, str) and found != DIRECT:
        check_proxy(found)
        if "@" in urlsplit(found).netloc:
            raise InvalidValue('a user or password is not written here; make the address a secret, { secret = "NAME" }')
    return found


DIRECT = "direct"  # the value of `proxy` for none, whatever the folder's


def check_proxy(address: str) -> None:
    """Raises InvalidValue, never quoting the address, which may contain a password."""
    try:
        parts = urlsplit(address)
        is_fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_fit = False
    if not is_fit or parts.path.strip("/") or parts.query or parts.fragment:
        raise InvalidValue(f"write http://HOST:PORT or https://HOST:PORT, or {DIRECT} for none")


def _length(value: object, *, endless: bool = False) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidValue('write a duration such as "30min"')
    text = str(value).strip()
    years = re.fullmatch(r"([0-9]{1,4})\s*(?:y|years?)", text)
    found = int(years[1]) * 365 * DAY if years else duration_us(text)
    if found is None and not endless:
        raise InvalidValue("INF is not allowed here")
    return WHOLE if found is None else found


def _interval(value: object) -> int:
    found = _length(value)
    if not SHORTEST_INTERVAL <= found <= 366 * DAY:
        raise InvalidValue("write between 1min and 366d")
    return found


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue("write true or false")
    return value


def _choice(*known: str) -> Any:
    def read(value: object) -> str:
        if value not in known:
            raise InvalidValue(f"write {', '.join(known[:-1])} or {known[-1]}")
        return str(value)

    return read


def _encoding(value: object) -> str:
    text = _text(value, 40)
    if codec_of(text) is None and text.lower() not in ("utf-16", "utf-16le", "utf-16be"):
        raise InvalidValue(f"{text!r} is not an encoding of the web; write one such as windows-1251 or utf-8")
    return text.lower()


def _identity(value: object) -> str:
    check_identity(text := _text(value))
    return text


def _rules(value: object) -> tuple[str, ...]:
    found = _texts(value)
    for rule in found:
        try:
            check_rule(rule)
        except InvalidValue as error:
            raise InvalidValue(f"{rule!r:.100}: {error}") from None
    return found


def _hosts(value: object) -> tuple[str, ...]:
    return tuple(private_host(one) for one in _texts(value))


_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*")


def private_host(text: str) -> str:
    """Normalises a host, address or network. Raises InvalidValue."""
    plain = text.strip().strip("[]").rstrip(".").lower()
    try:
        return str(ip_network(plain, strict=False)) if "/" in plain else str(ip_address(plain))
    except ValueError:
        if not _HOST.fullmatch(plain):
            advice = "write a name like nas.lan, an address like 192.168.1.5, or a network like 192.168.1.0/24"
            raise InvalidValue(f"{text!r:.80} is not a host; {advice}") from None
    return plain


_READERS: Mapping[str, Any] = {
    "proxy": _proxy, "headers": _headers, "cookies": _cookies, "user_agent": _ascii,
    "auth": _choice("basic", "digest", "bearer"), "user": _text, "password": _secret,
    "interval": _interval, "longest": _interval, "encoding": _encoding, "identity": _identity, "keep": _rules,
    "block": _rules, "versions": _choice("keep", "ignore"), "time": _choice("own", "arrival"), "ca": _text,
    "verify": _flag, "allow_private": _hosts, "history": lambda value: _length(value, endless=True), "hub": _flag,
}  # fmt: skip


def _check_together(made: FeedSettings) -> None:
    """Raises InvalidValue if keys contradict each other."""
    if made.auth == "bearer" and made.user:
        raise InvalidValue("user: with auth = bearer, write the token as password, and no user")
    if (made.auth or made.user) and made.password is None:
        raise InvalidValue('password: name the secret, as in password = { secret = "NAME" }')
    if made.password is not None and made.auth != "bearer" and not made.user:
        raise InvalidValue("user: write a user name, or auth = bearer")
    if ":" in made.user:
        raise InvalidValue("user: a user name cannot contain a colon")
    if made.interval is not None and made.longest is not None and made.interval > made.longest:
        raise InvalidValue("longest: write at least the interval")
    if made.ca and made.verify is False:
        raise InvalidValue("ca: verify = false trusts any certificate; write one of the two")


def _plain(key: str, value: object) -> object:
    match value:
        case SecretRef(name):
            return {"secret": name}
        case int() if key in ("interval", "longest", "history"):
            return "INF" if value == WHOLE else window_text(value)
        case tuple() if key in _NAMED_KEYS:
            return {name: _plain("", text) for name, text in value}
        case tuple():
            return list(value)
    return value
