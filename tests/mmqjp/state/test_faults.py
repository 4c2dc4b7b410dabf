import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from feeds.documents import Document, SourceError
from feeds.fetch.state import STATE_FILE, FeedState, FetchStore, HostState
from join_stage import near_candidates
from join_stage.plans import PLANS
from join_stage.store.protocol import DUCKDB_FILE, StoreError
from mmqjp.engine import Session
from mmqjp.service.spool import Command, CommandResult, Spool
from tests.generate.documents import SECOND
from tests.generate.near import near_case
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.evaluation import comparable, evaluate
from tests.processes import nursery
from tests.support.agreement import as_row
from tests.support.cli import mmqjp
from tests.support.damage import damaged
from tests.support.delivery import undelivered
from tests.support.stores import TABLES, parquet_store
from xscl.syntax import Script

QUERIES = "S/a->x FOLLOWED BY {x = y, 10} S/a->y PUBLISH p; S/a/x->x JOIN {lower-case(x) = y, INF} S/b/x->y PUBLISH c"
SOAK = 1000
"""Damages of all kinds, at length."""


def doc(number: int, tag: str = "a") -> Document:
    return Document(f"{tag}{number}", f"<{tag}><x>v</x></{tag}>", "S", number * SECOND)


def made(state: Path, killed: Path | None = None) -> list[Any]:
    """Makes a store, and a copy of it as a kill leaves it; returns what is in it before and after each batch."""
    with Session("duckdb", state=state) as opened:
        opened.subscribe(QUERIES)
        seen = [content(opened)]
        for number in range(4):
            opened.process([doc(number), doc(number, "b")])
            seen.append(content(opened))
        if killed is not None:
            shutil.copytree(state, killed)
    return seen


def content(engine: Session) -> Any:
    outputs = [(o.query, o.documents, o.xml) for o in undelivered(engine)]
    documents = sorted(
        (row["docid"], row["id"], row["xml"]) for row in engine.sql("SELECT * FROM documents").to_pylist()
    )
    return engine.queries(), documents, outputs


def used(state: Path) -> tuple[Any, Any]:
    with Session("duckdb", state=state) as opened:
        before = content(opened)
        return before, sorted((o.query, o.documents) for o in opened.process([doc(9), doc(9, "b")]))


def damages(
    numbers: range,
    place: Path,
    use: Callable[[Path], Any],
    right: Any,
    error: type[Exception],
    name: str = "",
    whole: str = "whole",
) -> int:
    """The number of damages to files of a name, or to any, which a start tells in one line. All others must not
    matter."""
    messages = []
    for seed in numbers:
        how = damaged(Random(seed), place / whole, place / "copy", lambda path: name in ("", path.name))
        try:
            assert use(place / "copy") == right, f"seed {seed}: {how}"
        except error as told:
            messages.append(str(told))
    assert not [message for message in messages if "\n" in message or len(message) < 20]
    return len(messages)


def duckdb_damage(numbers: range, place: Path) -> int:
    made(place / "whole")
    shutil.copytree(place / "whole", place / "used")
    return damages(numbers, place, used, used(place / "used"), StoreError, DUCKDB_FILE)


def wal_damage(numbers: range, place: Path) -> int:
    """All of a log was committed: whatever is done to it, or to the mark of its commits, is told or does not matter."""
    made(place / "whole", place / "killed")
    shutil.copytree(place / "killed", place / "used")
    return damages(numbers, place, used, used(place / "used"), StoreError, f"{DUCKDB_FILE}.wal", "killed")


def table_row(table: str, number: int) -> pa.Table:
    """A row with a number, or a text of it, in every column."""

    def value(kind: pa.DataType) -> Any:
        if pa.types.is_list(kind):
            return [value(kind.value_type)] * 3
        return number if pa.types.is_integer(kind) else str(number).encode() if kind == pa.binary() else str(number)

    schema = TABLES[table]
    return pa.table([pa.array([value(field.type)] * 20, field.type) for field in schema], schema=schema)


def spark_damage(numbers: range, place: Path) -> int:
    names = ("documents", "settings", "answers", "r_doc")
    store = parquet_store(place / "whole")
    for number in range(3):
        for name in names:
            store.append(name, table_row(name, number * 7919))
        store.commit()
    store.close()

    def use(state: Path) -> Any:
        opened = parquet_store(state)
        try:
            highest = opened.highest("documents", "docid"), opened.highest("settings", "batch")
            return highest, [opened.read(name).to_pylist() for name in names], dict(opened.files)
        finally:
            opened.close()

    return damages(numbers, place, use, use(place / "whole"), StoreError)


def test_what_is_checked_is_remembered_only_as_long_as_it_counts(tmp_path):
    store = parquet_store(tmp_path)
    for number in range(40):
        store.append("settings", table_row("settings", number))
        store.commit()
    assert len(store._whole) == len(store.files["settings"]) < 40
    store.close()


def fetch_damage(numbers: range, place: Path) -> int:
    with FetchStore(place / "whole" / STATE_FILE, write=True) as store:
        store.add(FeedState(f"http://example.org/{n}", f"source-{n}") for n in range(40))
        for number, feed in enumerate(store.feeds()):
            store.commit(
                replace(feed, etag=f'"{number}"', sha256="ab" * 32, next_check=10**15 + number), f"mark {number}"
            )
            store.save_host(HostState(f"host{number}", number))

    def use(state: Path) -> Any:
        with FetchStore(state / STATE_FILE, write=True) as opened:
            feeds = opened.feeds()
            opened.commit(feeds[0])
            return feeds, [opened.host(f"host{number}") for number in range(40)], opened.archive_mark()

    return damages(numbers, place, use, use(place / "whole"), SourceError, STATE_FILE)


DAMAGES = [(duckdb_damage, 5, SOAK // 4, 0.2), (wal_damage, 7, SOAK // 4, 0.8), (spark_damage, 20, SOAK, 0.5)]
DAMAGES += [(fetch_damage, 25, SOAK, 0.25)]


@pytest.mark.parametrize(("damage", "few", "many", "least"), DAMAGES)
def test_damage_is_told_or_does_not_matter(damage, few, many, least, tmp_path):
    numbers = seeds(few, many)
    assert damage(numbers, tmp_path) > least * len(numbers)


def test_a_damaged_command_is_answered_with_an_error_and_a_damaged_answer_is_one(tmp_path):
    spool = Spool(tmp_path)

    def damage(directory: str, command: Command, content: bytes) -> str:
        (tmp_path / "spool" / directory / f"{command.id}.json").write_bytes(content)
        waiting, answer = spool.waiting(), spool.take_result(command)
        assert command not in waiting and answer is not None
        return answer.error or ""

    for content in (b"", b"{", b"[]", b"null", b'{"do": 1}', b"\xff\xfe"):
        good, bad = spool.submit("list", {}), spool.submit("list", {})
        assert "is not a command" in damage("commands", bad, content) and spool.waiting() == [good]
        spool.answer(good, CommandResult([]))
        assert "is damaged" in damage("answers", good, content.replace(b'"do": 1', b""))
        assert spool.take_result(good) is None


def test_a_command_says_in_a_line_that_its_store_is_damaged(tmp_path):
    made(tmp_path / "whole")
    file = tmp_path / "whole" / DUCKDB_FILE
    file.write_bytes(file.read_bytes()[:100_000])
    result = mmqjp("list", "--state", tmp_path / "whole")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("mmqjp: error: ") and "take an older copy of the store" in result.stderr


def test_a_clock_that_goes_back_changes_nothing_that_was_found(tmp_path):
    time = [2_000 * SECOND]
    options: dict[str, Any] = {"lateness": 5 * SECOND, "idle_after": 60 * SECOND, "now": lambda: time[0]}
    with Session("duckdb", state=tmp_path, **options) as engine:
        engine.subscribe(QUERIES)
        engine.process([doc(1)])
        time[0] += 100 * SECOND
        engine.pass_time()
        ahead = engine.watermarks()
        time[0] -= 1_000 * SECOND
        engine.pass_time()
        assert engine.watermarks() == ahead
        assert len(engine.process([doc(2_090), doc(2_091)])) == 1
    time[0] -= 500 * SECOND
    with Session("duckdb", state=tmp_path, **options) as engine:
        assert engine.watermarks()["S"] == 2_086 * SECOND
        assert len(engine.process([doc(2_092), doc(2_080)])) == 2
        assert [row["id"] for row in engine.dead_letters()] == ["a2080"]


SIZE = 3
"""Documents in a batch."""

ENOUGH, AGAIN = 7, 2
"""The order of words is learnt from this number of texts, and again when there are AGAIN times as many."""


class Life(NamedTuple):
    script: Script
    documents: list[Document]

    def batches(self, size: int = SIZE) -> list[list[Document]]:
        return [self.documents[at : at + size] for at in range(0, len(self.documents), size)]

    def opened(self, state: Path, **options: Any) -> Session:
        engine = Session("duckdb", state=state, **options)
        engine.ensure(self.script)
        return engine


def of_any_kind(seed: int) -> Life:
    return Life(*random_case(seed, 10, 12))


def with_near(seed: int) -> Life:
    near_candidates.ENOUGH, near_candidates.AGAIN = ENOUGH, AGAIN
    return Life(*near_case(seed, queries=6, documents=16))


def live(make: Callable[[int], Life], seed: int, state: Path) -> None:
    life = make(seed)
    engine = life.opened(state)
    for batch in life.batches():
        engine.process(batch)


def assert_told(engine: Session, life: Life, size: int = SIZE) -> None:
    """Asserts that all is told once when all documents have come, some of them again."""
    for batch in life.batches(size):
        engine.process(batch)
    assert not list(engine.dead_letters())
    outputs = list(engine.outputs())
    assert len({output.id for output in outputs}) == len(outputs)
    assert comparable(map(as_row, outputs)) == comparable(evaluate(life.script, life.documents)) != []


KILLS = [
    f"{at} {method}"
    for method in ("DuckDBEngine.commit", "DuckDBEngine.join", "DuckDBEngine.append", "CommitMark.note")
    for at in ("before", "after")
]


@pytest.mark.parametrize(
    ("at", "calls"),
    [
        ("after DuckDBEngine.join", 3),
        ("before CommitMark.note", 3),
        *(pytest.param(at, calls, marks=pytest.mark.soak) for at in KILLS for calls in (1, 4)),
    ],
)
def test_a_killed_run_is_taken_up_again(at, calls, tmp_path):
    nursery.run_killed(live, of_any_kind, 7, tmp_path, at=at, calls=calls)
    life = of_any_kind(7)
    with life.opened(tmp_path) as engine:
        assert_told(engine, life, SIZE + 1)


LEARNT = "protocol.save_word_order"
"""Called within the engine's commit, before that of the store."""


@pytest.mark.parametrize(
    ("at", "is_there"),
    [
        pytest.param(f"before {LEARNT}", False, marks=pytest.mark.soak),
        (f"after {LEARNT}", False),
        (f"after {LEARNT}, after DuckDBStore.commit", True),  # no document has its keys in it yet
        (f"after {LEARNT}, after DuckDBEngine.commit", True),  # those of another batch have
    ],
)
@pytest.mark.parametrize("seed", seeds(1, 60))
def test_killed_as_the_order_of_words_is_learnt(seed, at, is_there, tmp_path, monkeypatch):
    monkeypatch.setattr(near_candidates, "ENOUGH", ENOUGH)  # and set back
    monkeypatch.setattr(near_candidates, "AGAIN", AGAIN)
    nursery.run_killed(live, with_near, seed, tmp_path, at=at)
    life = with_near(seed)
    with life.opened(tmp_path, plan=PLANS[seed % 7 % len(PLANS)] if seed else "signature") as engine:
        assert engine.sql("SELECT version FROM word_order").num_rows == is_there
        assert_told(engine, life)
