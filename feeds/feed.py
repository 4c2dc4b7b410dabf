"""Reads a feed's bytes into entries: RSS 0.9x, 1.0 and 2.0, Atom 0.3 and 1.0, and JSON Feed.

JSON Feed 1.0 and 1.1, and the output of feedparser for an ill-formed feed, are rewritten as Atom, so that one reader
sanitises and resolves every format. An entry becomes a uniform `<item>` or stays as it is, with the feed's title and
link.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Literal, cast

import feedparser
from lxml import etree

from common.xml import read_prolog, xml_parser
from feeds.confined import ConfinedError, answer_for, confined
from feeds.decoding import (
    declare_prefixes,
    decode_as,
    decode_text,
    mend_references,
    windows_references,
    without_declaration,
)
from feeds.documents import DEFAULT_STREAM, INT64, FeedError, Reject, is_text
from feeds.files import RAW_KEPT
from feeds.history import EndOfFetch, Fetch, Sighting, sightings
from feeds.items import LONGEST_ADDRESS, Entry, Origin, is_url, item_xml, looks_like_markup, one_line, xml_text
from feeds.rules import AS_USUAL, RulesReader
from feeds.xml_feed import ATOM, MODULES, XML_LANG, Feed, FeedElements, feed_elements, read_elements

EntryForm = Literal["item", "raw"]


MOST_UNREAD = 20
"""Maximum number of unreadable entries of a feed that become dead letters; the last one counts the rest."""


def read_entries(data: bytes, origin: Origin, form: EntryForm = "item") -> Iterator[Sighting | EndOfFetch | Reject]:
    """Yields a feed's entries in order, a Reject for each unreadable one, and the end of the fetch; for an unreadable
    feed one Reject and an end without keys. An empty feed yields only an end, an ill-formed one whatever can be read,
    and an older page no end, since it is not a visit."""
    when = origin.modified if origin.fetched is None else origin.fetched
    try:
        if len(origin.source) > LONGEST_ADDRESS:
            raise FeedError(f"the feed's address has more than {LONGEST_ADDRESS:,} characters")
        rows = iter(confined(entry_rows, data, origin, form, size=len(data)))
        match next(rows, None):
            case [str(name), [*unread]]:
                pass
            case _:
                raise ConfinedError(_NONSENSE)
        for number, cause in cast(list[tuple[int, str]], unread):
            place = f"{origin.name}: entry {number}"
            yield Reject(place, DEFAULT_STREAM, when, f"{place} cannot be read: {cause}", data[:RAW_KEPT])
        fetch = Fetch(name, origin.name, origin.modified, origin.fetched, origin.page)
        keys: list[str] = []
        rules = origin.reading or AS_USUAL
        for row in rows:
            if isinstance(row, str):  # a filtered entry still counts as listed
                keys.append(row)
                continue
            shown = _sighting(row, fetch)
            keys.append(shown.key)
            if rules.time == "arrival":
                shown = replace(shown, date=None, updated=None, undated=False)
            yield replace(shown, versions=rules.versions) if rules.versions else shown
    except ValueError as error:  # then nothing from that process can be trusted
        yield Reject(origin.name, DEFAULT_STREAM, when, f"{origin.name}: {error}", data[:RAW_KEPT])
        if origin.source and origin.fetched is not None and not origin.page:
            fetch = Fetch(origin.source, origin.name, origin.modified, origin.fetched)
            yield EndOfFetch(fetch, None, origin.address, one_line(f"{error}"))
        return
    if not origin.page:
        yield EndOfFetch(fetch, keys, origin.address)


_NONSENSE = "the process that parses it gave an invalid answer"


def _sighting(row: object, fetch: Fetch) -> Sighting:
    """Converts and validates a row of `entry_rows`: the process that parses untrusted bytes is not trusted."""
    match row:
        case [str(id), str(xml), str(key), str(version), date, updated, str(old), str(former), bool(undated), name]:
            if all(map(is_text, (id, xml, str(name)))) and _is_time(date) and _is_time(updated):
                times = cast(int | None, date), cast(int | None, updated)
                return Sighting(id, xml.encode(), fetch, key, version, *times, old, former, undated, str(name))
    raise ConfinedError(_NONSENSE)


def _is_time(value: object) -> bool:
    return value is None or (isinstance(value, int) and value in INT64)


def entry_rows(data: bytes, origin: Origin, form: EntryForm) -> Iterator[list[object] | str]:
    """Runs in the process that parses feeds: yields a row with the feed's name and its unreadable entries, then for
    each entry the fields of its sighting, or only its key if the rules leave it out. Raises FeedError if nothing can be
    read. May be slow."""
    feed, found = read_feed(data, origin, form)
    fetch = Fetch(_name(origin, feed), origin.name, origin.modified, origin.fetched)
    unread: list[tuple[int, str]] = []

    def readable() -> Iterator[tuple[Entry, bytes, str]]:
        for number, one in enumerate(found, 1):
            if isinstance(one, str):
                unread.append((number, one))
            else:
                yield one

    shown = sightings(readable(), fetch)
    first = list(islice(shown, 1))
    if len(unread) > MOST_UNREAD:
        number, cause = unread[MOST_UNREAD - 1]
        more = f"{cause}; and {len(unread) - MOST_UNREAD:,} others cannot be read"
        unread[MOST_UNREAD - 1 :] = [(number, more)]
    yield [fetch.feed, unread]
    for one in chain(first, shown):
        if not one.xml:
            yield one.key
            continue
        fields = one.key, one.version, one.date, one.updated, one.former_key, one.former_version, one.undated, one.name
        yield [one.id, cast(bytes, one.xml).decode(), *fields]


Found = Iterator[tuple[Entry, bytes, str] | str]


def read_feed(data: bytes, origin: Origin, form: EntryForm) -> tuple[Feed, Found]:
    """Parses a feed; its entries are read lazily. Each comes with its document (empty if the origin's rules leave it
    out) and the identity that the rules give it, or as the reason why it cannot be read. Raises FeedError, also while
    entries are read, if nothing can be read or the documents are too large for the feed."""
    encoding = origin.reading.encoding if origin.reading else ""
    text = (decode_as(data, encoding) if encoding else decode_text(data, origin.content_type)).lstrip("\ufeff \t\r\n")
    base = next((url for url in (origin.base, origin.source) if is_url(url) and len(url) <= LONGEST_ADDRESS), "")
    if text.startswith(("{", "[")):
        if form == "raw":
            raise FeedError("raw entries need a feed in XML, and this is JSON: read it without --feeds=raw")
        elements = json_feed_to_atom(load_json_feed(text))
    else:
        elements = _elements(text, form)
    feed = read_elements(elements, base, origin.source or origin.name, len(data))
    return feed, _documents(feed, origin, form, answer_for(len(data)))


def _documents(feed: Feed, origin: Origin, form: EntryForm, most: int) -> Found:
    member = _name(origin, feed), origin.title or feed.title, origin.folders
    left = most
    rules = RulesReader(origin.reading) if origin.reading not in (None, AS_USUAL) else None
    for element, entry in feed.entries:
        if isinstance(entry, str):
            yield entry
            continue
        seen = rules and rules.seen(entry, element)
        identity = seen.identity() if seen else ""
        if seen and seen.is_left_out():
            yield entry, b"", identity
            continue
        body = item_xml(entry, *member) if form == "item" or element is None else _document(element, feed)
        left -= len(body)
        if left < 0:
            raise FeedError(f"the documents of its entries take more than {most:,} bytes")
        yield entry, body, identity


def _name(origin: Origin, feed: Feed) -> str:
    return origin.source or feed.self_url or origin.name


def _elements(text: str, form: EntryForm) -> FeedElements:
    text = without_declaration(text)
    if not text.strip().strip("\0\ufeff"):
        raise FeedError("not a feed that can be read: it is empty")
    if form == "item":
        text = windows_references(text)
    if read_prolog(text.encode()).defaults:
        raise FeedError("the DOCTYPE declares default attributes, which are not supported")
    # An external DTD may declare entities, so the parser does not report references to them as errors.
    has_dtd = "<!DOCTYPE" in text[:_HEAD]
    try:
        root = _parsed(mend_references(text) if has_dtd else text)
    except etree.XMLSyntaxError as error:
        if form == "raw":
            raise FeedError(f"raw entries need well-formed XML: {error.msg}") from None
        text = mend_references(text)
        try:
            root = _parsed(declare_prefixes(text, MODULES))
        except etree.XMLSyntaxError:
            return _repaired(text)
    if (has_dtd or _LONG_NAMESPACE.search(text)) and _has_long_namespace(root):
        raise FeedError(f"the address of a namespace has more than {LONGEST_ADDRESS:,} characters")
    found = feed_elements(root)
    if found is not None:
        return found
    if form == "raw":
        raise FeedError("raw entries need the elements of a feed, and the root is none: neither rss, rdf:RDF nor feed")
    return _repaired(text)


_HEAD = 64 * 1024
_TOO_LONG = f"""(?>"[^"<]{{{LONGEST_ADDRESS + 1}}}[^"<]*+"|'[^'<]{{{LONGEST_ADDRESS + 1}}}[^'<]*+')"""
_LONG_NAMESPACE = re.compile(rf"""\sxmlns[^\s="'<]*+\s*+=\s*+{_TOO_LONG}""")
_LONG_BASE = re.compile(rf"\sxml:base\s*+=\s*+{_TOO_LONG}")


def _has_long_namespace(root: etree._Element) -> bool:
    """Whether a namespace is too long: each of its elements repeats it in its name."""
    declared = etree.iterwalk(root, events=("start-ns",))
    return any(len(space) > LONGEST_ADDRESS for _, (_, space) in cast(Iterable[tuple[str, tuple[str, str]]], declared))


def _parsed(text: str, *, recover: bool = False) -> etree._Element:
    return etree.fromstring(text.encode(), xml_parser(elements_only=True, recover=recover))


# ---------------------------------------------------------------- ill-formed feeds


def _repaired(text: str) -> FeedElements:
    """Reads an ill-formed feed with feedparser, or where that fails with libxml2's recovering parser."""
    # A stream, because feedparser takes bytes for a file name first, and text for an address to fetch. Whatever an
    # untrusted feed does to the parser must fail that feed alone, hence the broad except.
    try:
        content = io.BytesIO(_LONG_BASE.sub("", text).encode())
        headers = {"content-type": "application/xml; charset=utf-8"}
        parsed = feedparser.parse(content, response_headers=headers, sanitize_html=False, resolve_relative_uris=True)
    except MemoryError:
        raise
    except Exception as error:
        try:
            root = _parsed(text, recover=True)
        except etree.XMLSyntaxError:
            root = None
        found = None if root is None else feed_elements(root)
        if found is None:
            raise FeedError(f"the feed cannot be read: {_cause(error)}") from error
        return found
    version = parsed.get("version", "")
    if not parsed.entries and (parsed.bozo or not version):
        is_markup = parsed.bozo and "<" in text
        cause = _cause(parsed.bozo_exception) if is_markup else "it is neither RSS, Atom nor JSON Feed"
        raise FeedError(f"not a feed that can be read: {cause}")
    root = etree.Element(f"{{{ATOM}}}feed")
    _add_parsed(root, parsed.feed, version.startswith("atom"))
    for entry in parsed.entries:
        _add_parsed(etree.SubElement(root, f"{{{ATOM}}}entry"), entry, version.startswith("atom"))
    return FeedElements(root, list(root.iterchildren(f"{{{ATOM}}}entry")), True)


_ITS_PLACE = re.compile(r"<unknown>:\d+:\d+: ")  # feedparser's position of an error, in a text that it has changed


def _cause(error: object) -> str:
    return one_line(_ITS_PLACE.sub("", str(error))) or type(error).__name__


def _add_parsed(holder: etree._Element, parsed: Any, atom: bool) -> None:
    _set_language(holder, parsed)
    _add(holder, "id", parsed.get("id"))
    for name in ("title", "summary"):
        _add_construct(holder, name, parsed.get(f"{name}_detail"), atom)
    for content in parsed.get("content", ()):
        _add_construct(holder, "content", content, True)
    # Where only `published` exists, feedparser returns it for `updated`, with a warning.
    for name in ("published", "updated"):
        _add(holder, name, parsed[name] if dict.__contains__(parsed, name) else None)
    for link in sorted(parsed.get("links", ()), key=lambda link: link.get("href") != parsed.get("link")):
        about = {name: link.get(name) for name in ("type", "length")}
        _add_link(holder, link.get("rel") or "alternate", link.get("href"), **about)
    people = [person.get("name") or person.get("email") for person in parsed.get("authors", ())]
    if not atom and parsed.get("author"):
        # The last author's own text: feedparser cuts addresses off after four letters of the top-level domain.
        people[-1:] = [parsed["author"]]
    if atom or holder.getparent() is not None:
        for name in people:
            _add(holder, "author", name)
    for tag in parsed.get("tags", ()):
        if term := one_line(tag.get("term") or tag.get("label") or ""):
            etree.SubElement(holder, f"{{{ATOM}}}category", term=term)


_LONGEST_LANGUAGE = 100
_HTML = frozenset({"text/html", "application/xhtml+xml"})


def _add_construct(holder: etree._Element, name: str, detail: Any, atom: bool) -> None:
    """Atom's plain text is plain; RSS cannot say so, and its writers put stray tags into titles."""
    if not isinstance(detail, dict):  # an attribute of this name
        return
    value, kind = detail.get("value"), detail.get("type") or "text"
    if kind in _HTML or (not atom and looks_like_markup(value or "")):
        kind = "html"
    _add(holder, name, value, type=kind)
    if value and (language := _text(detail.get("language"))):
        holder[-1].set(XML_LANG, language[:_LONGEST_LANGUAGE])


# ---------------------------------------------------------------- raw entries


def _document(element: etree._Element, feed: Feed) -> bytes:
    copy = deepcopy(element)
    copy.tail = None
    for name, value in (("channel_title", feed.title), ("channel_url", feed.site_url or feed.self_url)):
        if value:
            # Parsed with an explicit xmlns="", because lxml writes an element without a namespace so that it is read
            # back in the default namespace of its parent.
            child = etree.fromstring(f'<{name} xmlns=""/>')
            child.text = xml_text(value)
            copy.append(child)
    return etree.tostring(copy, encoding="utf-8")


# ---------------------------------------------------------------- JSON Feed

_VERSIONS = ("https://jsonfeed.org/version/", "http://jsonfeed.org/version/")


def _whole(digits: str) -> int | str:
    """Parses a whole number. One with too many digits for Python stays text instead of failing the feed."""
    return int(digits) if len(digits) <= 1_000 else digits


def _finite(digits: str) -> float | None:
    return number if math.isfinite(number := float(digits)) else None


def load_json_feed(text: str) -> dict[str, Any]:
    """Parses a JSON Feed. Raises FeedError with the cause."""
    try:
        feed = json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=lambda _: None)
    except json.JSONDecodeError as error:
        raise FeedError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise FeedError("JSON nested too deeply") from None
    if not is_json_feed(feed):
        raise FeedError("JSON, but not a JSON Feed: its version does not begin with https://jsonfeed.org/version/")
    if not isinstance(feed.get("items"), list):
        raise FeedError("a JSON Feed without a list of items")
    return dict(feed)


def is_json_feed(value: object) -> bool:
    return isinstance(value, dict) and str(value.get("version", "")).startswith(_VERSIONS)


def json_feed_to_atom(feed: dict[str, Any]) -> FeedElements:
    """Converts a JSON Feed to Atom 1.0, its items lazily. Values of a wrong type are dropped."""
    root = etree.Element(f"{{{ATOM}}}feed")
    _set_language(root, feed)
    _add(root, "title", feed.get("title"))
    _add_link(root, "alternate", feed.get("home_page_url"))
    _add_link(root, "self", feed.get("feed_url"))
    _add_link(root, "next", feed.get("next_url"))
    for hub in _list(feed.get("hubs")):
        if isinstance(hub, dict) and _text(hub.get("type")).lower() == "websub":
            _add_link(root, "hub", hub.get("url"))
    _add_authors(root, feed)
    return FeedElements(root, _json_entries(root, feed["items"]), True)


def _json_entries(root: etree._Element, items: list[Any]) -> Iterator[etree._Element | str]:
    items.reverse()
    while items:
        item = items.pop()  # which frees the memory
        if isinstance(item, dict):
            entry = etree.SubElement(root, f"{{{ATOM}}}entry")
            _add_entry(entry, item)
            yield entry
            root.remove(entry)
        else:
            yield "it is no JSON object"


def _add_entry(entry: etree._Element, item: dict[str, Any]) -> None:
    _set_language(entry, item)
    _add(entry, "id", item.get("id"))
    _add(entry, "title", item.get("title"))
    _add_link(entry, "alternate", item.get("url"))
    _add_link(entry, "related", item.get("external_url"))
    for name, date in (("published", item.get("date_published")), ("updated", item.get("date_modified"))):
        _add(entry, name, date if isinstance(date, str) else None)
    _add(entry, "summary", item.get("summary"))
    _add_authors(entry, item)
    for tag in filter(None, map(_text, _list(item.get("tags")))):
        etree.SubElement(entry, f"{{{ATOM}}}category", term=tag)
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
    if text := _text(value):
        etree.SubElement(parent, f"{{{ATOM}}}{name}", attributes).text = text


def _set_language(holder: etree._Element, parsed: dict[str, Any]) -> None:
    if text := _text(parsed.get("language")):
        holder.set(XML_LANG, text[:_LONGEST_LANGUAGE])


def _add_link(parent: etree._Element, rel: str, href: object, **about: object) -> None:
    if text := _text(href):
        attributes = {name: _text(value) for name, value in about.items() if _text(value)}
        etree.SubElement(parent, f"{{{ATOM}}}link", attributes, rel=rel, href=text)


def _text(value: object) -> str:
    """Accepts numbers too: ids are often numbers, although the format requires strings."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return xml_text(value).strip() if isinstance(value, str) else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
