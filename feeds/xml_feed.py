"""Reads elements of RSS 0.9x, 1.0 and 2.0, Atom 0.3 and 1.0, and the modules that docs/items.md names, into entries.

A field is read only from direct children of the entry, in its own namespace or that of a module, since an item's image,
source or author have titles and links too.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from html import escape, unescape
from itertools import chain
from typing import TypeVar, cast

from lxml import etree

from common.dates import parse_timestamp
from common.tools import ClearedCache
from feeds import items as feed_items
from feeds.documents import FeedError

ATOM = "http://www.w3.org/2005/Atom"
MODULES = {
    "atom": ATOM,
    "content": "http://purl.org/rss/1.0/modules/content/",
    "dc": "http://purl.org/dc/elements/1.1/",
    "dcterms": "http://purl.org/dc/terms/",
    "itunes": "http://www.itunes.com/dtds/podcast-1.0.dtd",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "xhtml": "http://www.w3.org/1999/xhtml",
}
"""The namespaces that are read, by their usual prefixes."""

_OF_RSS = (
    "", "http://purl.org/rss/1.0/", "http://my.netscape.com/rdf/simple/0.9/", "http://backend.userland.com/rss",
    "http://backend.userland.com/rss2", "http://blogs.law.harvard.edu/tech/rss",
    "http://purl.org/rss/1.0/modules/rss091#", "http://channel.netscape.com/rdf/simple/0.9/",
)  # fmt: skip
_OF_ATOM = (
    ATOM, "http://purl.org/atom/ns#", "http://purl.org/echo/", "http://purl.org/pie/", "http://example.com/necho",
    "http://example.com/newformat#", "uri/of/echo/namespace#",
)  # fmt: skip
"""The last ones are from drafts."""


def _normal(space: str) -> str:
    return space.lower().rstrip("/#")


_PREFIXES = {_normal(space): prefix for prefix, space in MODULES.items()}
_PREFIXES |= {_normal("http://example.com/DTDs/PodCast-1.0.dtd"): "itunes"}
_PREFIXES |= {_normal(space): "" for space in _OF_RSS} | {_normal(space): "atom" for space in _OF_ATOM}

XML_LANG, _BASE = "{http://www.w3.org/XML/1998/namespace}lang", "{http://www.w3.org/XML/1998/namespace}base"
_ABOUT = f"{{{MODULES['rdf']}}}about"
_RELATIONS = "http://www.iana.org/assignments/relation/"
"""Prefix of the IRIs of registered link relations."""

_LANGUAGE = re.compile(r"[a-z]{1,8}(?:-[a-z0-9]{1,8}){0,7}")
_LENGTH = re.compile(r"[0-9]{1,18}")
_LONGEST_TYPE = 255
_REFERENCE = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_ADDRESS = re.compile(r"(?<![^\s()<>])[^\s()<>@]++@[^\s()<>@]+")
_VOID = frozenset({"area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"})
_PAGES = frozenset({"", "html", "text/html", "application/xhtml+xml"})
_PLAIN = frozenset({"", "text", "plain", "text/plain"})

MOST_AUTHORS = 20
"""Maximum number of authors of a feed, which each of its entries may repeat. An entry's own authors are not limited."""

MOST_LINKS = 100  # maximum number of links of a feed itself

_TO_OTHERS = frozenset({"related", "via"})  # relations of links that lead to pages other than the entry's own

_T = TypeVar("_T")


MOST_JOINED, JOINED_PER_BYTE = 4 << 20, 4
"""Maximum number of characters that bases add to a feed's relative addresses, plus so many per byte of the feed."""

_CONTEXTS = 1_000  # number of elements whose base and language are cached

_LONGEST_CAUSE = 200


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed's title, its site's address and its own. Each entry repeats them, so the title is cut, and an address is
    "" if it is missing or too long. Addresses have no credentials. `entries` lazily reads the elements of the entries
    in order; a text is the error of an unreadable one. `links` are the feed's own, as pairs of relation and address."""

    title: str
    site_url: str
    self_url: str
    entries: Iterator[tuple[etree._Element | None, feed_items.Entry | str]]
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class FeedElements:
    """The element that describes a feed, those of its entries (a text is the error of one), and whether it is Atom."""

    head: etree._Element
    entries: Iterable[etree._Element | str]
    atom: bool


def feed_elements(root: etree._Element) -> FeedElements | None:
    """None if the root is not a feed's."""
    space = etree.QName(root).namespace or ""
    name = _key(root.tag, space)
    if name == "feed":
        return FeedElements(root, _called(root, "entry"), True)
    if name == "entry" and _PREFIXES.get(_normal(space)) == "atom":
        return FeedElements(next(iter(_called(root, "source")), etree.Element(f"{{{space}}}source")), [root], True)
    if name not in ("rss", "rdf"):
        return None
    channels = [child for child in root if _local(child) == "channel"]
    if not channels and name == "rdf":
        return None
    head = channels[0] if channels else root
    items = [item for holder in (*channels, root) for item in holder if _local(item) == "item"]
    return FeedElements(head, items, False)


def _called(holder: etree._Element, name: str) -> list[etree._Element]:
    return [child for child in holder if _local(child) == name]


def _local(element: etree._Element) -> str:
    tag = element.tag
    return tag.rpartition("}")[2].lower() if isinstance(tag, str) else ""


@lru_cache(maxsize=4096)
def _key(tag: str, own: str) -> str:
    """The name of an element, prefixed unless it is in the namespace `own`; "" if its namespace is ignored."""
    space, _, name = tag.rpartition("}")
    prefix = _PREFIXES.get(_normal(space[1:]))
    if space[1:] == own or (prefix is not None and prefix == _PREFIXES.get(_normal(own))):
        return name.lower()
    return f"{prefix}:{name.lower()}" if prefix else ""


Children = Mapping[str, list[etree._Element]]


def _children(holder: etree._Element) -> Children:
    own = str(etree.QName(holder).namespace or "")
    found: dict[str, list[etree._Element]] = {}
    for child in holder:
        if isinstance(child.tag, str) and (name := _key(child.tag, own)):
            found.setdefault(name, []).append(child)
    return found


def _elements(children: Children, *names: str) -> Iterator[etree._Element]:
    return (one for name in names for one in children.get(name, ()))


def read_elements(feed: FeedElements, base: str = "", fallback_url: str = "", size: int = 0) -> Feed:
    """Reads a feed from its elements. Relative addresses are resolved against `xml:base` and `base`, the URL that the
    feed came from, else against its own or its site's address. `fallback_url` is the channel's address if the feed
    names neither. `size` is the feed's in bytes. Reading an entry raises FeedError if resolving addresses expands them
    beyond a limit that depends on it."""
    head = _children(feed.head)
    if not base:
        unresolved = _Reader(feed.atom, "", size)
        own = (unresolved.address_of(head, "self"), unresolved.address_of(head, "alternate"))
        base = next(filter(feed_items.is_url, own), "")
    reader = _Reader(feed.atom, base, size)
    site_url, self_url = reader.address_of(head, "alternate"), reader.address_of(head, "self")
    # In Atom, a feed's authors apply to entries without any; RSS has an editor instead.
    authors = [one for one in reader.authors(head) if len(one) <= feed_items.LONGEST_TITLE] if feed.atom else []
    languages = map(_text, _elements(head, "language", "dc:language"))
    common = feed_items.Entry(
        channel_url=site_url or self_url or feed_items.harmless(fallback_url),
        authors=tuple(authors[:MOST_AUTHORS]),
        lang=next(filter(None, map(_language, languages)), "") or reader.context(feed.head)[1],
    )
    title = reader.title(head)[: feed_items.LONGEST_TITLE].strip()
    links = [link for link in reader.links(head) if len(link[1]) <= feed_items.LONGEST_ADDRESS]
    return Feed(title, site_url, self_url, _entries(reader, feed.entries, common), tuple(links[:MOST_LINKS]))


def _entries(
    reader: _Reader, elements: Iterable[etree._Element | str], common: feed_items.Entry
) -> Iterator[tuple[etree._Element | None, feed_items.Entry | str]]:
    for element in elements:
        if isinstance(element, str):
            yield None, element
            continue
        # Whatever an untrusted entry does to the reader must fail that entry alone, hence the broad except.
        found: feed_items.Entry | str
        try:
            found = reader.entry(element, common)
        except (FeedError, MemoryError):
            raise
        except Exception as error:
            found = feed_items.one_line(str(error))[:_LONGEST_CAUSE] or type(error).__name__
        yield element, found


@dataclass(frozen=True, slots=True)
class _Construct:
    """A text and its markup ("" for plain text). `base` is for its addresses."""

    text: str
    markup: str
    base: str

    def plain(self) -> str:
        return feed_items.html_to_text(self.markup) if self.markup else feed_items.one_line(self.text)


class _Reader:
    def __init__(self, atom: bool, base: str, size: int) -> None:
        self._atom, self._base = atom, base
        self._most = self._left = MOST_JOINED + size * JOINED_PER_BYTE
        self._contexts = ClearedCache[etree._Element, tuple[str, str]](_CONTEXTS)

    def entry(self, element: etree._Element, feed: feed_items.Entry) -> feed_items.Entry:
        children = _children(element)
        links = _distinct(self.links(children))
        alternates = [href for rel, href in links if rel == "alternate"]
        guid, permalink = _guid(element, children)
        item_url = self._page(children) or (guid if permalink else "") or next(iter(alternates), "")
        summary = self._first(children, ("summary", "itunes:summary") if self._atom else _DESCRIPTIONS)
        content, linked = self._content(children)
        if summary.markup:
            linked = [*linked, *feed_items.extract_links(summary.markup, summary.base, self._joined)]
        own = [item_url, guid, self._base, *(href for rel, href in links if rel not in _TO_OTHERS)]
        date, date_text, updated = _dates(children)
        languages = [_language(_text(one)) for one in children.get("dc:language", ())]
        languages += [self.context(one)[1] for one in _elements(children, *_TEXTS)]
        sources = [_children(source) for source in children.get("source", ())] if self._atom else []
        entry = feed_items.Entry(
            item_url=item_url,
            channel_url=feed.channel_url,
            title=self.title(children),
            date=date,
            date_text=date_text,
            description=summary.plain(),
            authors=self.authors(children)
            or _distinct(one for s in sources for one in self.authors(s))
            or feed.authors,
            categories=_distinct(_categories(children)),
            links=links,
            guid=guid,
            content=content,
            updated=updated,
            lang=next(filter(None, languages), feed.lang),
            enclosures=_distinct(self._enclosures(children)),
            mentions=feed_items.mentions(linked, self._base, own),
        )
        if self._left < 0:
            cause = f"relative addresses take more than {self._most:,} characters"
            raise FeedError(f"{cause} once they are absolute: shorten the xml:base or write the addresses in full")
        return entry

    def title(self, head: Children) -> str:
        return self._first(head, ("title", "dc:title")).plain()

    def _first(self, children: Children, names: Iterable[str]) -> _Construct:
        found = map(self._construct, _elements(children, *names))
        return next((one for one in found if one.plain()), _Construct("", "", ""))

    def address_of(self, head: Children, rel: str) -> str:
        found = self._page(head) if rel == "alternate" else ""
        address = found or next((href for one, href in self.links(head) if one == rel), "")
        return feed_items.without_credentials(address) if len(address) <= feed_items.LONGEST_ADDRESS else ""

    def authors(self, holder: Children) -> tuple[str, ...]:
        names = "author", "dc:creator", "dc:author", "itunes:author", "atom:author"
        return _distinct(map(_person, _elements(holder, *names)))

    def _page(self, children: Children) -> str:
        """The address of the first alternate that is a page, else of any alternate."""
        links = [link for link in children.get("link", ()) if _relation(link) == "alternate"]
        links.sort(key=lambda link: (link.get("type") or "").strip().lower() not in _PAGES)
        return next(filter(None, map(self._href, links)), "")

    def _href(self, link: etree._Element) -> str:
        """The address of a link: in Atom an attribute, in RSS a text."""
        text, href = _text(link).strip(), link.get("href")
        return self._resolved(link, (href or text or href) if self._atom else (text or href))

    def links(self, children: Children) -> Iterator[tuple[str, str]]:
        for link in _elements(children, "link", "atom:link"):
            if address := self._href(link):
                yield _relation(link), address
        for link in children.get("enclosure", ()):
            if address := self._resolved(link, link.get("url") or link.get("href")):
                yield "enclosure", address

    def _enclosures(self, children: Children) -> Iterator[feed_items.Enclosure]:
        links = (one for one in _elements(children, "link", "atom:link") if _relation(one) == "enclosure")
        for element in (*children.get("enclosure", ()), *links):
            href = self._resolved(element, element.get("url")) or self._href(element)
            if href:
                kind, length = feed_items.one_line(element.get("type") or ""), (element.get("length") or "").strip()
                told_type = kind if len(kind) <= _LONGEST_TYPE else ""
                yield feed_items.Enclosure(href, told_type, length if _LENGTH.fullmatch(length) else "")

    def _content(self, children: Children) -> tuple[str, list[str]]:
        plain = ""
        names = ("content", "content:encoded") if self._atom else _CONTENTS
        for element in _elements(children, *names):
            found = self._construct(element, is_html=_local(element) != "content")
            if found.markup:
                return feed_items.sanitised(found.markup, found.base, self._joined)
            plain = plain or escape(feed_items.xml_text(found.text).strip(), quote=False)
        return plain, []

    def _construct(self, element: etree._Element, is_html: bool = False) -> _Construct:
        """The content of an element by its type; empty if it is neither text nor HTML. RSS has no types."""
        text, base = _text(element), self.context(element)[0]
        if is_html or not (self._atom or _key(element.tag, "").startswith("atom:")):
            if len(element):
                return _Construct(text, _inside(element, base, self._joined).strip(), base)
            is_markup = feed_items.is_html_text if _local(element) in _HTML_FIELDS else feed_items.looks_like_markup
            if is_html or is_markup(text):
                return _Construct(text, text.strip(), base)
            return _Construct(_REFERENCE.sub(lambda found: unescape(found[0]), text), "", base)
        kind = (element.get("type") or "").strip().lower()
        if (element.get("mode") or "").strip().lower() == "base64":
            try:
                text = base64.b64decode(text, validate=False).decode("utf-8", "replace")
            except (binascii.Error, ValueError):
                text = ""
        if kind in _PLAIN or (kind.startswith("text/") and kind not in _PAGES):
            return _Construct(text, "", base)
        if kind not in _PAGES and kind != "xhtml":
            return _Construct("", "", base)
        if len(element):
            inner = _unwrapped(element) if kind in ("html", "xhtml") else element
            base = self.context(inner)[0]
            is_source = kind == "html" and not len(inner)  # escaped, and a <div> around it
            markup = inner.text or "" if is_source else _inside(inner, base, self._joined)
            return _Construct(text, markup.strip(), base)
        is_source = kind in ("html", "text/html") or feed_items.looks_like_markup(text)
        return _Construct(text, text.strip() if is_source else "", base)

    def context(self, element: etree._Element) -> tuple[str, str]:
        if (known := self._contexts.get(element)) is not None:
            return known
        parent = element.getparent()
        base, language = (self._base, "") if parent is None else self.context(parent)
        base = _base_within(base, element)
        if (tag := element.get(XML_LANG)) is not None:
            language = _language(tag)
        if len(element):  # cached for its children, since an attribute may be long
            self._contexts[element] = base, language
        return base, language

    def _resolved(self, element: etree._Element, address: str | None) -> str:
        if address is None or not feed_items.is_harmless(address):
            return ""
        base = self.context(element)[0]
        if not address.strip() and base == self._base:
            return ""
        return feed_items.harmless(feed_items.one_line(self._joined(base, address)))

    def _joined(self, base: str, address: str) -> str:
        """Resolves an address, or leaves it as it is once bases have added too many characters."""
        joined = address if self._left < 0 else feed_items.absolute(base, address)
        self._left -= max(len(joined) - len(address), 0)
        return joined


def _base_within(base: str, element: etree._Element) -> str:
    """The base of addresses in an element. An `xml:base` that is too long is ignored."""
    written = element.get(_BASE)
    if not written or len(written) > feed_items.LONGEST_ADDRESS:
        return base
    found = feed_items.absolute(base, written)
    return found if len(found) <= feed_items.LONGEST_ADDRESS else base


def _text(element: etree._Element) -> str:
    """The text of an element and of inline HTML in it."""
    if not len(element):
        return element.text or ""
    inline = feed_items.INLINE
    inside = (part for one in element for part in (_text(one) if _local(one) in inline else "", one.tail or ""))
    return "".join((element.text or "", *inside))


def _unmarked(text: str) -> str:
    return feed_items.html_to_text(text) if feed_items.looks_like_markup(text) else feed_items.one_line(text)


def _unwrapped(element: etree._Element) -> etree._Element:
    """The `<div>` around XHTML, which is not part of the content."""
    alone = len(element) == 1 and not ((element.text or "").strip() or (element[0].tail or "").strip())
    return element[0] if alone and _local(element[0]) == "div" else element


_Join = Callable[[str, str], str]


def _inside(element: etree._Element, base: str, join: _Join) -> str:
    """The content of an element as HTML. Addresses below a nested `xml:base` are resolved."""
    pieces: list[str] = []
    _write_inside(element, base, False, join, pieces)
    return "".join(pieces)


def _write_inside(element: etree._Element, base: str, is_based: bool, join: _Join, pieces: list[str]) -> None:
    # libxml2 bounds the depth.
    pieces.append(escape(element.text or "", quote=False))
    for child in element:
        name = _local(child)
        if name:
            inner = _base_within(base, child)
            based = is_based or inner != base
            pieces.append(f"<{name}")
            for key, value in cast(list[tuple[str, str]], child.items()):
                if not key.startswith("{"):
                    address = join(inner, value) if based and key in feed_items.ADDRESS_ATTRIBUTES else value
                    pieces.append(f' {key}="{escape(address)}"')
            pieces.append(">")
            if name not in _VOID:
                _write_inside(child, inner, based, join, pieces)
                pieces.append(f"</{name}>")
        pieces.append(escape(child.tail or "", quote=False))


def _relation(link: etree._Element) -> str:
    rel = feed_items.one_line(link.get("rel") or "alternate").removeprefix(_RELATIONS)
    return rel if ":" in rel else rel.lower()


def _guid(element: etree._Element, children: Children) -> tuple[str, bool]:
    for found in (*children.get("guid", ()), *children.get("id", ()), *children.get("atom:id", ())):
        if guid := feed_items.one_line(_text(found)):
            return guid, feed_items.is_url(guid) and (found.get("isPermaLink") or "").strip().lower() != "false"
    about = feed_items.one_line(element.get(_ABOUT) or "")
    return about, feed_items.is_url(about)


_DESCRIPTIONS = ("description", "itunes:summary", "atom:summary", "dc:description")
_HTML_FIELDS = frozenset({"description", "summary"})
_CONTENTS = ("content:encoded", "atom:content", "xhtml:body", "body", "fullitem")
_PUBLISHED = ("pubdate", "published", "issued", "atom:published", "dcterms:issued")
_UPDATED = ("updated", "modified", "atom:updated", "dcterms:modified", "dc:date")


def _dates(children: Children) -> tuple[int | None, str, int | None]:
    """An entry's date and its spelling, and the date of its last change; the first valid one of each."""
    both = (_PUBLISHED, _UPDATED)
    spelt = [
        list(filter(None, (feed_items.one_line(_text(one)) for one in _elements(children, *names)))) for names in both
    ]
    published, updated = (
        next(((time, text) for text in texts if (time := parse_timestamp(text)) is not None), None) for texts in spelt
    )
    chosen = published or updated
    if chosen is None:
        return None, next(chain.from_iterable(spelt), ""), None
    return *chosen, updated[0] if updated else None


def undated_entries(root: etree._Element) -> int:
    """The number of a feed's entries that have a date, but none that can be read."""
    feed = feed_elements(root)
    entries = (one for one in feed.entries if not isinstance(one, str)) if feed is not None else ()
    return sum(date is None and text != "" for date, text, _ in (_dates(_children(entry)) for entry in entries))


def _categories(children: Children) -> Iterator[str]:
    for element in _elements(children, "category", "dc:subject", "atom:category"):
        term = element.get("term") or element.get("label")
        yield feed_items.one_line(term) if term is not None else _unmarked(_text(element))
    for element in children.get("itunes:category", ()):
        yield from (feed_items.one_line(one.get("text") or "") for one in (element, *element.iterdescendants()))
    for element in children.get("itunes:keywords", ()):
        yield from map(_unmarked, _text(element).split(","))


def _person(element: etree._Element) -> str:
    """The name of a person, else the address."""
    inside = {_local(child): child for child in reversed(element)}
    for name in ("name", "email"):
        if name in inside and (text := feed_items.one_line(_text(inside[name]))):
            return text
    if not inside.keys().isdisjoint(("name", "email", "uri", "url")):
        return ""
    text = _unmarked(_text(element))
    address = _ADDRESS.search(text)
    if not address:
        return text
    return (text[: address.start()] + text[address.end() :]).strip(" ()<>,") or address.group()


_TEXTS = ("title", "summary", "description", "content", *_CONTENTS)


def _language(text: str) -> str:
    tag = text.strip()[:100].replace("_", "-").lower()
    return tag if _LANGUAGE.fullmatch(tag) else ""


def _distinct(values: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(value for value in values if value))
