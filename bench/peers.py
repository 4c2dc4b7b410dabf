"""Beside what a user would pick instead: our engine on DuckDB, and systems that join streams, over the same items.

The queries are those of `bench.expert_workload`, for one channel and a window each. The peers get the items already
shredded into rows; our engine gets their XML. Each runs in a process of its own, in turns. The rows are compared before
a time is reported.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.command import with_progress
from bench.expert_workload import KINDS, parameters
from bench.peer_ours import BEFORE_JOINS, write_documents
from bench.peer_runs import SYSTEMS, Ran, run
from bench.peer_worker import FORMS, TABLES, Row, Wish, Work, write_table
from bench.realistic_workload import fields
from bench.stage2_report import Column, Line, keep, parsed, plain_parser, show
from bench.workload import HOUR, items
from feeds.documents import Document

NUMBERS, QUICK_NUMBERS = [1, 10, 100, 1_000, 10_000], [1, 1_000]
ITEMS, QUICK_ITEMS = 20_000, 5_000
BATCH, LAST = 5_000, 500
"""Items of a batch, and of the last one, before which a query is added."""
ROUNDS = 3
EACH = 10
"""With more queries than that, a join for each is not tried."""
OURS, ADDED = "mmqjp", "added"


class NothingToAdd(ValueError):
    """No query could be added that gets rows from the last items."""


class OtherRows(AssertionError):
    """A peer found other rows than our engine."""


@dataclass(frozen=True)
class Case:
    """How much is measured."""

    queries: int
    items: int = ITEMS
    batch: int = BATCH
    last: int = LAST
    rounds: int = ROUNDS


@dataclass
class Contender:
    """A system with a form of its program, and its runs."""

    name: str
    form: str
    runs: list[Ran] = field(default_factory=list)


def prepare(case: Case, directory: Path) -> Work:
    """Writes the batches of a case, and says what there is to do."""
    documents = list(items(case.items + case.last))
    starts = [*range(0, case.items, case.batch), case.items, len(documents)]
    names = []
    for number, (first, end) in enumerate(pairwise(starts)):
        names.append(f"batch{number:04}")
        (directory / names[-1]).mkdir()
        shred(documents[first:end], first, directory / names[-1])
    wishes = [Wish(one.name, one.kind, one.channel, one.hours * HOUR) for one in parameters(case.queries)]
    added = Wish(ADDED, "title", _channel_to_add(documents, case.items), KINDS["title"] * HOUR)
    return Work(wishes, KINDS, documents[0].t0 - HOUR, names, "joined", added, 0.0)


def shred(documents: Sequence[Document], first: int, directory: Path) -> None:
    """Writes items, numbered from `first`, as XML and as the rows that the peers get: each with what a join needs."""
    write_documents(documents, directory / "documents.jsonl")
    tables = {name: table.to_pylist() for name, table in fields(documents, first).items()}
    by_number = {row["doc"]: row for row in tables["items"]}
    for name, columns in TABLES.items():
        rows = ({**by_number[row["doc"]], **row} for row in tables[name])
        write_table(
            directory / f"{name}.csv", columns, dict.fromkeys(tuple(row[key] for key in columns) for row in rows)
        )


def _channel_to_add(documents: Sequence[Document], first: int) -> str:
    """The channel with the most titles that the items from `first` on repeat."""
    rows = fields(documents, 0)["items"].to_pylist()
    earlier: dict[str, list[dict[str, Any]]] = defaultdict(list)
    found: Counter[str] = Counter()
    for row in rows:
        if row["doc"] >= first:
            found.update(e["channel"] for e in earlier[row["title"]] if 0 < row["t"] - e["t"] <= KINDS["title"] * HOUR)
        earlier[row["title"]].append(row)
    if not found:
        raise NothingToAdd("no title is repeated in the last items: take more of them")
    return found.most_common(1)[0][0]


def compared(rows: Collection[Row], first: int) -> set[Row]:
    """The rows to compare. Of the query that is added only those that an item from `first` on completes, because not
    every system looks back."""
    return {row for row in rows if row[0] != ADDED or row[2] >= first}


def compare(expected: Collection[Row], found: Collection[Row], name: str, first: int) -> None:
    """Raises OtherRows, with an example, if a system found other rows than expected."""
    wanted, got = compared(expected, first), compared(found, first)
    if wanted != got:
        missing, extra = sorted(wanted - got), sorted(got - wanted)
        raise OtherRows(
            f"{name} and {OURS} find different rows: {len(missing):,} of {len(wanted):,} are missing, "
            f"{len(extra):,} are too many, such as {(missing or extra)[0]}"
        )


def contenders(queries: int, names: Sequence[str]) -> list[Contender]:
    """Who takes part: for few queries, peers also with a join for each of them."""
    joined = [Contender(name, FORMS[0]) for name in names]
    return joined + [Contender(one.name, FORMS[1]) for one in joined if one.name != OURS and queries <= EACH]


def measure(case: Case, pythons: dict[str, str]) -> list[Line]:
    """Lines for each system that `pythons` has an interpreter for; ours must be one. Raises OtherRows, PeerFailed."""
    taking_part = contenders(case.queries, list(pythons))
    with TemporaryDirectory(prefix="mmqjp-peers-") as made:
        directory = Path(made)
        work = prepare(case, directory)
        for _ in range(case.rounds):
            for one in taking_part:
                added = work.added if one.form == FORMS[0] else None
                given = Work(work.wishes, work.longest, work.begins, work.batches, one.form, added, 0.0)
                ran = run(SYSTEMS[one.name], given, directory, pythons[one.name])
                expected = (taking_part[0].runs or [ran])[0].rows
                wanted = expected if added else {row for row in expected if row[0] != ADDED}
                compare(wanted, ran.rows, one.name, case.items)
                one.runs.append(ran)
    ours = _seconds(taking_part[0])
    return [_line(case, one, ours) for one in taking_part]


def _seconds(one: Contender) -> float:
    return statistics.median(sum(ran.report.batches) for ran in one.runs)


def _line(case: Case, one: Contender, ours: float) -> Line:
    reports = [ran.report for ran in one.runs]
    seconds = _seconds(one)
    warm = statistics.median(statistics.median(report.batches[1:] or report.batches) for report in reports)
    details: dict[str, object] = {
        "form": one.form,
        "start": statistics.median(report.start for report in reports),
        "items_a_second": case.items / seconds,
        "warm_items_a_second": min(case.batch, case.items) / warm,
        "processor": statistics.median(report.processor for report in reports),
        "resident_mib": max(ran.resident for ran in one.runs) >> 20,
    }
    if parts := reports[0].details:
        details |= {part: statistics.median(report.details[part] for report in reports) for part in parts}
        before = statistics.median(sum(report.details[part] for part in BEFORE_JOINS) for report in reports)
        details["items_a_second_from_rows"] = case.items / (seconds - before)
    if adding := [report.added for report in reports if report.added is not None]:
        details["added"] = statistics.median(adding)
    about = {"queries": case.queries, "items": case.items, "batch": case.batch}
    rows = len(one.runs[0].rows)
    return Line("peers", about, one.name, one.form, seconds, rows, OURS, ours / seconds, details=details)


COLUMNS: tuple[Column, ...] = (
    ("system", lambda line: line.engine),
    ("form", lambda line: line.plan if line.engine != OURS else ""),
    ("queries", lambda line: line.case["queries"]),
    ("rows", lambda line: line.rows),
    ("start, s", lambda line: line.details["start"]),
    ("items/s", lambda line: line.details["items_a_second"]),
    ("warm", lambda line: line.details["warm_items_a_second"]),
    ("without stage 1", lambda line: line.details.get("items_a_second_from_rows")),
    ("times ours", lambda line: line.speedup if line.engine != OURS else None),
    ("CPU, s", lambda line: line.details["processor"]),
    ("memory, MiB", lambda line: line.details["resident_mib"]),
    ("adding a query, s", lambda line: line.details.get("added")),
)


def _options() -> argparse.Namespace:
    made = plain_parser("peers", "beside Apache Flink, Pathway and Spark's stream-stream joins")
    made.add_argument("--items", type=int, metavar="N", help=f"how many items; default: {ITEMS:,}")
    made.add_argument("--rounds", type=int, metavar="N", help=f"how often each is run; default: {ROUNDS}")
    made.add_argument("--peer", choices=[*SYSTEMS][1:], action="append", help="only this one; may be repeated")
    for system in SYSTEMS.values():
        if not system.uses_ours:
            said = f"the interpreter that has {system.needs}; default: this one"
            made.add_argument(f"--{system.name}-python", default=sys.executable, metavar="PATH", help=said)
    return parsed(made)


def present(pythons: dict[str, str]) -> dict[str, str]:
    """The systems that can run, with their interpreters. Says which are left out, and why."""
    found = {}
    for name, python in pythons.items():
        if lacking := SYSTEMS[name].lacking(python):
            print(f"{name} is left out: {lacking}", file=sys.stderr)
        else:
            found[name] = python
    return found


def main() -> None:
    options = _options()
    taking_part = [OURS, *(options.peer or [*SYSTEMS][1:])]
    pythons = {name: getattr(options, f"{name}_python", sys.executable) for name in taking_part}
    numbers = options.queries or (QUICK_NUMBERS if options.quick else NUMBERS)
    count = options.items or (QUICK_ITEMS if options.quick else ITEMS)
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    able = present(pythons)
    cases = [Case(number, count, rounds=rounds) for number in numbers]
    lines = [line for case in with_progress(cases, str) for line in measure(case, able)]
    show(lines, "beside what a user would pick instead", COLUMNS)
    keep(lines, options)
    if options.plot:
        from bench.stage2_plot import draw_peers

        draw_peers(lines, options.plot)


if __name__ == "__main__":
    main()
