"""Stage 1 alone, from bytes to witness relations, as a ratio to parsing the same documents with lxml.

Each case runs in its own process: the evaluator with and without its shape cache, whose witnesses are compared; and,
for few patterns and documents, lxml with one XPath per path, Saxon with the same, if it is installed, and elementpath.
A sample of the patterns is checked against exact matching. `adversarial` has documents designed to be slow, when they
are new and when they are repeated.
"""

import gc
import resource
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any, cast

import elementpath
from lxml import etree

from bench import harness, registration
from bench import stage1_workload as made
from bench.harness import Line, Way, in_fresh_process
from bench.plots import Panel, PlotSeries, draw_panels
from bench.stage1_workload import patterns, rows_of
from common.xml import xml_parser
from templates.catalog import Catalog, Change, Placement, StepEdge
from templates.witness import Witnesses
from xpath_stage.documents import DEFAULT, Limits, StreamDocument, parse_document
from xpath_stage.evaluator import XPathStage
from xscl.algebra.joins import Conjunct
from xscl.lower import normalize
from xscl.parser import parse_script

ROUNDS = 41
SIZES, QUICK_SIZES = [10, 100, 1000, 5000, 50_000], [10, 100, 5000]
MIXES, QUICK_MIXES = ((0.0, 0.0), (0.4, 0.0), (0.4, 0.1)), ((0.0, 0.0), (0.4, 0.1))
_SAMPLE, _FEW = 25, 20


@dataclass(frozen=True)
class Stage1Case:
    """A kind of documents, distinct patterns, and the shares of existential filters and of values or attributes."""

    kind: str
    patterns: int
    filters: float
    values: float


Stage1Row = dict[str, Any]
"""A row of --csv: microseconds a document for the floor, else median ratios to it; None where it was not measured.
`paths` is the number of XPaths that the last three evaluate, `rows` that of witnesses a document."""


def stage1_lines(row: Stage1Row) -> Iterator[Line]:
    """A line with the shape cache and one without, with seconds and rows of one document."""
    case = {"documents": row["kind"], **{name: row[name] for name in ("patterns", "filters", "values")}}
    floor, other = row["floor_us"] / 1e6, row["lxml_xpath"]
    for plan in ("cached", "uncached"):
        baseline, faster = (None, None) if other is None else ("lxml_xpath", other / row[plan])
        yield Line("stage1", case, None, plan, row[plan] * floor, row["rows"], baseline, faster, floor)


def _texts(kind: str, rounds: int) -> list[list[bytes]]:
    """The documents of each round in turn. Those of new shapes are others in each round."""
    number, times = 1 if kind in made.LARGE else 1000, rounds if kind == "new-shapes" else 1
    texts = made.stage1_documents(kind, number * times)
    return [list(islice(texts, number)) for _ in range(times)]


def _next(work: Callable[[Sequence[bytes]], object], texts: Iterator[Sequence[bytes]]) -> None:
    work(next(texts))


@dataclass
class _Loaded:
    catalog: Catalog
    placed: list[tuple[Conjunct, Placement]]
    cached: XPathStage
    uncached: XPathStage
    seconds: float


def measure_stage1(case: Stage1Case, texts: Sequence[bytes] = (), rounds: int = ROUNDS) -> Stage1Row:
    """Measures a case. Raises AssertionError if witnesses are not what exact matching says."""
    rounds_of_texts = [texts] if texts else _texts(case.kind, rounds)
    texts = rounds_of_texts[0]
    made.evaluate(_load(replace(case, patterns=1)).cached, texts[:1])  # warms up the process
    loaded = _load(case)
    first = harness.seconds_of(partial(made.evaluate, loaded.cached, texts[:1]))
    witnesses = _check(loaded, case.kind, texts)
    works: dict[str, Callable[[Sequence[bytes]], object]] = {
        "floor": harness.parse_floor,
        "cached": partial(made.evaluate, loaded.cached),
        "uncached": partial(made.evaluate, loaded.uncached),
    }
    ways: dict[str, Way] = {name: partial(_next, work, cycle(rounds_of_texts)) for name, work in works.items()}
    taken = harness.in_turns(ways, rounds)
    paths, others = baselines(case.kind, [conjunct for conjunct, _ in loaded.placed], texts[:_FEW])
    few: dict[str, Way] = {"floor": partial(harness.parse_floor, texts[:_FEW]), **others}
    compared = harness.in_turns(few, rounds) if others else {}
    over = {name: harness.ratio(seconds, compared["floor"]) for name, seconds in compared.items()}
    return {
        **asdict(case),
        "floor_us": statistics.median(taken["floor"]) / len(texts) * 1e6,
        **{name: harness.ratio(taken[name], taken["floor"]) for name in ("cached", "uncached")},
        "rows": witnesses.r_bin.num_rows / len(texts),
        "first_ms": first * 1e3,
        "register_us": loaded.seconds / case.patterns * 1e6,
        "paths": paths,
        **{name: over.get(name) for name in _BASELINES},
    }


def _load(case: Stage1Case) -> _Loaded:
    conjuncts = patterns(made.VOCABULARIES[case.kind], case.patterns, case.filters, case.values)
    catalog, cached, uncached = Catalog(), XPathStage(), XPathStage(limits=Limits(shapes=0))
    placed, changes = list[tuple[Conjunct, Placement]](), list[Change]()

    def register() -> None:
        for conjunct in conjuncts:
            placement, change = catalog.add(conjunct, 1, True)
            cached.add(change)
            placed.append((conjunct, placement))
            changes.append(change)

    seconds = harness.seconds_of(register)
    for change in changes:
        uncached.add(change)
    return _Loaded(catalog, placed, cached, uncached, seconds)


def _check(loaded: _Loaded, kind: str, texts: Sequence[bytes]) -> Witnesses:
    (witnesses, one), (_, other) = (_with_groups(stage, texts) for stage in (loaded.cached, loaded.uncached))
    assert one == other
    sample = list(made.stage1_documents(kind, 3, size=5000)) if kind in made.LARGE else texts[:_SAMPLE]
    found = made.WitnessSets(_with_groups(loaded.cached, sample)[0], {})
    step = max(1, len(loaded.placed) // _SAMPLE)
    trees = map(parse_document, sample)
    for document in (StreamDocument(i, made.STREAM, 0, 0, tree) for i, tree in enumerate(trees)):
        for conjunct, placement in loaded.placed[::step]:
            made.check_side(loaded.catalog, conjunct, placement, 0, document, found)
    return witnesses


def _with_groups(stage: XPathStage, texts: Iterable[bytes]) -> tuple[Witnesses, made.WitnessCounts]:
    stage.finish_batch(committed=False)  # so that it hands out all groups again
    witnesses = made.evaluate(stage, texts)
    return witnesses, rows_of(witnesses, {})


_PARSER = xml_parser(elements_only=True)


def baselines(kind: str, conjuncts: Sequence[Conjunct], texts: Sequence[bytes]) -> tuple[int | None, dict[str, Way]]:
    most = {
        "lxml_xpath": 1000,
        "saxon": 100 if find_spec("saxonche") else 0,
        "elementpath": 0 if kind in made.LARGE else 10,
    }
    fit = [name for name, number in most.items() if len(conjuncts) <= number]
    if not fit:
        return None, {}
    paths, namespaces = made.xpaths(conjuncts)
    return len(paths), {name: partial(_each, _BASELINES[name](paths, namespaces), texts) for name in fit}


def _each(work: Callable[[bytes], None], texts: Sequence[bytes]) -> None:
    for text in texts:
        work(text)


Library = Callable[[Sequence[str], dict[str, str]], Callable[[bytes], None]]
"""What makes, of XPaths and the namespaces of their prefixes, a function that evaluates all of them in a document."""


def _lxml_xpath(paths: Sequence[str], namespaces: dict[str, str]) -> Callable[[bytes], None]:
    return partial(_evaluated, [etree.XPath(path, namespaces=namespaces) for path in paths])


def _elementpath(paths: Sequence[str], namespaces: dict[str, str]) -> Callable[[bytes], None]:
    return partial(_evaluated, [elementpath.Selector(path, namespaces=namespaces).select for path in paths])


def _evaluated(evaluators: Sequence[Callable[[Any], object]], text: bytes) -> None:
    tree = etree.fromstring(text, _PARSER).getroottree()
    for evaluate in evaluators:
        evaluate(tree)


def _saxon(paths: Sequence[str], namespaces: dict[str, str]) -> Callable[[bytes], None]:
    from saxonche import PySaxonProcessor  # installed only for the benchmark

    processor = PySaxonProcessor(license=False)  # a new one each time: what an old one collected slows it down
    evaluator = processor.new_xpath_processor()
    for prefix, uri in namespaces.items():
        evaluator.declare_namespace(prefix, uri)
    evaluator.set_caching(True)  # its way to keep compiled XPaths

    def run(text: bytes) -> None:
        evaluator.set_context(xdm_item=processor.parse_xml(xml_text=text.decode()))
        for path in paths:
            evaluator.evaluate(path)

    return run


_BASELINES: dict[str, Library] = {"lxml_xpath": _lxml_xpath, "saxon": _saxon, "elementpath": _elementpath}


_HEADINGS = (
    *("documents", "patterns", "filters", "values", "floor, µs", "cached", "uncached", "rows", "first, ms"),
    *("register, µs", "XPaths", "lxml", "Saxon", "elementpath"),
)


def draw_stage1(rows: Sequence[Stage1Row], prefix: Path) -> None:
    lines = [Line("stage1", row, None, None, 0.0, 0) for row in rows]
    mixes = dict.fromkeys((row["filters"], row["values"]) for row in rows)
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    panels = []
    for others in (True, False):
        for kind in kinds:
            series = []
            for mix, colour in zip(mixes, ("tab:blue", "tab:orange", "tab:green"), strict=False):
                keys = ("kind", "filters", "values")
                of = [line for line in lines if tuple(line.case[key] for key in keys) == (kind, *mix)]
                name = f"{mix[0]:.0%} filters" + (f", {mix[1]:.0%} values or attributes" if mix[1] else "")
                series += [
                    PlotSeries(f"stage 1, {name}", "cached", "o-", colour, of),
                    PlotSeries(f"no shape cache, {name}", "uncached", "o--", colour, of),
                ]
                for key, label, style, grey in (
                    ("lxml_xpath", "lxml, one XPath a path", "s:", "dimgrey"),
                    ("saxon", "Saxon, the same XPaths", "^:", "tab:purple"),
                ):
                    known = [line for line in of if line.figure(key) is not None]
                    if others and known:
                        series.append(PlotSeries(label, key, style, grey, known))
            title, ylabel = (kind, "ratio, all ways") if others else ("", "ratio, stage 1 alone")
            panels.append(Panel("patterns", "patterns", ylabel, series, "xy" if others else "x", title, ticks=True))
    draw_panels(lines, prefix, panels, (max(9.0, 3 * len(kinds)), 8), len(kinds))


def bench_stage1() -> None:
    parser = harness.benchmark_parser("stage1", "stage 1 alone, as a ratio to parsing and visiting the same documents")
    every = ", ".join(made.DOCUMENT_KINDS)
    parser.add_argument("--documents", help=f"kinds of documents, separated by commas: {every}")
    options = harness.parse_options(parser)
    kinds = options.documents.split(",") if options.documents else made.DOCUMENT_KINDS
    for kind in kinds:
        if kind not in made.DOCUMENT_KINDS:
            parser.error(f"no documents are called {kind!r}; there are {', '.join(made.DOCUMENT_KINDS)}")
    if not find_spec("saxonche"):
        print("Saxon is not measured: pip install saxonche", file=sys.stderr)
    sizes, mixes = (QUICK_SIZES, QUICK_MIXES) if options.quick else (SIZES, MIXES)
    cases = [Stage1Case(kind, size, *mix) for kind in kinds for mix in mixes for size in options.queries or sizes]
    named = harness.with_progress(cases, lambda case: f"{case.kind}, {case.patterns:,} patterns")
    # The heap of earlier cases makes a later one up to a tenth slower, so each runs in its own process.
    rows = [in_fresh_process(measure_stage1, case) for case in named]
    printed = [[f"{v:.0%}" if k in ("filters", "values") else v for k, v in row.items()] for row in rows]
    harness.print_rows("stage 1: ratios to parsing and visiting the same documents", _HEADINGS, printed, width=160)
    if options.csv:
        harness.write_rows(rows, options.csv)
    if options.json:
        harness.write_json([line for row in rows for line in stage1_lines(row)], options.json)
    if options.plot:
        draw_stage1(rows, options.plot)
    if not options.documents:
        registration.report_registration()


ATTACK_ROUNDS, ATTACK_BATCH = 5, 500
LIMITS = {"default": DEFAULT, "small": Limits(states=1000, classes=1000, emissions=1000, shapes=100)}


@dataclass(frozen=True)
class Attack:
    script: str
    documents: Callable[[int], list[bytes]]
    number: int


@dataclass(frozen=True)
class AttackCase:
    attack: str
    limits: str


def new_shapes(number: int) -> list[bytes]:
    """Documents of different shapes: each of 13 places has one of two similar parts."""
    parts = ("<b k='1'/>", "<c>1<b>2</b></c>")
    return [f"<a>{''.join(parts[one >> place & 1] for place in range(13))}</a>".encode() for one in range(number)]


def optional_fields(number: int) -> list[bytes]:
    rng = Random(1)

    def record() -> str:
        return "".join(f"<f{field}>{rng.randrange(99)}</f{field}>" for field in range(30) if rng.random() < 0.5)

    return [f"<item>{record()}</item>".encode() for _ in range(number)]


def deep(number: int) -> list[bytes]:
    return [("<a>" * depth + "x" + "</a>" * depth).encode() for depth in range(200, 200 - number, -1)]


def new_tags(number: int) -> list[bytes]:
    tags = [range(first, first + 1000) for first in range(0, number * 1000, 1000)]
    return [f"<r>{''.join(f'<t{tag}/>' for tag in some)}</r>".encode() for some in tags]


_FILTERED = ";".join(
    f"S//item->x[./f{i}->y][./f{(i * 7 + 3) % 30}] JOIN {{y = z, INF}} "
    f"S//item[./f{(i + 1) % 30}->z][.//f{(i * 11 + 5) % 30}]"
    for i in range(30)
)
_SHAPES = "S//a->x[./b] JOIN {x = y, INF} S//c[./b = '2']->y; S//a/c/b->x JOIN {x = y, INF} S//a//@k->y"

ATTACKS = {
    "new shapes": Attack(_SHAPES, new_shapes, 5000),
    "fields": Attack(_FILTERED, optional_fields, 5000),
    "200 levels": Attack("S//a->x//a->y JOIN {y = z, INF} S//a//a->z", deep, 20),
    "new tags": Attack("S//r->x[./t5->y] JOIN {y = z, INF} S//r/*->z", new_tags, 1000),
}


def measure_attack(case: AttackCase, number: int = 0, rounds: int = ATTACK_ROUNDS) -> list[Line]:
    """Lines for new and for known documents, with and without the shape cache: seconds and rows of one document. With
    it, the baseline is the evaluator without, and `grown` is how many bytes more than the floor the process needed."""
    attack, limits = ATTACKS[case.attack], LIMITS[case.limits]
    number = number or attack.number
    texts = attack.documents(number)
    batches = [texts[start : start + ATTACK_BATCH] for start in range(0, number, ATTACK_BATCH)]
    with_cache = partial(_new_stage, attack.script, limits)
    without = partial(_new_stage, attack.script, replace(limits, shapes=0))
    made.evaluate(with_cache(), texts[:1])  # warms up the process, which is not part of the case
    harness.parse_floor(texts)
    grown, counters = _kept(with_cache(), batches)
    rows = _check_attack(with_cache(), without(), batches)
    floors, cached, uncached = list[float](), list[tuple[float, float]](), list[tuple[float, float]]()
    for _ in range(rounds):
        floors.append(harness.seconds_of(partial(harness.parse_floor, texts)) / number)
        cached.append(_passes(with_cache(), batches))
        uncached.append(_passes(without(), batches))
    lines = []
    for place, occasion in enumerate(("new", "again")):
        one, other = (statistics.median(taken[place] for taken in of) / number for of in (cached, uncached))
        about = {"documents": case.attack, "limits": case.limits, "number": number, "occasion": occasion}
        line = Line("adversarial", about, None, "cached", one, rows / number, "uncached", other / one)
        line = replace(line, floor=statistics.median(floors), details={"grown": grown, "counters": counters})
        alone = dict.fromkeys(line.details)
        lines += [line, replace(line, plan="uncached", seconds=other, baseline=None, speedup=None, details=alone)]
    return lines


def _new_stage(script: str, limits: Limits) -> XPathStage:
    catalog, stage = Catalog(), XPathStage(limits=limits)
    for query in parse_script(script).queries:
        for conjunct in normalize(query, {}).conjuncts:
            stage.add(catalog.add(conjunct, 1, True)[1])
    return stage


def _passes(stage: XPathStage, batches: Sequence[Sequence[bytes]]) -> tuple[float, float]:
    def evaluate_all() -> None:
        for batch in batches:
            made.evaluate(stage, batch)

    gc.collect()
    gc.freeze()  # as `mmqjp run` does
    new, again = harness.seconds_of(evaluate_all), harness.seconds_of(evaluate_all)
    gc.unfreeze()
    return new, again


def _kept(stage: XPathStage, batches: Sequence[Sequence[bytes]]) -> tuple[int, dict[str, int]]:
    before = _peak()
    for batch in [*batches, *batches]:
        made.evaluate(stage, batch)
    return _peak() - before, stage.counters()


def _check_attack(cached: XPathStage, uncached: XPathStage, batches: Sequence[Sequence[bytes]]) -> int:
    groups: tuple[dict[int, frozenset[StepEdge]], dict[int, frozenset[StepEdge]]] = ({}, {})
    count = 0
    for batch in [*batches, *batches]:
        found = made.evaluate(cached, batch)
        assert rows_of(found, groups[0]) == rows_of(made.evaluate(uncached, batch), groups[1]), "the shape cache errs"
        count += found.r_bin.num_rows
    return count // 2


def _peak() -> int:
    """The peak memory of this process in bytes. On Linux, it is at least that of the parent process."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


_ATTACK_HEADINGS = (
    *("documents", "limits", "number", "rows", "floor, µs", "cached", "uncached", "ratio", "again: cached"),
    *("uncached", "ratio", "MB more", "states", "flushes", "hits", "misses"),
)


def print_attacks(measured: Iterable[Sequence[Line]]) -> None:
    rows = []
    for cached, uncached, cached_again, uncached_again in measured:
        ratios: list[object] = []
        for one, other in ((cached, uncached), (cached_again, uncached_again)):
            ratios += [one.over_floor, other.over_floor, one.seconds / other.seconds]
        about, found = list(cached.case.values())[:3], cast(dict[str, int], cached.details["counters"])
        counters = [found[name] for name in ("states", "flushes", "shape_hits", "shape_misses")]
        floor, more = cached.figure("floor * 1e6"), cached.figure("grown * 1e-6")
        rows.append([*about, cached.rows, floor, *ratios, more, *counters])
    harness.print_rows("stage 1 on documents made to hurt it: ratios to the floor", _ATTACK_HEADINGS, rows, width=160)


def bench_adversarial() -> None:
    parser = harness.bare_parser("adversarial", "stage 1 on documents designed to be slow")
    options = parser.parse_args()
    cases = [AttackCase(attack, limits) for attack in ATTACKS for limits in LIMITS]
    named = harness.with_progress(cases, lambda case: f"{case.attack}, {case.limits} limits")
    measured = [in_fresh_process(measure_attack, case) for case in named]
    print_attacks(measured)
    if options.json:
        harness.write_json([line for lines in measured for line in lines], options.json)
