"""Atom documents (RFC 4287) of outputs: a feed and its archives (RFC 5005). Archive `k` has the outputs with 100k <=
`seq` < 100k + 100 once all are committed, and never changes. An entry is one line of XML, always the same for an
output. Links grant access by a key: a digest of a secret of the state, the feed, and the number of revocations."""

from __future__ import annotations

import hmac
import json
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote
from uuid import NAMESPACE_URL, UUID, uuid5

from common.dates import iso_utc
from common.files import SECRETS, make_inside, make_secret_file
from feeds.documents import from_datetime
from join_stage.store.protocol import StoreError
from mmqjp.present.item import IN_UTC, ShownMatch, fact_text, reason_facts, source, truncate, values
from mmqjp.process import printable_line

SIZE = 100  # output numbers, of all queries, per archive
NEWEST = 50  # newest outputs in a feed, besides all that are in no archive


def archive_of(seq: int) -> int:
    return seq // SIZE


def archive_range(archive: int) -> range:
    return range(archive * SIZE, (archive + 1) * SIZE)


def unarchived_from(last_seq: int) -> int:
    """Returns the first number in no archive, given the last committed one."""
    return archive_of(last_seq + 1) * SIZE


_FIRST, _LAST = from_datetime(datetime.min), from_datetime(datetime.max)
_OF_OUTPUTS = re.compile(r"[0-9a-f]{32}")
_FORBIDDEN = re.compile("[^ -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}


@dataclass(frozen=True, slots=True)
class AtomEntry:
    """An entry: the commit time of its output, in microseconds, and a line of XML without its end."""

    committed_at: int
    xml: str

    @property
    def id(self) -> str:
        """The id. An output of a query that was registered again may repeat it."""
        return self.xml.partition("<id>")[2].partition("</id>")[0]


def entry_of(match: ShownMatch, committed_at: int) -> AtomEntry:
    """Returns the entry of an output; all outputs of a story are versions of one. Markup in documents is escaped."""
    output, story = match.output, match.story
    own = output.id if story is None else f"{output.query} {story.id}"
    id = UUID(own) if _OF_OUTPUTS.fullmatch(own) else uuid5(NAMESPACE_URL, f"mmqjp:{own}")
    links = dict.fromkeys(escape_xml(item.link) for item in match.items if item.link)
    parts = [
        f"<id>{id.urn}</id>",
        f"<title>{escape_xml(_title(match))}</title>",
        f"<published>{timestamp(output.t1 if story is None else story.first)}</published>",
        f"<updated>{timestamp(committed_at)}</updated>",
        *(f'<link rel="{"related" if number else "alternate"}" href="{link}"/>' for number, link in enumerate(links)),
        f'<category term="{escape_xml(output.query)}"/>',
        f'<content type="html">{escape_xml(_content(match))}</content>',
    ]
    return AtomEntry(committed_at, f"<entry>{''.join(parts)}</entry>")


def escape_xml(text: str) -> str:
    """Returns a text for XML, on one line: in an element, or between quotes. What XML forbids is replaced.

    >>> escape_xml('a <b> & "c"'), escape_xml("one\\x00two\\nthree")
    ('a &lt;b&gt; &amp; &quot;c&quot;', 'one�two&#10;three')
    """
    for character, escape in _ESCAPES.items():  # "&" first
        text = text.replace(character, escape)
    return text if text.isascii() and text.isprintable() else _FORBIDDEN.sub("\ufffd", text)


def timestamp(microseconds: int) -> str:
    return iso_utc(min(max(microseconds, _FIRST), _LAST))


def _title(match: ShownMatch) -> str:
    """The title of the first item still stored, else the query and its selected values."""
    kept = next((item.title for item in match.items if item.is_kept and item.title), None)
    shown = ", ".join(text for _, text in match.selected)
    query = printable_line(match.output.query)
    return kept or truncate(f"{query}: {shown}" if shown else query)


def _content(match: ShownMatch) -> str:
    rows = [(name, escape_xml(text)) for name, text in values(match)]
    label = "because" if match.story is None else "story"
    facts = reason_facts(match) if match.reason is not None or match.story is not None else ()
    rows += [(label, escape_xml(fact_text(fact))) for fact in facts]
    for place, item in enumerate(match.items):
        if place == 1 and match.omitted:
            rows.append(("…", f"{match.omitted:,} more in between"))
        origin = source(item) if item.time is None else f"{source(item)}, {IN_UTC.minute(item.time)} UTC"
        title = escape_xml(item.title)
        linked = f'<a href="{escape_xml(item.link)}" rel="noopener noreferrer nofollow">{title}</a>'
        rows.append((origin, linked if item.link else title))
    rows.append(("query", escape_xml(printable_line(match.output.query))))
    pairs = (f'<dt dir="auto">{escape_xml(name)}</dt><dd dir="auto">{text}</dd>' for name, text in rows)
    return f"<dl>{''.join(pairs)}</dl>"


MEDIA_TYPE = "application/atom+xml"

HISTORY = "http://purl.org/syndication/history/1.0"  # the namespace of RFC 5005


@dataclass(frozen=True, slots=True)
class AtomFeed:
    """What a feed's documents share. `id` and `title` are permanent; `since` (microseconds) counts without entries."""

    id: str
    title: str
    address: str
    since: int = 0


def feed_document(
    feed: AtomFeed, entries: Sequence[AtomEntry], prev_archive: str | None, archive: str | None = None
) -> bytes:
    """Returns the feed, or the archive at an address, newest entries first; of those with the same id, the first.
    `prev_archive` is the address of the archive before it."""
    links = {"self": feed.address} if archive is None else {"self": archive, "current": feed.address}
    links |= {} if prev_archive is None else {"prev-archive": prev_archive}
    history = "" if archive is None else f' xmlns:fh="{HISTORY}"'
    once: dict[str, str] = {}
    for entry in entries:
        once.setdefault(entry.id, entry.xml)
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<feed xmlns="http://www.w3.org/2005/Atom"{history}>',
        f"<id>{escape_xml(feed.id)}</id>",
        f"<title>{escape_xml(feed.title)}</title>",
        f"<updated>{timestamp(entries[0].committed_at if entries else feed.since)}</updated>",
        "<author><name>mmqjp</name></author>",
        *(f'<link rel="{rel}" href="{escape_xml(address)}"/>' for rel, address in links.items()),
        *([] if archive is None else ["<fh:archive/>"]),
        *once.values(),
        "</feed>\n",
    ]
    return "\n".join(lines).encode()


SECRET_FILE = ".links"  # the file with the secret of the links, a name that no sink can use
BYTES = 32  # size of the secret
KEY_CHARACTERS = 22  # length of a key: more than 128 bits
SETTING = "feed-link:"  # prefix of the settings that count revocations
_OF = "query"  # the kind of feed: a permanent part of all keys, ids and settings

_KEY = re.compile(rf"([\w-]{{{KEY_CHARACTERS}}})(?:\.([1-9][0-9]{{0,9}}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Links:
    secret: bytes = field(repr=False)

    def key(self, name: str, revoked: int) -> str:
        digest = urlsafe_b64encode(self._digest("key", name, revoked)).decode()[:KEY_CHARACTERS]
        return f"{digest}.{revoked}" if revoked else digest

    def revoked_before(self, name: str, key: str) -> int | None:
        """Returns the number of revocations when a key was made; None if it is not ours. Takes constant time."""
        found = _KEY.fullmatch(key)
        revoked = int(found[2] or 0) if found else 0
        return revoked if hmac.compare_digest(self.key(name, revoked).encode(), key.encode()) else None

    def feed_id(self, name: str) -> str:
        """Returns the id of a feed, which survives revocations."""
        return UUID(bytes=self._digest("id", name, 0)[:16], version=4).urn

    def _digest(self, use: str, name: str, revoked: int) -> bytes:
        return hmac.digest(self.secret, json.dumps([use, _OF, name, revoked]).encode(), sha256)


def load_feed_links(state: Path) -> Links:
    """Returns the links of a state, creating the secret if missing. Raises StoreError, OSError."""
    path = make_inside(state, SECRETS) / SECRET_FILE
    if not path.exists():
        make_secret_file(path, secrets.token_bytes(BYTES))  # or another process was faster: its secret counts
    secret = path.read_bytes()
    if len(secret) != BYTES:
        raise StoreError(f"{path} holds no secret of links: remove the file, and a new one is made; links will change")
    return Links(secret)


def setting_of(name: str) -> str:
    return f"{SETTING}{_OF}:{name}"


def feed_path(key: str, name: str, archive: int | None = None) -> str:
    """Returns the path of a feed, or of its archive of that number, below the site's address.

    >>> feed_path("KEY", "a b/é"), feed_path("KEY", "a", 3)
    ('/f/KEY/a%20b%2F%C3%A9.atom', '/f/KEY/a/3.atom')
    """
    return f"/f/{key}/{quote(name, safe='')}{'' if archive is None else f'/{archive}'}.atom"
