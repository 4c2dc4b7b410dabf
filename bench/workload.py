"""Lifelike items of many channels, and queries and subscriptions that readers would ask, of any number.

    python -m bench.workload --items 10000 --queries 10000 --out DIR

writes `items.jsonl` and `queries.xscl`. The same seed gives the same ones.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random
from xml.sax.saxutils import escape, quoteattr

import duckdb
import pyarrow as pa
from lxml import etree

from common.arrays import batch_of_rows
from feeds.documents import Document

SECOND = 1_000_000
START, HOUR = 1_780_000_000 * SECOND, 3600 * SECOND
CHANNELS, CATEGORIES = 200, 80
_TEXT = (
    "open model data storm court budget release study energy market city train vote health science record "
    "music coast bank school water phone chip law film river trade safety update plan night"
)
WORDS = _TEXT.split()


def channel(number: int) -> str:
    return f"https://feed{number}.example/"


def author(channel_number: int, number: int) -> str:
    return f"{WORDS[channel_number % len(WORDS)].title()} Writer {channel_number}-{number}"


def category(number: int) -> str:
    return f"{WORDS[number % len(WORDS)]} {number // len(WORDS)}".strip()


def items(count: int, seed: int = 1) -> Iterator[Document]:
    """`count` items in order of time, about 300 a day: some stories syndicated, retitled, linked or with enclosures."""
    rng = Random(seed)
    told: list[tuple[str, str, str, int]] = []
    time = START
    for number in range(count):
        time += rng.randint(0, 600 * SECOND)
        source = int(CHANNELS * rng.random() ** 2)
        title = " ".join(rng.choice(WORDS) for _ in range(7)).capitalize() + f" {number}"
        url, guid = f"{channel(source)}story/{number}", f"urn:story:{number}"
        links: list[str] = []
        kind = rng.random()
        if told and kind < 0.30:
            old_title, old_url, old_guid, old_source = rng.choice(told[-400:])
            if kind < 0.10:
                title = old_title.upper() if rng.random() < 0.3 else old_title
                url = f"{old_url}?utm_source=feed{source}" if rng.random() < 0.5 else url
            elif kind < 0.15:
                source, guid, url, title = old_source, old_guid, old_url, f"Updated: {old_title}"
            else:
                links.append(old_url)
        told.append((title, url, guid, source))
        yield _item(rng, number, time, source, title, url, guid, links)


def _item(
    rng: Random, number: int, time: int, source: int, title: str, url: str, guid: str, links: list[str]
) -> Document:
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(10, 40)))
    parts = [f"<item_url>{escape(url)}</item_url>", f"<channel_url>{channel(source)}</channel_url>"]
    parts += [f"<title>{escape(title)}</title>", f"<timestamp>{time // SECOND}</timestamp>"]
    parts += [f"<description>{text}</description>"] if rng.random() < 0.9 else []
    parts += [f"<author>{author(source, rng.randint(0, 4))}</author>" for _ in range(rng.choice([0, 1, 1, 1, 2]))]
    chosen = {int(CATEGORIES * rng.random() ** 2) for _ in range(rng.choice([0, 1, 2, 2, 3]))}
    parts += [f"<category>{category(c)}</category>" for c in sorted(chosen)]
    parts += [f"<link rel='related' href={quoteattr(link)}/>" for link in links]
    if rng.random() < 0.05:
        parts.append(f"<link rel='enclosure' href='https://cdn.example/{rng.randint(0, 300)}.mp3'/>")
    parts.append(f"<guid>{escape(guid)}</guid>")
    return Document(f"item-{number}", f"<item>{''.join(parts)}</item>", time=time)


def document_line(one: Document) -> str:
    return json.dumps({"id": one.id, "stream": one.stream, "time": one.t0, "xml": one.xml}) + "\n"


def write_documents(documents: Iterable[Document], path: Path) -> None:
    with path.open("w", encoding="utf-8") as out:
        out.writelines(map(document_line, documents))


def read_documents(path: Path) -> Iterator[Document]:
    with path.open(encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            yield Document(line["id"], line["xml"], stream=line["stream"], time=line["time"])


_SAME_STORY = (
    "FROM S//item->a[./title->t][./channel_url->c] FOLLOWED BY {t = t' AND c != c', 48 h} "
    "S//item->b[./title->t'][./channel_url->c'] PUBLISH same_story"
)

_QUERY_KINDS = (
    "FROM S//item->a<channel>[./title->t][./channel_url->c] FOLLOWED BY "
    "{lower-case(t) = lower-case(t') AND c != c', <96 h>} S//item->b[./title->t'][./channel_url->c']",
    "FROM S//item->a<channel>[./item_url->u][./guid->g] JOIN "
    "{canonical-url(u) = canonical-url(u') AND g != g', <200 h>} S//item->b[./item_url->u'][./guid->g']",
    "SELECT a/title AS earlier, b/title AS later FROM S//item->a<channel>[./item_url->u] "
    "FOLLOWED BY {u = h, <200 h>} S//item->b[./link/@href->h]",
    "FROM S//item->a[./author->w[. = \"<author>\"]][./category->k] FOLLOWED BY {w = w' AND k = k', <48 h>} "
    "S//item->b[./author->w'][./category->k']",
    "FROM S//item->a<channel>[./guid->g][./title->t] JOIN {g = g' AND t != t', <500 h>} "
    "S//item->b[./guid->g'][./title->t']",
    "SELECT i/title AS title FROM S//item->i<category><channel>"
    '[contains(./title, "<word>") or contains(./description, "<word>")]',
    'FROM S//item->a<category>[./link[@rel = "enclosure"]/@href->e][./guid->g] FOLLOWED BY '
    "{e = e' AND g != g', <72 h>} S//item->b[./link[@rel = \"enclosure\"]/@href->e'][./guid->g']",
    'SELECT <mention of="{u}" by="{c\'}">{t}</mention> FROM '
    "S//item->a<channel><category>[./item_url->u][./title->t][./channel_url->c] JOIN "
    "{host(u) = host(h) AND c != c', <24 h>} S//item->b[./link/@href->h][./channel_url->c']",
    "FROM same_story/match->m[./item/title->t] FOLLOWED BY {t = t', <168 h>} S//item->c<channel>[./title->t']",
    "FROM S//item->a<channel><category>[./author->w] FOLLOWED BY {w = w', <24 h>} "
    "S//item->b<category>[./author->w'] FOLLOWED BY {w' = w'', <24 h>} S//item->c<category>[./author->w'']",
)
"""Queries with blanks: a channel, a category, an author, a word, and a window of at most as many hours."""

_BLANK = re.compile(r"<(channel|category|author|word|(\d+) h)>")


def queries(count: int, seed: int = 2) -> str:
    rng = Random(seed)

    def fill(blank: re.Match[str]) -> str:
        match blank[1]:
            case "channel":
                return f'[./channel_url = "{channel(rng.randrange(CHANNELS))}"]'
            case "category":
                return f'[./category = "{category(rng.randrange(CATEGORIES))}"]'
            case "author":
                return author(rng.randrange(CHANNELS), rng.randint(0, 4))
            case "word":
                return rng.choice(WORDS)
        return f"{rng.randint(1, int(blank[2]))} h"

    numbers = range(1, count)
    texts = [_SAME_STORY, *(_BLANK.sub(fill, _QUERY_KINDS[number % len(_QUERY_KINDS)]) for number in numbers)]
    return ";\n".join(texts[:count]) + "\n"


LONGEST_HOURS = 168  # hours in the longest window
POPULAR = ((1, 0, 96), (0, 22, 96), (0, 1, 96))
"""Two channels with many items each, and hours: what programs for one subscription are compared on."""


@dataclass(frozen=True)
class RealisticQuery:
    """A subscription as `xscl`, and as `sql` over `field_tables`, `$new` being a batch's first item. Few match."""

    kind: str
    xscl: str
    sql: str


def subscriptions(count: int, seed: int = 4) -> list[RealisticQuery]:
    rng = Random(seed)
    made = [_title(channel(first), channel(second), hours) for first, second, hours in POPULAR[:count]]
    return made + [_SUBSCRIPTION_KINDS[i % len(_SUBSCRIPTION_KINDS)](rng) for i in range(count - len(made))]


def script_of(queries: Iterable[RealisticQuery | Parameters]) -> str:
    return "".join(f"{one.xscl};\n" for one in queries)


def _subscription(kind: str, left: str, equal: str, hours: int, right: str, tables: str, where: str) -> RealisticQuery:
    window = f"l.t < r.t AND r.t - l.t <= {hours * HOUR}"
    return RealisticQuery(
        kind,
        f"FROM S//item->a{left} FOLLOWED BY {{{equal}, {hours} h}} S//item->b{right}",
        f"SELECT DISTINCT l.doc AS doc1, r.doc AS doc2 FROM items l JOIN {tables} "
        f"WHERE {where} AND {window} AND r.doc >= $new",
    )


def _title(first: str, second: str | None, hours: int) -> RealisticQuery:
    there = f'[./channel_url = "{second}"]' if second else "[./channel_url->c']"
    here, differ = ("", "") if second else ("[./channel_url->c]", " AND c != c'")
    left = f'[./channel_url = "{first}"]{here}[./title->t]'
    where = f"l.channel = '{first}' AND r.channel {'=' if second else '<>'} '{second or first}'"
    condition = f"lower-case(t) = lower-case(t'){differ}"
    tables = "items r ON lower(r.title) = lower(l.title)"
    return _subscription("title", left, condition, hours, f"{there}[./title->t']", tables, where)


def _random_title(rng: Random) -> RealisticQuery:
    first, second, hours = _random_channel(rng), _random_channel(rng), rng.randint(6, 96)
    return _title(first, None if rng.random() < 0.1 else second, hours)


def _link(rng: Random) -> RealisticQuery:
    first, second, hours = _random_channel(rng), _random_channel(rng), rng.randint(6, LONGEST_HOURS)
    left, right = f'[./channel_url = "{first}"][./item_url->u]', f'[./channel_url = "{second}"][./link/@href->h]'
    tables = "links k ON k.href = l.url JOIN items r ON r.doc = k.doc"
    where = f"l.channel = '{first}' AND r.channel = '{second}'"
    return _subscription("link", left, "u = h", hours, right, tables, where)


def _author(rng: Random) -> RealisticQuery:
    who, about = author(rng.randrange(CHANNELS), rng.randint(0, 4)), category(rng.randrange(CATEGORIES))
    left = f'[./category = "{about}"][./author->w[. = "{who}"]][./category->k]'
    tables = (
        "authors al ON al.doc = l.doc JOIN authors ar ON ar.author = al.author "
        "JOIN categories cl ON cl.doc = l.doc JOIN categories cr ON cr.doc = ar.doc AND cr.category = cl.category "
        "JOIN items r ON r.doc = ar.doc"
    )
    where = f"al.author = '{who}' AND {_in_category(about)}"
    right = "[./author->w'][./category->k']"
    return _subscription("author", left, "w = w' AND k = k'", rng.randint(6, 72), right, tables, where)


def _retitled(rng: Random) -> RealisticQuery:
    here, about, hours = _random_channel(rng), category(rng.randrange(CATEGORIES)), rng.randint(6, LONGEST_HOURS)
    left = f'[./channel_url = "{here}"][./category = "{about}"][./guid->g][./title->t]'
    tables = "items r ON r.guid = l.guid AND r.title <> l.title"
    where = f"l.channel = '{here}' AND {_in_category(about)}"
    return _subscription("retitled", left, "g = g' AND t != t'", hours, "[./guid->g'][./title->t']", tables, where)


def _recording(rng: Random) -> RealisticQuery:
    first, second, hours = _random_channel(rng), _random_channel(rng), rng.randint(6, 72)
    blank = '[./channel_url = "{}"][./link[@rel = "enclosure"]/@href->{}]'
    left, right = blank.format(first, "e"), blank.format(second, "e'")
    tables = (
        "links kl ON kl.doc = l.doc AND kl.rel = 'enclosure' "
        "JOIN links kr ON kr.href = kl.href AND kr.rel = 'enclosure' JOIN items r ON r.doc = kr.doc"
    )
    where = f"l.channel = '{first}' AND r.channel = '{second}'"
    return _subscription("recording", left, "e = e'", hours, right, tables, where)


_SUBSCRIPTION_KINDS = (_random_title, _link, _author, _retitled, _recording)


def _random_channel(rng: Random) -> str:
    return channel(rng.randrange(CHANNELS))


def _in_category(name: str) -> str:
    return f"l.doc IN (SELECT doc FROM categories WHERE category = '{name}')"


_COLUMNS = {
    "items": "doc t channel url title guid",
    "links": "doc rel href",
    "authors": "doc author",
    "categories": "doc category",
}
FIELD_SCHEMAS = {
    table: pa.schema({name: pa.int64() if name in ("doc", "t") else pa.string() for name in names.split()})
    for table, names in _COLUMNS.items()
}


def field_tables(documents: Iterable[Document], first: int) -> dict[str, pa.Table]:
    """The fields that subscriptions read, as tables: the items are numbered from `first`."""
    rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in FIELD_SCHEMAS}
    for number, document in enumerate(documents, first):
        root = etree.fromstring(document.xml_bytes())
        texts = (root.findtext(tag) for tag in ("channel_url", "item_url", "title", "guid"))
        rows["items"].append((number, document.t0, *texts))
        rows["links"] += [(number, link.get("rel"), link.get("href")) for link in root.findall("link")]
        rows["authors"] += [(number, node.text) for node in root.findall("author")]
        rows["categories"] += [(number, node.text) for node in root.findall("category")]
    return {
        name: pa.Table.from_batches([batch_of_rows(rows[name], schema)] if rows[name] else [], schema)
        for name, schema in FIELD_SCHEMAS.items()
    }


class FieldDatabase:
    def __init__(self) -> None:
        self.connection = duckdb.connect()
        self.documents = 0
        for name, schema in FIELD_SCHEMAS.items():
            self.connection.register("empty", schema.empty_table())
            self.connection.execute(f"CREATE TABLE {name} AS SELECT * FROM empty")

    def insert(self, batch: Sequence[Document]) -> int:
        first = self.documents
        for name, table in field_tables(batch, first).items():
            self.connection.register("arrived", table)
            self.connection.execute(f"INSERT INTO {name} SELECT * FROM arrived")
        self.documents += len(batch)
        return first


LONGEST_WINDOWS = {"title": 96, "author": 6, "mention": 168}
"""The kinds of subscription to a channel, and the hours of their longest windows."""

_XSCL = {
    "title": ("[./title->t]", "t = t'", "[./title->t']"),
    "author": ("[./author->p]", "p = p'", "[./author->p']"),
    "mention": ("[./item_url->u]", "u = h", "[./link/@href->h]"),
}
_TITLES = {"second": "lower-case(t) = lower-case(t')", "near": "near(t, t', 0.8)"}
_THIRD = {"title": ("t' = t''", "[./title->t'']"), "author": ("p' = p''", "[./author->p'']")}
_THIRD["mention"] = "h = h'", "[./link/@href->h']"

VARIANTS = ("plain", "second", "near", "once", "three")
"""`second`: titles are equal in lower case; with titles and mentions, the other item is from another channel. `near`:
titles are near. `once`: ONCE PER title, author or address. `three`: a third item shares what joined the first two."""


@dataclass(frozen=True)
class Parameters:
    """A subscription: an item of `channel`, then one of the same title or author, or linking to it, within `hours`."""

    name: str
    kind: str
    channel: str
    hours: int
    variant: str = "plain"

    @property
    def xscl(self) -> str:
        left, equal, right = _XSCL[self.kind]
        equal = _TITLES.get(self.variant, equal) if self.kind == "title" else equal
        here, window = f'[./channel_url = "{self.channel}"]', f"{self.hours} h"
        if self.variant == "second" and self.kind != "author":
            left, equal, right = f"[./channel_url->c]{left}", f"{equal} AND c != c'", f"{right}[./channel_url->c']"
        text = f"FROM S//item->a{here}{left} FOLLOWED BY {{{equal}, {window}}} S//item->b{right}"
        if self.variant == "three":
            equal, right = _THIRD[self.kind]
            text += f" FOLLOWED BY {{{equal}, {window}}} S//item->c{right}"
        return f"{text} PUBLISH {self.name} ONCE PER ({left[-2]})" if self.variant == "once" else text


def parameters(count: int, seed: int = 6, variant: str = "plain") -> list[Parameters]:
    """`count` subscriptions, the kinds in turn. Their names are those that unnamed queries get."""
    rng = Random(seed)

    def made(number: int, kind: str) -> Parameters:
        about = channel(int(CHANNELS * rng.random() ** 2))
        return Parameters(f"q{number}", kind, about, rng.randint(1, LONGEST_WINDOWS[kind]), variant)

    return list(map(made, range(1, count + 1), cycle(LONGEST_WINDOWS)))


def write_workload() -> None:
    parser = argparse.ArgumentParser(description="writes lifelike items and queries")
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_documents(items(options.items, options.seed), options.out / "items.jsonl")
    (options.out / "queries.xscl").write_text(queries(options.queries, options.seed + 1), encoding="utf-8")


if __name__ == "__main__":
    write_workload()
