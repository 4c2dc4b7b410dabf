"""Offering the outputs of a batch to sinks: a chunk at a time it comes to the same as one output at a time."""

from __future__ import annotations

from collections import Counter

import pytest

from feeds.documents import Document
from mmqjp.answers.fan_out import OutputChunk
from mmqjp.answers.outbox import Position
from mmqjp.engine import Session
from mmqjp.sinks.deliverer import offer
from mmqjp.sinks.positions import Course
from tests.support.fake_sinks import SECOND, definition

QUERIES = """FROM S//a->x PUBLISH a1; FROM S//a->x PUBLISH a2; FROM S//b->x PUBLISH b1;
S//a->x[./k->p] FOLLOWED BY {p = q, 100} S//b->y[./k->q] PUBLISH joined"""

PATTERNS = {"all": ["*"], "some": ["a*"], "one": ["joined"], "none": ["zzz"]}


def courses() -> list[Course]:
    given = [definition(name, queries=queries) for name, queries in PATTERNS.items()]
    return [Course(one, Position()) for one in [*given, definition("every")]]


@pytest.mark.parametrize("before", [0, 995, 3_000])
def test_chunks_come_to_the_same_as_single_outputs(before: int):
    given = [Document(f"d{n}", f"<{'ab'[n % 2]}><k>{n % 5}</k></{'ab'[n % 2]}>", time=n * SECOND) for n in range(900)]
    with Session("duckdb") as engine:
        engine.subscribe(QUERIES)
        for start in range(0, before, 500):
            engine.process([Document(f"e{n}", "<a/>", time=0) for n in range(start, start + 500)])
        kept = list(engine.outputs())
        outputs = engine.process(given)
        for chunk in outputs.chunks():
            assert isinstance(chunk, OutputChunk)
            made = list(chunk.outputs())
            counted = Counter(output.query for output in made)
            assert chunk.by_query() == {
                name: (count, min(output.t0 for output in made if output.query == name))
                for name, count in counted.items()
            }
            some = [output for output in made if output.query in ("a1", "joined")]
            assert list(chunk.of_queries({"a1", "joined"}).outputs()) == some
        together, each = courses(), courses()
        for found in (together, each):
            offer(found, kept, 5)
        offer(together, outputs, 10)
        offer(each, list(outputs), 10)
        for one, other in zip(together, each, strict=True):
            shown, expected = one.backlog, other.backlog
            assert (shown.count, shown.beyond, shown.taken, shown.t0, shown.since) == (
                expected.count, expected.beyond, expected.taken, expected.t0, expected.since
            )  # fmt: skip
            assert [group.id for group in shown.groups] == [group.id for group in expected.groups]
        assert together[3].backlog.count == 0 and together[0].backlog.count == len(kept) + len(outputs)
