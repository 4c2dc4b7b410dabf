"""A kernel in parts finds what the oracle does, in any number of parts and intervals, through restarts and changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from common.bounds import BEGINNING
from pattern_stage.clauses import expression_text
from pattern_stage.columns import Columns
from pattern_stage.definition import StatementForms
from pattern_stage.kernel import Kernel, Results
from pattern_stage.lineage import Lineage
from pattern_stage.partition.kernel import MOST_REST, PartitionedKernel, Runner, SparkRunner
from pattern_stage.partition.keys import find_partition_keys
from pattern_stage.values import Texts
from tests.generate.documents import SECOND
from tests.generate.events import LENGTH, world
from tests.generate.seeds import seeds
from tests.support.event_agreement import HereRunner, MakeKernel, Run, assert_finds, lowered_texts, random_run
from xscl.algebra.events import Schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NONE = np.zeros(0, np.int64)
STREAMS: dict[str, Schema] = {
    "A": (("a", "string"), ("x", "number")),
    "B": (("b", "string"), ("y", "number")),
    "C": (("c", "string"), ("a", "string")),
}


def in_parts(runner: Runner) -> MakeKernel:
    def make(texts: Texts, lineage: Lineage, run: Run) -> Any:
        return PartitionedKernel(texts, lineage, runner)

    return make


def on_spark(rng: Random, spark: SparkSession) -> SparkRunner:
    return SparkRunner(spark.sparkContext, rng.choice((1, 3)), least=rng.choice((0, 0, 10)))


class Counted:
    """A kernel in parts and one that is whole: both say the same of what waits."""

    def __init__(self, texts: Texts, lineage: Lineage, run: Run) -> None:
        self._both = Kernel(texts, lineage), PartitionedKernel(texts, lineage, HereRunner(3))

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *given: [getattr(one, name)(*given) for one in self._both][1]

    def end(self) -> Sequence[Results]:
        found = [one.end() for one in self._both][1]
        whole, parted = (dict(zip(*(column.tolist() for column in one.instances()), strict=True)) for one in self._both)
        # A part expires what waits there with its next events.
        assert whole.keys() <= parted.keys()
        assert all(parted[statement] >= count for statement, count in whole.items())
        wholes, parts = ({*np.concatenate([NONE, *one.parts()]).tolist()} for one in self._both)
        assert wholes <= parts
        return found


@pytest.mark.parametrize("seed", seeds(6, 600, first=60_000))
def test_statements_that_come_and_go(seed: int):
    """After a restart there may be other parts, or none."""
    rng, made = Random(seed), world(seed)

    def make(texts: Texts, lineage: Lineage, run: Run) -> Any:
        if rng.randrange(5) == 0:
            return Kernel(texts, lineage, rules=run.rules, hashed=run.hashed)
        return in_parts(HereRunner(rng.choice((1, 2, 3, 7)), rng.choice((1, 2))))(texts, lineage, run)

    assert_finds(made, random_run(rng, len(made.statements), LENGTH), make)


@pytest.mark.parametrize("seed", seeds(3, 150, first=80_000))
def test_what_waits_is_counted(seed: int):
    rng, made = Random(seed), world(seed)
    assert_finds(made, Run(random_run(rng, 0, LENGTH).cuts), Counted)


@pytest.mark.parametrize("seed", seeds(1, 20, first=90_000))
def test_parts_on_spark(seed: int, spark: SparkSession):
    rng, made = Random(seed), world(seed)
    runner = on_spark(rng, spark)
    assert_finds(made, random_run(rng, len(made.statements), LENGTH), in_parts(runner))


def test_a_part_without_events_lets_go_of_what_is_too_old():
    texts, lineage = Texts(), Lineage()
    kernel = PartitionedKernel(texts, lineage, HereRunner(3))
    kernel.add(0, lowered_texts(["FROM A NEXT{a = b} B WITHIN 2 s"], STREAMS)[0][0], BEGINNING)
    one = np.array([SECOND], np.int64)
    number = lineage.of_documents("A", one, one, one, one.reshape(-1, 1))
    kernel.begin(SECOND + 1)
    kernel.feed({"A": Columns(one, one, (texts.codes(["k"]), np.zeros(1)), number.reshape(-1, 1))})
    kernel.end()
    for interval in range(2, MOST_REST + 2):
        assert [part.tolist() for part in kernel.parts() if len(part)] and kernel.instances()[1].tolist() == [1]
        kernel.begin(interval * 10 * SECOND)
        kernel.end()
    assert not [part for part in kernel.parts() if len(part)] and not len(kernel.instances()[1])


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("FROM A NEXT{a = b} B", "A.a B.b"),
        ("FROM A NEXT{a = b AND x < y OR y = 3 AND b = a} B", "A.a B.b"),
        ("FROM A NEXT{a = b OR x < y} B", None),
        ("FROM A NEXT{x = b} B", "A.x number(B.b)"),
        ("FROM A NEXT{lower-case(a) = lower-case(b)} B", "lower-case(A.a) lower-case(B.b)"),
        ('FROM A NEXT{concat(a, "x") = b} B', None),
        ("FROM A NEXT{a = b} B NEXT{b = c} (SELECT c FROM C)", "A.a B.b C.c"),
        ("FROM A NEXT{a = b} B NEXT{$1.x = $2.w} (SELECT x AS w FROM A)", None),
        ("FROM A NEXT{a = b} B NEXT{y = w} (SELECT number(c) AS w FROM C)", None),
        ("FROM A NEXT{a = b AND x = y} B NEXT{y = w} (SELECT number(c) AS w FROM C)", "A.x B.y number(C.c)"),
        ("FROM C NEXT{$1.c = $2.a} C", None),
        ("FROM A FOLD{$.a = $2.a, , } (SELECT b AS a FROM B)", "A.a B.b"),
        ("FROM A FOLD{$1.a = $2.a, , } (SELECT b AS a FROM B)", "A.a B.b"),
        ("FROM A FOLD{$.x = $2.x, , $.x + 1 AS x} (SELECT y AS x FROM B)", None),
        ("FROM A FOLD{$1.x = $2.x, , $.x + 1 AS x} (SELECT y AS x FROM B)", "A.x B.y"),
        ("FROM A FOLD{, $.a = $2.a, } (SELECT b AS a FROM B)", None),
        ("FROM AGGREGATE{count() AS n BY a} A", "A.a"),
        ("FROM AGGREGATE{count() AS n BY b} (A NEXT{a = b} B)", "A.a B.b"),
        ("FROM AGGREGATE{count() AS n BY y} (A NEXT{a = b} B)", None),
        ("FROM AGGREGATE{count() AS n} (A NEXT{a = b} B)", None),
        ("FROM (SELECT a FROM A) UNION (SELECT b AS a FROM B)", None),
        ("FROM ((SELECT a FROM A) UNION (SELECT b AS a FROM B)) NEXT{$1.a = $2.c} (SELECT c FROM C)", "A.a B.b C.c"),
        ("FROM A", None),
    ],
)
def test_by_what_events_are_parted(statement: str, expected: str | None):
    (stream,), _ = lowered_texts([statement], STREAMS)
    found = find_partition_keys(StatementForms().form(stream)[0])
    if found is None:
        assert expected is None
        return
    shown = []
    for name, _, key in found.streams:
        assert key is not None
        shown.append(expression_text(key, lambda parameter: "", bare=True).replace("(", f"({name}.", 1))
    shown = [one if "(" in one else f"{name}.{one}" for one, (name, _, _) in zip(shown, found.streams, strict=True)]
    assert " ".join(shown) == expected
