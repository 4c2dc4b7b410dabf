"""An entry of a feed, whatever its format: its `<item>` document, identity and version, sanitised HTML and safe links.

Markup becomes plain text that XML can hold. Links keep only harmless schemes; credentials in addresses are removed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from html import unescape
from html.parser import HTMLParser
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

import nh3
from lxml import etree

from common.dates import iso_utc
from common.urls import canonical_url, without_tracking

if TYPE_CHECKING:
    from feeds.rules import ReadingRules

_USER = re.compile(r"//[^/?#\s]*@")
_BEFORE = re.compile(r"\A((?:https?|feed|file|ftp|gemini|gopher)://)?.*@", re.DOTALL | re.IGNORECASE)

WRITE_ENCODED = "in a name or password, write / as %2F, ? as %3F, # as %23 and @ as %40"
"""The remedy for an address with an unparsable password."""


def without_credentials(text: str) -> str:
    """Removes credentials from the addresses in a text.

    >>> without_credentials("http://ada:pa@ss@example.org/feed?by=me@home was not found")
    'http://example.org/feed?by=me@home was not found'
    """
    return _USER.sub("//", text)


def redact_userinfo(text: str) -> str:
    """An invalid address without everything before its last "@": the bounds of its credentials are unknown.

    >>> [redact_userinfo(url) for url in ("https://ada:se/cret@example.org/feed", "ada:secret@example.org", "mailto:")]
    ['https://…@example.org/feed', '…@example.org', 'mailto:']
    """
    return _BEFORE.sub(r"\1…@", text)


LONGEST_TITLE = 1_000  # maximum number of characters of a feed's name or a folder's path, which each entry repeats
NESTED = "/"  # separates the names of nested folders
_NAMES = re.compile(r"(?:[^/\\]|\\.?)+", re.DOTALL)


def folder_path(names: Iterable[str]) -> str:
    r"""The path of nested folders. A slash in a name is written as `\/`, and a backslash as two.

    >>> folder_path(["News", "TV/Radio"]), folder_names(r"News/TV\/Radio")
    ('News/TV\\/Radio', ['News', 'TV/Radio'])
    """
    return NESTED.join(name.replace("\\", "\\\\").replace(NESTED, f"\\{NESTED}") for name in names)


def folder_names(path: str) -> list[str]:
    """The inverse of `folder_path`."""
    return [re.sub(r"\\(.)", r"\1", name) for name in path_parts(path)]


def path_parts(path: str) -> list[str]:
    """The parts of a folder's path, as they are written in it."""
    return _NAMES.findall(path)


FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAG = re.compile(
    r"</?(?:a|abbr|b|big|blockquote|br|cite|code|div|em|font|h[1-6]|hr|i|img|li|ol|p|pre|q|s|small|span|strong|sub|sup|tt|u|ul)"
    r"(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
INLINE = frozenset(
    {"a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "ins"}
    | {"kbd", "mark", "q", "ruby", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u"}
    | {"var", "wbr"}
)
_UNSEEN = frozenset({"script", "style"})
# In browsers `<![` opens a comment that the next `>` ends; html.parser raises on most of them.
_MARKED_SECTION = re.compile(r"<!\[[^>]*>?")
_COMMENT_END = re.compile(r"--!?\s*+>")


def xml_text(text: str) -> str:
    return FORBIDDEN.sub("", text)


def one_line(text: str) -> str:
    """`text` fit for XML, stripped, with every run of white space (no-break spaces too) as one blank."""
    return " ".join(xml_text(text).split())


def looks_like_markup(text: str) -> bool:
    """Whether text has one of the HTML tags that feeds put into plain titles and names."""
    return bool(_TAG.search(text))


_ANY_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9]*+)(?=[\s/>])|<!--")
_OTHERS = (
    "applet audio base basefont blink body button canvas embed fieldset font form frame frameset head html "
    "iframe input label legend link marquee math meta noframes noscript object option param script section "
    "select source style svg template textarea title video"
)
_ELEMENTS = frozenset(nh3.ALLOWED_TAGS).union(_OTHERS.split())


def is_html_text(text: str) -> bool:
    return any(not name or name.lower() in _ELEMENTS for name in _ANY_TAG.findall(text))


def html_to_text(markup: str) -> str:
    """HTML as text: entities decoded, markup removed, block borders as blanks, white space collapsed.

    >>> html_to_text("<p>Caf&eacute;s<br>in <b>bo</b>ld</p>")
    'Cafés in bold'
    """
    if "<" not in markup and "&" not in markup:
        return one_line(markup)
    markup = _MARKED_SECTION.sub("", markup)
    # html.parser takes quadratic time for unclosed constructs, and finally treats them as text. Unclosed comments start
    # after the last end of a comment, unclosed tags after the last `>`.
    closed = max((found.end() for found in _COMMENT_END.finditer(markup)), default=0)
    markup = markup[:closed] + markup[closed:].replace("<!--", "&lt;!--")
    end = markup.rfind(">") + 1
    reader = _TextReader()
    reader.feed(markup[:end])
    reader.close()
    reader.handle_data(unescape(markup[end:]))
    return one_line("".join(reader.pieces))


class _TextReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._unseen = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNSEEN:
            self._unseen += 1
        elif tag not in INLINE:
            self.pieces.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in INLINE:
            self.pieces.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in _UNSEEN:
            self._unseen = max(0, self._unseen - 1)
        elif tag not in INLINE:
            self.pieces.append(" ")

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.pieces.append(data)


FIELDS = (
    "item_url", "channel_url", "title", "timestamp", "description",
    "feed_url", "feed_title", "folder", "lang", "updated",
    "author", "category", "link", "enclosure", "guid", "content",
)  # fmt: skip
"""The names of an `<item>`'s children, in order. The thesis' five leaves (section 6.6.3) are first."""

ATTRIBUTES = {"link": ("rel", "href"), "enclosure": ("href", "type", "length")}
"""The attributes of children that have any; these have no text."""

MENTION = "mention"  # the `rel` of links in the text of an entry
MOST_FOLDERS = 20


@dataclass(frozen=True, slots=True)
class Enclosure:
    """A file attached to an entry. `type` is its media type and `length` its size in bytes; "" means absent."""

    href: str
    type: str = ""
    length: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """The fields of an entry: plain text, except `content`, which is sanitised HTML. "" means absent.

    `date` is the entry's own date in microseconds (published, else updated), and `date_text` its spelling. `updated` is
    the feed's date of the last change, `lang` a language tag. `mentions` are canonical addresses of pages it links to.
    """

    item_url: str = ""
    channel_url: str = ""
    title: str = ""
    date: int | None = None
    date_text: str = ""
    description: str = ""
    authors: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    guid: str = ""
    content: str = ""
    updated: int | None = None
    lang: str = ""
    enclosures: tuple[Enclosure, ...] = ()
    mentions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a feed came from: `source` is its URL or name in a crawl, `name` the file it was read from. Times are
    microseconds: `fetched` if known, and `modified`, the file's. `base` is the address that answered, if it is not
    `source`; `content_type` is the answer's. `title` and `folders` are those of the user's list. `address` is the one
    to fetch from now on, "" if unknown. `page`: it is an older page of the feed, not its current window. `reading` has
    the user's rules for reading entries."""

    name: str
    modified: int
    source: str = ""
    fetched: int | None = None
    base: str = ""
    content_type: str = ""
    title: str = ""
    folders: tuple[str, ...] = ()
    address: str = ""
    page: bool = False
    reading: ReadingRules | None = None


def item_xml(entry: Entry, feed_url: str = "", feed_title: str = "", folders: Iterable[str] = ()) -> bytes:
    """The entry as an `<item>` with its non-empty FIELDS in order. `feed_url` may be a name."""
    item = etree.Element("item")
    leaves = [
        ("item_url", entry.item_url),
        ("channel_url", entry.channel_url),
        ("title", entry.title),
        ("timestamp", "" if entry.date is None else iso_utc(entry.date)),
        ("description", entry.description),
        ("feed_url", harmless(feed_url)),
        # Repeated in each entry of the feed, so its length is limited.
        ("feed_title", feed_title[:LONGEST_TITLE].strip()),
        *(("folder", folder) for folder in folder_paths(folders)),
        ("lang", entry.lang),
        ("updated", "" if entry.updated is None else iso_utc(entry.updated)),
        *(("author", author) for author in entry.authors),
        *(("category", category) for category in entry.categories),
    ]
    for name, value in leaves:
        _leaf(item, name, value)
    for rel, href in (*entry.links, *((MENTION, page) for page in entry.mentions)):
        etree.SubElement(item, "link", rel=one_line(rel), href=one_line(href))
    for enclosure in entry.enclosures:
        attributes = {name: one_line(value) for name, value in asdict(enclosure).items() if value}
        etree.SubElement(item, "enclosure", attributes)
    _leaf(item, "guid", entry.guid)
    _leaf(item, "content", entry.content)
    return etree.tostring(item, encoding="utf-8")


def folder_paths(folders: Iterable[str]) -> tuple[str, ...]:
    """The distinct paths of folders and their ancestors, outermost first, at most MOST_FOLDERS.

    >>> folder_paths(["News/World", "News/Sport"])
    ('News', 'News/World', 'News/Sport')
    """
    found: dict[str, None] = {}
    for folder in bounded_folders(folders):
        names = path_parts(folder)
        for depth in range(1, len(names) + 1):
            if len(found) < MOST_FOLDERS and (path := NESTED.join(names[:depth])):
                found[path] = None
    return tuple(found)


def bounded_folders(folders: Iterable[str]) -> tuple[str, ...]:
    """The first MOST_FOLDERS paths; one that is too long loses its innermost folders."""
    return tuple(_bounded(folder) for folder in islice(folders, MOST_FOLDERS))


def _bounded(path: str) -> str:
    if len(path) <= LONGEST_TITLE:
        return path
    parts, length = path_parts(path[: LONGEST_TITLE + 2]), 0
    fit = [part for part in parts[:-1] if (length := length + len(part) + 1) <= LONGEST_TITLE + 1]
    return NESTED.join(fit) or path[:LONGEST_TITLE]


def _leaf(item: etree._Element, name: str, value: str) -> None:
    if value:
        etree.SubElement(item, name).text = xml_text(value)


def entry_identity(entry: Entry, canonical: bool = True) -> str:
    """The part that stays when an entry changes: the guid, else the link, else a hash of title and date. Addresses are
    canonical but keep the fragment, by which some feeds distinguish entries of one page. Older stores have identities
    and versions that are not `canonical`."""
    identity = entry.guid or entry.item_url
    if identity and canonical and is_url(identity):
        fragment = identity.partition("#")[2]
        return f"{canonical_url(identity)}#{fragment}" if fragment else canonical_url(identity)
    return identity or _hash(entry.title, _dated(entry))


def entry_version(entry: Entry, canonical: bool = True) -> str:
    def in_order(attributes: re.Match[str]) -> str:  # sorted by name, as in earlier versions
        return "".join(sorted(_ATTRIBUTE.findall(attributes[0])))

    link, texts = entry.item_url, [entry.description, _ATTRIBUTES.sub(in_order, entry.content)]
    if canonical:
        link, texts = canonical_url(link), [without_tracking(one.replace("http:", "https:")) for one in texts]
    return _hash(entry.title, _dated(entry), link, *texts)


_ATTRIBUTES = re.compile(r'(?: [a-z:-]++="[^"]*+"){2,}')
_ATTRIBUTE = re.compile(r' [a-z:-]++="[^"]*+"')


def _dated(entry: Entry) -> str:
    return entry.date_text if entry.date is None else iso_utc(entry.date)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:12]


SCHEMES = frozenset({"http", "https", "ftp", "gemini", "gopher", "ipfs", "magnet", "mailto", "news", "tel", "xmpp"})
"""Harmless schemes, unlike `javascript:`, `data:`, `file:` and the like."""

_SCHEME = re.compile(r"[^:/?#]*+:")
_PASSED_OVER = re.compile("[\0-\u0020\u007f-\u00a0\u00ad\u200b-\u200f\u2028-\u202f\u2060-\u2064\ufeff]+")
"""Characters that some programs drop from an address before they parse its scheme."""


def is_harmless(address: str) -> bool:
    """Whether an address is relative or has one of SCHEMES.

    >>> is_harmless("HTTPS://a.example/x:y"), is_harmless("../a?b:c"), is_harmless("java\\nScript:alert(1)")
    (True, True, False)
    """
    scheme = _SCHEME.match(_PASSED_OVER.sub("", address))
    return scheme is None or scheme[0][:-1].lower() in SCHEMES


def harmless(address: str) -> str:
    return address if is_harmless(address) else ""


def is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


MOST_MENTIONS = 200  # maximum number of mentions of an entry, from the beginning of its text

LONGEST_ADDRESS = 2_000
"""Maximum length of an address in a text, or one shared by all entries of a feed. Longer ones are ignored."""


def absolute(base: str, address: str) -> str:
    """The address resolved against a base; unchanged if either is invalid."""
    try:
        return urljoin(base, address.strip())
    except ValueError:
        return address


ADDRESS_ATTRIBUTES = frozenset({"cite", "href", "src"})
_ANCHOR = re.compile(r"<a\s", re.IGNORECASE)


def sanitised(html: str, base: str = "", join: Callable[[str, str], str] = absolute) -> tuple[str, list[str]]:
    """HTML without active content, and the distinct addresses of its links. `join` resolves relative ones."""
    links: dict[str, None] = {}

    def checked(tag: str, name: str, value: str) -> str | None:
        # nh3 itself checks only the addresses in `href` and `src`, and less strictly.
        if name not in ADDRESS_ATTRIBUTES:
            return value
        if not is_harmless(value):
            return None
        value = value.strip()
        if base and not _SCHEME.match(value):
            value = join(base, value)
        if tag == "a" and name == "href":
            links[value] = None
        return value

    clean = nh3.clean(html, link_rel=None, url_schemes=set(SCHEMES), attribute_filter=checked)
    return clean, list(links)


def extract_links(html: str, base: str = "", join: Callable[[str, str], str] = absolute) -> list[str]:
    return sanitised(html, base, join)[1] if _ANCHOR.search(html) else []


def mentions(links: Sequence[str], base: str, own: Iterable[str]) -> tuple[str, ...]:
    """The distinct canonical pages that links lead to, at most MOST_MENTIONS. Relative links are resolved against
    `base`. Only web addresses count, and none in `own`."""
    left_out = {canonical_url(address) for address in own if links}
    found: dict[str, None] = {}
    for link in links:
        address = _page(link, base)
        if address and address not in left_out:
            found[address] = None
            if len(found) == MOST_MENTIONS:
                break
    return tuple(found)


def _page(link: str, base: str) -> str:
    if len(link) > LONGEST_ADDRESS:
        return ""
    address = canonical_url(absolute(base, link))
    return address if is_url(address) and xml_text(address) == address and len(address) <= LONGEST_ADDRESS else ""
