"""Near-equal headlines: queries with near() beside the same queries with equality.

Query n joins headlines up to 48 hours and n seconds apart. More are near than equal, and telling them takes time: so
near() is also compared with equality over headlines whose near ones were made equal. Each case has its own process."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np
import pyarrow as pa

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
from join_stage import near_candidates
from join_stage.near_candidates import LONGEST_FIRST, WordOrder
from join_stage.plans import DEFAULT_PLAN
from templates.witness import MANY, R_DOC
from xscl.algebra.near import encode_words, word_level, words

COUNT, QUICK_COUNT, BATCH = 15_000, 3_000, 200
NUMBERS, QUICK_NUMBERS = [1, 1_000], [1]
EQUALITY, THRESHOLDS = "equality", ("0.6", "0.7", "0.8")
MEASURED = [(EQUALITY, None), *((one, None) for one in THRESHOLDS), *((EQUALITY, one) for one in THRESHOLDS)]
"""The conditions, each with the threshold by which headlines are made equal before."""
WINDOW = 48 * HOUR

PER_DAY = 1_000  # generated headlines per day
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


def made_headlines(count: int, seed: int = 1) -> list[Headline]:
    rng, numbers = Random(seed), np.random.default_rng(seed)
    vocabulary = _words(rng)
    weights = 1 / (np.arange(1, len(vocabulary) + 1) + _SHIFT) ** _ZIPF
    drawn = iter(numbers.choice(len(vocabulary), size=16 * count, p=weights / weights.sum()).tolist())
    found: list[Headline] = []
    for number in range(count):
        if found and rng.random() < _RETITLED:
            text = found[-rng.randrange(1, min(number, PER_DAY) + 1)].text.split()
            for _ in range(rng.choice((0, 1, 1, 2))):
                text[rng.randrange(len(text))] = vocabulary[next(drawn)]
        else:
            length = max(4, min(14, round(rng.gauss(10, 2))))
            text = [vocabulary[word] for word in islice(drawn, length)]
        found.append(Headline(" ".join(text), START + number * 24 * HOUR // PER_DAY))
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
    """Queries over `count` headlines, of a file if one is given. Those near by the threshold `alike` are made equal."""

    condition: str
    queries: int
    count: int = COUNT
    file: Path | None = None
    engine: str = "duckdb"
    plan: str = DEFAULT_PLAN
    alike: str | None = None

    def script(self) -> str:
        equal = self.condition == EQUALITY
        holds = "lower-case(t1) = lower-case(t2)" if equal else f"near(t1, t2, {self.condition})"
        return "".join(
            f"SELECT t1, t2 FROM S//item->a[./title->t1] FOLLOWED BY {{{holds}, {WINDOW // SECOND + n} s}}"
            f" S//item->b[./title->t2] PUBLISH n{n};\n"
            for n in range(self.queries)
        )


def measure_near(case: NearCase) -> Line:
    headlines = made_headlines(case.count) if case.file is None else read_headlines(case.file, case.count)
    headlines = headlines if case.alike is None else equalised_headlines(headlines, case.alike)
    with open_unlimited(case.engine, case.plan) as engine:
        seconds, count = count_outputs(engine, case.script(), list(headline_items(headlines)), BATCH)
        rows = engine.sql("SELECT documents FROM outputs WHERE query = 'n0'", trusted=True)["documents"].to_pylist()
        found = {(int(one[1:]), int(other[1:])) for one, other in rows}
        assert found == expected_pairs(headlines, case.condition), f"{case.condition}: other pairs than sets give"
        frequent = engine.sql("SELECT frequent FROM word_order ORDER BY version DESC LIMIT 1", trusted=True)
    details: dict[str, object] = {"headlines_a_second": len(headlines) / seconds, "pairs": len(found)}
    if case.condition != EQUALITY:
        details["sharing_longest"], _, details["keys"] = candidates(headlines, case.condition, LONGEST_FIRST)
        if frequent.num_rows:
            order = WordOrder(np.array(frequent["frequent"][0].as_py(), np.int64))
            details["sharing"], details["compared"], details["keys"] = candidates(headlines, case.condition, order)
    about: dict[str, str | int] = {"condition": case.condition, "queries": case.queries, "headlines": len(headlines)}
    about |= {} if case.alike is None else {"alike": case.alike}
    about |= {"source": "made" if case.file is None else case.file.name}
    return Line("near", about, case.engine, case.plan, seconds, count, details=details)


def expected_pairs(headlines: Sequence[Headline], condition: str) -> HeadlinePairs:
    """The pairs within the window that are near, or equal but for case: each headline compared with all before it."""
    found: HeadlinePairs = set()
    equal = condition == EQUALITY
    threshold = Fraction(1 if equal else condition)
    top, bottom = threshold.numerator, threshold.denominator
    sets = [frozenset([text.lower()]) if equal else words(text) for text, _ in headlines]
    first = 0
    for number, (one, (_, at)) in enumerate(zip(sets, headlines, strict=True)):
        while headlines[first].time < at - WINDOW:
            first += 1
        for earlier in range(first, number):
            other = sets[earlier]
            common = len(one & other)
            near = common and common * bottom >= top * (len(one) + len(other) - common)
            if near and headlines[earlier].time < at:
                found.add((earlier, number))
    return found


def equalised_headlines(headlines: Sequence[Headline], threshold: str) -> list[Headline]:
    """Headlines, of which those that are near an earlier one have its text. So equality finds about as many pairs."""
    first = list(range(len(headlines)))
    for one, other in sorted(expected_pairs(headlines, threshold)):
        first[other] = min(first[one], first[other])
    return [headline._replace(text=headlines[first[number]].text) for number, headline in enumerate(headlines)]


def candidates(headlines: Sequence[Headline], threshold: str, order: WordOrder) -> tuple[float, float, float]:
    """How many headlines within the window have a key in common with one; with how many of these its words are
    compared, because the numbers of words and the bits of both leave it open; and how many keys it has, on average."""
    texts = [encode_words(text, word_level("near", threshold)) for text, _ in headlines]
    some = [number for number, text in enumerate(texts) if text]
    read = near_candidates.numbered_texts([texts[number] for number in some])
    place, word = near_candidates.first_words(read, order)
    keys = defaultdict(list)
    for at, key in zip(place.tolist(), read.numbers[word].tolist(), strict=True):
        keys[some[at]].append(key)
    with_key, pairs = defaultdict[int, list[int]](list), list[tuple[int, int]]()
    for number in some:
        since = headlines[number].time - WINDOW
        met: set[int] = set()
        for key in keys[number]:
            others = with_key[key] = [other for other in with_key[key] if headlines[other].time >= since]
            met.update(others)
            others.append(number)
        pairs += ((number, other) for other in met)
    count = len(headlines)
    return len(pairs) / count, _compared(read, some, pairs) / count, len(place) / count


def _compared(texts: near_candidates.NumberedTexts, numbers: Sequence[int], pairs: Sequence[tuple[int, int]]) -> int:
    sets, nodes = near_candidates.WordSets(), [MANY] * len(numbers)
    columns = {"docid": numbers, "node": nodes, "strval": [""] * len(numbers), "stream": ["S"] * len(numbers)}
    sets.add(pa.table(columns, R_DOC), texts)
    docids = np.array(numbers, np.int64)
    ends = np.searchsorted(docids, np.array(pairs, np.int64).reshape(-1, 2))
    known = near_candidates.TextIds(docids, np.array(nodes, np.int64))
    sets.are_near(known.at(ends[:, 0]), known.at(ends[:, 1]))
    return sets.pairs


def beside_equality(lines: Sequence[Line]) -> list[Line]:
    """The lines with near() beside those of as many queries with equality, also where what is near was made equal."""
    alike = {(line.case["queries"], line.case["alike"]): line.seconds for line in lines if "alike" in line.case}

    compared = []
    for line in beside(
        lines,
        lambda line: (line.case["queries"], line.case.get("alike")),
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
    "condition | queries | headlines | pairs | outputs = rows | keys | sharing keys, longest first = sharing_longest | "
    "sharing keys = sharing | compared | headlines/s = headlines_a_second | of equality = speedup | "
    "of as many = of_alike",
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
    first = [line for line in lines if line.case["queries"] == lines[0].case["queries"] and "keys" in line.details]
    found = []
    for name, label in (
        ("sharing_longest", "with a key in common, longest words first"),
        ("sharing", "rarest words first"),
        ("compared", "words compared"),
    ):
        if of := [line for line in first if name in line.details]:
            found.append(PlotSeries(label, name, lines=of))
    most = max((line.number("sharing_longest") for line in first), default=1.0)
    limits = {"ylim": (0, 1.5 * most)}
    panels = [
        Panel("x", "condition", "headlines a second of CPU", rates, ""),
        Panel("condition", "threshold", "earlier headlines for each", found, "", legend=True, axes=limits),
    ]
    draw_panels(lines, prefix, panels)


def bench_near() -> None:
    parser = engine_parser("near", "near-equal headlines beside equal ones")
    parser.add_argument("--headlines", type=Path, metavar="FILE", help="lines of seconds, a tab and a headline")
    parser.add_argument("--count", type=int, metavar="N", help=f"number of headlines; default: {COUNT:,}")
    options = parse_options(parser)
    if options.headlines is not None and not options.headlines.is_file():
        parser.error(f"there is no file {str(options.headlines)!r}")
    count = options.count or (QUICK_COUNT if options.quick else COUNT)
    cases = [
        NearCase(holds, number, count, options.headlines, options.engine, options.plan or DEFAULT_PLAN, alike)
        for number in options.queries or (QUICK_NUMBERS if options.quick else NUMBERS)
        for holds, alike in MEASURED
    ]
    lines = beside_equality([in_fresh_process(measure_near, case) for case in with_progress(cases)])
    report(lines, f"near-equal headlines, {options.engine}", NEAR_COLUMNS, options, draw_near)
    print_table(in_fresh_process(measure_keywords, count), "keywords in filters", KEYWORD_COLUMNS)
