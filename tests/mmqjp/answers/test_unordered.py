"""JOIN UNORDERED: of two matches that mirror each other one is left, the same one however documents arrive."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from feeds.documents import Document
from join_stage.protocol import PLANS
from mmqjp.engine import Session
from tests.generate.documents import SECOND
from tests.generate.seeds import seeds
from tests.support.agreement import Delivery, assert_agrees
from xscl.parser import parse_script

PREDICATES = [
    "x/t = y/t",
    "x/t = y/k",
    "x/t = y/k or x/k = y/t",
    "x/t = y/t and x/k != y/k",
    "x/t = y/t and x/k < y/k",
    "x/t = y/t and x/k >= y/k or x/k = y/k",
    "lower-case(x/t) = lower-case(y/t)",
    "lower-case(x/t) = y/t",
    "x/t = y/t and contains(x/k, 'u')",
    "x/t = y/t and contains(x/k, 'v')",
    "x/t = y/t and x/k = 'u'",
    "x/t = y/t and contains(x/k, 'u') and contains(y/k, 'u')",
    "x/t = y/t and contains(x/k, y/k)",
]
SELECTS = ["", "SELECT x, y FROM ", "SELECT x/k AS k FROM ", "SELECT <p>{x/t}{y/k}</p> FROM "]


def pair(rng: Random, stream: str = "S") -> str:
    filters = rng.choice([("", ""), ("", ""), ("", "[./k]"), ("[./t][./k]", "[./k][./t]")])
    other = rng.choice([stream, stream, stream, "T"])
    window = rng.choice(["INF", "2 s", "0"])
    return f"{stream}//a{filters[0]}->x JOIN UNORDERED {{{rng.choice(PREDICATES)}, {window}}} {other}//a{filters[1]}->y"


def script(rng: Random) -> str:
    """Queries that are symmetrical, or nearly so, alone, as the inner joins of chains, and over what others PUBLISH."""
    op = rng.choice(["JOIN", "JOIN UNORDERED", "FOLLOWED BY"])
    found = [f"{rng.choice(SELECTS)}{pair(rng)}" for _ in range(3)]
    found += [f"SELECT x/t AS t FROM {pair(rng)} PUBLISH P", "SELECT <a>{x/t}</a> FROM S//a->x PUBLISH P"]
    found += ["P//t->p JOIN UNORDERED {p = q, INF} P//t->q", f"{pair(rng)} {op} {{y/t = z/t, INF}} S//a->z"]
    found += [f"S//a->z {op} {{z/t = x/t or z/k = y/k, 3 s}} ({pair(rng)})"]
    found += [f"(SELECT x/t AS t, y/k AS k FROM {pair(rng)}) {op} {{t = z/k, INF}} T//a->z"]
    return "; ".join(found)


def documents(rng: Random, count: int) -> list[Document]:
    found = []
    for number in range(count):
        parts = "".join(f"<{tag}>{rng.choice('uUv')}</{tag}>" for tag in rng.choice(["tk", "tk", "kt", "t", "ttk"]))
        t0 = rng.randrange(4) * SECOND
        times = (t0, t0 + rng.choice([0, 0, 0, SECOND]))
        found.append(Document(f"d{number}", f"<a>{parts}</a>".encode(), rng.choice("SSST"), times))
    return found


@pytest.mark.parametrize("seed", seeds(2, 300))
def test_it_agrees_with_the_oracle(seed: int):
    rng = Random(seed)
    text, given = parse_script(script(rng)), documents(rng, 6)
    with Session("duckdb", plan=PLANS[seed % 3]) as engine:
        assert_agrees(engine, text, given, Delivery(rng.choice([None, seed]), rng.choice([1, 2, 4, 100])))


SAME = "S//a->x[./t->t] JOIN UNORDERED {t = u, INF} S//a->y[./t->u]"
TWINS = [Document(f"d{n}", "<a><t>v</t></a>", "S", time * SECOND) for n, time in enumerate([5, 3, 5])]
TOLD = {("d1", "d0"), ("d1", "d2"), ("d0", "d2")}


@pytest.mark.parametrize("given", [TWINS, TWINS[::-1]])
def test_each_pair_is_told_once_and_stays_so_after_a_restart(given: list[Document], tmp_path: Path):
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe(f"{SAME} PUBLISH same; S//a->x[./t->t] JOIN {{t = u, INF}} S//a->y[./t->u] PUBLISH both")
        told = [output.documents for output in engine.process(given[:2]) if output.query == "same"]
        rows = {target.row for query in engine.registry.subscriptions.values() for target in query.targets}
        assert len(rows) == 1, "both operators share the row of R_T"
    with Session("duckdb", state=tmp_path) as engine:
        assert [q.text for q in engine.registry.subscriptions.values() if q.name == "same"] == [
            "FROM S//a->x[./t->t] JOIN UNORDERED {t = u, INF} S//a->y[./t->u] PUBLISH same"
        ]
        outputs = list(engine.process(given[2:]))
        told += [output.documents for output in outputs if output.query == "same"]
        assert sorted(told) == sorted(TOLD)
        assert len([output for output in outputs if output.query == "both"]) == 4


def test_a_backfill_tells_each_pair_once_and_what_its_mirror_tells_counts_for_no_bound():
    with Session("duckdb", max_matches=2) as engine:
        engine.subscribe("S//a PUBLISH every")
        for document in TWINS:
            engine.process([document])
        engine.subscribe(f"{SAME} PUBLISH same", backfill=True)
        assert {output.documents for output in engine.outputs() if output.query == "same"} == TOLD
        assert {query.paused for query in engine.registry.subscriptions.values()} == {None}
