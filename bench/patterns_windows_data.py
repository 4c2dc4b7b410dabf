"""The workload of match windows (section 6): events like those of chemotherapies and like trades, and patterns.

The paper's data are not public. Of its 341,055 events of chemotherapies it says that treatments follow a protocol and
are shifted in time: here each patient has six cycles of three weeks, in which the drugs and blood counts of a cycle of
the protocol come in their order, among events of other kinds. Patients begin at random times, 160 a year. Of its trades
it says nothing: here a millisecond lies between two, symbols follow Zipf's law, and prices are random walks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bench.patterns_workload import SECOND
from common.arrays import Ints
from pattern_stage.columns import Columns, Floats
from pattern_stage.lineage import Lineage
from pattern_stage.values import Texts
from xscl.algebra.events import Schema

Data = Literal["onco", "nyse"]

STREAM = "Event"
SCHEMA: Schema = (("of", "string"), ("kind", "string"), ("value", "number"))
"""Whose event it is, a patient; its kind, a drug, a count or a symbol; and a dose, a count or a price."""

DAY = 86_400 * SECOND
MILLISECOND = SECOND // 1000

DRUGS = ("c", "d", "p", "r", "b", "h")
OTHERS = 34
CYCLES, CYCLE_DAYS, PATIENTS_A_YEAR = 6, 21, 160
OTHERS_A_CYCLE = 25
SYMBOLS, ZIPF = 500, 1.0


@dataclass(frozen=True)
class Given:
    """Events in the order of time: codes of whose and of which kind they are, and values."""

    times: Ints
    of: Ints
    kinds: Ints
    values: Floats
    names: tuple[str, ...]
    """Of the kinds."""

    def __len__(self) -> int:
        return len(self.times)

    def first(self, count: int) -> Given:
        """The first of them."""
        return Given(self.times[:count], self.of[:count], self.kinds[:count], self.values[:count], self.names)

    def columns(self, texts: Texts, lineage: Lineage) -> Columns:
        """The events as a kernel takes them. Their docids are their places."""
        at = np.arange(len(self))
        owners, own = np.unique(self.of, return_inverse=True)
        of, kinds = texts.codes(map(str, owners.tolist()))[own], texts.codes(self.names)[self.kinds]
        parts = lineage.of_documents(STREAM, at, self.times, self.times, np.zeros((len(at), 1), np.int64))
        return Columns(self.times, self.times, (of, kinds, self.values), parts.reshape(-1, 1))


def given(data: Data, count: int, seed: int = 1) -> Given:
    """So many events."""
    return (_onco if data == "onco" else _nyse)(count, np.random.default_rng(seed))


def _onco(count: int, chance: np.random.Generator) -> Given:
    names = (*DRUGS, *(f"x{number}" for number in range(OTHERS)))
    protocol = [
        ("c", 0),
        ("d", 0),
        *(("p", day) for day in (1, 2, 3)),
        ("r", 1),
        ("r", 3),
        ("b", 8),
        ("h", 8),
        ("b", 15),
    ]
    a_patient = CYCLES * (len(protocol) + OTHERS_A_CYCLE)
    patients = count // a_patient + 200
    begins = np.cumsum(chance.exponential(365 / PATIENTS_A_YEAR, patients)) * DAY
    days, kinds, owners = [], [], []
    for patient in range(patients):
        for cycle in range(CYCLES):
            drugs = [names.index(name) for name, _ in protocol]
            others = chance.integers(len(DRUGS), len(names), OTHERS_A_CYCLE)
            days_of = np.concatenate([[day for _, day in protocol], chance.integers(0, CYCLE_DAYS, OTHERS_A_CYCLE)])
            # Within a day, what the protocol names first comes first.
            within = np.concatenate([np.linspace(0, 0.4, len(protocol)), chance.uniform(0, 1, OTHERS_A_CYCLE)])
            days.append(begins[patient] + (cycle * CYCLE_DAYS + days_of + within) * DAY)
            kinds.append(np.concatenate([drugs, others]))
            owners.append(np.full(len(kinds[-1]), patient))
    times = np.concatenate(days)
    order = np.argsort(times, kind="stable")
    # The first patients come one by one: events count from where as many are treated as later on.
    settled = order[np.searchsorted(times[order], CYCLES * CYCLE_DAYS * DAY) :][:count]
    assert len(settled) == count, "too few patients"
    found = np.round(times[settled]).astype(np.int64)
    at = np.arange(count)
    found = np.maximum.accumulate(found - at) + at  # no two at one time
    values = chance.integers(1, 1000, count).astype(np.float64)
    return Given(found, np.concatenate(owners)[settled], np.concatenate(kinds)[settled], values, names)


def _nyse(count: int, chance: np.random.Generator) -> Given:
    weights = 1 / np.arange(1, SYMBOLS + 1) ** ZIPF
    kinds = chance.choice(SYMBOLS, count, p=weights / weights.sum())
    values = np.zeros(count)
    for symbol in range(SYMBOLS):
        mine = np.flatnonzero(kinds == symbol)
        values[mine] = 100 + np.cumsum(chance.choice((-1.0, 1.0), len(mine)))
    names = tuple(f"s{symbol}" for symbol in range(SYMBOLS))
    return Given((np.arange(count) + 1) * MILLISECOND, np.zeros(count, np.int64), kinds, values, names)


# ---------------------------------------------------------------- patterns


@dataclass(frozen=True)
class Component:
    """A variable: it takes events of a kind. `rises` and `falls` are about a Kleene variable's values."""

    name: str
    kind: str
    kleene: bool = False
    rises: bool = False
    falls: bool = False


Sets = tuple[tuple[Component, ...], ...]


@dataclass(frozen=True)
class Question:
    """Sets of variables one after the other, of one patient if `together`, within a window."""

    sets: Sets
    window: int
    together: bool

    def text(self) -> str:
        """The question as a statement."""
        written = []
        for some in self.sets:
            members = [f"{STREAM}{'+' * one.kleene} {one.name}{'[]' * one.kleene}" for one in some]
            written.append(f"SET({', '.join(members)})" if len(members) > 1 else members[0])
        tests = ["[of]"] if self.together else []
        for one in (one for some in self.sets for one in some):
            tests.append(f'{one.name}{"[]" * one.kleene}.kind = "{one.kind}"')
            if one.rises or one.falls:
                tests.append(f"{one.name}[i].value {'>' if one.rises else '<'} {one.name}[i-1].value")
        return (
            f"PATTERN SEQ({', '.join(written)}) WHERE {{{' AND '.join(tests)}}} "
            f"WITHIN {self.window / SECOND:.10g} s EARLIEST MAXIMAL"
        )


def ponco(days: int) -> Question:
    """Drugs of a cycle in any order, then several doses of two others, then two blood counts."""
    sets = (
        (Component("c", "c"), Component("d", "d")),
        (Component("p", "p", True), Component("r", "r", True)),
        (Component("b", "b"), Component("h", "h")),
    )
    return Question(sets, days * DAY, True)


def pnyse(milliseconds: int) -> Question:
    """Two shares that rise, then one that falls."""
    sets = (
        (Component("a", "s5", True, rises=True), Component("g", "s8", True, rises=True)),
        (Component("i", "s12", True, falls=True),),
    )
    return Question(sets, milliseconds * MILLISECOND, False)


def random_question(data: Data, shape: Literal["Pseq", "Pset"], size: int, chance: np.random.Generator) -> Question:
    """So many variables of kinds by chance, one after the other or in any order."""
    names = (*DRUGS, *(f"x{number}" for number in range(OTHERS))) if data == "onco" else [f"s{at}" for at in range(40)]
    kinds = chance.choice(len(names), size, replace=False).tolist()
    some = tuple(Component(f"v{place}", names[kind]) for place, kind in enumerate(kinds, 1))
    window = 10 * DAY if data == "onco" else 20 * MILLISECOND
    return Question((some,) if shape == "Pset" else tuple((one,) for one in some), window, data == "onco")
