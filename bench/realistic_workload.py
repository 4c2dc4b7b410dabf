"""Lifelike subscriptions, each as XSCL and as plain SQL, and the fields of the items as tables.

Each joins two items within hours or days and names the channels, the author or the category that it is about, so that
few items complete a match. The items are those of `bench.workload`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

import pyarrow as pa
from lxml import etree

from bench.workload import CATEGORIES, CHANNELS, HOUR, author, category, channel
from feeds.documents import Document

LONGEST = 168
"""Hours in the longest window."""

POPULAR = ((1, 0, 96), (0, 22, 96), (0, 1, 96))
"""Two channels with many items each, and hours: what programs for one subscription are compared on."""


@dataclass(frozen=True)
class RealisticQuery:
    """One subscription: as `xscl`, and as `sql` over the tables of `fields`. `$new` is the first item of a batch."""

    kind: str
    xscl: str
    sql: str


def subscriptions(count: int, seed: int = 4) -> list[RealisticQuery]:
    """`count` subscriptions: headlines of `POPULAR` channels, then the kinds in turn."""
    rng = Random(seed)
    asked = [_same_title(channel(first), channel(second), hours) for first, second, hours in POPULAR[:count]]
    return asked + [_KINDS[i % len(_KINDS)](rng) for i in range(count - len(asked))]


def script(asked: Iterable[RealisticQuery]) -> str:
    """All of them as one XSCL script."""
    return "".join(f"{one.xscl};\n" for one in asked)


def _title(rng: Random) -> RealisticQuery:
    """The same headline in a channel and then in another one: one in ten is about any other."""
    first, second, hours = _channel(rng), _channel(rng), rng.randint(6, 96)
    return _same_title(first, None if rng.random() < 0.1 else second, hours)


def _same_title(first: str, second: str | None, hours: int) -> RealisticQuery:
    there = f'[./channel_url = "{second}"]' if second else "[./channel_url->c']"
    here, differ = ("", "") if second else ("[./channel_url->c]", " AND c != c'")
    return _made(
        "title",
        f'S//item->a[./channel_url = "{first}"]{here}[./title->t]',
        f"lower-case(t) = lower-case(t'){differ}",
        hours,
        f"S//item->b{there}[./title->t']",
        "items l JOIN items r ON lower(r.title) = lower(l.title)",
        f"l.channel = '{first}' AND r.channel {'=' if second else '<>'} '{second or first}'",
    )


def _link(rng: Random) -> RealisticQuery:
    """An item of a channel is linked from another one."""
    first, second, hours = _channel(rng), _channel(rng), rng.randint(6, LONGEST)
    return _made(
        "link",
        f'S//item->a[./channel_url = "{first}"][./item_url->u]',
        "u = h",
        hours,
        f'S//item->b[./channel_url = "{second}"][./link/@href->h]',
        "items l JOIN links k ON k.href = l.url JOIN items r ON r.doc = k.doc",
        f"l.channel = '{first}' AND r.channel = '{second}'",
    )


def _author(rng: Random) -> RealisticQuery:
    """An author stays with a subject, after an item in a category."""
    who, about, hours = author(rng.randrange(CHANNELS), rng.randint(0, 4)), _category(rng), rng.randint(6, 72)
    return _made(
        "author",
        f'S//item->a[./category = "{about}"][./author->w[. = "{who}"]][./category->k]',
        "w = w' AND k = k'",
        hours,
        "S//item->b[./author->w'][./category->k']",
        "items l JOIN authors al ON al.doc = l.doc JOIN authors ar ON ar.author = al.author "
        "JOIN categories cl ON cl.doc = l.doc JOIN categories cr ON cr.doc = ar.doc AND cr.category = cl.category "
        "JOIN items r ON r.doc = ar.doc",
        f"al.author = '{who}' AND l.doc IN (SELECT doc FROM categories WHERE category = '{about}')",
    )


def _retitled(rng: Random) -> RealisticQuery:
    """An item of a channel and a category gets another headline."""
    where, about, hours = _channel(rng), _category(rng), rng.randint(6, LONGEST)
    return _made(
        "retitled",
        f'S//item->a[./channel_url = "{where}"][./category = "{about}"][./guid->g][./title->t]',
        "g = g' AND t != t'",
        hours,
        "S//item->b[./guid->g'][./title->t']",
        "items l JOIN items r ON r.guid = l.guid AND r.title <> l.title",
        f"l.channel = '{where}' AND l.doc IN (SELECT doc FROM categories WHERE category = '{about}')",
    )


def _recording(rng: Random) -> RealisticQuery:
    """A recording of a channel is also another one's."""
    first, second, hours = _channel(rng), _channel(rng), rng.randint(6, 72)
    return _made(
        "recording",
        f'S//item->a[./channel_url = "{first}"][./link[@rel = "enclosure"]/@href->e]',
        "e = e'",
        hours,
        f'S//item->b[./channel_url = "{second}"][./link[@rel = "enclosure"]/@href->e\']',
        "items l JOIN links kl ON kl.doc = l.doc AND kl.rel = 'enclosure' "
        "JOIN links kr ON kr.href = kl.href AND kr.rel = 'enclosure' JOIN items r ON r.doc = kr.doc",
        f"l.channel = '{first}' AND r.channel = '{second}'",
    )


_KINDS: tuple[Callable[[Random], RealisticQuery], ...] = (_title, _link, _author, _retitled, _recording)


def _made(kind: str, left: str, condition: str, hours: int, right: str, tables: str, where: str) -> RealisticQuery:
    time = f"l.t < r.t AND r.t - l.t <= {hours * HOUR}"
    return RealisticQuery(
        kind,
        f"FROM {left} FOLLOWED BY {{{condition}, {hours} h}} {right}",
        f"SELECT DISTINCT l.doc AS doc1, r.doc AS doc2 FROM {tables} WHERE {where} AND {time} AND r.doc >= $new",
    )


def _channel(rng: Random) -> str:
    return channel(rng.randrange(CHANNELS))


def _category(rng: Random) -> str:
    return category(rng.randrange(CATEGORIES))


# ------------------------------------------------------------ the items as tables

_TEXT, _INT = pa.string(), pa.int64()
FIELDS = {
    "items": pa.schema(
        [("doc", _INT), ("t", _INT), ("channel", _TEXT), ("url", _TEXT), ("title", _TEXT), ("guid", _TEXT)]
    ),
    "links": pa.schema([("doc", _INT), ("rel", _TEXT), ("href", _TEXT)]),
    "authors": pa.schema([("doc", _INT), ("author", _TEXT)]),
    "categories": pa.schema([("doc", _INT), ("category", _TEXT)]),
}


def fields(documents: Iterable[Document], first: int) -> dict[str, pa.Table]:
    """What the subscriptions look at, as tables: the items are numbered from `first`."""
    rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in FIELDS}
    for number, document in enumerate(documents, first):
        root = etree.fromstring(document.xml_bytes())
        texts = (root.findtext(tag) for tag in ("channel_url", "item_url", "title", "guid"))
        rows["items"].append((number, document.t0, *texts))
        rows["links"] += [(number, link.get("rel"), link.get("href")) for link in root.findall("link")]
        rows["authors"] += [(number, node.text) for node in root.findall("author")]
        rows["categories"] += [(number, node.text) for node in root.findall("category")]
    return {name: _table(rows[name], schema) for name, schema in FIELDS.items()}


def _table(rows: list[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [() for _ in schema]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)
