"""The Atom entry of an output: one line of XML, the same whenever it is made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import NAMESPACE_URL, UUID, uuid5

from feeds.dates import EPOCH
from mmqjp.present.facts import plain, values, why
from mmqjp.present.item import Item, clipped, line
from mmqjp.present.match import Match
from mmqjp.present.report import source
from mmqjp.present.times import IN_UTC

_FIRST, _LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
_OF_OUTPUTS = re.compile(r"[0-9a-f]{32}")
_FORBIDDEN = re.compile("[^ -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry: when its output was committed, in microseconds, and a line of XML without its end."""

    committed_at: int
    xml: str

    @property
    def id(self) -> str:
        """The id. Outputs have the same if a query was removed and registered again, and told something again."""
        return self.xml.partition("<id>")[2].partition("</id>")[0]


def entry_of(match: Match, committed_at: int) -> Entry:
    """Returns the entry of an output. It has no markup but ours, whatever the documents hold."""
    output = match.output
    parts = [
        f"<id>{_uuid(output.id)}</id>",
        f"<title>{escaped(_title(match))}</title>",
        f"<published>{timestamp(output.t1)}</published>",
        f"<updated>{timestamp(committed_at)}</updated>",
        *_links(match),
        f'<category term="{escaped(output.query)}"/>',
        f'<content type="html">{escaped(_content(match))}</content>',
    ]
    return Entry(committed_at, f"<entry>{''.join(parts)}</entry>")


def escaped(text: str) -> str:
    """Returns a text for XML, on one line: in an element, or between quotes. What XML forbids is replaced.

    >>> escaped('a <b> & "c"'), escaped("one\\x00two\\nthree")
    ('a &lt;b&gt; &amp; &quot;c&quot;', 'one�two&#10;three')
    """
    for character, escape in _ESCAPES.items():  # "&" first
        text = text.replace(character, escape)
    return text if text.isascii() and text.isprintable() else _FORBIDDEN.sub("\ufffd", text)


def timestamp(microseconds: int) -> str:
    """Returns a time as RFC 3339 has it, the nearest one of the years 1 to 9999."""
    try:
        moment = EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        moment = _FIRST if microseconds < 0 else _LAST
    return moment.isoformat().replace("+00:00", "Z")


def _uuid(id: str) -> str:
    return (UUID(id) if _OF_OUTPUTS.fullmatch(id) else uuid5(NAMESPACE_URL, f"mmqjp:{id}")).urn


def _title(match: Match) -> str:
    """The title of the first item that is still stored; else the query, and the values that it selects."""
    kept = next((item.title for item in match.items if item.is_kept and item.title), None)
    shown = ", ".join(text for _, text in match.selected)
    query = line(match.output.query)
    return kept or clipped(f"{query}: {shown}" if shown else query)


def _links(match: Match) -> Iterator[str]:
    """Yields a link to each item that has an address. An entry may have one alternate link only."""
    for number, link in enumerate(dict.fromkeys(item.link for item in match.items if item.link)):
        yield f'<link rel="{"related" if number else "alternate"}" href="{escaped(link)}"/>'


def _content(match: Match) -> str:
    """The content as HTML: a list of the values and the items."""
    rows = [(name, escaped(text)) for name, text in values(match)]
    rows += [("because", escaped(plain(fact))) for fact in (why(match) if match.reason is not None else ())]
    rows += [(_origin(item), _linked(item)) for item in match.items]
    rows.append(("query", escaped(line(match.output.query))))
    pairs = (f'<dt dir="auto">{escaped(name)}</dt><dd dir="auto">{text}</dd>' for name, text in rows)
    return f"<dl>{''.join(pairs)}</dl>"


def _origin(item: Item) -> str:
    return source(item) if item.time is None else f"{source(item)}, {IN_UTC.minute(item.time)} UTC"


def _linked(item: Item) -> str:
    title = escaped(item.title)
    return f'<a href="{escaped(item.link)}" rel="noopener noreferrer nofollow">{title}</a>' if item.link else title
