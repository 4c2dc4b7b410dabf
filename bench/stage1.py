"""Stage 1 alone, bytes in and witness relations out, as a ratio to parsing the same documents with lxml.

    python -m bench.stage1 [--quick] [--csv FILE]

The floor is `lxml.etree.fromstring` and a walk that reads the tags. Beside it, in the same process and in turns: the
evaluator with and without its shape cache; one compiled lxml XPath a pattern, up to 1,000 of them; elementpath, for
ten. Before a time is reported a sample of the patterns is held against exact matching, and the witnesses with the shape
cache against those without.
"""

from __future__ import annotations

import argparse
import csv
import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import elementpath
from lxml import etree
from rich.console import Console
from rich.table import Table

from bench.stage1_reference import Witnessed, check_side
from bench.stage1_workload import STREAM, VOCABULARIES, documents, patterns
from templates.catalog import Catalog, Placement
from templates.witness import Witnesses
from xpath_stage.evaluator import XPathStage
from xpath_stage.parse import StreamDocument, parse_document, xml_parser
from xscl.normal import Conjunct
from xscl.pattern import PatternNode

_PARSER = xml_parser(trusted=False)
_MOST_XPATHS, _MOST_ELEMENTPATHS = 1000, 10
_SAMPLE = 25


@dataclass(frozen=True)
class Case:
    """`kind` of documents, distinct patterns, the shares of them with an existential filter and with a value filter or
    an attribute."""

    kind: str
    patterns: int
    filters: float
    values: float


@dataclass(frozen=True)
class Measurement:
    """Microseconds a document for the floor, ratios to it for the rest; None where it was not measured."""

    kind: str
    patterns: int
    filters: float
    values: float
    floor_us: float
    cached: float
    uncached: float
    lxml_xpath: float | None
    elementpath: float | None
    rows: float
    first_ms: float
    register_us: float


@dataclass
class _Loaded:
    """The evaluator with its patterns."""

    catalog: Catalog
    stage: XPathStage
    placed: list[tuple[Conjunct, Placement]]
    seconds: float

    def run(self, texts: Sequence[bytes]) -> Witnesses:
        return self.stage.evaluate(
            StreamDocument(i, STREAM, 0, 0, parse_document(text)) for i, text in enumerate(texts)
        )


def _load(case: Case, max_shapes: int) -> _Loaded:
    conjuncts = patterns(VOCABULARIES[case.kind], case.patterns, case.filters, case.values)
    catalog, stage = Catalog(), XPathStage(max_shapes=max_shapes)
    placed = []
    begin = time.perf_counter()
    for conjunct in conjuncts:
        placement, change = catalog.add(conjunct, 1, True)
        stage.add(change)
        placed.append((conjunct, placement))
    return _Loaded(catalog, stage, placed, time.perf_counter() - begin)


def measure(case: Case, texts: Sequence[bytes], rounds: int) -> Measurement:
    """Measures a case. Raises AssertionError if witnesses are not what exact matching says."""
    cached, uncached = _load(case, 10_000), _load(case, 0)
    begin = time.perf_counter()
    cached.run(texts[:1])
    first = time.perf_counter() - begin
    witnesses = _check(cached, uncached, case.kind, texts)
    ways: dict[str, Callable[[], object]] = {
        "floor": lambda: _floor(texts),
        "cached": lambda: cached.run(texts),
        "uncached": lambda: uncached.run(texts),
    }
    found = _medians(ways, rounds)
    few = texts[:20]
    slow: dict[str, Callable[[], object]] = {"floor": lambda: _floor(few)}
    if case.patterns <= _MOST_XPATHS:
        slow["lxml_xpath"] = _lxml_xpath(cached.placed, few)
    if case.patterns <= _MOST_ELEMENTPATHS and len(texts) > 1:
        slow["elementpath"] = _elementpath(cached.placed, few)
    compared = _medians(slow, 3)
    ratios = {name: seconds / compared["floor"] for name, seconds in compared.items()}
    return Measurement(
        **asdict(case),
        floor_us=found["floor"] / len(texts) * 1e6,
        cached=found["cached"] / found["floor"],
        uncached=found["uncached"] / found["floor"],
        lxml_xpath=ratios.get("lxml_xpath"),
        elementpath=ratios.get("elementpath"),
        rows=witnesses.r_bin.num_rows / len(texts),
        first_ms=first * 1e3,
        register_us=cached.seconds / case.patterns * 1e6,
    )


def _check(cached: _Loaded, uncached: _Loaded, kind: str, texts: Sequence[bytes]) -> Witnesses:
    """Holds the witnesses of both against each other, and those of a sample against exact matching."""
    (witnesses, one), (_, other) = (_with_groups(loaded, texts) for loaded in (cached, uncached))
    assert one == other
    sample = list(texts[:_SAMPLE]) if len(texts) > 1 else list(documents(kind, 3, size=5000))
    found = Witnessed(_with_groups(cached, sample)[0], {})
    step = max(1, len(cached.placed) // _SAMPLE)
    trees = map(parse_document, sample)
    for document in (StreamDocument(i, STREAM, 0, 0, tree) for i, tree in enumerate(trees)):
        for conjunct, placement in cached.placed[::step]:
            check_side(cached.catalog, conjunct, placement, 0, document, found)
    return witnesses


def _with_groups(loaded: _Loaded, texts: Sequence[bytes]) -> tuple[Witnesses, tuple[object, ...]]:
    """The witnesses, all groups with them, and what they say whatever the groups' numbers."""
    loaded.stage.finish_batch(committed=False)  # so that it hands out all groups again
    witnesses = loaded.run(texts)
    edges: dict[int, set[tuple[int, int]]] = {}
    for group, var1, var2 in zip(*witnesses.r_group.to_pydict().values(), strict=True):
        edges.setdefault(group, set()).add((var1, var2))
    frozen = {group: frozenset(pairs) for group, pairs in edges.items()}
    rows = Counter(
        (docid, frozen[group], node1, node2)
        for docid, group, node1, node2 in zip(*witnesses.r_bin.to_pydict().values(), strict=True)
    )
    return witnesses, (rows, Counter(zip(*witnesses.r_doc.to_pydict().values(), strict=True)))


def _medians(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each way, taken in turns."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    gc.collect()
    gc.freeze()  # as `mmqjp run` does: what is registered need not be looked through again and again
    for _ in range(rounds):
        for name, run in ways.items():
            begin = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - begin)
    gc.unfreeze()
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def _floor(texts: Sequence[bytes]) -> None:
    for text in texts:
        for element in etree.fromstring(text, _PARSER).iter():
            element.tag  # noqa: B018  # reading it is the work


def _lxml_xpath(placed: Sequence[tuple[Conjunct, Placement]], texts: Sequence[bytes]) -> Callable[[], object]:
    prefixes: dict[str, str] = {}
    paths = [_xpath(conjunct.left.pattern, prefixes) for conjunct, _ in placed]
    compiled = [etree.XPath(path, namespaces={prefix: uri for uri, prefix in prefixes.items()}) for path in paths]

    def run() -> None:
        for text in texts:
            root = etree.fromstring(text, _PARSER)
            for path in compiled:
                path(root)

    return run


def _elementpath(placed: Sequence[tuple[Conjunct, Placement]], texts: Sequence[bytes]) -> Callable[[], object]:
    prefixes: dict[str, str] = {}
    paths = [_xpath(conjunct.left.pattern, prefixes) for conjunct, _ in placed]
    namespaces = {prefix: uri for uri, prefix in prefixes.items()}
    selectors = [elementpath.Selector(path, namespaces=namespaces) for path in paths]

    def run() -> None:
        for text in texts:
            tree = etree.fromstring(text, _PARSER).getroottree()
            for selector in selectors:
                selector.select(tree)

    return run


def _xpath(node: PatternNode, prefixes: dict[str, str]) -> str:
    """The nodes of a pattern's top that match it, as an XPath."""
    uri, local = node.test.uri, node.test.local
    name = local if uri in ("", "*") else f"{prefixes.setdefault(uri, f'n{len(prefixes)}')}:{local}"
    at = "@" if node.test.kind == "attribute" else ""
    conditions = "".join(f"[. = '{condition.literal}']" for condition in node.conditions)
    branches = "".join(f"[.{_xpath(child, prefixes)}]" for child in node.children)
    return f"{node.axis}{at}{name}{conditions}{branches}"


def cases(quick: bool) -> list[Case]:
    """The cases, those of one kind of documents together."""
    sizes = (10, 1000) if quick else (10, 100, 1000, 5000)
    mixes = ((0.0, 0.0), (0.4, 0.0), (0.4, 0.1))
    return [Case(kind, size, *mix) for kind in VOCABULARIES for mix in mixes for size in sizes]


def report(measured: Sequence[Measurement], csv_file: Path | None) -> None:
    """Prints a table, and writes a CSV file."""
    columns = (
        "documents", "patterns", "filters", "values", "floor, µs", "cached", "uncached", "lxml XPath", "elementpath",
        "rows/document", "first, ms", "register, µs",
    )  # fmt: skip
    table = Table(*columns)
    for line in measured:
        table.add_row(*(_shown(value) for value in asdict(line).values()))
    Console(width=150).print(table)
    if csv_file is not None:
        with csv_file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, list(asdict(measured[0])))
            writer.writeheader()
            writer.writerows(map(asdict, measured))


def _shown(value: str | float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stage1", description="measures stage 1")
    parser.add_argument("--quick", action="store_true", help="fewer numbers of patterns")
    parser.add_argument("--documents", default=",".join(VOCABULARIES), help="kinds of documents, separated by commas")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    kinds = options.documents.split(",")
    measured = []
    for case in cases(options.quick):
        if case.kind in kinds:
            texts = list(documents(case.kind, 1 if case.kind in ("dblp", "xmark") else 1000))
            measured.append(measure(case, texts, rounds=5))
    report(measured, options.csv)


if __name__ == "__main__":
    main()
