"""A feed's bytes read into entries by feedparser: RSS 0.9x, 1.0 and 2.0, Atom 0.3 and 1.0."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from time import struct_time
from typing import Any, TypeVar
from urllib.parse import urljoin

import feedparser
import nh3
from feedparser.urls import resolve_relative_uris

from feeds.bad_input import FeedError
from feeds.dates import from_struct, parse_iso
from feeds.item import Entry
from feeds.links import SCHEMES, harmless, is_harmless, is_url
from feeds.text import html_to_text, looks_like_markup, one_line, xml_text

_T = TypeVar("_T")

_HTML = frozenset({"text/html", "application/xhtml+xml"})

_RELATIVE = re.compile(r"""\s(?:href|src|cite|poster)="(?![A-Za-z][A-Za-z0-9+.-]*:)""")
_ADDRESSES = frozenset({"cite", "href", "src"})
_ADDRESS = re.compile(r"[^\s()<>@]+@[^\s()<>@]+")


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed's title, the addresses of its site and of itself ("" if it gives none), and its entries in order."""

    title: str
    site_url: str
    self_url: str
    entries: tuple[Entry, ...]


def parse_feed(data: bytes, base: str = "", fallback_url: str = "") -> Feed:
    """The feed in the bytes. Raises FeedError if there is none, or nothing of it can be read.

    Relative addresses are resolved against `base`, the URL that the feed came from, else against the address that it
    gives for itself or its site. `fallback_url` stands for the channel if the feed names neither.
    """
    # A stream, because feedparser takes bytes for a file name first, and text for an address to fetch.
    # Whatever a stranger's feed does to the parser must stay that feed's failure, hence the broad except.
    # It is not told the base, because it would make addresses of guids that are none.
    try:
        parsed = feedparser.parse(io.BytesIO(data), sanitize_html=False, resolve_relative_uris=True)
    except Exception as error:
        raise FeedError(f"the feed cannot be read: {_cause(error)}") from error
    version = parsed.get("version", "")
    if not parsed.entries and (parsed.bozo or not version):
        cause = _cause(parsed.bozo_exception) if parsed.bozo else "neither RSS nor Atom"
        raise FeedError(f"not a feed that can be read: {cause}")
    feed = parsed.feed
    base = base or next(filter(is_url, (_self_link(feed, ""), _link(feed, ""))), "")
    site_url, self_url = _link(feed, base), _self_link(feed, base)
    # Atom says that a feed's authors are its entries' where those name none; RSS has an editor instead.
    atom = version.startswith("atom")
    authors = _authors(feed, atom) if atom else ()
    channel_url = site_url or self_url or harmless(fallback_url)
    entries = tuple(_entry(entry, base, channel_url, authors, atom) for entry in parsed.entries)
    return Feed(_plain(feed, "title", atom), site_url, self_url, entries)


def _cause(error: object) -> str:
    return one_line(str(error)) or type(error).__name__


def _entry(entry: Any, base: str, channel_url: str, feed_authors: tuple[str, ...], atom: bool) -> Entry:
    guid = one_line(entry.get("id") or "")
    date, date_text, updated = _dates(entry)
    return Entry(
        item_url=_link(entry, base) or (guid if is_url(guid) else ""),
        channel_url=channel_url,
        title=_plain(entry, "title", atom),
        date=date,
        date_text=date_text,
        description=_plain(entry, "summary", atom),
        authors=_authors(entry, atom) or feed_authors,
        categories=_distinct(_unmarked(tag.get("term") or tag.get("label") or "") for tag in entry.get("tags", ())),
        links=_links(entry, base),
        guid=guid,
        content=_content(entry.get("content", ()), base),
        updated=updated,
    )


def _detail(holder: Any, key: str) -> Any:
    """The construct `key` with its type. feedparser's bare `summary` may be a copy of the content; this never is."""
    return holder.get(f"{key}_detail") or {}


def _plain(holder: Any, key: str, atom: bool) -> str:
    detail = _detail(holder, key)
    value = detail.get("value") or ""
    if detail.get("type") in _HTML:
        return html_to_text(value)
    # Atom's plain text is plain; RSS cannot say so, and its writers put stray tags into titles.
    return one_line(value) if atom else _unmarked(value)


def _unmarked(text: str) -> str:
    return html_to_text(text) if looks_like_markup(text) else one_line(text)


def _content(contents: Iterable[Any], base: str) -> str:
    """The first HTML content, else the first plain text as HTML. Other media types are passed over."""
    plain = ""
    for content in contents:
        value = xml_text(content.get("value") or "").strip()
        kind = content.get("type") or "text/plain"
        if value and kind in _HTML:
            if base and _RELATIVE.search(value):
                value = resolve_relative_uris(value, base, "utf-8", kind)
            return nh3.clean(value, link_rel=None, url_schemes=set(SCHEMES), attribute_filter=_harmless_value)
        if value and kind.startswith("text/") and not plain:
            plain = html.escape(value, quote=False)
    return plain


def _harmless_value(_tag: str, name: str, value: str) -> str | None:
    """nh3 looks at the addresses in `href` and `src` only, and not as closely."""
    return value if name not in _ADDRESSES or is_harmless(value) else None


def _dates(entry: Any) -> tuple[int | None, str, int | None]:
    """The entry's date (published, else updated), its spelling, and when the entry was updated."""
    # feedparser answers `updated` with `published`, and a warning, where only that is there
    told = {key: entry[key] for key in ("published", "updated") if dict.__contains__(entry, key)}
    dates = {key: _moment(text, entry.get(f"{key}_parsed")) for key, text in told.items()}
    for key, date in dates.items():
        if date is not None:
            return date, one_line(told[key]), dates.get("updated")
    return None, next(filter(None, map(one_line, told.values())), ""), None


def _moment(text: str, parsed: struct_time | None) -> int | None:
    """Reads ISO-8601 here, because feedparser drops fractions of a second; other dates are feedparser's."""
    try:
        return parse_iso(text)
    except ValueError:
        return from_struct(parsed)


def _links(holder: Any, base: str) -> tuple[tuple[str, str], ...]:
    return _distinct(
        (one_line(link.get("rel") or "alternate"), address)
        for link in holder.get("links", ())
        if link.get("href") and (address := _resolve(base, link["href"]))
    )


def _resolve(base: str, address: str) -> str:
    """The address, absolute if possible; "" if it is not harmless."""
    if not is_harmless(address):
        return ""
    try:
        return harmless(one_line(urljoin(base, address.strip())))
    except ValueError:
        return one_line(address)


def _link(holder: Any, base: str) -> str:
    """The address of the page: an alternate link, the one of HTML if there are several (feedparser's choice)."""
    alternates = [href for rel, href in _links(holder, base) if rel == "alternate"]
    chosen = _resolve(base, holder.get("link") or "")
    return chosen if chosen in alternates else next(iter(alternates), "")


def _self_link(holder: Any, base: str) -> str:
    return next((href for rel, href in _links(holder, base) if rel == "self"), "")


def _authors(holder: Any, atom: bool) -> tuple[str, ...]:
    people = [person.get("name") or person.get("email") or "" for person in holder.get("authors", ())]
    if not atom and holder.get("author"):
        # The last author's own text: feedparser cuts addresses off after four letters of the top-level domain.
        people[-1:] = [_name_without_address(_unmarked(holder["author"]))]
    return _distinct(_unmarked(person) for person in people)


def _name_without_address(text: str) -> str:
    """`Ann` of `ann@example.com (Ann)` and `Ann <ann@example.com>`; the address if it stands alone."""
    address = _ADDRESS.search(text)
    if not address:
        return text
    return (text[: address.start()] + text[address.end() :]).strip(" ()<>,") or address.group()


def _distinct(values: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(value for value in values if value))
