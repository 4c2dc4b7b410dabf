"""Event statements and documents for them, of which many have several events."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from tests.generate.documents import SECOND, chance
from tests.oracle.event_syntax import Cel, Cmp, Filter, Item, Len, Name, Next, Of, Ref, Window
from tests.oracle.pattern_syntax import STRATEGIES, Absent, AnyOrder, Letter, Many, Near, One, Pattern, Statement
from xscl.parser import parse_script
from xscl.syntax import EventDefinition

END = 10**7 * SECOND


class Doc(NamedTuple):
    id: str
    stream: str
    t0: int
    t1: int
    xml: bytes


DEFINITIONS = """
DEFINE EVENT A FROM S//a->r (a := r/@k, x := number(r/x));
DEFINE EVENT B FROM S//b->r (b IN r/@k, y := number(r/x));
DEFINE EVENT C FROM T//a->r (c := r/@k, z := number(r/x))
"""


def definitions() -> Sequence[EventDefinition]:
    return parse_script(DEFINITIONS).definitions


def statements(rng: Random) -> dict[str, Cel]:
    same = Cmp("=", Ref("a"), Ref("b"))
    first = Cel(Next(Name("A"), same if chance(rng, 50) else None, Name("B")), publish="P")
    second = Cel(Filter(Cmp(">", Ref("x"), Ref("y")), Name("P")), publish="Q")
    return {
        "one": first,
        "two": second,
        "three": Cel(Next(Name("Q"), None, Name("C"))),
        "four": Cel(Next(Name("C"), Cmp("=", Ref("c"), Ref("b")), Name("B"))),
        "five": Cel(Name("P")),
    }


def pattern_statements(rng: Random) -> dict[str, Statement]:
    """PATTERN statements over the definitions, and over what `statements` publish: some depend on earlier matches, or
    match only when a window is over."""
    rises = Cmp(">=", Of("q", "x", "i"), Of("q", "x", "i-1"))
    by_key = Pattern(
        (One("A", "p"), Many("A", "q")),
        Window("9"),
        rng.choice(STRATEGIES),
        ("a",),
        rises,
        None,
        (Item(Of("p", "a"), "a"), Item(Len("q"), "n"), Item(Of("q", "x", "[]"), "each")),
        apart=chance(rng, 50),
        publish="R",
    )
    silent = Pattern(
        (Absent("C", "o"), One("A", "p"), Absent("B", "q")),
        Window(rng.choice(("3", "6"))),
        cond=Cmp("=", Of("q", "b"), Of("p", "a")) if chance(rng, 50) else None,
        select=(Item(Of("p", "a"), "a"), Item(Of("p", "x"), "x")),
    )
    together = Pattern(
        (AnyOrder((One("B", "p"), One("C", "q"), Many("A", "r"))),),
        Window("4"),
        cond=Cmp("=", Of("q", "c"), Of("p", "b")),
        select=(Item(Len("r"), "n"),),
        maximal=True,
        apart=chance(rng, 50),
    )
    near = Near((Letter("A"), Letter("C"), Letter("B", needed=True)), 1, Window("5"), apart=chance(rng, 50))
    above = Pattern(
        (Many("R", "r"), One("P", "p")),
        Window("8"),
        "skip_till_next_match",
        ("a",),
        select=(Item(Of("r", "n", "1"), "n"), Item(Of("p", "b"), "b")),
    )
    return {"by_key": by_key, "silent": silent, "together": together, "near": near, "above": above}


def documents(rng: Random, count: int) -> list[Doc]:
    """Documents with close and often equal times, in the order of time."""
    found = []
    for number in range(count):
        t1 = rng.randint(0, 3 * count // 2) * SECOND
        t0 = t1 - rng.choice((0, 0, 0, 1, 3)) * SECOND
        items = "".join(
            f"<{rng.choice('aab')} k='{rng.choice('uv')}'>{f'<x>{rng.randint(0, 3)}</x>' * rng.choice((0, 1, 1, 2))}</>"
            for _ in range(rng.randint(1, 3))
        )
        xml = "<top>" + "".join(f"{item}</{item[1]}>" for item in items.split("</>") if item) + "</top>"
        found.append(Doc(f"d{number}", rng.choice("SST"), t0, t1, xml.encode()))
    return sorted(found, key=lambda document: document.t1)


def batches(rng: Random, documents: Sequence[Doc], shuffled_by: int) -> Iterator[list[Doc]]:
    """The documents in batches: each arrives less than `shuffled_by` after those that follow it in time."""
    arriving = sorted(documents, key=lambda document: document.t1 + rng.randint(0, max(0, shuffled_by - SECOND)))
    while arriving:
        size = rng.randint(1, 6)
        yield arriving[:size]
        arriving = arriving[size:]
