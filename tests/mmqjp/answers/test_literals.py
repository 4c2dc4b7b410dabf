"""Indexes of literals find what looking for each literal finds, whatever was added and removed before."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mmqjp.queries import literals
from mmqjp.queries.literals import INDEXES
from tests.generate.seeds import seeds

HAS: dict[str, Callable[[str, str], bool]] = {
    "contains": str.__contains__,
    "starts-with": str.startswith,
    "ends-with": str.endswith,
}


def word(rng: random.Random, most: int) -> str:
    return "".join(rng.choice("aab\u00e9\U0001f600") for _ in range(rng.randint(0, most)))


@pytest.mark.parametrize("few", [1, 32])
@pytest.mark.parametrize("name", INDEXES)
@pytest.mark.parametrize("seed", seeds(5, 200))
def test_an_index_finds_what_looking_for_each_literal_finds(
    name: str, few: int, seed: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(literals, "FEW", few)
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
