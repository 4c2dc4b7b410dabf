"""Events of documents reach statements in the order of time, whatever their arrival, batches, faults and restarts.

The statements are run by the oracle, so that this is about all that is around them, and by the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from tests.generate.documents import chance
from tests.generate.seeds import seeds
from tests.mmqjp.answers.event_world import Doc, OracleKernel, RealKernel, Store, expected
from tests.oracle.bindings import Stored
from tests.oracle.event_documents import in_time as in_time_of
from tests.oracle.event_syntax import Cel, Cmp, Filter, Item, Len, Name, Next, Of, Ref, Window
from tests.oracle.pattern_syntax import STRATEGIES, Absent, AnyOrder, Letter, Many, Near, One, Pattern, Statement
from tests.pattern_stage.defined import defined_events
from xscl.parser import parse_script
from xscl.syntax import EventDefinition

SECOND = 1_000_000

DEFINITIONS = """
DEFINE EVENT A FROM S//a->r (a := r/@k, x := number(r/x));
DEFINE EVENT B FROM S//b->r (b IN r/@k, y := number(r/x));
DEFINE EVENT C FROM T//a->r (c := r/@k, z := number(r/x))
"""


def definitions() -> Sequence[EventDefinition]:
    return parse_script(DEFINITIONS).definitions


def statements(rng: Random) -> dict[str, Cel]:
    """Statements over the definitions, and over what others publish."""
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
    """PATTERN statements over the definitions, and over what `statements` publish: some depend on what was there before
    a match, or become known when a window is over."""
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
        xml = "<top>" + "".join(_closed(item) for item in items.split("</>") if item) + "</top>"
        found.append(Doc(f"d{number}", rng.choice("SST"), t0, t1, xml.encode()))
    return sorted(found, key=lambda document: document.t1)


def _closed(item: str) -> str:
    return f"{item}</{item[1]}>"


def batches(rng: Random, documents: Sequence[Doc], shuffled_by: int) -> Iterator[list[Doc]]:
    """The documents in batches: each may come so much later than those after it in time."""
    arriving = sorted(documents, key=lambda document: document.t1 + rng.randint(0, max(0, shuffled_by - SECOND)))
    while arriving:
        size = rng.randint(1, 6)
        yield arriving[:size]
        arriving = arriving[size:]


def check(store: Store, given: dict[str, tuple[Cel, int]], documents: Sequence[Doc]) -> None:
    wanted = expected(definitions(), given, documents)
    assert len(store.results) == len(set(store.results)), "nothing is told twice"
    assert set(store.results) == wanted


@pytest.mark.parametrize("kernel", [OracleKernel, RealKernel])
@pytest.mark.parametrize("seed", seeds(2, 8))
def test_results_are_those_of_all_events(
    seed: int, kernel: type[OracleKernel] | type[RealKernel], tmp_path: Path
) -> None:
    rng = Random(seed)
    settle = rng.choice((None, 4 * SECOND))
    every = rng.choice((1, 3, 50)) if kernel is OracleKernel else 10**9
    store = Store(tmp_path, definitions(), settle=settle, snapshot_every=every, kernel=kernel)
    given = {name: (cel, store.add(name, cel, {})) for name, cel in statements(rng).items()}
    arrived = documents(rng, 25)
    for batch in batches(rng, arrived, settle or 100 * SECOND):
        if chance(rng, 20):
            store.batch(batch, fails=True)
        if chance(rng, 25):
            store.close()
            store.open()
        store.batch(batch)
    last = Doc("last", "S", 10**9 * SECOND, 10**9 * SECOND, b"<none/>")
    store.batch([last, last._replace(id="last of T", stream="T")])
    if settle is None:
        assert not store.results
        store.batch([], lasts=rng.choice((True, False)))
    assert not store.late
    check(store, given, arrived)
    store.close()


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_late_documents_are_told_and_the_rest_counts(seed: int, tmp_path: Path) -> None:
    rng = Random(100 + seed)
    settle = {"S": 2 * SECOND, "*": 5 * SECOND}
    store = Store(tmp_path, definitions(), settle=settle, snapshot_every=2)
    given = {name: (cel, store.add(name, cel, {})) for name, cel in statements(rng).items()}
    taken: list[list[Doc]] = []
    for batch in batches(rng, documents(rng, 40), 12 * SECOND):
        if chance(rng, 20):
            store.batch(batch, fails=True)
        if chance(rng, 20):
            store.close()
            store.open()
        store.batch(batch)
        taken.append(batch)
    end = 10**9 * SECOND
    taken.append([Doc(f"last of {stream}", stream, end, end, b"<none/>") for stream in "ST"])
    store.batch(taken[-1])
    stored = [[Stored(one.stream, one.id, one.t0, one.t1, one.xml, ()) for one in batch] for batch in taken]
    in_time, late = in_time_of(stored, "ST", {"S": 2 * SECOND, "T": 5 * SECOND})
    names = {one.id for one in in_time}
    check(store, given, [one for batch in taken for one in batch if one.id in names])
    with_events = {
        document.id
        for document in late
        for one in definitions()
        if one.block.stream == document.stream and defined_events(one, document.xml)
    }
    assert {id for id, _ in store.late} == with_events and len(store.late) == len(with_events)
    assert all(reason.startswith("late for patterns: ") for _, reason in store.late)
    store.close()


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_a_new_statement_sees_events_from_the_horizon_on(seed: int, tmp_path: Path) -> None:
    rng = Random(200 + seed)
    store = Store(tmp_path, definitions(), settle=6 * SECOND, snapshot_every=3)
    made = statements(rng)
    given = {"one": (made["one"], store.add("one", made["one"], {}))}
    arrived = documents(rng, 40)
    arriving = list(batches(rng, arrived, 6 * SECOND))
    for number, batch in enumerate(arriving):
        store.batch(batch)
        if number == len(arriving) // 2:  # C is new with it: its events in kept documents are taken
            given["four"] = made["four"], store.add("four", made["four"], {})
            if chance(rng, 50):
                store.batch([], fails=True)
            if chance(rng, 50):
                store.close()
                store.open()
    end = 10**9 * SECOND
    store.batch([Doc(f"last of {stream}", stream, end, end, b"<none/>") for stream in "ST"])
    check(store, given, arrived)
    store.close()


def test_a_document_with_too_many_events_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path, definitions(), settle=0, snapshot_every=50)
    store.add("all", Cel(Name("B")), {})
    many = "<b k='u'><x>1</x></b>" * 10_001
    store.batch(
        [Doc("many", "S", 0, 0, f"<top>{many}</top>".encode()), Doc("one", "S", 0, 0, b"<top><b k='u'/></top>")]
    )
    store.batch([Doc("last", "S", 9, 9, b"<none/>")])
    assert store.late == [("many", "more than 10,000 events B, for patterns")]
    assert [one.documents for one in store.results] == [frozenset({("B", "one", (1, 0), (1, 1))})]
    store.close()
