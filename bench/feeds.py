"""From feeds to item documents: entries per second on one core, and the share of feedparser, nh3, lxml and our code.

    mmqjp bench feeds [--engine spark] [--quick] [--documents PATH]... [--json FILE]

The feeds are generated from `bench.workload`, with 20 entries each, in every format that we read. With --documents,
they are those of a crawl. The floor is lxml parsing the same bytes (for JSON, the json module). Times are medians of
rounds. Before a time is reported, the documents of all formats are compared: they have the same entries. With `--engine
spark`, Spark's executors parse the same feeds from a drop directory. Their documents are compared with those of this
process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import feedparser
import nh3
from lxml import etree
from rich import box
from rich.table import Table

import feeds.feed
from bench.command import file, shown, with_progress
from bench.feeds_measurement import Measurement
from bench.feeds_workload import FORMATS, feed_files
from bench.timing import clocked
from feeds.documents import SourceError
from feeds.feed import read_entries
from feeds.files import SIDECAR_SUFFIX, files_below, is_named_as_feed
from feeds.history import History
from feeds.items import Origin
from mmqjp.commands.console import console

ENTRIES, ROUNDS = 2_000, 5
CONTENT = (0, 500, 5_000)
"""Characters of HTML in each entry."""

OTHERS: dict[str, list[tuple[Any, str]]] = {
    "feedparser": [(feedparser, "parse"), (feeds.feed, "resolve_relative_uris")],
    "nh3": [(nh3, "clean")],
    "lxml": [(feeds.feed, "item_xml"), (feeds.feed, "json_feed_to_atom")],
}
"""The libraries whose time is measured separately, with the functions through which we call them."""


@dataclass(frozen=True)
class Case:
    """Feeds of a format: the number of entries in all, and the characters of content in each."""

    format: str
    entries: int
    content: int


def measure(case: dict[str, str | int], files: Sequence[bytes], rounds: int) -> Measurement:
    """Measures how long the feeds of some files take to become documents."""
    rows = len(read_all(files))  # warms up: what a process does once is not measured
    whole, floors, apart = [], [], []
    spent: dict[str, list[float]] = {name: [] for name in OTHERS}
    for _ in range(rounds):
        floors.append(clocked(lambda: floor(files)))
        whole.append(clocked(lambda: read_all(files)))
        with accounted() as account:
            apart.append(clocked(lambda: read_all(files)))
        for name, seconds in account.items():
            spent[name].append(seconds)
    seconds = statistics.median(whole)
    shares = {name: statistics.median(a / b for a, b in zip(spent[name], apart, strict=True)) for name in OTHERS}
    shares["ours"] = 1 - sum(shares.values())
    least = statistics.median(floors)
    return Measurement("feeds", case, seconds, rows, rows / seconds, shares, least, seconds / least)


def read_all(files: Sequence[bytes]) -> list[bytes | str]:
    """The documents of all feeds. Raises AssertionError for an entry that does not become one."""
    history = History()
    documents: list[bytes | str] = []
    for number, data in enumerate(files):
        for item in history.settle(read_entries(data, Origin(f"{number}", 0, f"https://{number}.example/"))):
            documents.append(getattr(item, "xml", b""))
    return documents


def floor(files: Sequence[bytes]) -> None:
    """Parses every file with the parser of its kind, which repairs what it must."""
    parser = etree.XMLParser(recover=True, no_network=True, resolve_entities=False)
    for data in files:
        if data.lstrip().startswith(b"{"):
            json.loads(data)
        else:
            etree.fromstring(data.lstrip(), parser)


@contextmanager
def accounted() -> Iterator[dict[str, float]]:
    """Adds up, while in the block, the seconds in which the functions of OTHERS run. Feeds are parsed in this
    process, not in a separate one, so that the time can be measured."""
    account: dict[str, float] = dict.fromkeys(OTHERS, 0.0)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                account[name] += time.perf_counter() - begin

        return call

    def here(work: Callable[..., Any], *arguments: Any, size: int) -> Any:
        return work(*arguments)

    with ExitStack() as patches:
        patches.enter_context(patch.object(feeds.feed, "confined", here))
        for name, functions in OTHERS.items():
            for owner, attribute in functions:
                patches.enter_context(patch.object(owner, attribute, timed(name, getattr(owner, attribute))))
        yield account


def check(entries: int, content: int) -> None:
    """Raises AssertionError if the formats do not give the same entries."""
    titles = {}
    for format in FORMATS:
        documents = read_all(feed_files(format, entries, content))
        titles[format] = Counter(etree.fromstring(xml).findtext("title") for xml in documents)
    first = titles[FORMATS[0]]
    assert first.total() == entries, f"{entries} entries gave {first.total()} documents"
    assert all(found == first for found in titles.values()), "the formats do not give the same entries"


def show(found: Sequence[Measurement]) -> None:
    """Prints a table with a row for each case."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    rest = ("over one core",) if found[0].engine else (*OTHERS, "ours", "over floor")
    for name in ("feeds", "entries", "content", "entries a second", *rest):
        table.add_column(name, justify="left" if name == "feeds" else "right", no_wrap=True)
    for one in found:
        shares = [f"{share:.0%}" for share in one.shares.values()]
        content = str(one.case.get("content", ""))
        last = shown(one.speedup if one.engine else one.over_floor)
        cells = (f"{one.rows:,}", content, shown(one.rows_a_second), *shares, last)
        table.add_row(str(one.case["format"]), *cells)
    console().print(table)


def main() -> None:
    """Measures and prints what the command line asks for."""
    parser = argparse.ArgumentParser(prog="mmqjp bench feeds", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--engine", choices=["duckdb", "spark"], default="duckdb", help="spark: Spark's executors parse the feeds"
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    parser.add_argument("--documents", type=Path, action="append", metavar="PATH", help="measure these feeds instead")
    parser.add_argument("--json", type=file, metavar="FILE", help="write JSON lines, one for each measurement")
    options = parser.parse_args()
    measured, entries, rounds = measure, ENTRIES, ROUNDS
    if options.engine == "spark":
        from bench.feeds_spark import SPARK_ENTRIES, SPARK_ROUNDS, measure_spark

        measured, entries, rounds = measure_spark, SPARK_ENTRIES, SPARK_ROUNDS
    found = []
    if options.documents:
        files = crawl_files(options.documents)
        case: dict[str, str | int] = {"format": "crawl", "files": len(files), "bytes": sum(map(len, files))}
        found.append(measured(case, files, rounds))
    else:
        contents = CONTENT[1:2] if options.quick else CONTENT
        check(200, contents[0])
        cases = [Case(format, entries, content) for content in contents for format in FORMATS]
        for one in with_progress(cases, lambda one: f"{one.format}, content of {one.content}"):
            found.append(measured(asdict(one), feed_files(one.format, one.entries, one.content), rounds))
    show(found)
    if options.json:
        options.json.write_text("".join(json.dumps(asdict(one)) + "\n" for one in found), "utf-8")


def crawl_files(paths: Sequence[Path]) -> list[bytes]:
    """The feeds in files and directories. Raises SourceError if there are none."""

    def is_wanted(name: str) -> bool:
        return is_named_as_feed(name) and not name.lower().endswith(SIDECAR_SUFFIX)

    def below(path: Path) -> list[Path]:
        return [file for file, _ in files_below(path, is_wanted)]

    found = [file for path in paths for file in (below(path) if path.is_dir() else [path])]
    if not found:
        raise SourceError(", ".join(map(str, paths)), "there are no feeds", "name a directory of them")
    return [path.read_bytes() for path in found]
