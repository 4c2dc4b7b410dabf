"""A store opens although a text in it cannot be read: that query is set aside with its mistake, the others go on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from feeds.documents import Document
from join_stage.store.protocol import StoreError
from mmqjp.engine import Session
from tests.generate.documents import SECOND

DEFINITIONS = (
    "DEFINE EVENT B FROM S//b->x (id := x/@id, v := number(x/@id)); DEFINE EVENT C FROM S//b->x (id := x/@id);"
)
QUERIES = {
    "filtered": "FROM FILTER{v > 0} B PUBLISH filtered",
    "reader": "FROM filtered PUBLISH reader",
    "found": "PATTERN SEQ(B a) WITHIN 5 s PUBLISH found",
    "other": 'FROM FILTER{id != "x"} C PUBLISH other',
    "plain": "FROM S//b->x PUBLISH plain",
    "joined": "FROM S//b->x JOIN {x/k = y/k, 1 h} S//b->y PUBLISH joined",
    "absent": "FROM S//b->x NOT FOLLOWED BY {x/@id = y/@id, 1 s} S//b->y PUBLISH absent",
    "once": "FROM S//b->x PUBLISH once ONCE PER (x/@id)",
    "chain": "FROM S//b->x JOIN {x/k = y/k, 1 h} S//b->y JOIN {y/k = z/k, 1 h} S//b->z PUBLISH chain",
    "chain2": "FROM S//b->x JOIN {x/k = y/k, 1 h} S//b->y JOIN {z/k = y/k AND z/@id != x, 1 h} S//b->z PUBLISH chain2",
    "of_documents": "FROM plain/match->m PUBLISH of_documents",
}
READERS = {"filtered": {"reader"}, "plain": {"of_documents"}, "B": {"filtered", "reader", "found"}}
SETTLE = 0


def documents(time: int) -> Iterator[Document]:
    yield Document(id=f"d{time}", xml=f'<b id="{time}"><k>1</k></b>', time=(time * SECOND, time * SECOND))
    yield Document(id=f"z{time}", xml="<z/>", time=(time * SECOND + 1, time * SECOND + 1))


def opened(state: Path, *, read_only: bool = False) -> Session:
    return Session("duckdb", state=state, settle=None if read_only else SETTLE, lateness=0, read_only=read_only)


def told(engine: Session, *times: int) -> set[str]:
    return {one.query for time in times for one in engine.process(documents(time))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = tmp_path_factory.mktemp("whole") / "s"
    with opened(state) as engine:
        engine.subscribe(DEFINITIONS + ";".join(QUERIES.values()))
        assert told(engine, 1, 4) == QUERIES.keys()
        engine.pause("absent")
        engine.resume("absent")
    return state


def damage(state: Path, name: str) -> None:
    """Replaces a stored text by one that no version reads."""
    (file,) = state.glob("*.duckdb")
    with duckdb.connect(str(file)) as store:
        table = "definitions" if name == "B" else "added_queries"
        text = "DEFINE EVENT B FROM !" if name == "B" else f"FROM FILTER{{ ) NOT PUBLISH {name}"
        store.execute(f"UPDATE {table} SET text = ? WHERE name = ?", [text, name])


CASES = ["filtered once chain", "found absent chain2 of_documents", "plain absent B"]


@pytest.mark.parametrize("names", [*CASES, *(pytest.param(one, marks=pytest.mark.soak) for one in [*QUERIES, "B"])])
def test_queries_that_cannot_be_read_are_set_aside_and_the_others_go_on(
    names: str, whole: Path, tmp_path: Path
) -> None:
    state, unreadable = shutil.copytree(whole, tmp_path / "s"), {*names.split()}
    for name in unreadable:
        damage(state, name)
    silent = unreadable.union(*(READERS.get(name, ()) for name in unreadable)) - {"B"}
    with opened(state, read_only=True) as engine:
        assert engine.queries().keys() == QUERIES.keys()
    with opened(state) as engine:
        assert told(engine, 12, 22) == QUERIES.keys() - silent
        aside = engine.take_paused()
        assert aside.keys() == silent - ({"of_documents"} - unreadable)  # which reads documents that do not come
        assert all(reason.startswith("this version cannot read the query: ") for reason in aside.values())
        for query in aside:
            with pytest.raises(StoreError, match="cannot read"):
                engine.resume(query)
    with opened(state) as engine:
        assert told(engine, 32, 42) == QUERIES.keys() - silent and not engine.take_paused()
        engine.subscribe(DEFINITIONS + ";".join(QUERIES[one] for one in QUERIES if one in silent))
        assert told(engine, 52, 62) == QUERIES.keys()
    with opened(state) as engine:
        assert told(engine, 72, 82) == QUERIES.keys()
        engine.unsubscribe("absent")
