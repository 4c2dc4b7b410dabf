"""Chains of functions have one number for as long as a store lasts, in whatever order the processes that write it meet
them; and nothing else that is stored depends on the process that wrote it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest

from join_stage.protocol import PLANS
from join_stage.store.protocol import DUCKDB_FILE
from mmqjp.engine import CoreEngine, Session
from templates.catalog import Catalog
from templates.witness import ATTRIBUTE_SHIFT, CHAIN_SHIFT, MOST_CHAINS, node_id, plain_node
from tests.processes.store import START, take
from tests.support.conjuncts import conjuncts_of
from tests.support.delivery import undelivered
from xpath_stage.documents import MAX_ATTRIBUTES
from xscl.parser import parse_script

FUNCTIONS = {
    "lower-case": lambda text: "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in text),
    "upper-case": lambda text: "".join(chr(ord(c) - 32) if "a" <= c <= "z" else c for c in text),
    "normalize-space": lambda text: " ".join(part for part in text.split(" ") if part),
}
"""What some functions do to the texts of these tests."""

Steps = list[Any]


class Case:
    """Queries that join by chains of functions of any length, documents, and both in the order in which they come."""

    def __init__(self, seed: int, queries: int = 8, documents: int = 10) -> None:
        rng = Random(seed)
        self.chains = {
            f"join{n}": [rng.choice(list(FUNCTIONS)) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 7)))]
            for n in range(queries)
        }
        self.texts = {
            f"{'ab'[n % 2]}{n}": rng.choice((" x", "x ", "X", "x", "x  y", "X y", " Xy", "xY"))
            for n in range(documents)
        }
        steps: Steps = [("subscribe", self._query(name)) for name in self.chains]
        names = list(self.texts)
        steps += [("process", [self._document(name) for name in names[i : i + 2]]) for i in range(0, len(names), 2)]
        rng.shuffle(steps)
        self.steps = steps

    def _query(self, name: str) -> str:
        p, q = "p", "q"
        for function in self.chains[name]:
            p, q = f"{function}({p})", f"{function}({q})"
        return f"S//a->x[./k->p] JOIN {{{p} = {q}, INF}} S//b->y[./k->q] PUBLISH {name}"

    def _document(self, name: str) -> tuple[str, str]:
        return name, f"<{name[0]}><k>{self.texts[name]}</k></{name[0]}>"

    def expected(self) -> list[tuple[str, str, str]]:
        """What all queries give over all documents, whatever came first."""
        derived = {
            (query, name): self._derived(query, text) for query in self.chains for name, text in self.texts.items()
        }
        return sorted(
            (query, one, other)
            for query in self.chains
            for one in self.texts
            for other in self.texts
            if one[0] == "a" and other[0] == "b" and derived[query, one] == derived[query, other]
        )

    def _derived(self, query: str, text: str) -> str:
        for function in self.chains[query]:
            text = FUNCTIONS[function](text)
        return text


def go_on(state: Path, plan: str, steps: Steps, seed: int) -> None:
    """Has another process do some steps."""
    subprocess.run(
        [sys.executable, "-m", "tests.processes.store", "duckdb", str(state), plan],
        input=json.dumps(steps),
        text=True,
        check=True,
        timeout=300,
        env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
def test_processes_that_meet_chains_in_other_orders_write_one_store(seed: int, tmp_path: Path):
    rng, case = Random(seed), Case(seed, 20, 24)
    left = case.steps
    while left:
        count = rng.randint(1, 12)
        go_on(tmp_path, rng.choice(PLANS), left[:count], rng.randrange(1000))
        left = left[count:]
    with Session("duckdb", state=tmp_path) as engine:
        found = sorted((o.query, o.documents[0], o.documents[1]) for o in undelivered(engine))
        assert found == case.expected() != []


def test_a_store_does_not_tell_which_process_wrote_it(tmp_path: Path):
    case, filters = Case(7, 4, 6), "; ".join(f"S//*[./k[contains(., '{c}')]]->x PUBLISH f{c}" for c in "xyXY ")
    found = []
    steps: Steps = [("subscribe", filters), *case.steps]
    go_on(tmp_path / "other", "signature", steps, 1)
    with CoreEngine("duckdb", state=tmp_path / "ours", plan="signature", now=lambda: START) as engine:
        take(engine, steps)
    for state in (tmp_path / "other", tmp_path / "ours"):
        with duckdb.connect(str(state / DUCKDB_FILE)) as store:
            tables = [name for (name,) in store.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
            rows = {name: sorted(map(repr, store.execute(f'FROM "{name}"').fetchall())) for name in tables}
        rows["settings"] = [row for row in rows["settings"] if "costs" not in row]  # seconds
        found.append(rows)
    assert found[0] == found[1]
    assert found[0]["chains"] and found[0]["groups"] and found[0]["bound"]


def test_a_node_id_has_room_for_its_attribute_and_its_chain():
    assert MAX_ATTRIBUTES < 1 << CHAIN_SHIFT - ATTRIBUTE_SHIFT
    highest = node_id((1 << 32) - 1, MAX_ATTRIBUTES, MOST_CHAINS)
    assert highest < 1 << 63 and plain_node(highest) == ((1 << 32) - 1, MAX_ATTRIBUTES)


def test_more_chains_than_numbers_are_refused_and_leave_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("templates.catalog.MOST_CHAINS", 2)
    catalog = Catalog(known_chains=[("lower-case",), ("host",)])
    fresh, known = conjuncts_of(
        parse_script(
            "S//a->x JOIN {upper-case(x) = y, 1 h} S//b->y; S//a->x JOIN {host(x) = lower-case(y), 1 h} S//b->y"
        )
    )
    with pytest.raises(ValueError, match="more than 2 different chains of functions; begin a new state"):
        catalog.add(fresh, 1, True)
    assert not catalog.steps and len(catalog.chains) == 2
    catalog.add(known, 1, True)
    assert sorted(step.chain for step in catalog.steps.values()) == [0, 0, 1, 2]
