"""Reads a feed's bytes into entries: RSS 0.9x, 1.0 and 2.0, Atom 0.3 and 1.0 by feedparser, and JSON Feed.

JSON Feed 1.0 and 1.1 is rewritten as Atom, so that one reader sanitises and resolves every format. Each entry becomes a
document: a uniform `<item>`, or its own raw element with the feed's title and link added.
"""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from time import struct_time
from typing import Any, Literal, TypeVar
from urllib.parse import urljoin

import feedparser
from feedparser.urls import resolve_relative_uris
from lxml import etree

from common.xml import read_prolog, xml_parser
from feeds.confined import confined
from feeds.documents import DEFAULT_STREAM, FeedError, Reject, from_struct, parse_iso
from feeds.files import RAW_KEPT, as_told
from feeds.history import EndOfFetch, Fetch, Sighting, sightings
from feeds.items import (
    LONGEST_ADDRESS,
    LONGEST_TITLE,
    Enclosure,
    Entry,
    Membership,
    Origin,
    extract_links,
    harmless,
    html_to_text,
    is_harmless,
    is_url,
    item_xml,
    looks_like_markup,
    mentions,
    one_line,
    sanitised,
    without_credentials,
    xml_text,
)

_HTML = frozenset({"text/html", "application/xhtml+xml"})

_RELATIVE = re.compile(r"""\s(?:href|src|cite|poster)="(?![A-Za-z][A-Za-z0-9+.-]*:)""")
_ADDRESS = re.compile(r"[^\s()<>@]+@[^\s()<>@]+")
_LANGUAGE = re.compile(r"[a-z]{1,8}(?:-[a-z0-9]{1,8}){0,7}")
_LENGTH = re.compile(r"[0-9]{1,18}")
_LONGEST_TYPE = 255

MOST_AUTHORS = 20
"""Maximum number of authors of a feed, which each of its entries may repeat. An entry's own do not count."""

_TO_OTHERS = frozenset({"related", "via"})
"""Relations of links that lead to pages other than the entry's own."""


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed's title, its site's and its own address, and its entries in order. Each entry repeats title and addresses,
    so the title is cut, and an address is "" if it is missing or too long. Addresses have no credentials."""

    title: str
    site_url: str
    self_url: str
    entries: tuple[Entry, ...]


def parse_feed(data: bytes, base: str = "", fallback_url: str = "") -> Feed:
    """Parses a feed. Raises FeedError if nothing of it can be read. Relative addresses are resolved against `base`, the
    URL that the feed came from, else against its own or its site's address. `fallback_url` is the channel's address if
    the feed names neither."""
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
    base = base or next(filter(is_url, (_of_feed(_self_link(feed, "")), _of_feed(_link(feed, "")))), "")
    site_url, self_url = _of_feed(_link(feed, base)), _of_feed(_self_link(feed, base))
    # Atom says that a feed's authors are its entries' where those name none; RSS has an editor instead.
    atom = version.startswith("atom")
    authors = [author for author in _authors(feed, atom) if len(author) <= LONGEST_TITLE] if atom else []
    common = Entry(
        channel_url=site_url or self_url or harmless(fallback_url),
        authors=tuple(authors[:MOST_AUTHORS]),
        lang=_language(feed.get("language")),
    )
    entries = tuple(_entry(entry, base, common, atom) for entry in parsed.entries)
    return Feed(_plain(feed, "title", atom)[:LONGEST_TITLE].strip(), site_url, self_url, entries)


def _cause(error: object) -> str:
    return one_line(str(error)) or type(error).__name__


def _entry(entry: Any, base: str, feed: Entry, atom: bool) -> Entry:
    guid = one_line(entry.get("id") or "")
    date, date_text, updated = _dates(entry)
    item_url = _link(entry, base) or (guid if is_url(guid) else "")
    links = _links(entry, base)
    content, linked = _content(entry.get("content", ()), base)
    own = [item_url, guid, base, *(href for rel, href in links if rel not in _TO_OTHERS)]
    return Entry(
        item_url=item_url,
        channel_url=feed.channel_url,
        title=_plain(entry, "title", atom),
        date=date,
        date_text=date_text,
        description=_plain(entry, "summary", atom),
        authors=_authors(entry, atom) or feed.authors,
        categories=_distinct(_unmarked(tag.get("term") or tag.get("label") or "") for tag in entry.get("tags", ())),
        links=links,
        guid=guid,
        content=content,
        updated=updated,
        lang=_entry_language(entry) or feed.lang,
        enclosures=_enclosures(entry, base),
        mentions=mentions([*linked, *_summary_links(entry, atom)], base, own),
    )


def _detail(holder: Any, key: str) -> Any:
    """The construct `key` with its type. feedparser's bare `summary` may be a copy of the content; this never is."""
    return holder.get(f"{key}_detail") or {}


def _plain(holder: Any, key: str, atom: bool) -> str:
    detail = _detail(holder, key)
    value = detail.get("value") or ""
    return html_to_text(value) if _is_html(detail, atom) else one_line(value)


def _is_html(detail: Any, atom: bool) -> bool:
    """Atom's plain text is plain; RSS cannot say so, and its writers put stray tags into titles."""
    return detail.get("type") in _HTML or (not atom and looks_like_markup(detail.get("value") or ""))


def _summary_links(entry: Any, atom: bool) -> list[str]:
    detail = _detail(entry, "summary")
    return extract_links(detail["value"]) if _is_html(detail, atom) and detail.get("value") else []


def _entry_language(entry: Any) -> str:
    texts = (_detail(entry, "title"), _detail(entry, "summary"), *entry.get("content", ()))
    return next(filter(None, map(_language, (entry.get("language"), *(one.get("language") for one in texts)))), "")


def _language(told: str | None) -> str:
    tag = (told or "").strip()[:100].replace("_", "-").lower()
    return tag if _LANGUAGE.fullmatch(tag) else ""


def _enclosures(entry: Any, base: str) -> tuple[Enclosure, ...]:
    found = []
    for enclosure in entry.get("enclosures", ()):
        kind, length = one_line(enclosure.get("type") or ""), (enclosure.get("length") or "").strip()
        if enclosure.get("href") and (href := _resolve(base, enclosure["href"])):
            told = kind if len(kind) <= _LONGEST_TYPE else "", length if _LENGTH.fullmatch(length) else ""
            found.append(Enclosure(href, *told))
    return tuple(dict.fromkeys(found))


def _unmarked(text: str) -> str:
    return html_to_text(text) if looks_like_markup(text) else one_line(text)


def _content(contents: Iterable[Any], base: str) -> tuple[str, list[str]]:
    plain = ""
    for content in contents:
        value = xml_text(content.get("value") or "").strip()
        kind = content.get("type") or "text/plain"
        if value and kind in _HTML:
            if base and _RELATIVE.search(value):
                value = resolve_relative_uris(value, base, "utf-8", kind)
            return sanitised(value)
        if value and kind.startswith("text/") and not plain:
            plain = html.escape(value, quote=False)
    return plain, []


def _dates(entry: Any) -> tuple[int | None, str, int | None]:
    # feedparser answers `updated` with `published`, and a warning, where only that is there
    told = {key: entry[key] for key in ("published", "updated") if dict.__contains__(entry, key)}
    dates = {key: _moment(text, entry.get(f"{key}_parsed")) for key, text in told.items()}
    for key, date in dates.items():
        if date is not None:
            return date, one_line(told[key]), dates.get("updated")
    return None, next(filter(None, map(one_line, told.values())), ""), None


def _moment(text: str, parsed: struct_time | None) -> int | None:
    """Parses ISO-8601 here, because feedparser drops fractions of a second; other dates are feedparser's."""
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
    if not is_harmless(address):
        return ""
    try:
        return harmless(one_line(urljoin(base, address.strip())))
    except ValueError:
        return one_line(address)


def _link(holder: Any, base: str) -> str:
    alternates = [href for rel, href in _links(holder, base) if rel == "alternate"]
    chosen = _resolve(base, holder.get("link") or "")
    return chosen if chosen in alternates else next(iter(alternates), "")


def _of_feed(address: str) -> str:
    return without_credentials(address) if len(address) <= LONGEST_ADDRESS else ""


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


_ITEMS = frozenset(
    {
        "item",
        "{http://purl.org/rss/1.0/}item",
        "{http://my.netscape.com/rdf/simple/0.9/}item",
        "{http://backend.userland.com/rss}item",
        "{http://backend.userland.com/rss2}item",
        "{http://blogs.law.harvard.edu/tech/rss}item",
        "entry",
        "{http://www.w3.org/2005/Atom}entry",
        "{http://purl.org/atom/ns#}entry",
    }
)


def raw_entries(data: bytes, feed: Feed) -> list[bytes]:
    """The `item` or `entry` elements of the feed, in the order of `feed.entries`, as separate documents. Each gets two
    last children in no namespace, `channel_title` and `channel_url`, if the feed has them. Raises FeedError if the XML
    is ill-formed (nothing is repaired here) or its entries differ from those of `feed`."""
    try:
        # Blanks before the XML declaration are common and mean nothing.
        root = etree.fromstring(data.lstrip(), xml_parser())
    except etree.XMLSyntaxError as error:
        raise FeedError(f"raw entries need well-formed XML: {error.msg}") from None
    found = [element for element in root.iter() if element.tag in _ITEMS]
    if len(found) != len(feed.entries):
        raise FeedError(f"raw entries cannot be told apart: {len(found)} elements for {len(feed.entries)} entries")
    return [_document(element, feed) for element in found]


def _document(element: etree._Element, feed: Feed) -> bytes:
    copy = deepcopy(element)
    copy.tail = None
    for name, value in (("channel_title", feed.title), ("channel_url", feed.site_url or feed.self_url)):
        if value:
            # Parsed with an explicit xmlns="", because an element that lxml makes without a namespace
            # is written, and read again, in the default namespace of its parent.
            child = etree.fromstring(f'<{name} xmlns=""/>')
            child.text = xml_text(value)
            copy.append(child)
    return etree.tostring(copy, encoding="utf-8")


_T = TypeVar("_T")

ATOM = "http://www.w3.org/2005/Atom"
_VERSIONS = ("https://jsonfeed.org/version/", "http://jsonfeed.org/version/")


def load_json_feed(data: bytes) -> dict[str, Any]:
    """Parses a JSON Feed. Raises FeedError with the cause."""
    try:
        feed = json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise FeedError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise FeedError(str(error)) from None
    except RecursionError:
        raise FeedError("JSON nested too deeply") from None
    if not is_json_feed(feed):
        raise FeedError("JSON, but not a JSON Feed: its version is not a https://jsonfeed.org/version/ address")
    if not isinstance(feed.get("items"), list):
        raise FeedError("a JSON Feed without a list of items")
    return dict(feed)


def is_json_feed(value: object) -> bool:
    return isinstance(value, dict) and str(value.get("version", "")).startswith(_VERSIONS)


def json_feed_to_atom(feed: dict[str, Any]) -> bytes:
    """Converts to Atom 1.0. Values of a wrong type are dropped."""
    root = etree.Element(f"{{{ATOM}}}feed")
    _set_language(root, feed)
    _add(root, "title", feed.get("title"))
    _add_link(root, "alternate", feed.get("home_page_url"))
    _add_link(root, "self", feed.get("feed_url"))
    _add_authors(root, feed)
    for item in feed["items"]:
        if isinstance(item, dict):
            _add_entry(etree.SubElement(root, f"{{{ATOM}}}entry"), item)
    return etree.tostring(root, encoding="utf-8", xml_declaration=True)


def _add_entry(entry: etree._Element, item: dict[str, Any]) -> None:
    _set_language(entry, item)
    _add(entry, "id", item.get("id"))
    _add(entry, "title", item.get("title"))
    _add_link(entry, "alternate", item.get("url"))
    _add_link(entry, "related", item.get("external_url"))
    _add(entry, "published", item.get("date_published"))
    _add(entry, "updated", item.get("date_modified"))
    _add(entry, "summary", item.get("summary"))
    _add_authors(entry, item)
    for tag in _list(item.get("tags")):
        if _text(tag):
            etree.SubElement(entry, f"{{{ATOM}}}category", term=_text(tag))
    for attachment in _list(item.get("attachments")):
        if isinstance(attachment, dict):
            about = {"type": attachment.get("mime_type"), "length": attachment.get("size_in_bytes")}
            _add_link(entry, "enclosure", attachment.get("url"), **about)
    if _text(item.get("content_html")):
        _add(entry, "content", item["content_html"], type="html")
    else:
        _add(entry, "content", item.get("content_text"))


def _add_authors(parent: etree._Element, holder: dict[str, Any]) -> None:
    """Version 1.1 has a list of authors, 1.0 one author; a feed may have both."""
    for author in _list(holder.get("authors")) or [holder.get("author")]:
        if isinstance(author, dict) and (name := _text(author.get("name")) or _text(author.get("url"))):
            _add(etree.SubElement(parent, f"{{{ATOM}}}author"), "name", name)


def _add(parent: etree._Element, name: str, value: object, **attributes: str) -> None:
    text = _text(value)
    if text:
        etree.SubElement(parent, f"{{{ATOM}}}{name}", attributes).text = text


def _set_language(holder: etree._Element, told: dict[str, Any]) -> None:
    if text := _text(told.get("language")):
        holder.set("{http://www.w3.org/XML/1998/namespace}lang", text)


def _add_link(parent: etree._Element, rel: str, href: object, **about: object) -> None:
    text = _text(href)
    if text:
        told = {name: _text(value) for name, value in about.items() if _text(value)}
        etree.SubElement(parent, f"{{{ATOM}}}link", told, rel=rel, href=text)


def _text(value: object) -> str:
    """Ids are often numbers although the format requires strings."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return xml_text(value).strip() if isinstance(value, str) else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


EntryForm = Literal["item", "raw"]

_BLANKS = b"\xef\xbb\xbf \t\r\n"


def read_entries(data: bytes, origin: Origin, form: EntryForm = "item") -> Iterator[Sighting | EndOfFetch | Reject]:
    """Yields a feed's entries in order and the end of the fetch; one Reject if it is unreadable. A well-formed, empty
    feed yields only an end; an ill-formed one what can be read."""
    try:
        feed, bodies = confined(read_feed, data, origin, form, size=len(data))
    except ValueError as error:
        when = origin.modified if origin.fetched is None else origin.fetched
        yield Reject(origin.name, DEFAULT_STREAM, when, f"{origin.name}: {error}", data[:RAW_KEPT])
        return
    fetch = Fetch(_name(origin, feed), origin.name, origin.modified, origin.fetched)
    yield from sightings(feed.entries, bodies, fetch)


def read_feed(data: bytes, origin: Origin, form: EntryForm) -> tuple[Feed, list[bytes]]:
    """Parses a feed, and builds its entries' documents. Raises FeedError. May take long: see `feeds.confined`."""
    data = as_told(data, origin.content_type)
    if read_prolog(data.lstrip(b" \t\r\n")).defaults:
        raise FeedError("the DOCTYPE gives attributes defaults, which are not read")
    base = next((url for url in (origin.base, origin.source) if is_url(url) and len(url) <= LONGEST_ADDRESS), "")
    if data.lstrip(_BLANKS).startswith(b"{"):
        if form == "raw":
            raise FeedError("raw entries need a feed in XML, and this is JSON: read it without --feeds=raw")
        data = json_feed_to_atom(load_json_feed(data))
    feed = parse_feed(data, base, origin.source or origin.name)
    if form == "raw":
        return feed, raw_entries(data, feed)
    member = Membership(harmless(_name(origin, feed)), origin.title or feed.title, origin.folders)
    return feed, [item_xml(entry, member) for entry in feed.entries]


def _name(origin: Origin, feed: Feed) -> str:
    return origin.source or feed.self_url or origin.name
