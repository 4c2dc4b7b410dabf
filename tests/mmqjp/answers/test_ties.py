"""Pairs that FOLLOWED BY leaves out only because of equal times are counted, however documents arrive."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from feeds.documents import Document
from join_stage.protocol import PLANS
from mmqjp.answers import query_operators as counting
from mmqjp.answers.query_operators import left_out_for_equal_times
from mmqjp.answers.quota import DEFAULT_QUOTA
from mmqjp.engine import Session
from tests.generate.documents import SECOND
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.ties import ties
from tests.support.agreement import Delivery, arranged
from tests.support.in_process import run_in_process
from xscl.parser import parse_script
from xscl.syntax import Script

PREDICATES = [
    "x/t = y/t",
    "x/t = y/k",
    "x/t = y/k or x/k = y/t",
    "x/t = y/t and x/k != y/k",
    "x/t = y/t and x/k < y/k",
    "x/t = y/t and contains(x/k, 'u')",
    "x/t = y/t and contains(x/k, 'v')",
    "x/t = y/t and x/k = y/k",
]
SELECTS = ["", "SELECT x, y FROM ", "SELECT x/k AS k FROM "]


def pair(rng: Random, stream: str = "S") -> str:
    op = rng.choice(["FOLLOWED BY", "FOLLOWED BY", "FOLLOWED BY", "JOIN"])
    window, other = rng.choice(["INF", "1 s", "0"]), rng.choice("SST")
    return f"{stream}//a->x {op} {{{rng.choice(PREDICATES)}, {window}}} {other}//a->y"


def script(rng: Random) -> Script:
    found = [f"{rng.choice(SELECTS)}{pair(rng)}" for _ in range(5)]
    found += [f"SELECT <a>{{x/t}}{{x/k}}</a> FROM {pair(rng)} PUBLISH P", f"SELECT x FROM {pair(rng)} PUBLISH P"]
    found += [pair(rng, "P").replace("P//a", "P//*"), f"{pair(rng)} FOLLOWED BY {{y/t = z/t, INF}} S//a->z"]
    found += [f"S//a->z FOLLOWED BY {{z/t = x/t or z/k = y/k, 3 s}} ({pair(rng)})"]
    return parse_script("; ".join(found))


def documents(rng: Random, count: int) -> list[Document]:
    found = []
    for number in range(count):
        parts = "".join(f"<{tag}>{rng.choice('uUv')}</{tag}>" for tag in rng.choice(["tk", "tk", "kt", "t", "ttk"]))
        t0 = rng.randrange(3) * SECOND
        times = (t0, t0 + rng.choice([0, 0, 0, SECOND]))
        found.append(Document(f"d{number}", f"<a>{parts}</a>".encode(), rng.choice("SSST"), times))
    return found


def counted(engine: Session, text: Script, given: list[Document], delivery: Delivery) -> dict[str, int]:
    engine.ensure(text)
    for batch in arranged(given, delivery):
        engine.process(batch)
    return engine.ties()


@pytest.mark.parametrize("seed", seeds(2, 300))
def test_they_are_those_of_the_oracle(seed: int):
    rng = Random(seed)
    text, given = script(rng), documents(rng, 7)
    with Session("duckdb", plan=PLANS[seed % 3]) as engine:
        found = counted(engine, text, given, Delivery(rng.choice([None, seed]), rng.choice([1, 2, 4, 100])))
    assert found == ties(text, given)


@pytest.mark.parametrize("seed", seeds(1, 100))
def test_they_are_those_of_the_oracle_in_random_cases(seed: int):
    text, given = random_case(seed, 12, 12)
    with Session("duckdb", plan=PLANS[seed % 3]) as engine:
        assert counted(engine, text, given, Delivery(seed, 5)) == ties(text, given)


@pytest.mark.parametrize("seed", seeds(1, 40))
def test_executors_count_the_same(seed: int, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if seed % 2 == 0:
        run_in_process(monkeypatch, cores=1 + seed % 4, seed=seed)
    rng = Random(seed)
    text, given = script(rng), documents(rng, 9)
    with Session(spark, state=tmp_path, plan="signature" if seed % 2 == 0 else PLANS[seed % 3]) as engine:
        assert counted(engine, text, given, Delivery(seed, 5)) == ties(text, given)


PAIRS = "S//a->x FOLLOWED BY {x = y, INF} S//a->y PUBLISH pairs"


def at(seconds: int, count: int, first: int = 0) -> list[Document]:
    return [Document(f"d{n}", "<a>v</a>", "S", seconds * SECOND) for n in range(first, first + count)]


def test_they_stay_after_a_restart_and_are_gone_with_a_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe(PAIRS)
        engine.process(at(1, 3))
        assert engine.ties() == {"pairs": 3}
        with monkeypatch.context() as broken:
            broken.setattr(engine._store, "commit", lambda *_: (_ for _ in ()).throw(OSError("disk")))
            with pytest.raises(OSError, match="disk"):
                engine.process(at(1, 1, 3))
        assert engine.ties() == {"pairs": 3}
    with Session("duckdb", state=tmp_path) as engine:
        assert engine.ties() == {"pairs": 3}
        engine.process(at(1, 1, 3))
        assert engine.ties() == {"pairs": 6}


def test_each_query_of_a_form_counts_what_it_sees():
    with Session("duckdb") as engine:
        engine.subscribe(f"{PAIRS}; {PAIRS.replace('INF', '1 h').replace('pairs', 'near')}")
        engine.process(at(1, 2))
        engine.subscribe(PAIRS.replace("pairs", "later"))
        engine.subscribe(PAIRS.replace("pairs", "backfilled"), backfill=True)
        engine.process(at(2, 2, 2))
        assert engine.ties() == {"pairs": 2, "near": 2, "backfilled": 2, "later": 1}
        engine.pause("near")
        engine.process(at(3, 2, 4))
        engine.resume("near")
        engine.process(at(4, 3, 6))
        assert engine.ties() == {"pairs": 6, "near": 3, "backfilled": 6, "later": 5}
        engine.unsubscribe("pairs")
        assert "pairs" not in engine.ties()


def test_they_count_for_no_bound():
    with Session("duckdb", max_matches=1, max_outputs=1, max_work=3) as engine:
        engine.subscribe(PAIRS)
        engine.process(at(1, 5))
        assert engine.ties() == {"pairs": 10}
        assert [query.paused for query in engine.registry.subscriptions.values()] == [None]


def test_a_step_remembers_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(counting, "MOST_TIES", 8)
    with Session("duckdb") as engine:
        engine.subscribe(PAIRS)
        engine.process(at(1, 9))
        assert 0 < engine.ties()["pairs"] <= 8


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("S//a->x[./t->t] FOLLOWED BY {t = u, 1 h} S//a->y[./t->u]", True),
        ("S//a->x[./t->t] JOIN {t = u, 1 h} S//a->y[./t->u]", False),
        ("S//a->x[./t->t] FOLLOWED BY {t = u and x/k != y/k, 1 h} S//a->y[./t->u]", False),
        ("S//a->x[./t->t] FOLLOWED BY {t = u, 1 h} T//a->y[./t->u]", False),
        ("S//a->x[./t->t] FOLLOWED BY {t = u or x/k = y/k, 0} S//a->y[./t->u]", True),
    ],
)
def test_a_pair_is_left_out_because_of_equal_times_alone(query: str, expected: bool):
    with Session("duckdb") as engine:
        engine.subscribe(f"{query}; S//a")
        engine.process([Document(f"d{n}", "<a><t>v</t><k>w</k></a>", "S", SECOND) for n in range(2)])
        first = next(iter(engine.registry.subscriptions.values()))
        assert left_out_for_equal_times(first, [engine.records[0], engine.records[1]], DEFAULT_QUOTA) is expected
