"""Stage 1 alone, from bytes to witness relations, as a ratio to parsing the same documents with lxml.

    mmqjp bench stage1 [--quick] [--csv FILE] [--json FILE] [--plot PREFIX]
    mmqjp bench adversarial [--json FILE]

Each case runs in its own process. The floor is `lxml.etree.fromstring` and a walk that reads the tags. Measured in
turns with it are the evaluator with and without its shape cache; lxml with one compiled XPath per path, which gives the
bindings; Saxon with the same XPaths, if it is installed; and elementpath. The last three are measured for few patterns
only, on some of the documents. Before a time is reported, a sample of the patterns is checked against exact matching,
and the witnesses with the shape cache against those without.

`adversarial` has documents designed to be slow, when they are new and when they are repeated, with the default limits
and with small ones. On any documents, the evaluator with its shape cache should take at most three times as long as
without.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random

import elementpath
from lxml import etree

from bench import registration
from bench.harness import (
    Line,
    Way,
    benchmark_parser,
    in_fresh_process,
    in_turns,
    output_file,
    parse_floor,
    parse_options,
    print_rows,
    ratio,
    seconds_of,
    with_progress,
    write_json,
    write_rows,
)
from bench.plots import Panel, PlotSeries, draw_panels
from bench.stage1_workload import (
    DOCUMENT_KINDS,
    LARGE,
    STREAM,
    VOCABULARIES,
    WitnessCounts,
    WitnessSets,
    check_side,
    evaluate,
    patterns,
    rows_of,
    stage1_documents,
    xpaths,
)
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
    """`kind` of documents, distinct patterns, the shares of them with an existential filter and with a value filter or
    an attribute."""

    kind: str
    patterns: int
    filters: float
    values: float


@dataclass(frozen=True)
class Stage1Measurement:
    """A row of --csv: microseconds a document for the floor, medians of the rounds' ratios to it for the rest; None
    where it was not measured.

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

    def lines(self) -> Iterator[Line]:
        """A line with the shape cache and one without, with seconds and rows of one document."""
        case = {"documents": self.kind, "patterns": self.patterns, "filters": self.filters, "values": self.values}
        floor, other = self.floor_us / 1e6, self.lxml_xpath
        for plan, over in (("cached", self.cached), ("uncached", self.uncached)):
            baseline, faster = (None, None) if other is None else ("lxml_xpath", other / over)
            yield Line("stage1", case, None, plan, over * floor, self.rows, baseline, faster, floor)


@dataclass
class _Loaded:
    """The evaluator with its shape cache, and without, for the same patterns; and the seconds of registration."""

    catalog: Catalog
    placed: list[tuple[Conjunct, Placement]]
    cached: XPathStage
    uncached: XPathStage
    seconds: float


def measure_stage1(case: Stage1Case, texts: Sequence[bytes], rounds: int) -> Stage1Measurement:
    """Measures a case. Raises AssertionError if witnesses are not what exact matching says."""
    evaluate(_load(replace(case, patterns=1)).cached, texts[:1])  # warms up the process, which is not part of the case
    loaded = _load(case)
    first = seconds_of(partial(evaluate, loaded.cached, texts[:1]))
    witnesses = _check(loaded, case.kind, texts)
    ways: dict[str, Way] = {
        "floor": partial(parse_floor, texts),
        "cached": partial(evaluate, loaded.cached, texts),
        "uncached": partial(evaluate, loaded.uncached, texts),
    }
    taken = in_turns(ways, rounds)
    paths, others = baselines(case.kind, [conjunct for conjunct, _ in loaded.placed], texts[:_FEW])
    compared = in_turns({"floor": partial(parse_floor, texts[:_FEW]), **others}, rounds) if others else {}
    over = {name: ratio(seconds, compared["floor"]) for name, seconds in compared.items()}
    return Stage1Measurement(
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


def _load(case: Stage1Case) -> _Loaded:
    conjuncts = patterns(VOCABULARIES[case.kind], case.patterns, case.filters, case.values)
    catalog, cached, uncached = Catalog(), XPathStage(), XPathStage(limits=Limits(shapes=0))
    placed: list[tuple[Conjunct, Placement]] = []
    changes: list[Change] = []

    def register() -> None:
        for conjunct in conjuncts:
            placement, change = catalog.add(conjunct, 1, True)
            cached.add(change)
            placed.append((conjunct, placement))
            changes.append(change)

    seconds = seconds_of(register)
    for change in changes:
        uncached.add(change)
    return _Loaded(catalog, placed, cached, uncached, seconds)


def _check(loaded: _Loaded, kind: str, texts: Sequence[bytes]) -> Witnesses:
    """Compares the witnesses of both, and those of a sample with exact matching."""
    (witnesses, one), (_, other) = (_with_groups(stage, texts) for stage in (loaded.cached, loaded.uncached))
    assert one == other
    sample = list(stage1_documents(kind, 3, size=5000)) if kind in LARGE else texts[:_SAMPLE]
    found = WitnessSets(_with_groups(loaded.cached, sample)[0], {})
    step = max(1, len(loaded.placed) // _SAMPLE)
    trees = map(parse_document, sample)
    for document in (StreamDocument(i, STREAM, 0, 0, tree) for i, tree in enumerate(trees)):
        for conjunct, placement in loaded.placed[::step]:
            check_side(loaded.catalog, conjunct, placement, 0, document, found)
    return witnesses


def _with_groups(stage: XPathStage, texts: Iterable[bytes]) -> tuple[Witnesses, WitnessCounts]:
    """The witnesses, all groups with them, and their rows without the groups' numbers."""
    stage.finish_batch(committed=False)  # so that it hands out all groups again
    witnesses = evaluate(stage, texts)
    return witnesses, rows_of(witnesses, {})


# ---------------------------------------------------------------- baselines

_PARSER = xml_parser(elements_only=True)


def baselines(kind: str, conjuncts: Sequence[Conjunct], texts: Sequence[bytes]) -> tuple[int | None, dict[str, Way]]:
    """The number of XPaths that give the bindings of all patterns, and the libraries that can evaluate as many."""
    most = {
        "lxml_xpath": 1000,
        "saxon": 100 if find_spec("saxonche") else 0,
        "elementpath": 0 if kind in LARGE else 10,
    }
    fit = [name for name, number in most.items() if len(conjuncts) <= number]
    if not fit:
        return None, {}
    paths, namespaces = xpaths(conjuncts)
    return len(paths), {name: _BASELINES[name](paths, namespaces, texts) for name in fit}


def _lxml_xpath(paths: Sequence[str], namespaces: dict[str, str], texts: Sequence[bytes]) -> Way:
    compiled = [etree.XPath(path, namespaces=namespaces) for path in paths]

    def run() -> None:
        for text in texts:
            root = etree.fromstring(text, _PARSER)
            for path in compiled:
                path(root)

    return run


def _elementpath(paths: Sequence[str], namespaces: dict[str, str], texts: Sequence[bytes]) -> Way:
    selectors = [elementpath.Selector(path, namespaces=namespaces) for path in paths]

    def run() -> None:
        for text in texts:
            tree = etree.fromstring(text, _PARSER).getroottree()
            for selector in selectors:
                selector.select(tree)

    return run


def _saxon(paths: Sequence[str], namespaces: dict[str, str], texts: Sequence[bytes]) -> Way:
    from saxonche import PySaxonProcessor  # installed only for the benchmark

    processor = PySaxonProcessor(license=False)  # a new one each time: what an old one collected slows it down
    evaluator = processor.new_xpath_processor()
    for prefix, uri in namespaces.items():
        evaluator.declare_namespace(prefix, uri)
    evaluator.set_caching(True)  # its way to keep compiled XPaths

    def run() -> None:
        for text in texts:
            evaluator.set_context(xdm_item=processor.parse_xml(xml_text=text.decode()))
            for path in paths:
                evaluator.evaluate(path)

    return run


_BASELINES: dict[str, Callable[[Sequence[str], dict[str, str], Sequence[bytes]], Way]] = {
    "lxml_xpath": _lxml_xpath,
    "saxon": _saxon,
    "elementpath": _elementpath,
}


# ---------------------------------------------------------------- the report and the command

_HEADINGS = (
    *("documents", "patterns", "filters", "values", "floor, µs", "cached", "uncached", "rows", "first, ms"),
    *("register, µs", "XPaths", "lxml", "Saxon", "elementpath"),
)


def print_stage1(measured: Iterable[Stage1Measurement]) -> None:
    rows = [[m.kind, m.patterns, f"{m.filters:.0%}", f"{m.values:.0%}", *[*asdict(m).values()][4:]] for m in measured]
    print_rows("stage 1: ratios to parsing and visiting the same documents", _HEADINGS, rows, width=160)


def draw_stage1(measured: Sequence[Stage1Measurement], prefix: Path) -> None:
    """Draws a column for each kind of documents: all ways above, stage 1 alone below."""
    lines = [Line("stage1", asdict(m), None, None, 0.0, 0, details=asdict(m)) for m in measured]
    mixes = {(m.filters, m.values): None for m in measured}
    kinds = list(dict.fromkeys(m.kind for m in measured))
    panels = []
    for others in (True, False):
        for kind in kinds:
            series = []
            for mix, colour in zip(mixes, ("tab:blue", "tab:orange", "tab:green"), strict=False):
                of = [
                    line
                    for line in lines
                    if (line.case["kind"], line.case["filters"], line.case["values"]) == (kind, *mix)
                ]
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


def stage1_cases(kinds: Iterable[str], sizes: Sequence[int], mixes: Sequence[tuple[float, float]]) -> list[Stage1Case]:
    """All cases, those of one kind of documents together."""
    return [Stage1Case(kind, size, *mix) for kind in kinds for mix in mixes for size in sizes]


def bench_stage1() -> None:
    description = "measures stage 1 alone, as a ratio to parsing and visiting the same documents"
    parser = benchmark_parser("stage1", description)
    parser.add_argument("--documents", help=f"kinds of documents, separated by commas: {', '.join(DOCUMENT_KINDS)}")
    options = parse_options(parser)
    kinds = options.documents.split(",") if options.documents else DOCUMENT_KINDS
    for kind in kinds:
        if kind not in DOCUMENT_KINDS:
            parser.error(f"no documents are called {kind!r}; there are {', '.join(DOCUMENT_KINDS)}")
    if not find_spec("saxonche"):
        print("Saxon is not measured: pip install saxonche", file=sys.stderr)
    sizes, mixes = (QUICK_SIZES, QUICK_MIXES) if options.quick else (SIZES, MIXES)
    cases = with_progress(
        stage1_cases(kinds, options.queries or sizes, mixes), lambda case: f"{case.kind}, {case.patterns:,} patterns"
    )
    # The heap of earlier cases makes a later one up to a tenth slower, so each runs in its own process.
    measured = [in_fresh_process(_measure_stage1_case, case) for case in cases]
    print_stage1(measured)
    if options.csv:
        write_rows([asdict(m) for m in measured], options.csv)
    if options.json:
        write_json([line for m in measured for line in m.lines()], options.json)
    if options.plot:
        draw_stage1(measured, options.plot)
    if not options.documents:
        registration.report_registration()


def _measure_stage1_case(case: Stage1Case) -> Stage1Measurement:
    return measure_stage1(case, list(stage1_documents(case.kind, 1 if case.kind in LARGE else 1000)), ROUNDS)


# ---------------------------------------------------------------- adversarial

ATTACK_ROUNDS, ATTACK_BATCH = 5, 500
LIMITS = {"default": DEFAULT, "small": Limits(states=1000, classes=1000, emissions=1000, shapes=100)}


@dataclass(frozen=True)
class Attack:
    """Queries, and a function that builds documents that are slow to match with them."""

    script: str
    documents: Callable[[int], list[bytes]]
    number: int


@dataclass(frozen=True)
class AttackCase:
    """One of `ATTACKS` with some of `LIMITS`."""

    attack: str
    limits: str


@dataclass(frozen=True)
class AttackMeasurement:
    """The floor in microseconds per document, and the ratios to it of the evaluator with and without its shape cache,
    for documents that are new to it and for the same ones again; then what the one with the cache has counted.

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

    def lines(self) -> Iterator[Line]:
        """A line for each evaluator and occasion, with seconds and rows of one document.

        With the shape cache, the baseline is the evaluator without it, and memory and counters are included.
        """
        floor = self.floor_us / 1e6
        for occasion, plan, over, uncached in (
            ("new", "cached", self.cached_new, self.uncached_new),
            ("new", "uncached", self.uncached_new, None),
            ("again", "cached", self.cached_again, self.uncached_again),
            ("again", "uncached", self.uncached_again, None),
        ):
            case = {"documents": self.attack, "limits": self.limits, "number": self.documents, "occasion": occasion}
            details: dict[str, object] = {"grown": self.grown, "counters": self.counters}
            baseline, faster = ("uncached", uncached / over) if uncached else (None, None)
            yield Line(
                "adversarial", case, None, plan, over * floor, self.rows, baseline, faster, floor,
                details=details if uncached else dict.fromkeys(details),
            )  # fmt: skip


def new_shapes(number: int) -> list[bytes]:
    """Documents of different shapes: each of 13 places has one of two similar parts."""
    parts = ("<b k='1'/>", "<c>1<b>2</b></c>")
    return [f"<a>{''.join(parts[one >> place & 1] for place in range(13))}</a>".encode() for one in range(number)]


def optional_fields(number: int) -> list[bytes]:
    """Records with a random half of 30 fields."""
    rng = Random(1)

    def record() -> str:
        return "".join(f"<f{field}>{rng.randrange(99)}</f{field}>" for field in range(30) if rng.random() < 0.5)

    return [f"<item>{record()}</item>".encode() for _ in range(number)]


def deep(number: int) -> list[bytes]:
    """Up to 200 nested elements, one fewer in each document."""
    return [("<a>" * depth + "x" + "</a>" * depth).encode() for depth in range(200, 200 - number, -1)]


def new_tags(number: int) -> list[bytes]:
    """Documents with a thousand tags each that no other document has."""
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


def measure_attack(case: AttackCase, number: int, rounds: int) -> AttackMeasurement:
    """Measures a case with `number` documents. Raises AssertionError if the shape cache changes the witnesses."""
    attack, limits = ATTACKS[case.attack], LIMITS[case.limits]
    texts = attack.documents(number)
    batches = [texts[start : start + ATTACK_BATCH] for start in range(0, number, ATTACK_BATCH)]
    with_cache = partial(_new_stage, attack.script, limits)
    without = partial(_new_stage, attack.script, replace(limits, shapes=0))
    evaluate(with_cache(), texts[:1])  # warms up the process, which is not part of the case
    parse_floor(texts)
    grown, counters = _kept(with_cache(), batches)
    rows = _check_attack(with_cache(), without(), batches)
    taken = [
        [seconds_of(partial(parse_floor, texts)), *_passes(with_cache(), batches), *_passes(without(), batches)]
        for _ in range(rounds)
    ]
    floor, *others = map(statistics.median, zip(*taken, strict=True))
    cached_new, cached_again, uncached_new, uncached_again = (other / floor for other in others)
    return AttackMeasurement(
        case.attack, case.limits, number, rows / number, floor / number * 1e6, cached_new, uncached_new, cached_again,
        uncached_again, grown, counters,
    )  # fmt: skip


def _new_stage(script: str, limits: Limits) -> XPathStage:
    """An evaluator that has seen no document."""
    catalog, stage = Catalog(), XPathStage(limits=limits)
    for query in parse_script(script).queries:
        for conjunct in normalize(query, {}).conjuncts:
            stage.add(catalog.add(conjunct, 1, True)[1])
    return stage


def _passes(stage: XPathStage, batches: Sequence[Sequence[bytes]]) -> tuple[float, float]:
    """The seconds for documents that are new to the evaluator, and for the same ones again."""

    def evaluate_all() -> None:
        for batch in batches:
            evaluate(stage, batch)

    gc.collect()
    gc.freeze()  # as `mmqjp run` does
    new, again = seconds_of(evaluate_all), seconds_of(evaluate_all)
    gc.unfreeze()
    return new, again


def _kept(stage: XPathStage, batches: Sequence[Sequence[bytes]]) -> tuple[int, dict[str, int]]:
    """The bytes by which the process grows when it sees the documents twice, and then the evaluator's counters."""
    before = _peak()
    for batch in [*batches, *batches]:
        evaluate(stage, batch)
    return _peak() - before, stage.counters()


def _check_attack(cached: XPathStage, uncached: XPathStage, batches: Sequence[Sequence[bytes]]) -> int:
    """Compares the witnesses of both evaluators, twice. Returns their number."""
    groups: tuple[dict[int, frozenset[StepEdge]], dict[int, frozenset[StepEdge]]] = ({}, {})
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


_ATTACK_HEADINGS = (
    *("documents", "limits", "number", "rows", "floor, µs", "cached", "uncached", "ratio", "again: cached"),
    *("uncached", "ratio", "MB more", "states", "flushes", "hits", "misses"),
)


def print_attacks(measured: Iterable[AttackMeasurement]) -> None:
    rows = []
    for m in measured:
        new, again = (m.cached_new, m.uncached_new), (m.cached_again, m.uncached_again)
        ratios = (*new, new[0] / new[1], *again, again[0] / again[1])
        counters = [m.counters[name] for name in ("states", "flushes", "shape_hits", "shape_misses")]
        rows.append([m.attack, m.limits, m.documents, m.rows, m.floor_us, *ratios, m.grown / 1e6, *counters])
    print_rows("stage 1 on documents made to hurt it: ratios to the floor", _ATTACK_HEADINGS, rows, width=160)


def bench_adversarial() -> None:
    parser = argparse.ArgumentParser(
        prog="mmqjp bench adversarial", description="measures stage 1 on documents designed to be slow"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write JSON lines, one for each measurement")
    options = parser.parse_args()
    cases = [AttackCase(attack, limits) for attack in ATTACKS for limits in LIMITS]
    named = with_progress(cases, lambda case: f"{case.attack}, {case.limits} limits")
    measured = [in_fresh_process(_measure_attack_case, case) for case in named]
    print_attacks(measured)
    if options.json:
        write_json([line for m in measured for line in m.lines()], options.json)


def _measure_attack_case(case: AttackCase) -> AttackMeasurement:
    return measure_attack(case, ATTACKS[case.attack].number, ATTACK_ROUNDS)
