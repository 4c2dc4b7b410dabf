"""Operators that wait for the watermark: what they decide is committed with the batch or the passing of time that moved
it, goes on to readers, and survives faults and restarts."""

from __future__ import annotations

import pickle
import random
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feeds.documents import Document
from join_stage.protocol import JoinEngine
from mmqjp.answers.matches import Match
from mmqjp.answers.operators import Expanded, Operators, StepContext
from mmqjp.answers.output import Answer, Output
from mmqjp.answers.query_operators import InnerJoinOperator, QueryOperator
from mmqjp.answers.quota import ChargeKey, Quota, Share
from mmqjp.documents.record import Inputs, Record, Records
from mmqjp.documents.watermarks import Watermarks
from mmqjp.engine import Session
from mmqjp.queries.forms import RowPart
from mmqjp.queries.model import HiddenStream, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.schema import CommitMetadata
from tests.generate.seeds import seeds
from tests.support.faults import FaultySession, Injected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000
START = 1_767_225_600 * SECOND
WAIT, LATENESS, IDLE = 10 * SECOND, 5 * SECOND, 60 * SECOND
HELD = "test-held"

QUERIES = """
FROM S//a->x JOIN {x = y, 30} S//b->y PUBLISH pairs;
FROM pairs//match->m PUBLISH readers;
FROM S//a->x FOLLOWED BY {x = y, 20} S//b->y FOLLOWED BY {y = z, 20} S//a->z PUBLISH chains
"""


HeldAnswer = tuple[Answer, list[Record]]
"""An answer and its documents."""


class Held(QueryOperator):
    """Queries whose outputs are held back until the watermark of S is later than their end by WAIT."""

    def __init__(
        self, registry: Registry, records: Records, ledger: Ledger, watermarks: Watermarks, quota: Quota
    ) -> None:
        super().__init__(registry, records, quota)
        self._queries, self._ledger, self._watermarks = registry, ledger, watermarks
        noted = ledger.setting(HELD)
        self._held: list[HeldAnswer] = pickle.loads(b64decode(noted)) if noted else []
        self._kept = list(self._held)

    def on_match(self, group: RowPart, context: StepContext, match: Match, inputs: Inputs) -> Sequence[Expanded]:
        for item in super().on_match(group, context, match, inputs):
            if item.answer is not None and not item.duplicate:
                self._held.append((replace(item.answer, matches=[]), list(item.documents)))
        return ()

    def _decided(self, greatest: Mapping[str, int]) -> list[HeldAnswer]:
        watermark = self._watermarks.of(("S",), greatest)
        return [one for one in self._held if one[0].t1 + WAIT < watermark]

    def is_due(self, greatest: Mapping[str, int]) -> bool:
        return bool(self._decided(greatest))

    def on_watermark(self, context: StepContext, greatest: Mapping[str, int] | None) -> Iterator[Expanded]:
        for one in self._decided(greatest or {}):
            self._held.remove(one)
            answer, documents = one
            yield Expanded(replace(answer), documents)

    def save(self) -> None:
        if self._held != self._kept:
            value = b64encode(pickle.dumps(self._held)).decode()
            self._ledger.save_metadata(CommitMetadata(settings={HELD: value}))

    def finish_batch(self, *, committed: bool) -> None:
        if committed:
            self._kept = list(self._held)
        else:
            self._held = list(self._kept)


class Holding(FaultySession):
    @staticmethod
    def _make_operators(
        store: JoinEngine,
        registry: Registry,
        records: Records,
        ledger: Ledger,
        watermarks: Watermarks,
        quota: Quota,
    ) -> Operators:
        held = Held(registry, records, ledger, watermarks, quota)
        return Operators({Subscription: held, HiddenStream: InnerJoinOperator(records)})


def documents(rng: random.Random, count: int) -> list[Document]:
    """Documents in the order of their times, of which some are equal."""
    times = sorted(rng.randint(0, 120) for _ in range(count))
    return [
        Document(f"d{n}", "<{0}>{1}</{0}>".format(rng.choice("ab"), rng.randint(0, 2)), time=START + time * SECOND)
        for n, time in enumerate(times)
    ]


def batches(rng: random.Random, given: list[Document]) -> Iterator[list[Document]]:
    while given:
        size = rng.randint(1, 7)
        yield given[:size]
        given = given[size:]


def rows(outputs: Sequence[Output]) -> list[tuple[object, ...]]:
    return sorted((o.query, o.t0, o.t1, o.documents, str(o.nodes), o.xml, o.id) for o in outputs)


@pytest.mark.parametrize("seed", seeds(2, 200))
def test_what_waits_for_the_watermark_comes_once_when_it_has_passed(seed: int, tmp_path: Path):
    rng = random.Random(seed)
    given = documents(rng, 40)
    with Session("duckdb", lateness=LATENESS) as plain:
        plain.subscribe(QUERIES)
        everything = plain.process(given)
    got: list[Output] = []

    def opened() -> Holding:
        return Holding("duckdb", state=tmp_path / "state", lateness=LATENESS)

    engine = opened()
    engine.subscribe(QUERIES)
    for batch in batches(rng, given):
        if rng.random() < 0.3:
            with engine.store.failing(rng.choice(["commit", "append"])), pytest.raises(Injected):
                engine.process(batch)
        if rng.random() < 0.3:
            engine.close()
            engine = opened()
        got += engine.process(batch)
        watermark = engine.watermarks()["S"]
        assert rows(got) == rows([output for output in everything if output.t1 + WAIT < watermark])
    assert [output.seq for output in got] == list(range(len(got))) and list(engine.outputs()) == got
    assert {output.query for output in got} == {"pairs", "readers", "chains"}
    engine.close()


def test_what_waits_for_the_watermark_comes_on_spark(spark: SparkSession):
    given = documents(random.Random(1), 40)
    found = []
    for engine in ("duckdb", spark):
        with Holding(engine, lateness=LATENESS) as holding:
            holding.subscribe(QUERIES)
            found.append([output for half in (given[:20], given[20:]) for output in holding.process(half)])
    assert found[0] == found[1] and len(found[0]) > 20


def test_silence_moves_the_watermark_and_what_waits_comes(tmp_path: Path):
    now = START

    def opened() -> Holding:
        return Holding("duckdb", state=tmp_path / "state", lateness=LATENESS, idle_after=IDLE, now=lambda: now)

    with opened() as engine:
        engine.subscribe(QUERIES)
        assert not engine.process([Document("d0", "<a>v</a>", time=START), Document("d1", "<b>v</b>", time=START)])
        now += IDLE
        assert not engine.pass_time() and not list(engine.outputs())
    now = START + SECOND
    with opened() as engine:
        now += IDLE + WAIT + LATENESS
        with engine.store.failing("commit"), pytest.raises(Injected):
            engine.pass_time()
        assert not list(engine.outputs())
        assert engine.pass_time()
        assert [(o.query, o.seq) for o in engine.outputs()] == [("pairs", 0), ("readers", 1)]
        assert engine.counters().outputs == 2 and not engine.pass_time()


class Charged(Held):
    """Charges queries for what it held back when it gives it, to the first arrival."""

    def on_watermark(self, context: StepContext, greatest: Mapping[str, int] | None) -> Iterator[Expanded]:
        for item in super().on_watermark(context, greatest):
            answer = item.answer
            assert answer is not None
            form = self._queries.form(answer.form)
            assert form is not None
            for_all = ChargeKey(0, answer.appeared, 0, self._ledger.batch)
            share = Share(for_all, answer.width, answer.appeared, 0)
            context.accounts.of(form).charge(0, share, 1, 0)
            yield item


class Charging(FaultySession):
    @staticmethod
    def _make_operators(
        store: JoinEngine,
        registry: Registry,
        records: Records,
        ledger: Ledger,
        watermarks: Watermarks,
        quota: Quota,
    ) -> Operators:
        held = Charged(registry, records, ledger, watermarks, quota)
        return Operators({Subscription: held, HiddenStream: InnerJoinOperator(records)})


@pytest.mark.parametrize(("max_outputs", "paused"), [(10, False), (3, True)])
def test_what_silence_decides_counts_against_quotas(max_outputs: int, paused: bool, tmp_path: Path):
    now = START

    def opened() -> Charging:
        state = tmp_path / "state"
        return Charging(
            "duckdb", state=state, lateness=LATENESS, idle_after=IDLE, now=lambda: now, max_outputs=max_outputs
        )

    with opened() as engine:
        engine.subscribe("S//a PUBLISH everything")
        engine.process([Document(f"d{n}", "<a/>", time=START) for n in range(2)])  # each match is charged, too
    with opened() as engine:
        now += IDLE + 600 * SECOND
        assert engine.pass_time()
        assert (engine.registry.named("everything")[0].paused is not None) == paused
        assert len(list(engine.outputs())) == (0 if paused else 2)
        assert engine.sql("SELECT sum(outputs) AS n FROM spent", trusted=True)["n"].to_pylist() == [4]
