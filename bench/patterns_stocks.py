"""The workload of SASE+ (section 6): prices of stocks that mostly rise, and one question about runs of them.

Prices go up by one with a given chance, and else down by one or nowhere, alike. They are 0 to 999, and 0 comes after
999. Volumes are 1 to 1000, uniform. Symbols take turns, a second apart. A question is about an event of a stock with a
round price, some further ones, and one with a low volume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from bench.patterns_workload import SECOND
from common.arrays import Ints
from pattern_stage.columns import Columns, Floats
from pattern_stage.lineage import Lineage
from pattern_stage.values import Texts
from xscl.algebra.events import Schema, Statement
from xscl.event_lower import lower_statement
from xscl.event_parser import schemas_of
from xscl.parser import parse_script
from xscl.syntax import EventStreams

Predicate = Literal["p1", "p2", "p3"]
Strategy = Literal["s2", "s3"]
PREDICATES: tuple[Predicate, ...] = get_args(Predicate)

SCHEMA: Schema = (("symbol", "string"), ("price", "number"), ("volume", "number"))
STREAM = "Stock"
SYMBOLS, ROUND, LOW = 2, 500, 150
TOP = 1000
"""So many prices and volumes there are."""
PER_WINDOW = 40
"""So many windows long is a stream; 200 in the paper."""

_PREDICATES = {
    "p1": "",
    "p2": " AND a[i].price > a[i-1].price",
    "p3": " AND a[i].price > min(a[..i-1].price)",
}
_STRATEGIES = {"s2": "partition_contiguity", "s3": "skip_till_next_match"}


@dataclass(frozen=True)
class Stocks:
    """Events a second apart."""

    symbols: Ints
    prices: Floats
    volumes: Floats

    def __len__(self) -> int:
        return len(self.symbols)

    def columns(self, texts: Texts, lineage: Lineage, begin: int, end: int) -> Columns:
        """Some of the events as the kernel takes them."""
        at = np.arange(begin, min(end, len(self)))
        times = (at + 1) * SECOND
        codes = texts.codes(f"s{number}" for number in range(SYMBOLS))
        parts = lineage.of_documents(STREAM, at, times, times, np.zeros((len(at), 1), np.int64))
        return Columns(times, times, (codes[self.symbols[at]], self.prices[at], self.volumes[at]), parts.reshape(-1, 1))


def stocks(count: int, rises: float, seed: int = 1) -> Stocks:
    """Some events, with this chance that a price rises."""
    chance = np.random.default_rng(seed)
    at = np.arange(count)
    prices = np.zeros(count)
    falls = (1 - rises) / 2
    for symbol in range(SYMBOLS):
        mine = at % SYMBOLS == symbol
        steps = chance.choice((1, -1, 0), int(mine.sum()), p=(rises, falls, falls))
        prices[mine] = (chance.integers(0, TOP) + np.cumsum(steps)) % TOP
    volumes = chance.integers(1, TOP + 1, count).astype(np.float64)
    return Stocks(at % SYMBOLS, prices, volumes)


def question(
    predicate: Predicate, strategy: Strategy, window: int, *, apart: bool = False, three: bool = False, low: str = ""
) -> str:
    """The text of a question. A window has so many events of each symbol. `apart`: NON OVERLAPPING. `three`: a third
    event has a price between the first and the last one's. `low`: what the last one has to be, instead of less than
    LOW of volume."""
    components, between = "Stock+ a[], Stock b", ""
    if three:
        components, between = components + ", Stock c", " AND a[1].price < c.price AND c.price < a[a.LEN].price"
    where = f"[symbol] AND a[1].price % {ROUND} = 0{_PREDICATES[predicate]} AND {low or f'b.volume < {LOW}'}{between}"
    ending = " NON OVERLAPPING" if apart else ""
    return f"PATTERN SEQ({components}) WHERE {_STRATEGIES[strategy]} {{{where}}} WITHIN {window * SYMBOLS} s{ending}"


def lowered(texts: Sequence[str], schemas: Mapping[str, Schema]) -> list[Statement]:
    """What patterns over these streams mean."""
    known = EventStreams(dict(schemas))
    once: dict[str, Statement] = {}
    for text in dict.fromkeys(texts):
        script = parse_script(text, events=known)
        (query,) = script.event_queries
        once[text] = lower_statement(query, schemas_of(script, known))
    return [once[text] for text in texts]
