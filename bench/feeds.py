"""From feeds to item documents: entries per second on one core, and the share of nh3, lxml and our code.

The feeds are generated from `bench.workload`, or those of a crawl. The baseline is feedparser alone.
On Spark, its executors parse the same feeds from a drop directory. Documents of all formats and ways are compared."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from email.utils import format_datetime
from functools import partial
from itertools import count, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch
from xml.sax.saxutils import escape

import feedparser
import nh3
from lxml import etree

import feeds.feed
from bench import harness
from bench.fanout import open_unlimited
from bench.harness import ENGINES, Line, charged, columns, ratio, seconds_of
from bench.services import percentile
from bench.workload import START, WORDS, items
from common.dates import EPOCH, iso_utc
from feeds.documents import Document, SourceError
from feeds.feed import read_entries
from feeds.files import FEED_SUFFIX, SIDECAR_SUFFIX, files_below, is_named_as_feed
from feeds.history import History
from feeds.items import Origin
from feeds.readers import drop_stem
from feeds.tail import read_documents
from join_stage.plans import DEFAULT_PLAN
from mmqjp.present.item_list import ItemFilter, item_details, list_items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ENTRIES_PER_FEED = 20


@dataclass(frozen=True, slots=True)
class Story:
    title: str
    url: str
    guid: str
    author: str
    category: str
    time: int
    content: str


def stories(count: int, content: int) -> Iterator[Story]:
    for number, document in enumerate(items(count)):
        item = etree.fromstring(document.xml_bytes())
        text = {name: item.findtext(name, "") for name in ("title", "item_url", "guid", "author", "category")}
        url = text["item_url"] or f"https://feed.example/{number}"
        paragraphs = html_paragraphs(number, content)
        title, guid = f"{text['title']} ({number})", f"urn:{number}"
        yield Story(title, url, guid, text["author"], text["category"], document.t0, paragraphs)


def html_paragraphs(number: int, size: int) -> str:
    paragraphs: list[str] = []
    length = 0
    while length < size:
        words = [WORDS[(number * 7 + length + place * place) % len(WORDS)] for place in range(40)]
        words[5:8] = [f'<a href="https://x.example/{number}?a=1&amp;b=2">', *words[6:8], "</a>"]
        words[20:21] = [f"<em>{words[20]}</em>", f'<img src="https://x.example/{length}.png" alt="{words[21]}">']
        paragraphs.append(f"<p>{' '.join(words)}</p>")
        length += len(paragraphs[-1])
    return "".join(paragraphs)


def _rss(feed: Sequence[Story]) -> bytes:
    def entry(story: Story) -> str:
        date = format_datetime(EPOCH + timedelta(microseconds=story.time), usegmt=True)
        return (
            f"<item><title>{escape(story.title)}</title><link>{escape(story.url)}</link>"
            f'<guid isPermaLink="false">{story.guid}</guid><dc:creator>{escape(story.author)}</dc:creator>'
            f"<category>{escape(story.category)}</category><pubDate>{date}</pubDate>"
            f"<content:encoded><![CDATA[{story.content}]]></content:encoded></item>"
        )

    return (
        '<?xml version="1.0" encoding="utf-8"?><rss version="2.0" xmlns:dc="http://purl.org/dc/elements/1.1/" '
        'xmlns:content="http://purl.org/rss/1.0/modules/content/"><channel><title>Feed</title>'
        f"<link>https://feed.example/</link>{''.join(map(entry, feed))}</channel></rss>"
    ).encode()


def _atom(feed: Sequence[Story]) -> bytes:
    def entry(story: Story) -> str:
        return (
            f"<entry><title>{escape(story.title)}</title><link href='{escape(story.url)}'/><id>{story.guid}</id>"
            f"<author><name>{escape(story.author)}</name></author><category term='{escape(story.category)}'/>"
            f"<published>{iso_utc(story.time)}</published><updated>{iso_utc(story.time)}</updated>"
            f"<content type='html'>{escape(story.content)}</content></entry>"
        )

    return (
        '<?xml version="1.0" encoding="utf-8"?><feed xmlns="http://www.w3.org/2005/Atom"><title>Feed</title>'
        f"<link href='https://feed.example/'/>{''.join(map(entry, feed))}</feed>"
    ).encode()


def _json(feed: Sequence[Story]) -> bytes:
    entries = [
        {
            "id": story.guid,
            "url": story.url,
            "title": story.title,
            "date_published": iso_utc(story.time),
            "authors": [{"name": story.author}],
            "tags": [story.category],
            "content_html": story.content,
        }
        for story in feed
    ]
    whole = {"version": "https://jsonfeed.org/version/1.1", "title": "Feed", "items": entries}
    return json.dumps(whole | {"home_page_url": "https://feed.example/"}).encode()


_WRITERS: dict[str, Callable[[Sequence[Story]], bytes]] = {"rss": _rss, "atom": _atom, "json": _json}
FORMATS = tuple(_WRITERS)


def feed_files(format: str, entries: int, content: int) -> list[bytes]:
    left = stories(entries, content)
    return [_WRITERS[format](feed) for feed in iter(lambda: list(islice(left, ENTRIES_PER_FEED)), [])]


def crawl_files(paths: Sequence[Path]) -> list[bytes]:
    def is_wanted(name: str) -> bool:
        return is_named_as_feed(name) and not name.lower().endswith(SIDECAR_SUFFIX)

    found: list[Path] = []
    for path in paths:
        found += [file for file, _ in files_below(path, is_wanted)] if path.is_dir() else [path]
    if not found:
        raise SourceError(", ".join(map(str, paths)), "there are no feeds", "name a directory of them")
    return [path.read_bytes() for path in found]


ENTRIES, ROUNDS = 2_000, 5
CONTENT = (0, 500, 5_000)  # characters of HTML in each entry
LIBRARIES: dict[str, list[tuple[Any, str]]] = {
    "nh3": [(nh3, "clean")],
    "lxml": [(feeds.feed, "_parsed"), (feeds.feed, "item_xml"), (feeds.feed, "json_feed_to_atom")],
}
"""The libraries whose time is measured separately, with the functions through which we call them."""


def measure_feeds(case: dict[str, str | int], files: Sequence[bytes], rounds: int) -> Line:
    """Measures how long the feeds of some files take to become documents. `shares` are the parts of that time."""
    rows = len(read_feeds(files))  # warms up: what a process does once is not measured
    whole, floors, apart, others = [], [], [], list[float]()
    spent: dict[str, list[float]] = {name: [] for name in LIBRARIES}
    for _ in range(rounds):
        floors.append(seconds_of(lambda: feed_floor(files)))
        if case["format"] != "json":  # feedparser does not read JSON Feed
            others.append(seconds_of(lambda: [feedparser.parse(io.BytesIO(data)) for data in files]))
        whole.append(seconds_of(lambda: read_feeds(files)))
        with accounted() as account:
            apart.append(seconds_of(lambda: read_feeds(files)))
        for name, calls in account.items():
            spent[name].append(sum(calls))
    shares = {name: ratio(spent[name], apart) for name in LIBRARIES}
    shares["ours"] = 1 - sum(shares.values())
    seconds = median(whole)
    details = {"rows_a_second": rows / seconds, "shares": shares}
    baseline, faster = ("feedparser", median(others) / seconds) if others else (None, None)
    return Line("feeds", case, None, None, seconds, rows, baseline, faster, floor=median(floors), details=details)


def read_feeds(files: Sequence[bytes]) -> list[bytes | str]:
    history = History()
    origins = (Origin(f"{number}", 0, f"https://{number}.example/") for number in count())
    read = map(read_entries, files, origins)
    return [getattr(item, "xml", b"") for entries in read for item in history.settle(entries)]


def feed_floor(files: Sequence[bytes]) -> None:
    """Parses every file with the parser of its kind, which repairs what it must."""
    parser = etree.XMLParser(recover=True, no_network=True, resolve_entities=False)
    for data in files:
        if data.lstrip().startswith(b"{"):
            json.loads(data)
        else:
            etree.fromstring(data.lstrip(), parser)


@contextmanager
def accounted() -> Iterator[dict[str, list[float]]]:
    """Lists, in the block, the seconds of each call of the functions of LIBRARIES. Feeds are parsed in this process."""
    account: dict[str, list[float]] = {name: [] for name in LIBRARIES}

    def here(work: Callable[..., Any], *arguments: Any, size: int) -> Any:
        return work(*arguments)

    with ExitStack() as patches:
        patches.enter_context(patch.object(feeds.feed, "confined", here))
        for name, functions in LIBRARIES.items():
            for owner, attribute in functions:
                function = charged(getattr(owner, attribute), account[name].append)
                patches.enter_context(patch.object(owner, attribute, function))
        yield account


def check_formats(entries: int, content: int) -> None:
    titles = {}
    for format in FORMATS:
        documents = read_feeds(feed_files(format, entries, content))
        titles[format] = Counter(etree.fromstring(xml).findtext("title") for xml in documents)
    first = titles[FORMATS[0]]
    assert first.total() == entries, f"{entries} entries gave {first.total()} documents"
    assert all(found == first for found in titles.values()), "the formats do not give the same entries"


SPARK_ENTRIES, SPARK_ROUNDS = 5_000, 3


def measure_feeds_on_spark(case: dict[str, str | int], files: Sequence[bytes], rounds: int) -> Line:
    """Measures how long feeds, one a file, take to become rows that go nowhere, on all cores, beside one core here."""
    from feeds.spark.sources import FILES, entries
    from join_stage.store.spark.session import spark_session

    with TemporaryDirectory() as name:
        directory = Path(name).resolve()
        for number, data in enumerate(files):  # as a crawl would have left them, each the first version of a feed
            path = directory / f"feed-{number}" / drop_stem(START, hashlib.sha256(data).hexdigest())
            path.parent.mkdir()
            path.with_name(path.name + SIDECAR_SUFFIX).write_text(json.dumps({"url": f"https://{number}.example/"}))
            path.with_name(path.name + FEED_SUFFIX).write_bytes(data)
        read = spark_session().read.format("binaryFile").options(**FILES).load(str(directory))
        found = entries(read, directory, "item")
        rows = compare_documents(found, directory)
        there, here = [], []
        for _ in range(rounds):
            there.append(seconds_of(lambda: found.write.format("noop").mode("overwrite").save()))
            here.append(seconds_of(lambda: list(read_documents([directory], feeds="item"))))
    seconds = median(there)
    details = {"rows_a_second": rows / seconds, "shares": dict[str, float]()}
    return Line("feeds", case, "spark", None, seconds, rows, "one core", median(here) / seconds, details=details)


def compare_documents(found: DataFrame, directory: Path) -> int:
    ours = sorted(
        (item.id, item.t0, item.xml_bytes().decode())
        for item in read_documents([directory], feeds="item")
        if isinstance(item, Document)
    )
    theirs = sorted(tuple(row) for row in found.where("reason IS NULL").select("id", "t0", "xml").collect())
    assert theirs == ours, "Spark and this process do not give the same documents"
    return len(ours)


KEPT, KEPT_AT_ONCE, ASKED = 100_000, 5_000, 15
"""Numbers of stored items, of those in a batch, and of requests for each page."""


def measure_items(kept: int, rounds: int = ASKED) -> Iterator[Line]:
    """Measures the pages of items in a store of `kept`. The floor reads as many documents by their numbers. The words
    of searches are in many items, in one, and in none."""
    with TemporaryDirectory() as state, open_unlimited("duckdb", DEFAULT_PLAN, Path(state)) as engine:
        engine.subscribe("FROM S//item->a[./title = 'nothing'] PUBLISH nothing")
        documents = items(kept)
        while some := list(islice(documents, KEPT_AT_ONCE)):
            engine.process(some)

        def select(sql: str) -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = engine.sql(sql, trusted=True).to_pylist()
            return rows

        last = select("SELECT max(docid) AS last FROM documents")[0]["last"]
        pages: dict[str, Callable[[], int]] = {
            "the newest": lambda: len(list_items(select, ItemFilter()).items),
            "search: in many": partial(_search, select, WORDS[0]),
            "search: in an old one": partial(_search, select, str(kept // 10)),
            "search: in none": partial(_search, select, "zzyzx"),
            "one item": lambda: int(item_details(select, last // 2) is not None),
        }  # fmt: skip
        for page, make in pages.items():
            found, seconds = make(), [seconds_of(make) for _ in range(rounds)]
            docids = ", ".join(map(str, range(last - max(found, 1), last)))
            read = partial(select, f"SELECT * FROM documents WHERE docid IN ({docids})")
            floor = [seconds_of(read) for _ in seconds]
            details = {"p95_ms": 1000 * percentile(seconds, 95)}
            case: dict[str, object] = {"page": page, "kept": kept}
            yield Line("feeds", case, "duckdb", None, median(seconds), found, floor=median(floor), details=details)


def _search(select: Callable[[str], list[dict[str, Any]]], word: str) -> int:
    """Requests pages until one has an item. Returns how many it has."""
    found = list_items(select, ItemFilter(search=word))
    while not found.items and found.next is not None:
        found = list_items(select, ItemFilter(search=word), found.next)
    return len(found.items)


ITEM_COLUMNS = columns(
    "page | kept | shown = rows | median, ms = seconds * 1000 | p95, ms = p95_ms | over floor = over_floor"
)


def _share(name: str, line: Line) -> str:
    return f"{cast(dict[str, float], line.details['shares'])[name]:.0%}"


_COMMON = "feeds = format | entries = rows | content | entries a second = rows_a_second | "
FEED_COLUMNS = columns(
    f"{_COMMON}over feedparser = speedup | {' | '.join(LIBRARIES)} | ours | over floor = over_floor",
    **{name: partial(_share, name) for name in (*LIBRARIES, "ours")},
)
SPARK_COLUMNS = columns(f"{_COMMON}over one core = speedup")


def bench_feeds() -> None:
    parser = harness.bare_parser("feeds", (__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", choices=ENGINES, default="duckdb", help="spark: Spark's executors parse the feeds")
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    parser.add_argument("--documents", type=Path, action="append", metavar="PATH", help="measure these feeds instead")
    parser.add_argument(
        "--items", type=int, nargs="?", const=KEPT, metavar="N", help="measure pages of N items instead"
    )
    options = parser.parse_args()
    on_spark = options.engine == "spark"
    measure = measure_feeds_on_spark if on_spark else measure_feeds
    entries, rounds = (SPARK_ENTRIES, SPARK_ROUNDS) if on_spark else (ENTRIES, ROUNDS)
    lines: list[Line] = []
    if options.items:
        lines += measure_items(options.items)
    elif options.documents:
        files = crawl_files(options.documents)
        lines.append(measure({"format": "crawl", "files": len(files), "bytes": sum(map(len, files))}, files, rounds))
    else:
        contents = CONTENT[1:2] if options.quick else CONTENT
        check_formats(200, contents[0])
        cases = [(format, content) for content in contents for format in FORMATS]
        for format, content in harness.with_progress(cases, lambda case: f"{case[0]}, content of {case[1]}"):
            case: dict[str, str | int] = {"format": format, "entries": entries, "content": content}
            lines.append(measure(case, feed_files(format, entries, content), rounds))
    found = ITEM_COLUMNS if options.items else SPARK_COLUMNS if on_spark else FEED_COLUMNS
    harness.print_table(lines, "feeds to documents", found)
    if options.json:
        harness.write_json(lines, options.json)
