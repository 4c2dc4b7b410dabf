"""Lists of feeds to fetch: OPML files, text files with an address a line, and plain addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import cast

from lxml import etree

from common.errors import InvalidValue
from common.xml import read_prolog, xml_parser
from feeds.decoding import decode_text, mend_references, without_declaration
from feeds.documents import SourceError
from feeds.fetch.http import FetchError, web_address
from feeds.fetch.state import FeedState, source_name
from feeds.files import TooLargeError, printable, read_file
from feeds.items import LONGEST_TITLE, MOST_FOLDERS, NESTED, one_line, redact_userinfo, without_credentials

_USED = frozenset({"title", "text", "xmlurl"})


@dataclass(frozen=True, slots=True)
class ListedFeed:
    """A listed feed: its address as written, title and folder ("" if it has none), and the line."""

    url: str
    title: str = ""
    folder: str = ""
    line: int = 0


def read_opml(data: bytes) -> list[ListedFeed]:
    """The feeds of an OPML list, at any depth, in order. Raises InvalidValue if it is not XML or not OPML."""
    text = without_declaration(decode_text(data).lstrip())
    if refused := read_prolog(text.encode()).refused:
        raise InvalidValue(refused)
    try:
        root = _root(text)
    except etree.XMLSyntaxError as error:
        try:
            root = _root(mend_references(text))
        except etree.XMLSyntaxError:
            raise InvalidValue(f"not well-formed: {error.msg}") from None
    body = next((child for child in root if _name(child) == "body"), None)
    if _name(root) != "opml" or body is None:
        raise InvalidValue("XML, but not OPML: it has no <opml> with a <body>")
    return list(_outline_feeds(body))


def _root(text: str) -> etree._Element:
    return etree.fromstring(text.encode(), xml_parser(elements_only=True))


def _outline_feeds(body: etree._Element) -> Iterator[ListedFeed]:
    # A stack of ours, because outlines may be nested more deeply than functions may call each other.
    # `full`: a name around the outline had no room in the path, so those inside are left out too.
    waiting = [(child, "", False) for child in reversed(body)]
    while waiting:
        outline, folder, full = waiting.pop()
        if _name(outline) != "outline":
            continue
        # By name: to get the values of all takes lxml time in the square of their number.
        used = [str(name) for name in outline.keys() if str(name).lower() in _USED]  # noqa: SIM118
        values = {name.lower(): one_line(outline.get(name, "")) for name in used}
        title = (values.get("title") or values.get("text", ""))[:LONGEST_TITLE].strip()
        inside = folder
        if values.get("xmlurl"):
            yield ListedFeed(values["xmlurl"], title, folder, cast(int, outline.sourceline))
        elif title and not full:
            path = f"{folder}{NESTED}{title}" if folder else title
            full = len(path) > LONGEST_TITLE
            inside = folder if full else path
        waiting += [(child, inside, full) for child in reversed(outline)]


def _name(element: etree._Element) -> str:
    return etree.QName(element).localname.lower()


def write_opml(feeds: Iterable[ListedFeed]) -> bytes:
    root = etree.Element("opml", version="2.0")
    etree.SubElement(etree.SubElement(root, "head"), "title").text = "Feeds"
    body = etree.SubElement(root, "body")
    for folder, inside in groupby(sorted(feeds, key=lambda feed: feed.folder), key=lambda feed: feed.folder):
        holder = body
        for name in filter(None, folder.split(NESTED)):
            last = holder[-1] if len(holder) else None
            known = last is not None and last.get("text") == name and last.get("xmlUrl") is None
            holder = last if known and last is not None else etree.SubElement(holder, "outline", text=name, title=name)
        for feed in inside:
            title = feed.title or feed.url
            etree.SubElement(holder, "outline", type="rss", text=title, title=title, xmlUrl=feed.url)
    return etree.tostring(root, encoding="utf-8", xml_declaration=True, pretty_print=True)


_HINT = "a list of feeds is an OPML file, a text file with an address a line, or an http(s) address"


def read_feed_lists(lists: Iterable[str]) -> tuple[list[FeedState], list[str]]:
    """The distinct feeds of lists, in their initial state, and for each bad address the reason. A repeated feed has its
    first title and all its folders. Raises SourceError if a list cannot be read."""
    return _feeds((name, listed) for name in lists for listed in _listed(name))


def read_feed_list(data: bytes, name: str) -> tuple[list[FeedState], list[str]]:
    """Like `read_feed_lists`, for the content of one list. Raises SourceError."""
    return _feeds((name, listed) for listed in _parsed(data, name))


def _feeds(lists: Iterable[tuple[str, ListedFeed]]) -> tuple[list[FeedState], list[str]]:
    titles: dict[str, str] = {}
    folders: dict[str, dict[str, None]] = {}
    complaints = []
    for name, listed in lists:
        try:
            url = _address(listed.url)
        except FetchError as error:
            place = f"{name}:{listed.line}: " if listed.line else ""
            complaints.append(without_credentials(f"{place}{error}; it is left out"))
            continue
        # Some writers of lists repeat the address where there is no title, and so does ours.
        titles[url] = titles.get(url) or (listed.title if listed.title != listed.url else "")
        inside = folders.setdefault(url, {})
        if listed.folder and len(inside) < MOST_FOLDERS:
            inside[listed.folder] = None
    feeds = [FeedState(url, source_name(url), title, "\n".join(folders[url])) for url, title in titles.items()]
    return feeds, complaints


def feed_of_address(address: str) -> FeedState:
    """A feed in its initial state. Raises FetchError if it is not a web address."""
    url = _address(address)
    return FeedState(url, source_name(url))


_FEED_SCHEME = re.compile(r"\Afeed:(//)?", re.IGNORECASE)


def _address(text: str) -> str:
    """The normalised address, also of `feed://host` or `feed:https://host`, as some pages write it."""
    return str(web_address(_FEED_SCHEME.sub(lambda found: "http://" if found[1] else "", text)))


def _listed(name: str) -> list[ListedFeed]:
    path = Path(name)
    if "://" in name and not path.exists():
        return [ListedFeed(name)]
    shown = printable(redact_userinfo(name) if ":" in name else name)  # it may be an address that went wrong
    try:
        data = read_file(path)
    except FileNotFoundError:
        raise SourceError(shown, "no such file", _HINT) from None
    except OSError as error:
        raise SourceError(shown, f"cannot be read: {error.strerror or error}", _HINT) from None
    except TooLargeError as error:
        raise SourceError(shown, str(error), _HINT) from None
    return _parsed(data, shown)


def _parsed(data: bytes, shown: str) -> list[ListedFeed]:
    try:
        text = decode_text(data)
        if text.lstrip().startswith("<"):
            return read_opml(data)
        if "\0" in text or "\ufffd" in text or (data and not text):
            raise InvalidValue("not a text")
        lines = text.splitlines()
    except InvalidValue as error:
        raise SourceError(shown, str(error), _HINT) from None
    stripped = ((number, line.strip()) for number, line in enumerate(lines, 1))
    return [ListedFeed(line, line=number) for number, line in stripped if line and not line.startswith("#")]
