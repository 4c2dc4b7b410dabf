"""Queries of one form get together what each gets alone; indexes of literals; derived variables."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.queries import forms
from mmqjp.queries.forms import INDEXES
from tests.generate.seeds import at_length, seeds
from tests.generate.strategies import random_case
from xscl.syntax import Script

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
def test_queries_get_together_what_each_gets_alone(seed):
    rng, quota = random.Random(seed), QUOTAS[seed % 4]
    given = steps(rng)
    together = told(given, None, **quota)
    for name in list(together) if at_length() else rng.sample(list(together), 5):
        of_query, alone = together[name], told(given, name, **quota)[name]
        assert (of_query[0], of_query[2:]) == (alone[0], alone[2:])
        assert len(of_query[1]) == len(alone[1])  # numbers of documents differ: tuples of inner joins have some
    assert sum(len(of_query[0]) for of_query in together.values()) > (2 if quota else 10)


HAS: dict[str, Callable[[str, str], bool]] = {
    "contains": str.__contains__,
    "starts-with": str.startswith,
    "ends-with": str.endswith,
}


def word(rng: random.Random, most: int) -> str:
    return "".join(rng.choice("aab\u00e9\U0001f600") for _ in range(rng.randint(0, most)))


@pytest.mark.parametrize("few", [1, 32])
@pytest.mark.parametrize("name", INDEXES)
@pytest.mark.parametrize("seed", seeds(1, 200))
def test_an_index_finds_what_looking_for_each_literal_finds(name, few, seed, monkeypatch):
    monkeypatch.setattr(forms, "FEW", few)
    rng, index, known = random.Random(seed), INDEXES[name](), set[str]()
    found = 0
    for _ in range(300):
        literal = word(rng, 4)
        match rng.choice(["add", "add", "remove", "find"]):
            case "add" if literal not in known:
                index.add(literal)
                known.add(literal)
            case "remove" if known:
                gone = rng.choice(sorted(known))
                index.remove(gone)
                known.remove(gone)
            case "find":
                text = word(rng, 12)
                expected = {one for one in known if HAS[name](text, one)}
                assert index.found_in(text) == expected
                found += len(expected)
    assert found > 50


def test_texts_with_many_occurrences_are_searched():
    index = INDEXES["contains"]()
    for length in range(200):
        index.add("a" * length)
    assert len(index.found_in("a" * 10_000)) == 200


PAIRS = "FROM S//a->x[./w->w] JOIN {{x = y AND ({}), INF}} S//a->y"
"""Documents have the joined text, and are equal in it. So the query finds pairs by what their text has."""


@dataclass
class Standing:
    """A query: what it tests texts for, any of (function, literal), and the number of the first document that it
    sees."""

    tests: list[tuple[str, str]]
    first: int

    def wants(self, text: str) -> bool:
        return any(HAS[name](text, literal) for name, literal in self.tests)


@pytest.mark.parametrize("seed", seeds(1, 100))
def test_queries_that_come_and_go_get_the_pairs_whose_text_has_their_literals(seed, tmp_path):
    rng, standing, told, expected = random.Random(seed), dict[str, Standing](), list[object](), list[object]()
    texts: list[str] = []
    session = Session("duckdb", state=tmp_path / "state")
    try:
        for step in range(40):
            match rng.choice(["come", "come", "go", "documents", "documents", "restart"]):
                case "come":
                    tests = [(rng.choice(list(HAS)), word(rng, 2)) for _ in range(rng.randint(1, 3))]
                    name = f"n{step}"
                    standing[name] = Standing(tests, len(texts))
                    condition = " OR ".join(f"{test}(w, '{literal}')" for test, literal in tests)
                    session.subscribe(f"{PAIRS.format(condition)} PUBLISH {name}")
                case "go" if standing:
                    name = rng.choice(sorted(standing))
                    del standing[name]
                    session.unsubscribe(name)
                case "restart":
                    session.close()
                    session = Session("duckdb", state=tmp_path / "state")
                case "documents":
                    batch = []
                    for _ in range(rng.randint(1, 4)):
                        number, text = len(texts), word(rng, 2)
                        texts.append(text)
                        batch.append(Document(f"d{number}", f"<a><w>{text}</w></a>", time=START + number))
                        for name, query in standing.items():
                            expected += [
                                (name, f"d{pair[0]}", f"d{pair[1]}")
                                for other in range(query.first, number)
                                for pair in ((other, number), (number, other))
                                if texts[other] == text and query.wants(text)
                            ]
                    told += [(o.query, *o.documents) for o in session.process(batch)]
    finally:
        session.close()
    assert sorted(map(str, told)) == sorted(map(str, expected))
    assert expected


@pytest.mark.parametrize("size", [7, 100])
def test_work_for_several_literal_tests_counts_together_in_any_batches(size):
    """The query matches nothing, and neither of its two tests takes enough work to pause it."""
    query = PAIRS.format("contains(w, 'zz') OR starts-with(w, 'zz')") + " PUBLISH n"
    documents = [Document(f"d{n}", f"<a><w>t{n // 2}</w></a>", time=START + n) for n in range(100)]
    with Session("duckdb") as free:
        free.subscribe(query)
        list(free.process(documents))
        spent = [row["work"] for row in free.sql("SELECT work FROM spent").to_pylist()]
    assert len(spent) == 2 and spent[0] == spent[1]
    bound = spent[0] // 10 + 1  # a block may use ten times as much: each test stays within it
    most = next(n for n in range(1, 101) if sum(spent) * (n // 2) // 50 > 10 * bound)
    with Session("duckdb", max_work=bound) as bounded:
        bounded.subscribe(query)
        arrived, paused = 0, dict[str, str]()
        while not paused and arrived < len(documents):
            list(bounded.process(documents[arrived : arrived + size]))
            arrived += size
            paused = bounded.take_paused()
        assert f"'d{most - 1}'" in paused["n"]


DEEP = """
S//a->x[./b->y[./c->u]] FOLLOWED BY {u = v, 100} S//a->p[./b[./c->v]];
S//a->x[.//b->y[./@k->u]] JOIN {u = v, 100} S//b->q[./@k->v];
S//a->x[./b->y[./c->u][./@k->w]] JOIN {u = v AND w = z, 100} S//b->q[./c->v][./@k->z]
"""


def answered(script: Script | str, documents: list[Document]) -> list[Output]:
    with Session("duckdb") as engine:
        engine.subscribe(script) if isinstance(script, str) else engine.ensure(script)
        return list(engine.process(documents))


def nested(rng: random.Random, depth: int) -> str:
    name = rng.choice("aabbc")
    attribute = f" k='{rng.randint(0, 2)}'" if rng.random() < 0.5 else ""
    below = "".join(nested(rng, depth - 1) for _ in range(rng.randint(0, 3))) if depth else ""
    return f"<{name}{attribute}>{below or rng.randint(0, 2)}</{name}>"


def both(script: Script | str, documents: list[Document], monkeypatch: pytest.MonkeyPatch) -> list[Output]:
    outputs = answered(script, documents)
    with monkeypatch.context() as patched:
        patched.setattr(forms, "derived_variables", lambda pattern, slots: None)
        assert answered(script, documents) == outputs
    return outputs


@pytest.mark.parametrize("seed", seeds(1, 200))
def test_random_queries_bind_the_same(seed, monkeypatch):
    both(*random_case(seed, 12, 10), monkeypatch)


@pytest.mark.parametrize("seed", seeds(1, 100))
def test_ancestors_of_elements_and_attributes_are_bound(seed, monkeypatch):
    rng = random.Random(seed)
    documents = [Document(f"d{n}", f"<r>{nested(rng, 4)}</r>", time=n * 1_000_000) for n in range(8)]
    assert both(DEEP, documents, monkeypatch)
