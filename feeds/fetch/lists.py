"""Lists of feeds to fetch: OPML files, text files with one address per line, and plain addresses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import unescape
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, cast

from lxml import etree

from common.errors import InvalidValue
from common.xml import read_prolog, xml_parser
from feeds.decoding import declare_prefixes, decode_text, mend_references, without_declaration
from feeds.documents import SourceError
from feeds.fetch.http import FetchError, web_address
from feeds.fetch.settings import FILE_ONLY, NONE, BadSettings, FeedSettings
from feeds.fetch.state import FeedState, SettingsChange, source_name
from feeds.files import TooLargeError, printable, read_file
from feeds.items import (
    LONGEST_TITLE,
    MOST_FOLDERS,
    NESTED,
    folder_names,
    folder_path,
    one_line,
    path_parts,
    redact_userinfo,
    without_credentials,
)

NAMESPACE = "urn:mmqjp:opml"
"""The namespace of attributes with settings of feeds and folders: the keys of `FeedSettings`, as text or JSON."""

_OURS = f"{{{NAMESPACE}}}"
_USED = frozenset({"title", "text", "xmlurl", "url", "type"})
_FEED_TYPES = frozenset({"rss", "atom", "feed", "rdf", "json"})


@dataclass(frozen=True, slots=True)
class ListedFeed:
    """A listed feed: its address as written, title and folder ("" if none), line, and settings."""

    url: str
    title: str = ""
    folder: str = ""
    line: int = 0
    settings: FeedSettings = NONE


@dataclass(frozen=True, slots=True)
class FeedOutlines:
    """The feeds of a list in order, the settings of its folders, and complaints about settings."""

    feeds: list[ListedFeed] = field(default_factory=list)
    folders: dict[str, FeedSettings] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)


def read_opml(data: bytes) -> FeedOutlines:
    """The feeds of an OPML list, at any depth. An ill-formed list is read as far as its outlines can be recognised.
    Raises InvalidValue if it is not XML or not OPML."""
    text = decode_text(data)
    text = without_declaration(text[max(text.find("<"), 0) :])
    if refused := read_prolog(text.encode("utf-8", "replace")).refused:
        raise InvalidValue(refused)
    try:
        root = _root(text)
    except etree.XMLSyntaxError as error:
        text = mend_references(text)
        try:
            root = _root(declare_prefixes(text, {"mmqjp": NAMESPACE}))
        except etree.XMLSyntaxError:
            if not _OPML.search(text):
                raise InvalidValue(f"not well-formed: {error.msg}") from None
            found = _outlines(_tags(text))
            if not found.feeds:
                raise InvalidValue(f"not well-formed: {error.msg}") from None
            return found
    # Some writers omit the body.
    body = next((child for child in root if _name(child) in ("body", "outline")), None)
    if _name(root) != "opml" or body is None:
        raise InvalidValue("XML, but not OPML: it has no <opml> with a <body>")
    return _outlines(_elements(body if _name(body) == "body" else root))


def _root(text: str) -> etree._Element:
    return etree.fromstring(text.encode("utf-8", "replace"), xml_parser(elements_only=True))


_Tag = tuple[dict[str, str] | None, int]
"""The attributes of a starting outline, by lower-case name, and its line; None for the end of one."""


def _elements(body: etree._Element) -> Iterator[_Tag]:
    # An explicit stack, because outlines may be nested more deeply than the recursion limit.
    waiting: list[etree._Element | None] = list(reversed(body))
    while waiting:
        outline = waiting.pop()
        if outline is None:
            yield None, 0
        elif _name(outline) == "outline":
            # By name: getting all values at once takes lxml quadratic time.
            names = [str(name) for name in outline.keys()]  # noqa: SIM118
            used = [name for name in names if name.lower() in _USED or name.startswith(_OURS)]
            yield {name.lower(): outline.get(name, "") for name in used}, cast(int, outline.sourceline)
            waiting += [None, *reversed(outline)]


_OPML = re.compile(r"<(?:opml|outline)\b", re.IGNORECASE)
_OUTLINE = re.compile(r"<!--.*?(?:-->|\Z)|<(/?)outline\b", re.IGNORECASE | re.DOTALL)
_ATTRIBUTE = re.compile(r"""[\s"'/]*+([A-Za-z_:][\w:.-]{0,99})\s{0,9}=\s{0,9}(["']?)""")
_END = re.compile(r"\s*+(/?)>")
_LONGEST_VALUE, MOST_BROKEN = 2_048, 1_000  # characters; outlines with an unterminated value
_AFTER = r"(?=\s{0,99}/?>|\s{1,99}[A-Za-z_:][\w:.-]{0,99}\s{0,9}=)"
_CLOSING = {quote: re.compile(f"{quote}{_AFTER}") for quote in "\"'"}
_BARE = re.compile(r"[^\s>]*")


def _tags(text: str) -> Iterator[_Tag]:
    """The outlines of a text that is not XML. A value ends at the quote after which the next attribute begins or the
    tag ends, so it may contain quotes, `<` and `&`. Raises InvalidValue if too many are unterminated."""
    place, line, broken = 0, 1, 0
    while (found := _OUTLINE.search(text, place)) is not None:
        line += text.count("\n", place, found.start())
        place = found.end()
        if found[0].startswith("<!"):
            line += found[0].count("\n")
            continue
        if found[1]:
            yield None, line
            continue
        values: dict[str, str] = {}
        begun = place
        while (attribute := _ATTRIBUTE.match(text, place)) is not None:
            start, quote = attribute.end(), attribute[2]
            end = (_CLOSING[quote] if quote else _BARE).search(text, start, start + _LONGEST_VALUE)
            if end is None:
                if (broken := broken + 1) > MOST_BROKEN:
                    raise InvalidValue("not well-formed, and its outlines cannot be recognised")
                break
            name = attribute[1].lower().replace("mmqjp:", _OURS, 1)
            values.setdefault(name, unescape(text[start : end.start() if quote else end.end()]))
            place = end.end()
        yield values, line
        closed = _END.match(text, place)
        if closed is not None and closed[1]:
            yield None, line
        line += text.count("\n", begun, place)


def _outlines(tags: Iterable[_Tag]) -> FeedOutlines:
    found = FeedOutlines()
    folders: list[tuple[str, bool]] = [("", False)]
    # The second: a name around the outline did not fit into the path, so the names inside are dropped too.
    for attributes, line in tags:
        if attributes is None:
            if len(folders) > 1:
                folders.pop()
            continue
        values = {name: one_line(value) for name, value in attributes.items() if name in _USED}
        title = (values.get("title") or values.get("text", ""))[:LONGEST_TITLE].strip()
        url = values.get("xmlurl") or (values.get("url") if values.get("type", "").lower() in _FEED_TYPES else "")
        folder, full = folders[-1]
        if url:
            found.feeds.append(ListedFeed(url, title, folder, line, _settings(attributes, line, found)))
        elif title and not full:
            name = folder_path([title])
            path = f"{folder}{NESTED}{name}" if folder else name
            full = len(path) > LONGEST_TITLE
            folder = folder if full else path
            if not full and (settings := _settings(attributes, line, found)) != NONE:
                found.folders[path] = settings
        folders.append((folder, full))
    return found


def _settings(attributes: Mapping[str, str], line: int, found: FeedOutlines) -> FeedSettings:
    """The settings in a list, without those that could harm whoever imports it: a list may come from anybody."""
    texts = {name.removeprefix(_OURS): value for name, value in attributes.items() if name.startswith(_OURS)}
    if not texts:
        return NONE
    place = f"line {line}: "
    try:
        made = FeedSettings.from_table({key: _value(text) for key, text in texts.items()}, place)
    except BadSettings as error:
        found.complaints.append(f"{error}; its settings are ignored")
        return NONE
    left_out = [key for key in made.to_table() if key in FILE_ONLY or made.secrets(key)]
    if left_out:
        more = {"auth", "user"} if "password" in left_out else set()
        made = made.without({*left_out, *more})
        found.complaints.append(f"{place}{', '.join(left_out)}: ignored in a list; set it with mmqjp feeds set")
    return made


def _value(text: str) -> object:
    if text[:1] in ("[", "{") or text in ("true", "false"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _name(element: etree._Element) -> str:
    return etree.QName(element).localname.lower()


def write_opml(feeds: Iterable[ListedFeed], folders: Mapping[str, FeedSettings] = MappingProxyType({})) -> bytes:
    """Writes settings as attributes in NAMESPACE, secrets by name only."""
    listed = sorted(feeds, key=lambda feed: path_parts(feed.folder))
    has_settings = any(folders.values()) or any(feed.settings != NONE for feed in listed)
    root = etree.Element("opml", nsmap={"mmqjp": NAMESPACE} if has_settings else None, version="2.0")
    etree.SubElement(etree.SubElement(root, "head"), "title").text = "Feeds"
    body = etree.SubElement(root, "body")
    for folder, inside in groupby(listed, key=lambda feed: feed.folder):
        holder, path = body, ""
        for part, name in zip(path_parts(folder), folder_names(folder), strict=True):
            last = holder[-1] if len(holder) else None
            path = f"{path}{NESTED}{part}" if path else part
            known = last is not None and last.get("text") == name and last.get("xmlUrl") is None
            if known and last is not None:
                holder = last
            else:
                about = _attributes(folders.get(path, NONE))
                holder = etree.SubElement(holder, "outline", about, text=name, title=name)
        for feed in inside:
            title = feed.title or feed.url
            about = _attributes(feed.settings)
            etree.SubElement(holder, "outline", about, type="rss", text=title, title=title, xmlUrl=feed.url)
    return etree.tostring(root, encoding="utf-8", xml_declaration=True, pretty_print=True)


def _attributes(settings: FeedSettings) -> dict[str, str]:
    table = settings.to_table()
    return {
        f"{_OURS}{key}": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in table.items()
    }


_HINT = "a list of feeds is an OPML file, a text file with one address per line, or an http(s) address"


class FeedLists(NamedTuple):
    """The distinct feeds of lists, in their initial state; complaints about ignored ones; and the settings of feeds, by
    address, and of folders."""

    feeds: list[FeedState]
    complaints: list[str]
    settings: dict[str, FeedSettings]
    folders: dict[str, FeedSettings]

    @property
    def changes(self) -> tuple[SettingsChange, ...]:
        """The settings in the lists, as changes to a state."""
        feeds = (SettingsChange("feed", url, one.to_json()) for url, one in self.settings.items() if one != NONE)
        return (*feeds, *(SettingsChange("folder", name, one.to_json()) for name, one in self.folders.items()))


def read_feed_lists(lists: Iterable[str]) -> FeedLists:
    """Reads all lists. A repeated feed gets its first title and all folders. Raises SourceError for an unreadable
    list."""
    return _feeds((name, _listed(name)) for name in lists)


def read_feed_list(data: bytes, name: str) -> FeedLists:
    """Like `read_feed_lists`, for the content of one list. Raises SourceError."""
    return _feeds([(name, _parsed(data, name))])


def _feeds(lists: Iterable[tuple[str, FeedOutlines]]) -> FeedLists:
    titles: dict[str, str] = {}
    folders: dict[str, dict[str, None]] = {}
    complaints: list[str] = []
    settings: dict[str, FeedSettings] = {}
    of_folders: dict[str, FeedSettings] = {}
    for name, outlines in lists:
        complaints += (f"{name}: {complaint}" for complaint in outlines.complaints)
        of_folders |= outlines.folders
        for listed in outlines.feeds:
            try:
                url = _address(listed.url)
            except FetchError as error:
                place = f"{name}:{listed.line}: " if listed.line else ""
                complaints.append(without_credentials(f"{place}{error}; it is left out"))
                continue
            # Some writers of lists, ours included, put the address in place of a missing title.
            titles[url] = titles.get(url) or (listed.title if listed.title != listed.url else "")
            settings[url] = settings.get(url, NONE).or_else(listed.settings)
            inside = folders.setdefault(url, {})
            if listed.folder and len(inside) < MOST_FOLDERS:
                inside[listed.folder] = None
    feeds = [FeedState(url, source_name(url), title, "\n".join(folders[url])) for url, title in titles.items()]
    return FeedLists(feeds, complaints, settings, of_folders)


def feed_of_address(address: str) -> FeedState:
    """A feed in its initial state. Raises FetchError if it is not a web address."""
    url = _address(address)
    return FeedState(url, source_name(url))


_FEED_SCHEME = re.compile(r"\Afeed:(//)?", re.IGNORECASE)


def _address(text: str) -> str:
    """The normalised address, also of `feed://host` or `feed:https://host`, as some pages write it."""
    return str(web_address(_FEED_SCHEME.sub(lambda found: "http://" if found[1] else "", text)))


def _listed(name: str) -> FeedOutlines:
    path = Path(name)
    if "://" in name and not path.exists():
        return FeedOutlines([ListedFeed(name)])
    shown = printable(redact_userinfo(name) if ":" in name else name)  # it may be a mistyped address
    try:
        data = read_file(path)
    except FileNotFoundError:
        raise SourceError(shown, "no such file", _HINT) from None
    except OSError as error:
        raise SourceError(shown, f"cannot be read: {error.strerror or error}", _HINT) from None
    except TooLargeError as error:
        raise SourceError(shown, str(error), _HINT) from None
    return _parsed(data, shown)


def _parsed(data: bytes, shown: str) -> FeedOutlines:
    try:
        text = decode_text(data)
        if text.lstrip().startswith("<") or _OPML.search(text, 0, 1_000):
            return read_opml(data)
        if "\0" in text or "\ufffd" in text or (data and not text):
            raise InvalidValue("not a text")
        lines = text.splitlines()
    except InvalidValue as error:
        raise SourceError(shown, str(error), _HINT) from None
    stripped = ((number, line.strip()) for number, line in enumerate(lines, 1))
    return FeedOutlines(
        [ListedFeed(line, line=number) for number, line in stripped if line and not line.startswith("#")]
    )
