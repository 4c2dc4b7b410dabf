"""Stage 1 on documents designed to be slow, when they are new and when they are repeated, as ratios to the floor.

    mmqjp bench adversarial [--json FILE]

Each case runs in its own process, with the default limits and with small ones. The floor is that of `bench stage1`. On
any documents, the evaluator with its shape cache should take at most three times as long as the one without. Before a
time is reported, the witnesses of both are compared, on both passes.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.command import file, shown, with_progress
from bench.fresh import in_fresh_process
from bench.stage1_reference import Edge, rows_of
from bench.timing import clocked, evaluate, floor
from templates.catalog import Catalog, Change
from xpath_stage.documents import DEFAULT, Limits
from xpath_stage.evaluator import XPathStage
from xscl.lower import normalize
from xscl.parser import parse_script

ROUNDS, BATCH = 5, 500
LIMITS = {"default": DEFAULT, "small": Limits(states=1000, classes=1000, emissions=1000, shapes=100)}


@dataclass(frozen=True)
class Attack:
    """Queries, and a function that makes documents that are slow to match with them."""

    script: str
    documents: Callable[[int], list[bytes]]
    number: int


@dataclass(frozen=True)
class Case:
    """One of `ATTACKS` with some of `LIMITS`."""

    attack: str
    limits: str


@dataclass(frozen=True)
class Measurement:
    """The floor in microseconds per document, and the ratios to it of the evaluator with and without its shape cache.

    The ratios are for documents that are new to it and for the same ones again. The rest is what the one with the cache
    has kept and counted by then.

    `rows` is the number of witnesses a document, `grown` how many bytes the process needed more than for the floor.
    """

    attack: str
    limits: str
    documents: int
    rows: float
    floor_us: float
    cached_new: float
    uncached_new: float
    cached_again: float
    uncached_again: float
    grown: int
    counters: dict[str, int]


# ------------------------------------------------------------ the attacks


def new_shapes(number: int) -> list[bytes]:
    """Documents of different shapes: each of 13 places has one of two similar parts."""
    parts = ("<b k='1'/>", "<c>1<b>2</b></c>")
    return [f"<a>{''.join(parts[one >> place & 1] for place in range(13))}</a>".encode() for one in range(number)]


FIELDS = range(30)


def optional_fields(number: int) -> list[bytes]:
    """Records with a random half of the fields."""
    rng = Random(1)

    def record() -> str:
        return "".join(f"<f{field}>{rng.randrange(99)}</f{field}>" for field in FIELDS if rng.random() < 0.5)

    return [f"<item>{record()}</item>".encode() for _ in range(number)]


def deep(number: int) -> list[bytes]:
    """Up to 200 nested elements, one fewer in each document."""
    return [("<a>" * depth + "x" + "</a>" * depth).encode() for depth in range(200, 200 - number, -1)]


def new_tags(number: int) -> list[bytes]:
    """Documents with a thousand tags each that no other document has."""
    return [
        f"<r>{''.join(f'<t{tag}/>' for tag in range(first, first + 1000))}</r>".encode()
        for first in range(0, number * 1000, 1000)
    ]


_FILTERED = ";".join(
    f"S//item->x[./f{i}->y][./f{(i * 7 + 3) % 30}] JOIN {{y = z, INF}} "
    f"S//item[./f{(i + 1) % 30}->z][.//f{(i * 11 + 5) % 30}]"
    for i in FIELDS
)

ATTACKS = {
    "new shapes": Attack(
        "S//a->x[./b] JOIN {x = y, INF} S//c[./b = '2']->y; S//a/c/b->x JOIN {x = y, INF} S//a//@k->y",
        new_shapes,
        5000,
    ),
    "fields": Attack(_FILTERED, optional_fields, 5000),
    "200 levels": Attack("S//a->x//a->y JOIN {y = z, INF} S//a//a->z", deep, 20),
    "new tags": Attack("S//r->x[./t5->y] JOIN {y = z, INF} S//r/*->z", new_tags, 1000),
}


# ------------------------------------------------------------ the measurement


def measure(case: Case, number: int, rounds: int) -> Measurement:
    """Measures a case with that many documents. Raises AssertionError if the shape cache changes the witnesses."""
    attack, limits = ATTACKS[case.attack], LIMITS[case.limits]
    texts = attack.documents(number)
    batches = [texts[start : start + BATCH] for start in range(0, number, BATCH)]
    with_cache = partial(_loaded, _changes(attack.script), limits)
    without = partial(_loaded, _changes(attack.script), replace(limits, shapes=0))

    evaluate(with_cache(), texts[:1])  # warms up: what a process does once is not part of the case
    floor(texts)
    grown, counters = _kept(with_cache(), batches)
    rows = _check(with_cache(), without(), batches)

    taken: list[list[float]] = []
    for _ in range(rounds):
        taken.append([clocked(partial(floor, texts)), *_passes(with_cache(), batches), *_passes(without(), batches)])
    seconds, *others = map(statistics.median, zip(*taken, strict=True))
    cached_new, cached_again, uncached_new, uncached_again = (other / seconds for other in others)
    return Measurement(
        **asdict(case),
        documents=number,
        rows=rows / number,
        floor_us=seconds / number * 1e6,
        cached_new=cached_new,
        uncached_new=uncached_new,
        cached_again=cached_again,
        uncached_again=uncached_again,
        grown=grown,
        counters=counters,
    )


def _changes(script: str) -> list[Change]:
    catalog = Catalog()
    conjuncts = (conjunct for query in parse_script(script).queries for conjunct in normalize(query, {}).conjuncts)
    return [catalog.add(conjunct, 1, True)[1] for conjunct in conjuncts]


def _loaded(changes: Iterable[Change], limits: Limits) -> XPathStage:
    """An evaluator that has seen no document."""
    stage = XPathStage(limits=limits)
    for change in changes:
        stage.add(change)
    return stage


def _passes(stage: XPathStage, batches: Sequence[Sequence[bytes]]) -> tuple[float, float]:
    """The seconds for documents that are new to the evaluator, and for the same ones again."""

    def evaluate_all() -> None:
        for batch in batches:
            evaluate(stage, batch)

    gc.collect()
    gc.freeze()  # as `mmqjp run` does
    new, again = clocked(evaluate_all), clocked(evaluate_all)
    gc.unfreeze()
    return new, again


def _kept(stage: XPathStage, batches: Sequence[Sequence[bytes]]) -> tuple[int, dict[str, int]]:
    """The bytes by which the process grows when it sees the documents twice, and then the evaluator's counters."""
    before = _peak()
    for batch in [*batches, *batches]:
        evaluate(stage, batch)
    return _peak() - before, stage.counters()


def _check(cached: XPathStage, uncached: XPathStage, batches: Sequence[Sequence[bytes]]) -> int:
    """Compares the witnesses of both evaluators, twice. Returns how many there are."""
    groups: tuple[dict[int, frozenset[Edge]], dict[int, frozenset[Edge]]] = ({}, {})
    count = 0
    for batch in [*batches, *batches]:
        found = evaluate(cached, batch)
        assert rows_of(found, groups[0]) == rows_of(evaluate(uncached, batch), groups[1]), "the shape cache errs"
        count += found.r_bin.num_rows
    return count // 2


def _peak() -> int:
    """The peak memory of this process in bytes. On Linux, it is at least that of the parent process."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


# ------------------------------------------------------------ the report


_COUNTERS = ("states", "flushes", "shape_hits", "shape_misses")


def show(measured: Iterable[Measurement]) -> None:
    """Prints a table."""
    table = Table(title="stage 1 on documents made to hurt it: ratios to the floor", box=box.SIMPLE_HEAD)
    for heading in ("documents", "limits"):
        table.add_column(heading)
    for heading in (
        "number", "rows", "floor, µs", "cached", "uncached", "ratio", "again: cached", "uncached", "ratio", "MB more",
        "states", "flushes", "hits", "misses",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for m in measured:
        new, again = (m.cached_new, m.uncached_new), (m.cached_again, m.uncached_again)
        numbers = (m.documents, m.rows, m.floor_us, *new, new[0] / new[1], *again, again[0] / again[1])
        counters = [m.counters[name] for name in _COUNTERS]
        table.add_row(m.attack, m.limits, *map(shown, (*numbers, m.grown / 1e6, *counters)))
    Console(width=160).print(table)


def json_lines(measured: Measurement) -> Iterator[dict[str, Any]]:
    """A measurement as `mmqjp bench` writes it: a line for each evaluator and occasion, seconds and rows of one
    document. With the shape cache, the baseline is the evaluator without it, and memory and counters are included."""
    m = measured
    for occasion, plan, ratio, uncached in (
        ("new", "cached", m.cached_new, m.uncached_new),
        ("new", "uncached", m.uncached_new, None),
        ("again", "cached", m.cached_again, m.uncached_again),
        ("again", "uncached", m.uncached_again, None),
    ):
        yield {
            "bench": "adversarial",
            "case": {"documents": m.attack, "limits": m.limits, "number": m.documents, "occasion": occasion},
            "engine": None,
            "plan": plan,
            "seconds": ratio * m.floor_us / 1e6,
            "rows": m.rows,
            "baseline": None if uncached is None else "uncached",
            "speedup": None if uncached is None else uncached / ratio,
            "floor": m.floor_us / 1e6,
            "over_floor": ratio,
            "extrapolated": False,
            "grown": None if uncached is None else m.grown,
            "counters": None if uncached is None else m.counters,
        }


# ------------------------------------------------------------ the command


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="mmqjp bench adversarial", description="measures stage 1 on documents designed to be slow"
    )
    parser.add_argument("--json", type=file, metavar="FILE", help="write JSON lines, one for each measurement")
    options = parser.parse_args()
    cases = [Case(attack, limits) for attack in ATTACKS for limits in LIMITS]
    measured = [in_fresh_process(_measured, case) for case in with_progress(cases, _name)]
    show(measured)
    if options.json:
        lines = (json.dumps(line) + "\n" for m in measured for line in json_lines(m))
        options.json.write_text("".join(lines), encoding="utf-8")


def _name(case: Case) -> str:
    return f"{case.attack}, {case.limits} limits"


def _measured(case: Case) -> Measurement:
    return measure(case, ATTACKS[case.attack].number, ROUNDS)


if __name__ == "__main__":
    main()
