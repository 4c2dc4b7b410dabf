"""Numbers of events stand for what they were given for, until nothing refers to them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from pattern_stage.lineage import COMPOSED, TOGETHER, EventOrigin, Lineage
from tests.generate.seeds import seeds


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def some(rng: Random, lineage: Lineage, origins: dict[int, EventOrigin]) -> None:
    """Adds a few events to a lineage, and what they are to a model."""
    count, stream = rng.randint(0, 4), rng.choice("EFG")
    t0 = ints(*(rng.randrange(100) for _ in range(count)))
    if origins and rng.random() < 0.4:
        width = rng.randint(1, 3)
        parts = np.array([[rng.choice([-1, *origins]) for _ in range(width)] for _ in range(count)], np.int64)
        digests = [rng.randbytes(16) for _ in range(count)]
        numbers = lineage.composed("P" + stream, digests, t0, t0 + 5, parts.reshape(count, width))
        for at, number in enumerate(numbers.tolist()):
            made_of = tuple(part for part in parts[at].tolist() if part >= 0)
            origins[number] = EventOrigin(
                "P" + stream, COMPOSED, int(t0[at]), int(t0[at]) + 5, (), digests[at], made_of
            )
    else:
        nodes = np.array([[rng.randrange(9), rng.randrange(9)] for _ in range(count)], np.int64).reshape(count, 2)
        docids = ints(*(rng.randrange(50) for _ in range(count)))
        for at, number in enumerate(lineage.of_documents(stream, docids, t0, t0 + 1, nodes).tolist()):
            one = tuple(nodes[at].tolist())
            origins[number] = EventOrigin(stream, int(docids[at]), int(t0[at]), int(t0[at]) + 1, one)


def singles(origins: dict[int, EventOrigin], numbers: list[int]) -> Iterator[int]:
    """The events that numbers stand for, sets as their members."""
    for number in numbers:
        if number >= 0:
            yield from origins[number].parts if origins[number].docid == TOGETHER else (number,)


def together(rng: Random, lineage: Lineage, origins: dict[int, EventOrigin]) -> None:
    """Adds sets of events, some of them equal and some with one event."""
    groups, rows = list[int](), list[list[int]]()
    for group in range(rng.randint(1, 4)):
        for _ in range(rng.randint(1, 3)):
            groups.append(group)
            rows.append([rng.choice(list(origins)[:3]), rng.choice([-1, *list(origins)[-2:]])])
    lineage.begin()
    numbers = lineage.together(np.array(rows, np.int64), ints(*groups)).tolist()
    members = [
        {single for at, row in zip(groups, rows, strict=True) if at == group for single in singles(origins, row)}
        for group in range(len(numbers))
    ]
    for number, those in zip(numbers, members, strict=True):
        if len(those) == 1:
            assert those == {number}
        else:
            times = [(origins[part].t0, origins[part].t1) for part in those]
            origin = EventOrigin(
                "", TOGETHER, min(t0 for t0, _ in times), min(t1 for _, t1 in times), parts=tuple(sorted(those))
            )
            assert origins.setdefault(number, origin) == origin
    assert len(set(numbers)) == len({frozenset(those) for those in members})


def behind(origins: dict[int, EventOrigin], number: int) -> set[int]:
    return {number}.union(*(behind(origins, part) for part in origins[number].parts))


@pytest.mark.parametrize("seed", seeds(4, 30))
def test_numbers_stand_for_events(seed: int) -> None:
    rng = Random(seed)
    lineage, origins = Lineage(), dict[int, EventOrigin]()
    for _ in range(30):
        some(rng, lineage, origins)
        choice = rng.random()
        if choice < 0.2:
            used = rng.sample(sorted(origins), rng.randint(0, len(origins)))
            lineage.keep([ints(*used[::2]), ints(*used[1::2], -1)])
            kept = set[int]().union(*(behind(origins, number) for number in used))
            origins = {number: origin for number, origin in origins.items() if number in kept}
        elif choice < 0.4:  # saved, and restored in two parts
            saved, mine = lineage.table(), rng.random() < 0.5
            halves = [saved.filter(np.array([rng.random() < 0.5 for _ in range(len(saved))], np.bool_))]
            rest = set(saved["number"].to_pylist()) - set(halves[0]["number"].to_pylist())
            halves.append(saved.filter(np.array([n in rest for n in saved["number"].to_pylist()], np.bool_)))
            again = Lineage(lineage.next)
            for half in halves if mine else reversed(halves):
                again.restore(half)
            lineage = again
        elif choice < 0.6 and origins:
            together(rng, lineage, origins)
        assert len(lineage) == len(origins)
        known = ints(*origins)
        assert lineage.ends(known).tolist() == [origin.t1 for origin in origins.values()]
        assert lineage.origins(ints(-1, *origins)) == origins
        asked = rng.sample(sorted(origins), min(3, len(origins)))
        assert lineage.origins(ints(*asked)) == {number: origins[number] for number in asked}
