"""Event statements and documents for them, of which many have several events."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from tests.generate.documents import SECOND, chance
from tests.oracle.event_syntax import Cel, Cmp, Filter, Name, Next, Ref
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
