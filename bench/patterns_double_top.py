"""Double tops in stock prices, as the thesis measures them (4.6.3, Figure 4.17): one statement, in several forms.

A double top is five extrema of a company's closes in a row: a minimum A, a maximum B of at least 1.2 A, a minimum C
within 10% of A, a maximum D within 10% of B, and a minimum E of at most A. Closes are averages of random walks over so
many days: the more, the fewer extrema. `FOLDs` follows each rise and fall by a FOLD. `resubscription` makes a stream of
extrema, of which it takes five. In SQL on DuckDB, `self-joins` joins three closes and then five extrema, and `windows`
is what an expert would write. All get the closes in intervals, after each of which SQL is run again over all closes so
far; and also all closes at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median

import duckdb
import numpy as np
import pyarrow as pa

from bench.patterns_sweeps import INTERVAL, Numbered
from bench.patterns_thesis import Given, lowered
from bench.patterns_workload import SECOND
from bench.stage2_report import Column, Line
from common.arrays import Ints
from pattern_stage.columns import Floats
from pattern_stage.kernel import Kernel
from pattern_stage.values import Texts
from xscl.algebra.events import Schema, Stream

COMPANIES, CLOSES = 24, 112_635
TURNS, QUICK_TURNS = 5, 1
SMOOTHINGS, QUICK_SMOOTHINGS = (1, 2, 5, 10, 15, 20), (1, 10)
VOLATILITY = 0.08
"""The standard deviation of a day's change, of its logarithm."""

_SCHEMA: Schema = (("name", "string"), ("price", "number"))

_RISES = "{$2.name = $.name, $2.price > $.price, } Close"
_FALLS = "{$2.name = $.name, $2.price < $.price, } Close"
_SAME = "{$2.name = $1.name}"

_A = f"(SELECT name, price, price AS a FROM FILTER {{price < price_1}} (Close NEXT {_SAME} Close))"
_B = f"(SELECT name, price, a, price AS b FROM FILTER {{price >= 1.2 * a}} ({_A} FOLD {_RISES}))"
_C = (
    f"(SELECT name, price, a, b, price AS c FROM FILTER {{price >= 0.9 * a AND price <= 1.1 * a}} ({_B} FOLD {_FALLS}))"
)
_D = (
    "(SELECT name, price, a, b, c, price AS d FROM FILTER {price >= 0.9 * b AND price <= 1.1 * b} "
    f"({_C} FOLD {_RISES}))"
)
_E = f"(SELECT name, price, a, b, c, d, price AS e FROM FILTER {{price <= a}} ({_D} FOLD {_FALLS}))"
FOLDS = (
    "SELECT name, a_1 AS a, b_1 AS b, c_1 AS c, d_1 AS d, e_1 AS e "
    f"FROM FILTER {{price > e_1}} ({_E} NEXT {_SAME} Close)"
)

_TWO = f"(SELECT name, price_1 AS p, price AS q FROM (Close NEXT {_SAME} Close))"
_HIGH = f"(SELECT name, q_1 AS price, 1 AS up FROM FILTER {{q_1 > price}} (FILTER {{q > p}} {_TWO} NEXT {_SAME} Close))"
_LOW = f"(SELECT name, q_1 AS price, 0 AS up FROM FILTER {{q_1 < price}} (FILTER {{q < p}} {_TWO} NEXT {_SAME} Close))"
# Extrema lie between two closes, so neighbouring ones overlap. As an aggregate each has one time: when it is known.
EXTREMA = f"(AGGREGATE {{max(price) AS price, max(up) AS up BY name}} ({_HIGH} UNION {_LOW}))"


def _then(before: str, kept: str, name: str, condition: str) -> str:
    """The next extremum, after others whose prices are `kept`."""
    prices = "".join(f"{one}_1 AS {one}, " for one in kept)
    return f"(SELECT name, {prices}price AS {name} FROM FILTER {{{condition}}} ({before} NEXT {_SAME} {EXTREMA}))"


_FIRST = f"(SELECT name, price AS a FROM FILTER {{up = 0}} {EXTREMA})"
_SECOND = _then(_FIRST, "a", "b", "price >= 1.2 * a_1")
_THIRD = _then(_SECOND, "ab", "c", "price >= 0.9 * a_1 AND price <= 1.1 * a_1")
_FOURTH = _then(_THIRD, "abc", "d", "price >= 0.9 * b_1 AND price <= 1.1 * b_1")
RESUBSCRIPTION = _then(_FOURTH, "abcd", "e", "price <= a_1")[1:-1]

STATEMENTS = {"FOLDs": FOLDS, "resubscription": RESUBSCRIPTION}

_SELECTED = "SELECT e.known, a.name, a.price AS a, b.price AS b, c.price AS c, d.price AS d, e.price AS e"
_WHERE = """b.price >= 1.2 * a.price AND c.price BETWEEN 0.9 * a.price AND 1.1 * a.price
    AND d.price BETWEEN 0.9 * b.price AND 1.1 * b.price AND e.price <= a.price"""
_NUMBERED = "numbered AS (SELECT *, row_number() OVER (PARTITION BY name ORDER BY day) AS n FROM extrema)"

QUERIES = {
    "self-joins": f"""
    WITH extrema AS (
        SELECT two.name, two.day, three.day AS known, two.price, two.price > one.price AS up
        FROM closes one JOIN closes two ON two.name = one.name AND two.day = one.day + 1
        JOIN closes three ON three.name = two.name AND three.day = two.day + 1
        WHERE (two.price - one.price) * (three.price - two.price) < 0
    ), {_NUMBERED}
    {_SELECTED} FROM numbered a JOIN numbered b ON b.name = a.name AND b.n = a.n + 1
    JOIN numbered c ON c.name = a.name AND c.n = a.n + 2 JOIN numbered d ON d.name = a.name AND d.n = a.n + 3
    JOIN numbered e ON e.name = a.name AND e.n = a.n + 4 WHERE NOT a.up AND {_WHERE}""",
    "windows": f"""
    WITH steps AS (
        SELECT *, lag(price) OVER w AS before, lead(price) OVER w AS after, lead(day) OVER w AS known FROM closes
        WINDOW w AS (PARTITION BY name ORDER BY day)
    ), five AS (
        SELECT name, price > before AS up, price AS a, {
        ", ".join(f"lead(price, {place}) OVER w AS {name}" for place, name in enumerate("bcde", 1))
    }, lead(known, 4) OVER w AS known
        FROM steps WHERE (price - before) * (after - price) < 0 WINDOW w AS (PARTITION BY name ORDER BY day)
    ) SELECT known, name, a, b, c, d, e FROM five WHERE NOT up AND {_WHERE.replace(".price", "")}""",
}


@dataclass(frozen=True)
class Case:
    """Closes, and how many days are averaged."""

    smoothing: int
    closes: int = CLOSES


Row = tuple[float, ...]
"""When a double top is known, the number of its company, and its five prices."""


def cases(events: int | None, *, quick: bool) -> list[Case]:
    """What is measured."""
    count = events or (20_000 if quick else CLOSES)
    return [Case(smoothing, count) for smoothing in (QUICK_SMOOTHINGS if quick else SMOOTHINGS)]


def closes(case: Case) -> tuple[Ints, Ints, Floats]:
    """Days, companies and prices, by day. Of the last day, some companies may have none."""
    days = -(-case.closes // COMPANIES)
    walks = np.exp(np.cumsum(np.random.default_rng(5).normal(0, VOLATILITY, (days + case.smoothing, COMPANIES)), 0))
    sums = np.cumsum(walks, 0)
    prices = (sums[case.smoothing :] - sums[: -case.smoothing]) / case.smoothing
    day, company = np.divmod(np.arange(case.closes), COMPANIES)
    return day, company, prices.reshape(-1)[: case.closes]


def ours(stream: Stream, given: Given, interval: int) -> tuple[float, set[Row]]:
    """Processor seconds and the rows of a statement that gets so many days at once."""
    texts = Texts()
    events = given.take(texts)  # numbered in the order of time
    kernel = Kernel(texts, Numbered(events.t1))
    kernel.add(0, stream, -1)
    kernel.run({}, 0)
    found = []
    begin = time.process_time()
    last = int(events.t1[-1])
    for low in range(0, last + 1, interval * SECOND):
        first, end = np.searchsorted(events.t1, (low, low + interval * SECOND)).tolist()
        found += kernel.run({"Close": events.take(np.arange(first, end))}, low + interval * SECOND)
    seconds = time.process_time() - begin
    rows: set[Row] = set()
    for one in found:
        names = [float((text or "v")[1:]) for text in kernel.texts.texts(one.events.values[0][one.at].astype(np.int64))]
        columns = [column[one.at].tolist() for column in one.events.values[1:]]
        rows |= set(zip((one.events.t1[one.at] / SECOND).tolist(), names, *columns, strict=True))
    return seconds, rows


def theirs(given: pa.Table, query: str, interval: int) -> tuple[float, set[Row]]:
    """Processor seconds and the rows of a query, which is run again after so many days."""
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("CREATE TABLE closes (name BIGINT, day BIGINT, price DOUBLE)")
    connection.register("given", given)
    rows: set[Row] = set()
    begin = time.process_time()
    last = int(given["day"][-1].as_py())
    for low in range(0, last, interval):
        new = f"day > {low} AND day <= {low + interval}"
        connection.execute(f"INSERT INTO closes SELECT * FROM given WHERE {new}")
        # What is known by now and was not before.
        columns = connection.execute(f"SELECT * FROM ({query}) WHERE known > {low}").fetchnumpy()
        rows |= set(zip(*(column.astype(np.float64).tolist() for column in columns.values()), strict=True))
    return time.process_time() - begin, rows


def measure(case: Case, turns: int) -> Iterator[Line]:
    """Lines of a case: medians of turns.

    Raises AssertionError if a form has other rows.
    """
    day, company, price = closes(case)
    given = Given(_SCHEMA, day, np.arange(case.closes), (company, price))
    table = pa.table({"name": company, "day": day + 1, "price": price})
    asked = dict(zip(STATEMENTS, lowered(list(STATEMENTS.values()), {"Close": given}), strict=True))
    forms: dict[str, Callable[[], tuple[float, set[Row]]]] = {}
    for ending, interval in (("", INTERVAL // COMPANIES), (", at once", case.closes)):
        for name, stream in asked.items():
            forms[name + ending] = partial(ours, stream, given, interval)
        for name, query in QUERIES.items():
            forms[f"SQL, {name}{ending}"] = partial(theirs, table, query, interval)
    taken: dict[str, list[float]] = {name: [] for name in forms}
    expected: set[Row] | None = None
    for _ in range(turns):
        for name, form in forms.items():
            seconds, rows = form()
            expected = rows if expected is None else expected
            assert rows == expected, f"{name} has other rows in {case}: {len(rows)}, not {len(expected)}"
            taken[name].append(seconds)
    for name, times in taken.items():
        mine = median(times)
        baseline = "SQL, self-joins" + ", at once" * name.endswith("at once")
        speedup = median(one / other for one, other in zip(taken[baseline], times, strict=True))
        details = {"events_a_second": case.closes / mine}
        yield Line(
            "patterns", {**asdict(case), "figure": "4.17"}, None, name, mine, len(expected or ()), baseline, speedup,
            details=details,
        )  # fmt: skip


COLUMNS: tuple[Column, ...] = (
    ("form", lambda line: line.plan),
    ("days averaged", lambda line: line.case["smoothing"]),
    ("closes", lambda line: line.case["closes"]),
    ("double tops", lambda line: line.rows),
    ("closes/s", lambda line: line.details["events_a_second"]),
    ("times faster than self-joins", lambda line: line.speedup),
)
