"""Stage 1 alone, from bytes to witness relations, as a ratio to parsing the same documents with lxml.

    mmqjp bench stage1 [--quick] [--csv FILE] [--json FILE] [--plot PREFIX]

Each case runs in its own process. The floor is `lxml.etree.fromstring` and a walk that reads the tags. Measured in
turns with it are the evaluator with and without its shape cache; lxml with one compiled XPath per path, which gives the
bindings; Saxon with the same XPaths, if it is installed; and elementpath. The last three are measured for few patterns
only, on some of the documents. Before a time is reported, a sample of the patterns is checked against exact matching,
and the witnesses with the shape cache against those without.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bench import registration
from bench.command import file, shown, with_progress
from bench.fresh import in_fresh_process
from bench.stage1_baselines import baselines
from bench.stage1_plot import draw, missing
from bench.stage1_reference import Rows, Witnessed, check_side, rows_of
from bench.stage1_workload import KINDS, LARGE, STREAM, VOCABULARIES, documents, patterns
from bench.timing import ROUNDS, Way, clocked, evaluate, floor, in_turns, ratio
from templates.catalog import Catalog, Placement
from templates.witness import Witnesses
from xpath_stage.documents import Limits, StreamDocument, parse_document
from xpath_stage.evaluator import XPathStage
from xscl.algebra.joins import Conjunct

SIZES, QUICK_SIZES = [10, 100, 1000, 5000, 50_000], [10, 100, 5000]
MIXES, QUICK_MIXES = ((0.0, 0.0), (0.4, 0.0), (0.4, 0.1)), ((0.0, 0.0), (0.4, 0.1))
_SAMPLE, _FEW = 25, 20


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
    """Microseconds a document for the floor, medians of the rounds' ratios to it for the rest; None where it was not
    measured.

    `paths` is the number of XPaths that the last three evaluate, `rows` that of witnesses a document.
    """

    kind: str
    patterns: int
    filters: float
    values: float
    floor_us: float
    cached: float
    uncached: float
    rows: float
    first_ms: float
    register_us: float
    paths: int | None
    lxml_xpath: float | None
    saxon: float | None
    elementpath: float | None


@dataclass
class _Loaded:
    """The evaluator with its shape cache, and without, for the same patterns."""

    catalog: Catalog
    placed: list[tuple[Conjunct, Placement]]
    cached: XPathStage
    uncached: XPathStage
    seconds: float


def measure(case: Case, texts: Sequence[bytes], rounds: int) -> Measurement:
    """Measures a case. Raises AssertionError if witnesses are not what exact matching says."""
    evaluate(
        _load(replace(case, patterns=1)).cached, texts[:1]
    )  # warms up: what a process does once is not part of the case
    loaded = _load(case)
    first = clocked(partial(evaluate, loaded.cached, texts[:1]))
    witnesses = _check(loaded, case.kind, texts)
    ways: dict[str, Way] = {
        "floor": partial(floor, texts),
        "cached": partial(evaluate, loaded.cached, texts),
        "uncached": partial(evaluate, loaded.uncached, texts),
    }
    taken = in_turns(ways, rounds)
    paths, others = baselines(case.kind, [conjunct for conjunct, _ in loaded.placed], texts[:_FEW])
    compared = in_turns({"floor": partial(floor, texts[:_FEW]), **others}, rounds) if others else {}
    over = {name: ratio(seconds, compared["floor"]) for name, seconds in compared.items()}
    return Measurement(
        **asdict(case),
        floor_us=statistics.median(taken["floor"]) / len(texts) * 1e6,
        cached=ratio(taken["cached"], taken["floor"]),
        uncached=ratio(taken["uncached"], taken["floor"]),
        rows=witnesses.r_bin.num_rows / len(texts),
        first_ms=first * 1e3,
        register_us=loaded.seconds / case.patterns * 1e6,
        paths=paths,
        lxml_xpath=over.get("lxml_xpath"),
        saxon=over.get("saxon"),
        elementpath=over.get("elementpath"),
    )


def _load(case: Case) -> _Loaded:
    conjuncts = patterns(VOCABULARIES[case.kind], case.patterns, case.filters, case.values)
    catalog, cached, uncached = Catalog(), XPathStage(), XPathStage(limits=Limits(shapes=0))
    placed, changes = [], []
    begin = time.perf_counter()
    for conjunct in conjuncts:
        placement, change = catalog.add(conjunct, 1, True)
        cached.add(change)
        placed.append((conjunct, placement))
        changes.append(change)
    seconds = time.perf_counter() - begin
    for change in changes:
        uncached.add(change)
    return _Loaded(catalog, placed, cached, uncached, seconds)


# ------------------------------------------------------------ the check


def _check(loaded: _Loaded, kind: str, texts: Sequence[bytes]) -> Witnesses:
    """Holds the witnesses of both against each other, and those of a sample against exact matching."""
    (witnesses, one), (_, other) = (_with_groups(stage, texts) for stage in (loaded.cached, loaded.uncached))
    assert one == other
    sample = list(documents(kind, 3, size=5000)) if kind in LARGE else texts[:_SAMPLE]
    found = Witnessed(_with_groups(loaded.cached, sample)[0], {})
    step = max(1, len(loaded.placed) // _SAMPLE)
    trees = map(parse_document, sample)
    for document in (StreamDocument(i, STREAM, 0, 0, tree) for i, tree in enumerate(trees)):
        for conjunct, placement in loaded.placed[::step]:
            check_side(loaded.catalog, conjunct, placement, 0, document, found)
    return witnesses


def _with_groups(stage: XPathStage, texts: Iterable[bytes]) -> tuple[Witnesses, Rows]:
    """The witnesses, all groups with them, and what they say whatever the groups' numbers."""
    stage.finish_batch(committed=False)  # so that it hands out all groups again
    witnesses = evaluate(stage, texts)
    return witnesses, rows_of(witnesses, {})


# ------------------------------------------------------------ the report


def show(measured: Iterable[Measurement]) -> None:
    """Prints a table."""
    table = Table(title="stage 1: ratios to parsing and visiting the same documents", box=box.SIMPLE_HEAD)
    table.add_column("documents")
    for heading in (
        "patterns", "filters", "values", "floor, µs", "cached", "uncached", "rows", "first, ms", "register, µs",
        "XPaths", "lxml", "Saxon", "elementpath",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for m in measured:
        kind, number, filters, values, *rest = asdict(m).values()
        table.add_row(kind, f"{number:,}", f"{filters:.0%}", f"{values:.0%}", *map(shown, rest))
    Console(width=160).print(table)


def write_csv(measured: Iterable[Measurement], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, [field.name for field in fields(Measurement)])
        writer.writeheader()
        writer.writerows(map(asdict, measured))


def write_json(measured: Iterable[Measurement], path: Path) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for m in measured for line in json_lines(m)), encoding="utf-8")


def json_lines(measured: Measurement) -> Iterator[dict[str, object]]:
    """A measurement as `mmqjp bench` writes it: a line with the shape cache and one without, seconds and rows of one
    document."""
    for plan, over in (("cached", measured.cached), ("uncached", measured.uncached)):
        baseline = measured.lxml_xpath
        yield {
            "bench": "stage1",
            "case": {
                "documents": measured.kind,
                "patterns": measured.patterns,
                "filters": measured.filters,
                "values": measured.values,
            },
            "engine": None,
            "plan": plan,
            "seconds": over * measured.floor_us / 1e6,
            "rows": measured.rows,
            "baseline": None if baseline is None else "lxml_xpath",
            "speedup": None if baseline is None else baseline / over,
            "floor": measured.floor_us / 1e6,
            "over_floor": over,
            "extrapolated": False,
        }


# ------------------------------------------------------------ the command


def cases(kinds: Iterable[str], sizes: Sequence[int], mixes: Sequence[tuple[float, float]]) -> list[Case]:
    """All cases, those of one kind of documents together."""
    return [Case(kind, size, *mix) for kind in kinds for mix in mixes for size in sizes]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="mmqjp bench stage1",
        description="measures stage 1 alone, as a ratio to parsing and visiting the same documents",
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases, in about two minutes")
    parser.add_argument("--documents", help=f"kinds of documents, separated by commas: {', '.join(KINDS)}")
    parser.add_argument("--queries", type=_numbers, metavar="N,N", help="numbers of patterns, separated by commas")
    parser.add_argument("--csv", type=file, metavar="FILE", help="write the table")
    parser.add_argument("--json", type=file, metavar="FILE", help="write JSON lines, one for each measurement")
    parser.add_argument("--plot", type=file, metavar="PREFIX", help="draw PREFIX.svg and PREFIX.png")
    options = parser.parse_args()
    chosen = _chosen(parser, options)
    if options.plot and (lacking := missing()):
        parser.error(lacking)
    if not find_spec("saxonche"):
        print("Saxon is not measured: pip install saxonche", file=sys.stderr)
    # The heap of earlier cases makes a later one up to a tenth slower, so each runs in its own process.
    measured = [in_fresh_process(_measured, case) for case in with_progress(chosen, _name)]
    show(measured)
    if options.csv:
        write_csv(measured, options.csv)
    if options.json:
        write_json(measured, options.json)
    if options.plot:
        draw(measured, options.plot)
    if not options.documents:
        registration.report()


def _numbers(text: str) -> list[int]:
    """Positive numbers, separated by commas."""
    if not all(part.isdecimal() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not some numbers separated by commas")
    return [int(part) for part in text.split(",")]


def _chosen(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[Case]:
    """The cases that the options ask for."""
    kinds = options.documents.split(",") if options.documents else KINDS
    for kind in kinds:
        if kind not in KINDS:
            parser.error(f"no documents are called {kind!r}; there are {', '.join(KINDS)}")
    sizes, mixes = (QUICK_SIZES, QUICK_MIXES) if options.quick else (SIZES, MIXES)
    return cases(kinds, options.queries or sizes, mixes)


def _measured(case: Case) -> Measurement:
    return measure(case, list(documents(case.kind, 1 if case.kind in LARGE else 1000)), ROUNDS)


def _name(case: Case) -> str:
    return f"{case.kind}, {case.patterns:,} patterns"


if __name__ == "__main__":
    main()
