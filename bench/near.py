"""Near-equal headlines: queries with near() beside the same queries with equality.

Query n joins headlines that come up to 48 hours and n seconds one after the other. The headlines are those of a file,
or made ones. More of them are near than equal, and to tell them takes time, too. So near() also stands beside equality
over headlines of which those that are near were made equal. Before a time is reported, the pairs of the first query
must be those that sets of words give, compared each with each. Each case runs in a process of its own. Times are
seconds of CPU.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.command import with_progress
from bench.fresh import in_fresh_process
from bench.headlines import SECOND, Headline, items, made_headlines, read_headlines
from bench.stage2_report import Column, Line, keep, parsed, parser, show
from join_stage.near import LONGEST_FIRST, NumberedTexts, OneOfEach, WordOrder, WordSets, first_words, numbered_texts
from join_stage.protocol import DEFAULT_PLAN
from mmqjp.engine import Session
from mmqjp.process import gc_frozen
from templates.witness import MANY, R_DOC
from xscl.algebra.words import encode_words, join_threshold, words

COUNT, QUICK_COUNT, BATCH = 15_000, 3_000, 200
NUMBERS, QUICK_NUMBERS = [1, 1_000], [1]
EQUALITY, THRESHOLDS = "equality", ("0.6", "0.7", "0.8")
MEASURED = [(EQUALITY, None), *((one, None) for one in THRESHOLDS), *((EQUALITY, one) for one in THRESHOLDS)]
"""The conditions, each with the threshold by which headlines are made equal before."""
WINDOW = 48 * 3600 * SECOND

Pairs = set[tuple[int, int]]


@dataclass(frozen=True)
class Case:
    """How much is measured: so many queries with a threshold, or EQUALITY, over so many headlines, of a file if one is
    given. Those that are near by the threshold `alike` are made equal before."""

    condition: str
    queries: int
    count: int = COUNT
    file: Path | None = None
    engine: str = "duckdb"
    plan: str = DEFAULT_PLAN
    alike: str | None = None


def script(case: Case) -> str:
    """The queries as a script."""
    equal = case.condition == EQUALITY
    holds = "lower-case(t1) = lower-case(t2)" if equal else f"near(t1, t2, {case.condition})"
    return "".join(
        f"SELECT t1, t2 FROM S//item->a[./title->t1] FOLLOWED BY {{{holds}, {WINDOW // SECOND + n} s}}"
        f" S//item->b[./title->t2] PUBLISH n{n};\n"
        for n in range(case.queries)
    )


def measure(case: Case) -> Line:
    """Runs one case. Raises AssertionError if the pairs of the first query are not those of sets."""
    given = made_headlines(case.count) if case.file is None else read_headlines(case.file, case.count)
    given = given if case.alike is None else made_equal(given, case.alike)
    documents = list(items(given))
    unlimited = {"max_matches": None, "max_outputs": None, "max_work": None}
    with Session(case.engine, plan=case.plan, **unlimited) as engine:  # type: ignore[arg-type]
        engine.subscribe(script(case))
        with gc_frozen():
            engine.process([])  # what registration leaves to the first batch
            begin = time.process_time()
            count = sum(len(engine.process(documents[at : at + BATCH])) for at in range(0, len(documents), BATCH))
            seconds = time.process_time() - begin
        found = _pairs(engine)
        assert found == expected(given, case.condition), f"{case.condition}: other pairs than sets give"
        frequent = engine.sql("SELECT frequent FROM word_order ORDER BY version DESC LIMIT 1", trusted=True)
    details: dict[str, object] = {"headlines_a_second": len(given) / seconds, "pairs": len(found)}
    if case.condition != EQUALITY:
        details["sharing_longest"], _, details["keys"] = candidates(given, case.condition, LONGEST_FIRST)
        if frequent.num_rows:
            order = WordOrder(np.array(frequent["frequent"][0].as_py(), np.int64))
            details["sharing"], details["compared"], details["keys"] = candidates(given, case.condition, order)
    about: dict[str, str | int] = {"condition": case.condition, "queries": case.queries, "headlines": len(given)}
    about |= {} if case.alike is None else {"alike": case.alike}
    about |= {"source": "made" if case.file is None else case.file.name}
    return Line("near", about, case.engine, case.plan, seconds, count, None, None, details=details)


def _pairs(engine: Session) -> Pairs:
    rows = engine.sql("SELECT documents FROM outputs WHERE query = 'n0'", trusted=True)["documents"].to_pylist()
    return {(int(one[1:]), int(other[1:])) for one, other in rows}


def expected(given: Sequence[Headline], condition: str) -> Pairs:
    """The pairs of headlines that come within the window and are near, or equal but for case: each compared with all
    before it that are not too old."""
    found: Pairs = set()
    equal = condition == EQUALITY
    threshold = Fraction(1 if equal else condition)
    top, bottom = threshold.numerator, threshold.denominator
    sets = [frozenset([text.lower()]) if equal else words(text) for text, _ in given]
    first = 0
    for number, (one, (_, at)) in enumerate(zip(sets, given, strict=True)):
        while given[first].time < at - WINDOW:
            first += 1
        for earlier in range(first, number):
            other = sets[earlier]
            common = len(one & other)
            near = common and common * bottom >= top * (len(one) + len(other) - common)
            if near and given[earlier].time < at:
                found.add((earlier, number))
    return found


def made_equal(given: Sequence[Headline], threshold: str) -> list[Headline]:
    """Headlines, of which those that are near an earlier one have its text. So equality finds about as many pairs."""
    first = list(range(len(given)))
    for one, other in sorted(expected(given, threshold)):
        first[other] = min(first[one], first[other])
    return [Headline(given[first[number]].text, headline.time) for number, headline in enumerate(given)]


def candidates(given: Sequence[Headline], threshold: str, order: WordOrder) -> tuple[float, float, float]:
    """How many headlines within the window have a key in common with one; with how many of these its words are
    compared, because the numbers of words and the bits of both leave it open; and how many keys it has, on average."""
    texts = [encode_words(text, join_threshold(threshold)) for text, _ in given]
    some = [number for number, text in enumerate(texts) if text]
    read = numbered_texts([texts[number] for number in some])
    place, word = first_words(read, order)
    keys = defaultdict(list)
    for at, key in zip(place.tolist(), read.numbers[word].tolist(), strict=True):
        keys[some[at]].append(key)
    with_key, pairs = defaultdict[int, list[int]](list), list[tuple[int, int]]()
    for number in some:
        since = given[number].time - WINDOW
        met: set[int] = set()
        for key in keys[number]:
            others = with_key[key] = [other for other in with_key[key] if given[other].time >= since]
            met.update(others)
            others.append(number)
        pairs += ((number, other) for other in met)
    return len(pairs) / len(given), _compared(read, some, pairs) / len(given), len(place) / len(given)


def _compared(texts: NumberedTexts, numbers: Sequence[int], pairs: Sequence[tuple[int, int]]) -> int:
    """Of how many pairs of texts, given by their numbers, the words are compared."""
    sets, nodes = WordSets(), [MANY] * len(numbers)
    columns = {"docid": numbers, "node": nodes, "strval": [""] * len(numbers), "stream": ["S"] * len(numbers)}
    sets.add(pa.table(columns, R_DOC), texts)
    docids = np.array(numbers, np.int64)
    ends = np.searchsorted(docids, np.array(pairs, np.int64).reshape(-1, 2))
    one, other = (OneOfEach(docids, np.array(nodes, np.int64), ends[:, side]) for side in (0, 1))
    sets.are_near(one, other)
    return sets.pairs


def beside_equality(lines: Sequence[Line]) -> Iterator[Line]:
    """Yields the lines, those with near() beside as many queries with equality, and beside those where what is near was
    made equal."""
    equal = {
        (line.case["queries"], line.case.get("alike")): line.seconds
        for line in lines
        if line.case["condition"] == EQUALITY
    }
    for line in lines:
        queries, threshold = line.case["queries"], line.case["condition"]
        base, alike = equal.get((queries, None)), equal.get((queries, threshold))
        if base is None or threshold == EQUALITY:
            yield line
        else:
            details = line.details if alike is None else {**line.details, "of_alike": alike / line.seconds}
            yield Line(
                line.bench, line.case, line.engine, line.plan, line.seconds, line.rows, EQUALITY, base / line.seconds,
                details=details,
            )  # fmt: skip


def condition(line: Line) -> str:
    """The condition of the queries of a line."""
    alike = line.case.get("alike")
    return str(line.case["condition"]) + ("" if alike is None else f", {alike} made equal")


COLUMNS: tuple[Column, ...] = (
    ("condition", condition),
    ("queries", lambda line: line.case["queries"]),
    ("headlines", lambda line: line.case["headlines"]),
    ("pairs", lambda line: line.details["pairs"]),
    ("outputs", lambda line: line.rows),
    ("keys", lambda line: line.details.get("keys")),
    ("sharing keys, longest first", lambda line: line.details.get("sharing_longest")),
    ("sharing keys", lambda line: line.details.get("sharing")),
    ("compared", lambda line: line.details.get("compared")),
    ("headlines/s", lambda line: line.details["headlines_a_second"]),
    ("of equality", lambda line: line.speedup),
    ("of as many", lambda line: line.details.get("of_alike")),
)


def main() -> None:
    made = parser("near", "near-equal headlines beside equal ones")
    made.add_argument("--headlines", type=Path, metavar="FILE", help="lines of seconds, a tab and a headline")
    made.add_argument("--count", type=int, metavar="N", help=f"so many headlines; default: {COUNT:,}")
    options = parsed(made)
    if options.headlines is not None and not options.headlines.is_file():
        made.error(f"there is no file {str(options.headlines)!r}")
    numbers = options.queries or (QUICK_NUMBERS if options.quick else NUMBERS)
    count = options.count or (QUICK_COUNT if options.quick else COUNT)
    cases = [
        Case(holds, number, count, options.headlines, options.engine, options.plan or DEFAULT_PLAN, alike)
        for number in numbers
        for holds, alike in MEASURED
    ]
    lines = list(beside_equality([in_fresh_process(measure, case) for case in with_progress(cases, str)]))
    show(lines, f"near-equal headlines, {options.engine}", COLUMNS)
    keep(lines, options)
    if options.plot:
        from bench.stage2_plot import draw_near

        draw_near(lines, options.plot)


if __name__ == "__main__":
    main()
