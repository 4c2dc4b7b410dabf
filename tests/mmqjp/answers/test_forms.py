"""Queries of one form get together what each gets alone: outputs, ids, matches, what counts against its quota."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from tests.generate.seeds import at_length, seeds

SECOND = 1_000_000
START = 1_780_000_000 * SECOND

TEXTS = [
    "FROM S//a->x[./t->t] FOLLOWED BY {t = u, WINDOW} S//b->y[./t->u]",
    "SELECT c, d FROM S//a->x[./t->t][./c->c] JOIN {t = u AND c != d, WINDOW} S//b->y[./t->u][./c->d]",
    "SELECT t FROM S//a->x[./t->t][./c->c] FOLLOWED BY {t = u OR c = u, WINDOW} S//b[./t->u]",
    "SELECT <both k='{t}'>{x}{u}</both> FROM S//a->x[.//t->t] JOIN {t = u, WINDOW} S//b->y[./c->u]",
    "FROM S//a->x[./t->t] FOLLOWED BY {t = u, 30} S//b->y[./t->u] FOLLOWED BY {u = v, WINDOW} S//a[./t->v]",
    "FROM S//a->x[./t->t][./c->c] JOIN {t = u AND contains(c, 'LITERAL'), WINDOW} S//b->y[./t->u]",
    "SELECT c FROM S//a->x[./t->t][./c->c] FOLLOWED BY "
    "{t = u AND (contains(c, 'LITERAL') OR contains(c, 'LITERAL')), WINDOW} S//b->y[./t->u]",
    "FROM S//a->x[./t->t][./c->c] JOIN "
    "{t = u AND c != d AND (starts-with(d, 'LITERAL') OR ends-with(c, 'LITERAL')), WINDOW} S//b->y[./t->u][./c->d]",
]

VALUES = ["0", "1", "2", "0", "1", "2", "12", "210"]


@dataclass(frozen=True)
class Step:
    """Queries that come, (name, text), and some that are paused and resumed, by name; then documents."""

    new: Sequence[tuple[str, str]]
    paused: Sequence[str]
    resumed: Sequence[str]
    documents: Sequence[Document]


def steps(rng: random.Random) -> list[Step]:
    texts = rng.sample(TEXTS, 3) + rng.sample(TEXTS[-3:], 1)
    names: list[str] = []
    paused: set[str] = set()
    made, number = [], 0
    for _ in range(rng.randint(3, 5)):
        new = [(f"n{len(names) + i}", _text(rng, texts)) for i in range(rng.randint(2, 6))]
        names += [name for name, _ in new]
        resumed = [name for name in sorted(paused) if rng.random() < 0.5]
        to_pause = [name for name in names if name not in paused and rng.random() < 0.2]
        paused = (paused - set(resumed)) | set(to_pause)
        documents = []
        for _ in range(rng.randint(4, 12)):
            number += 1
            leaves = "".join(f"<{leaf}>{rng.choice(VALUES)}</{leaf}>" for leaf in rng.choices("tc", k=3))
            name = rng.choice("ab")
            documents.append(Document(f"d{number}", f"<{name}>{leaves}</{name}>", time=START + number * SECOND))
        made.append(Step(new, to_pause, resumed, documents))
    return made


def used(session: Session) -> dict[str, tuple[int, int]]:
    """What active queries have used of their quotas, by name: outputs and steps."""
    spent = session.sql("SELECT * FROM spent").to_pylist()
    members = {row["qid"]: row for row in session.sql("SELECT * FROM members WHERE ended > 1000000").to_pylist()}
    found = {}
    for query in session.registry.subscriptions.values():
        member = members.get(query.qid)
        if member is None:
            continue
        form = session.registry.form(query.form_id)
        assert form is not None
        outputs = work = 0
        for row in spent:
            times = 1 if row["owner"] == form.id else form.shared.get(row["owner"], 0)
            reach = row["width"] <= member["widest"] and row["since"] >= member["since"]
            if not (times and reach and row["first_qid"] <= query.qid and row["begun"] >= member["begun"]):
                times = int(row["owner"] == str(query.qid) and row["begun"] == member["begun"])
            outputs, work = outputs + times * row["outputs"], work + times * row["work"]
        found[query.name] = outputs, work
    return found


def _text(rng: random.Random, texts: Sequence[str]) -> str:
    text = rng.choice(texts).replace("WINDOW", rng.choice(["3", "10", "20", "INF"]))
    while "LITERAL" in text:
        text = text.replace("LITERAL", rng.choice(["", "0", "1", "2", "12", "21", "3"]), 1)
    return text


def told(given: Sequence[Step], only: str | None, **quota: Any) -> dict[str, Any]:
    """What each query gets, or one alone: its outputs, matches, and use of its quota by name, and the paused ones."""
    outputs: dict[str, list[object]] = {}
    paused: set[str] = set()
    with Session("duckdb", **quota) as opened:
        for step in given:
            for name, text in step.new:
                if only in (None, name):
                    opened.subscribe(f"{text} PUBLISH {name}")
            for name in opened.queries():
                if name in step.paused and name not in paused:
                    opened.pause(name)
                if name in step.resumed and name not in paused:
                    opened.resume(name)
            for o in opened.process(step.documents):
                outputs.setdefault(o.query, []).append((o.t0, o.t1, o.documents, dict(o.nodes), o.xml, o.id))
            paused |= opened.take_paused().keys()
        matches = opened.sql("SELECT query, docid1, docid2 FROM matches ORDER BY 1, 2, 3").to_pylist()
        spent = used(opened)
        active = {query.name for query in opened.registry.subscriptions.values() if query.active}
    found: dict[str, Any] = {}
    for name in active | paused:
        ours = [(row["docid1"], row["docid2"]) for row in matches if row["query"] == name]
        found[name] = outputs.get(name, []), ours, spent.get(name, (0, 0)), name in paused
    return found


QUOTAS: list[dict[str, Any]] = [{}, {"max_matches": 3}, {"max_outputs": 12}, {"max_work": 60}]


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_queries_get_together_what_each_gets_alone(seed: int):
    rng, quota = random.Random(seed), QUOTAS[seed % 4]
    given = steps(rng)
    together = told(given, None, **quota)
    for name in list(together) if at_length() else rng.sample(list(together), 5):
        of_query, alone = together[name], told(given, name, **quota)[name]
        assert (of_query[0], of_query[2:]) == (alone[0], alone[2:])
        assert len(of_query[1]) == len(alone[1])  # numbers of documents differ: tuples of inner joins have some
    assert sum(len(of_query[0]) for of_query in together.values()) > (2 if quota else 10)
