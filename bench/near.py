"""Near-equal headlines, and similar ones with summaries: queries with near() and similar() beside equality.

Query n joins headlines up to 48 hours and n seconds apart; with summaries, that long apart as all that there is, with
one of 20 thresholds. More are near than equal, and telling them takes time: so near() is also compared with equality
over headlines whose near ones were made equal. Each case has its own process."""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np

from bench.fanout import count_outputs, open_unlimited
from bench.harness import (
    Line,
    beside,
    columns,
    engine_parser,
    in_fresh_process,
    parse_options,
    print_table,
    report,
    with_progress,
)
from bench.plots import COLOURS, Panel, PlotSeries, draw_panels
from bench.workload import HOUR, SECOND, START
from feeds.documents import Document
from join_stage.plans import DEFAULT_PLAN
from mmqjp.engine import Session
from xscl.algebra.near import words
from xscl.algebra.weights import general_weights

COUNT, QUICK_COUNT, BATCH = 15_000, 3_000, 200
NUMBERS, QUICK_NUMBERS = [1, 1_000], [1]
EQUALITY, NEAR, SIMILAR = "equality", ("near 0.6", "near 0.7", "near 0.8"), ("similar 0.12", "similar 0.17")
WINDOW = 48 * HOUR

PER_DAY = 1_000  # generated headlines per day
KEPT, QUICK_KEPT, KEPT_FOR, SUMMARY, CHECKED = 100_000, 3_000, 7 * 24 * HOUR, 24, 100
"""With summaries: the number of headlines, the time in which they come, the words of a summary, and the number of
headlines whose pairs are checked."""
_VOCABULARY, _ZIPF, _SHIFT = 30_000, 1.05, 2.7
"""The number of generated words, and how often each comes: as 1 / (rank + _SHIFT) ** _ZIPF."""
_RETITLED = 0.05  # the share of headlines that are one of the day before, in which up to two words have changed
_ABOUT = "What is known so far, who has said what about it, and what may happen next, as our reporters found it today."


class Headline(NamedTuple):
    text: str
    time: int


def read_headlines(path: Path, most: int) -> list[Headline]:
    """The first headlines of a file with lines of seconds since 1970, a tab, and a headline, in the order of time."""
    with path.open(encoding="utf-8") as lines:
        rows = (line.rstrip("\n").partition("\t") for line in islice(lines, most))
        return [Headline(text, int(seconds) * SECOND) for seconds, _, text in rows]


def made_headlines(count: int, seed: int = 1, *, summaries: bool = False) -> list[Headline]:
    rng, numbers = Random(seed), np.random.default_rng(seed)
    step, more = (KEPT_FOR // count, SUMMARY) if summaries else (24 * HOUR // PER_DAY, 0)
    a_day = 24 * HOUR // step
    vocabulary = _words(rng)
    weights = 1 / (np.arange(1, len(vocabulary) + 1) + _SHIFT) ** _ZIPF
    drawn = iter(numbers.choice(len(vocabulary), size=(16 + 2 * more) * count, p=weights / weights.sum()).tolist())
    found: list[Headline] = []
    for number in range(count):
        if found and rng.random() < _RETITLED:
            text = found[-rng.randrange(1, min(number, a_day) + 1)].text.split()
            for _ in range(rng.choice((0, 1, 1, 2)) + more // 2):
                text[rng.randrange(len(text))] = vocabulary[next(drawn)]
        else:
            length = max(4, min(14, round(rng.gauss(10, 2)))) + more
            text = [vocabulary[word] for word in islice(drawn, length)]
        found.append(Headline(" ".join(text), START + number * step))
    return found


def _words(rng: Random) -> list[str]:
    syllables = [start + vowel + end for start in "bcdfghklmnprstvw" for vowel in "aeiou" for end in ("", *"nrst")]
    found: dict[str, None] = {}
    while len(found) < _VOCABULARY:
        found["".join(rng.choices(syllables, k=rng.choice((1, 2, 2, 3, 3, 4))))] = None
    return sorted(found, key=lambda word: len(word) + rng.gauss(0, 2))


def headline_items(headlines: Sequence[Headline]) -> Iterator[Document]:
    for number, (text, time) in enumerate(headlines):
        link = f"https://news.example/stories/{number}"
        xml = (
            f"<item><channel_url>https://news.example/</channel_url><title>{escape(text)}</title><link>{link}</link>"
            f"<guid>{link}</guid><description>{_ABOUT}</description></item>"
        )
        yield Document(f"d{number}", xml, time=time)


HeadlinePairs = set[tuple[int, int]]


@dataclass(frozen=True)
class NearCase:
    """Queries over `count` headlines, of a file if one is given. Those near by the condition `alike` are made equal."""

    condition: str
    queries: int
    count: int = COUNT
    file: Path | None = None
    engine: str = "duckdb"
    plan: str = DEFAULT_PLAN
    alike: str | None = None
    summaries: bool = False

    @property
    def window(self) -> int:
        return KEPT_FOR if self.summaries else WINDOW

    def script(self) -> str:
        kinds = [(number, number % 20 if self.summaries else number) for number in range(self.queries)]
        return "".join(
            f"SELECT t1, t2 FROM S//item->a[./title->t1] FOLLOWED BY {{{self.holds(n)}, {self.window // SECOND + n} s}}"
            f" S//item->b[./title->t2] PUBLISH n{number};\n"
            for number, n in kinds
        )

    def holds(self, number: int) -> str:
        if self.condition == EQUALITY:
            return "lower-case(t1) = lower-case(t2)"
        name, threshold = self.condition.split()
        return f"{name}(t1, t2, {float(threshold) + self.summaries * number / 50:.2f})"

    def headlines(self) -> list[Headline]:
        if self.file is not None:
            return read_headlines(self.file, self.count)
        return made_headlines(self.count, summaries=self.summaries)


def measure_near(case: NearCase) -> Line:
    headlines = case.headlines()
    if case.alike is not None:
        headlines = equalised_headlines(headlines, replace(case, condition=case.alike, queries=1))
    with open_unlimited(case.engine, case.plan) as engine:
        seconds, count = count_outputs(engine, case.script(), list(headline_items(headlines)), BATCH)
        found, compared = _pairs(engine), _compared(engine)
    some = sorted(Random(1).sample(range(len(headlines)), min(CHECKED, len(headlines))))
    some = some if case.summaries else [*range(len(headlines))]
    wanted = {pair for pair in found if pair[1] in set(some)}
    expected = expected_pairs(headlines, case.condition, case.window, some)
    assert wanted == expected, f"{case.condition}: other pairs than sets give"
    details: dict[str, object] = {"headlines_a_second": len(headlines) / seconds, "pairs": len(found)}
    if case.condition != EQUALITY and compared is not None:
        details["compared"] = compared / len(headlines)
    about: dict[str, str | int] = {"condition": case.condition, "queries": case.queries, "headlines": len(headlines)}
    about |= {} if case.alike is None else {"alike": case.alike}
    about |= {"source": "made" if case.file is None else case.file.name}
    return Line("near", about, case.engine, case.plan, seconds, count, details=details)


def _pairs(engine: Session) -> HeadlinePairs:
    rows = engine.sql("SELECT documents FROM outputs WHERE query = 'n0'", trusted=True)["documents"].to_pylist()
    return {(int(one[1:]), int(other[1:])) for one, other in rows}


def _compared(engine: Session) -> int | None:
    """The number of pairs of texts that were compared, if an index found them."""
    near = getattr(engine._store.plan, "_near", None)
    return None if near is None or not near.is_indexed else near.compared


def expected_pairs(
    headlines: Sequence[Headline], condition: str, window: int = WINDOW, some: Iterable[int] | None = None
) -> HeadlinePairs:
    """The pairs within the window that are near, or equal but for case: each headline, or some, compared with all
    before it."""
    found: HeadlinePairs = set()
    name, _, threshold = condition.partition(" ")
    top, bottom = Fraction(threshold or 1).as_integer_ratio()
    sets = [frozenset([text.lower()]) if name == EQUALITY else words(text) for text, _ in headlines]
    weight = general_weights().weight if name == "similar" else lambda word: 1
    masses = [sum(map(weight, one)) for one in sets]
    for number in range(len(sets)) if some is None else some:
        one, at = sets[number], headlines[number].time
        for earlier in range(number - 1, -1, -1):
            if headlines[earlier].time < at - window:
                break
            if (shared := one & sets[earlier]) and headlines[earlier].time < at:
                common = sum(map(weight, shared))
                if common * bottom >= top * (masses[number] + masses[earlier] - common):
                    found.add((earlier, number))
    return found


def equalised_headlines(headlines: Sequence[Headline], case: NearCase) -> list[Headline]:
    """Headlines for which equality finds about as many pairs: one that is near an earlier one gets its text. With
    summaries, nearly all would get one text, so groups of equal size do."""
    if case.summaries:
        some = Random(1).sample(range(len(headlines)), min(CHECKED, len(headlines)))
        size = 1 + 2 * len(expected_pairs(headlines, case.condition, case.window, some)) / len(some)
        places = Random(2).sample(range(len(headlines)), len(headlines))
        return [one._replace(text=headlines[int(at // size)].text) for one, at in zip(headlines, places, strict=True)]
    with open_unlimited(case.engine, case.plan) as engine:
        count_outputs(engine, case.script(), list(headline_items(headlines)), BATCH)
        pairs = _pairs(engine)
    first = list(range(len(headlines)))
    for one, other in sorted(pairs):
        first[other] = min(first[one], first[other])
    return [headline._replace(text=headlines[first[number]].text) for number, headline in enumerate(headlines)]


def beside_equality(lines: Sequence[Line]) -> list[Line]:
    """The lines with near() beside those of as many queries with equality, also where what is near was made equal."""
    alike = {(line.case["queries"], line.case["alike"]): line.seconds for line in lines if "alike" in line.case}

    compared = []
    for line in beside(
        lines,
        lambda line: (line.case["queries"], line.case["headlines"], line.case.get("alike")),
        lambda line: line.case["condition"] == EQUALITY,
        EQUALITY,
    ):
        seconds = alike.get((line.case["queries"], line.case["condition"]))
        if line.baseline and seconds is not None:
            line = replace(line, details={**line.details, "of_alike": seconds / line.seconds})
        compared.append(line)
    return compared


KEYWORDS = 200


def measure_keywords(count: int) -> list[Line]:
    """Filters of headlines by keywords: queries with a word each, and one query with all words."""
    headlines = made_headlines(count)
    words_of = [words(text) for text, _ in headlines]
    keywords = sorted(set().union(*words_of))[: 10 * KEYWORDS : 10]
    tests = [f'has-words(./title, "{word}")' for word in keywords]
    scripts = {
        "one query": f"S//item[{' or '.join(tests)}] PUBLISH n",
        f"{len(tests)} queries": "; ".join(f"S//item[{test}] PUBLISH n{n}" for n, test in enumerate(tests)),
    }
    common = [len(of.intersection(keywords)) for of in words_of]
    expected = {"one query": sum(map(bool, common))}
    lines = []
    for name, script in scripts.items():
        with open_unlimited("duckdb", DEFAULT_PLAN) as engine:
            seconds, found = count_outputs(engine, script, list(headline_items(headlines)), BATCH)
        assert found == expected.get(name, sum(common)), f"{name}: other headlines than sets of words give"
        lines.append(Line("keywords", {"words": name}, "duckdb", DEFAULT_PLAN, seconds, found))
    return beside(lines, lambda line: (), lambda line: line.case["words"] == "one query", "one query", "over")


KEYWORD_COLUMNS = columns("words | outputs = rows | seconds | times one query = over")

NEAR_COLUMNS = columns(
    "condition | queries | headlines | pairs | outputs = rows | compared | headlines/s = headlines_a_second | "
    "of equality = speedup | of as many = of_alike",
    condition=lambda line: ("{condition}, {alike} made equal" if "alike" in line.case else "{condition}").format_map(
        line.case
    ),
)


def draw_near(lines: Sequence[Line], prefix: Path) -> None:
    rates = []
    named = [replace(line, case={**line.case, "x": line.case.get("alike", line.case["condition"])}) for line in lines]
    for colour, queries in zip(COLOURS, dict.fromkeys(line.case["queries"] for line in lines), strict=False):
        label = "one query" if queries == 1 else f"{queries:,} queries"
        for alike, style, more in ((False, "D-", ""), (True, "s:", ", near ones made equal")):
            of = [line for line in named if line.case["queries"] == queries and ("alike" in line.case) == alike]
            rates.append(PlotSeries(label + more, "headlines_a_second", style, colour, of))
    first = [line for line in lines if line.case["queries"] == lines[0].case["queries"] and "compared" in line.details]
    panels = [
        Panel("x", "condition", "headlines a second of CPU", rates, ""),
        Panel(
            "condition",
            "condition",
            "earlier headlines compared with each",
            [PlotSeries("", "compared", lines=first)],
            "",
        ),
    ]
    draw_panels(lines, prefix, panels)


def near_cases(options: Namespace) -> Iterator[NearCase]:
    count = options.count or (QUICK_COUNT if options.quick else COUNT)
    kept = options.count or (QUICK_KEPT if options.quick else KEPT)
    for number in options.queries or (QUICK_NUMBERS if options.quick else NUMBERS):
        for conditions, summaries in ((NEAR, False), (SIMILAR, True)):
            about = {"file": options.headlines, "engine": options.engine, "plan": options.plan or DEFAULT_PLAN}
            case = NearCase(EQUALITY, number, kept if summaries else count, summaries=summaries, **about)
            yield case
            yield from (replace(case, condition=condition) for condition in conditions)
            yield from (replace(case, alike=condition) for condition in conditions)


def bench_near() -> None:
    parser = engine_parser("near", "near-equal headlines beside equal ones")
    parser.add_argument("--headlines", type=Path, metavar="FILE", help="lines of seconds, a tab and a headline")
    parser.add_argument("--count", type=int, metavar="N", help=f"number of headlines; default: {COUNT:,}")
    options = parse_options(parser)
    if options.headlines is not None and not options.headlines.is_file():
        parser.error(f"there is no file {str(options.headlines)!r}")
    cases, count = list(near_cases(options)), options.count or (QUICK_COUNT if options.quick else COUNT)
    lines = beside_equality([in_fresh_process(measure_near, case) for case in with_progress(cases)])
    report(lines, f"near-equal headlines, {options.engine}", NEAR_COLUMNS, options, draw_near)
    print_table(in_fresh_process(measure_keywords, count), "keywords in filters", KEYWORD_COLUMNS)
