"""Stories of documents with several keys, so that they merge: what is told of them in which batches, and their ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from tests.generate.documents import SECOND, START
from tests.generate.seeds import seeds

QUERY = "FROM S//item->a[k->x] JOIN {x = y, 20 s} S//item->b[k->y] PUBLISH %s STORIES LASTING 10 s"


def item(id: str, second: int, keys: str) -> Document:
    return Document(id, f"<item>{''.join(f'<k>{key}</k>' for key in keys)}</item>", time=START + second * SECOND)


def told(batches: Sequence[Sequence[Document]], text: str = QUERY % "told", place: Path | None = None) -> list[Output]:
    """What is told of all stories, with a new session for each batch if there is a `place`."""
    last = [item("z", 5_000, "z")], [item("zz", 9_000, "Z")]
    options: dict[str, Any] = {"state": place, "settle": 0, "quiet": True, "now": lambda: START}
    session = Session("duckdb", **options)
    session.subscribe(text)
    for batch in (*batches, *last):
        if place is not None:
            session.close()
            session = Session("duckdb", **options)
        session.process(batch)
    with session:
        return list(session.outputs(-1))


def test_each_story_has_an_id_of_its_own() -> None:
    # `p` makes the story of `f` older, so that it is over when `e` comes, which `f` opens another story with.
    known = (("p", 5, "3"), ("f", 10, "19"), ("d", 12, "12"), ("d2", 14, "23"), ("e", 17, "9"))
    found = told([[item(*one)] for one in known], f"{QUERY % 'one'}; {QUERY % 'two'}")
    opened = [one.story for one in found if one.change == "opened"]
    assert len(opened) == len(set(opened)) == 4


@pytest.mark.parametrize("seed", seeds(6, 300))
def test_what_is_told_does_not_depend_on_batches(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    made = [
        item(f"d{n}", time, "".join(rng.sample("abcdef", rng.randint(1, 2))))
        for n, time in enumerate(sorted(rng.randint(0, 30) for _ in range(rng.randint(4, 14))))
    ]
    cut = rng.randrange(len(made))
    whole = told([made])
    for batches, place in (([[one] for one in made], None), ([made[:cut], made[cut:]], tmp_path / "state")):
        assert sorted(map(unnumbered, told(batches, place=place))) == sorted(map(unnumbered, whole))
    changes = Counter(one.change for one in whole)
    assert changes["opened"] == changes["closed"] + sum(one.xml.count("<merged ") for one in whole)


def unnumbered(output: Output) -> tuple[str, int, str]:
    return output.id, output.t1, output.xml
