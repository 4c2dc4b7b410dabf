"""Queries that look for literals get what they ask for, and indexes of literals find them, whatever comes and goes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.queries import forms
from mmqjp.queries.forms import INDEXES
from tests.generate.seeds import seeds

HAS: dict[str, Callable[[str, str], bool]] = {
    "contains": str.__contains__,
    "starts-with": str.startswith,
    "ends-with": str.endswith,
}


START = 1_780_000_000_000_000


def word(rng: random.Random, most: int) -> str:
    return "".join(rng.choice("aab\u00e9\U0001f600") for _ in range(rng.randint(0, most)))


@pytest.mark.parametrize("few", [1, 32])
@pytest.mark.parametrize("name", INDEXES)
@pytest.mark.parametrize("seed", seeds(1, 200))
def test_an_index_finds_what_looking_for_each_literal_finds(
    name: str, few: int, seed: int, monkeypatch: pytest.MonkeyPatch
):
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
def test_queries_that_come_and_go_get_the_pairs_whose_text_has_their_literals(seed: int, tmp_path: Path):
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
def test_work_for_several_literal_tests_counts_together_in_any_batches(size: int):
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
