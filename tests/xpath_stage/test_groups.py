import random
from collections.abc import Iterable, Sequence
from math import log2

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from templates.catalog import StepEdge
from tests.generate.joins import SECOND
from tests.generate.seeds import seeds
from tests.support.delivery import undelivered
from xpath_stage import automaton as groups_module
from xpath_stage.automaton import SHARE, Groups

START = 1_767_225_600_000_000
FIELDS = 40


def query(condition: str, name: object) -> str:
    return f"S//i->x[{condition}][./k->p] JOIN {{p = q, INF}} S//o->y[./k->q] PUBLISH n{name}"


def contains(word: int) -> str:
    return query(f"./t[contains(., 'w{word}.')]", word)


def has(field: int) -> str:
    return query(f"./f{field}", field)


def document(number: int, fields: Iterable[int], *, value: int = 0) -> Document:
    """An item with these words, and a field for each of them."""
    text, elements = "".join(f"w{n}." for n in sorted(fields)), "".join(f"<f{n}/>" for n in sorted(fields))
    return Document(f"d{number}", f"<i><t>{text}</t>{elements}<k>{value}</k></i>", "S", START + number * SECOND)


def other(number: int, *, value: int = 0) -> Document:
    return Document(f"d{number}", f"<o><k>{value}</k></o>", "S", START + number * SECOND)


def rows_of_groups(engine: Session) -> int:
    return int(engine.sql("SELECT count(*) AS n FROM groups")["n"][0].as_py())


def pairs(engine: Session, documents: Sequence[Document]) -> set[tuple[str, str]]:
    """The queries with the items that a batch completes."""
    return {(output.query, output.documents[0]) for output in engine.process(documents)}


@pytest.mark.parametrize("seed", seeds(3, 150))
def test_groups_cover_what_binds_and_their_rows_are_bounded(seed: int):
    rng, groups = random.Random(seed), Groups()
    filters: dict[StepEdge, tuple[int, ...]] = {}
    gone: set[StepEdge] = set()
    known: dict[int, set[StepEdge]] = {}
    for _ in range(rng.randint(1, 8)):
        for _ in range(rng.choice((1, 1, 5))):
            edge = rng.randrange(30), len(filters)
            filters[edge] = rng.choice(((), (), (1,), (2,), (1, 2)))
            groups.add(edge, filters[edge])
        live = [edge for edge in filters if edge not in gone]
        if rng.random() < 0.2:
            edge = live.pop(rng.randrange(len(live)))
            groups.remove([edge])
            gone.add(edge)
        for _ in range(20):
            binding = {edge for edge in live if rng.random() < 0.7}
            numbers = groups.numbers(binding) if binding else []
            for number, edge in groups.take():
                known.setdefault(number, set()).add(edge)
            found = [edge for number in numbers for edge in known[number]]
            assert sorted(found) == sorted(binding), "each edge is in one group"
            assert all(len({filters[edge] for edge in known[number]}) == 1 for number in numbers)
    assert sum(map(len, known.values())) <= (SHARE + 1) * len(filters)


def test_groups_of_queries_that_are_gone_go_and_those_of_documents_that_were_evicted():
    with Session("duckdb") as engine:
        engine.subscribe("; ".join(map(contains, range(10))))
        engine.process([document(0, range(10)), other(1)])
        stays = engine.sql("SELECT count(DISTINCT grp) AS n FROM groups")["n"][0].as_py()
        for number in range(1, 10):
            engine.unsubscribe(f"n{number}")
        engine.prune(None)
        used = engine.registry.catalog.edges()
        left = engine.sql("SELECT grp, var1, var2 FROM groups").to_pylist()
        assert {(row["var1"], row["var2"]) for row in left} == set(used) and len(left) < stays
        assert counted(engine) == (len({row["grp"] for row in left}),) * 2 == bound_groups(engine)
        assert pairs(engine, [document(2, {0, 5}), other(3)]) == {("n0", "d0"), ("n0", "d2")}
        engine.unsubscribe("n0")
        engine.prune(None)
        assert rows_of_groups(engine) == 0 and counted(engine) == bound_groups(engine) == (0, 0)
        engine.subscribe(contains(0), backfill=True)
        assert {o.documents[0] for o in undelivered(engine) if o.query == "n0"} == {"d0", "d2"}
        assert pairs(engine, [other(4)]) == {("n0", "d0"), ("n0", "d2")}
    rng = random.Random(3)
    with Session("duckdb", lateness=0) as engine:
        engine.subscribe("; ".join(has(number).replace("INF", "1 s") for number in range(FIELDS)))
        for number in range(0, 60, 2):
            engine.process([document(number + n, rng.sample(range(FIELDS), rng.randrange(FIELDS))) for n in (0, 1)])
        many = rows_of_groups(engine)
        engine.prune(None)
        assert rows_of_groups(engine) < many / 4 and counted(engine) == bound_groups(engine)
        assert ("n7", "d60") in pairs(engine, [document(60, {7}), other(61)])


def bound_groups(engine: Session) -> tuple[int, int]:
    number = engine.sql("SELECT DISTINCT grp FROM bound").num_rows
    return number, number


def test_after_a_restart_what_was_one_group_is_so_with_its_number():
    groups, edges = Groups(), [(n, n) for n in range(5000)]
    for edge in edges:
        groups.add(edge, ())
    assert len(groups.numbers(edges)) == len(groups.numbers(edges[:4000])) == 1
    groups, edges = Groups(), edges[:100]
    for edge in edges:
        groups.add(edge, ())
        found = groups.numbers(edges[: edge[0] + 1])
    stored: dict[int, set[StepEdge]] = {}
    for number, edge in groups.take():
        stored.setdefault(number, set()).add(edge)
    assert sum(map(len, stored.values())) <= 100 * (log2(100) + 2)
    again = Groups((number, frozenset(members)) for number, members in stored.items())
    for edge in edges:
        again.add(edge, ())
    assert again.numbers(edges) == found and not again.take()


def counted(engine: Session) -> tuple[int, int]:
    """How many groups are known in memory, in both stages."""
    return engine.stage1_counters()["groups"], engine.stage2_counters()["groups"]


def test_queries_that_come_and_go_leave_no_groups_without_a_prune(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(groups_module, "CROWDED", 50)
    with Session("duckdb") as engine:
        engine.subscribe("; ".join(map(has, range(10))))
        most = 0
        for number in range(10, 40):
            engine.subscribe(has(number))
            engine.process([document(number, range(number + 1))])
            most = max(most, rows_of_groups(engine))
            engine.unsubscribe(f"n{number}")
        assert most < 300
        expected = {(f"n{n}", f"d{m}") for n in range(10) for m in range(10, 40)}
        assert pairs(engine, [other(1000)]) == expected
