"""How long it takes to register queries: their patterns in stage 1, their texts in an engine, and a store reopened.

    mmqjp bench registration
    mmqjp bench registration --quick --csv registration.csv --json registration.json

First come the rates of several kinds of queries, and the commands `check` and `run` over a file of them (see
`bench.registration_rates` and `bench.registration_commands`).
Patterns are given to the catalog and to stage 1 as the engine does. Texts are given to an engine on DuckDB that has
seen no similar ones. A store with very many different texts is closed and opened again.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isqrt
from random import Random
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from bench.command import file, with_progress
from bench.fresh import in_fresh_process
from bench.registration_commands import measure_commands
from bench.registration_rates import COLUMNS, RATES, Rate, measure_rate
from bench.registration_scripts import KINDS
from bench.stage1_workload import VOCABULARIES, documents, patterns
from bench.stage2_report import Line, keep
from bench.stage2_report import show as show_lines
from bench.timing import ROUNDS, clocked, evaluate, floor, in_turns, ratio
from bench.workload import channel, items, queries
from mmqjp.engine import Session
from templates.catalog import Catalog
from xpath_stage.evaluator import XPathStage
from xscl.algebra.joins import Conjunct

DISTINCT, SUBSCRIPTIONS, QUICK = 5_000, 100_000, 10_000
_MORE = 20
_HOUR = 3_600_000_000


@dataclass(frozen=True)
class OfPatterns:
    """Seconds to register all subscriptions; milliseconds, then, for one more pattern and for the document after it;
    and the time of many documents as a ratio to the floor."""

    seconds: float
    one_more_ms: float
    next_document_ms: float
    cached: float


@dataclass(frozen=True)
class OfTexts:
    """Seconds to subscribe to the distinct texts, and to subscribe to them again till there are all subscriptions; then
    the milliseconds of each further new text, of the document after it, and of the one after that."""

    distinct: float
    again: float
    one_more_ms: list[float]
    next_document_ms: list[float]
    usual_document_ms: list[float]

    @property
    def paid_ms(self) -> float:
        """What a document pays for the new text before it."""
        pairs = zip(self.next_document_ms, self.usual_document_ms, strict=True)
        return median(after - usual for after, usual in pairs)


@dataclass(frozen=True)
class OfReopening:
    """Seconds to open a store of many queries, and milliseconds of the document after that."""

    seconds: float
    next_document_ms: float


def measure_patterns(distinct: int = DISTINCT, subscriptions: int = SUBSCRIPTIONS) -> OfPatterns:
    """Registers subscriptions, each with a window of its own, to patterns over feed items."""
    conjuncts = patterns(VOCABULARIES["items"], distinct + _MORE, 0.4, 0.1)
    rng = Random(5)
    drawn = [(rng.choice(conjuncts[:distinct]), rng.randint(1, 500) * _HOUR) for _ in range(subscriptions)]
    catalog, stage = Catalog(), XPathStage()

    def add(subscriptions: Iterable[tuple[Conjunct, int]]) -> None:
        for conjunct, window in subscriptions:
            _, change = catalog.add(conjunct, window, True)
            stage.add(change)

    seconds = clocked(partial(add, drawn))
    texts = list(documents("items", 1000))
    evaluate(stage, texts)
    one_more, following = [], []
    for conjunct in conjuncts[distinct:]:
        one_more.append(clocked(partial(add, [(conjunct, _HOUR)])))
        following.append(clocked(partial(evaluate, stage, texts[:1])))
    taken = in_turns({"floor": partial(floor, texts), "cached": partial(evaluate, stage, texts)}, ROUNDS)
    over_floor = ratio(taken["cached"], taken["floor"])
    return OfPatterns(seconds, median(one_more) * 1e3, median(following) * 1e3, over_floor)


def measure_texts(distinct: int = DISTINCT, subscriptions: int = SUBSCRIPTIONS) -> OfTexts:
    """Subscribes to distinct texts, to the same ones again and again, and to more, each with a document after it."""
    written = queries(distinct + distinct // 10 + 2 * _MORE).rstrip("\n").split(";\n")
    texts = list(dict.fromkeys(written))
    script = ";\n".join(texts[:distinct])
    first_item, *further = items(1 + 2 * _MORE)
    one_more, following, usual = [], [], []
    with Session("duckdb") as engine:
        first = clocked(partial(engine.subscribe, script))
        again = clocked(lambda: [engine.subscribe(script) for _ in range(subscriptions // distinct - 1)])
        engine.process([first_item])
        for text, item, other in zip(texts[distinct : distinct + _MORE], further[::2], further[1::2], strict=True):
            one_more.append(clocked(partial(engine.subscribe, text)) * 1e3)
            following.append(clocked(partial(engine.process, [item])) * 1e3)
            usual.append(clocked(partial(engine.process, [other])) * 1e3)
    return OfTexts(first, again, one_more, following, usual)


def measure_reopening(texts: Iterable[str]) -> OfReopening:
    """Opens a store again that has these queries."""
    with tempfile.TemporaryDirectory(prefix="mmqjp-") as directory:
        with Session("duckdb", state=directory) as engine:
            engine.subscribe(";\n".join(texts))
        again: list[Session] = []
        opened = clocked(lambda: again.append(Session("duckdb", state=directory)))
        with again[0] as engine:
            return OfReopening(opened, clocked(partial(engine.process, list(items(1)))) * 1e3)


def of_constants(number: int = SUBSCRIPTIONS) -> Iterator[str]:
    """Texts that differ in a constant."""
    for n in range(number):
        here = f'S//item->a[./channel_url = "{channel(n)}"][./title->t]'
        yield f"FROM {here} FOLLOWED BY {{t = u, 2 d}} S//item->b[./title->u]"


def of_tags(number: int = SUBSCRIPTIONS) -> Iterator[str]:
    """Texts that differ in the names of tags."""
    side = isqrt(number) + 1
    for n in range(number):
        yield f"FROM S//item->a[./left{n // side}->t] FOLLOWED BY {{t = u, 2 d}} S//item->b[./right{n % side}->u]"


def show(of_patterns: OfPatterns, of_texts: OfTexts, reopening: Mapping[str, OfReopening]) -> None:
    """Prints a table. `reopening` has what the texts of a store differ in."""
    table = Table("what", "time", title="registration", box=box.SIMPLE_HEAD)
    lines = {
        f"{SUBSCRIPTIONS:,} subscriptions to {DISTINCT:,} distinct patterns": f"{of_patterns.seconds:.2f} s",
        "one more new pattern": f"{of_patterns.one_more_ms:.2f} ms",
        "the document after it": f"{of_patterns.next_document_ms:.2f} ms",
        "1,000 documents, then, with the shape cache": f"{of_patterns.cached:.2f} times the floor",
        f"{DISTINCT:,} distinct texts": f"{of_texts.distinct:.2f} s, {DISTINCT / of_texts.distinct:,.0f} texts/s",
        f"{SUBSCRIPTIONS:,} subscriptions to these texts": f"{of_texts.distinct + of_texts.again:.2f} s",
        "one more new text, through the engine": _median_and_worst(of_texts.one_more_ms),
        "the document after it, through the engine": _median_and_worst(of_texts.next_document_ms),
        "what that is more than for a document else": f"{of_texts.paid_ms:.2f} ms",
    }
    for what, found in reopening.items():
        taken = f"{found.seconds:.2f} s, the document after that {found.next_document_ms:,.0f} ms"
        lines[f"a store of {SUBSCRIPTIONS:,} texts that differ in {what}, opened"] = taken
    for line in lines.items():
        table.add_row(*line)
    Console(width=100).print(table)


def _median_and_worst(times: Sequence[float]) -> str:
    return f"{median(times):.2f} ms, at worst {max(times):.2f} ms"


def main() -> None:
    made = argparse.ArgumentParser(
        prog="mmqjp bench registration", description="measures how long it takes to register queries"
    )
    made.add_argument("--quick", action="store_true", help=f"{QUICK:,} queries of each kind, and nothing else")
    made.add_argument("--kind", choices=list(KINDS), help="measure one kind of queries, and nothing else")
    made.add_argument("--csv", type=file, metavar="FILE", help="write the table of the kinds")
    made.add_argument("--json", type=file, metavar="FILE", help="write JSON lines, one for each measurement of them")
    options = made.parse_args()
    number = QUICK if options.quick else SUBSCRIPTIONS
    kinds = [options.kind] if options.kind else list(KINDS)
    lines: list[Line] = []
    for kind in with_progress(kinds, str):
        if kind in RATES:
            lines.append(in_fresh_process(measure_rate, Rate(kind, number)))
        lines += measure_commands(kind, number)
    show_lines(lines, "registration by kind of query, DuckDB", COLUMNS)
    keep(lines, options)
    if not (options.quick or options.kind):
        report()


def report() -> None:
    """Measures, and prints a table."""
    texts = {"a constant": of_constants(), "tags": of_tags()}
    show(measure_patterns(), measure_texts(), {what: measure_reopening(of) for what, of in texts.items()})


if __name__ == "__main__":
    main()
