from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from feeds.documents import Document
from templates.catalog import Change, StepEdge
from templates.witness import Witnesses
from tests.generate.strategies import random_case
from tests.support.conjuncts import conjuncts_of
from tests.support.witnessed import Stage
from xpath_stage import spark as spark_module
from xpath_stage.documents import Limits, StreamDocument, parse_document
from xpath_stage.spark import SparkStage, evaluate_batches
from xscl.parser import parse_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONDITIONS = """S//a[contains(., "1") and count(./b) < 3][./b->y] JOIN {lower-case(y) = lower-case(z), INF} S//b->z;
    S//a[ends-with(./@k, "1")][./@k->k] JOIN {k = z, INF} T//b[matches(., "^[12u]$")]->z"""


@contextmanager
def spreading(session: SparkSession, max_nodes: int | None = None) -> Iterator[SparkStage]:
    """A stage that leaves everything to the executors."""
    stage = SparkStage(session, spread=0, max_nodes=max_nodes)
    yield stage
    stage.close()


def numbered(documents: Sequence[Document]) -> list[StreamDocument]:
    return [StreamDocument(i, d.stream, d.t0, d.t1, parse_document(d.xml_bytes())) for i, d in enumerate(documents)]


def in_stream_s(*texts: str) -> list[StreamDocument]:
    return [StreamDocument(i, "S", i, i, parse_document(text.encode(), trusted=True)) for i, text in enumerate(texts)]


def assert_same(local: Stage, spread: Stage, documents: list[StreamDocument]) -> None:
    here, there = local.stage.evaluate(documents), spread.stage.evaluate(documents)
    assert [table.schema for table in relations(here)] == [table.schema for table in relations(there)]
    assert here.r_docts.to_pylist() == there.r_docts.to_pylist()
    assert Counter(map(str, here.r_doc.to_pylist())) == Counter(map(str, there.r_doc.to_pylist()))
    assert edges(here, local.groups) == edges(there, spread.groups)


def relations(found: Witnesses) -> tuple[pa.Table, ...]:
    return found.r_bin, found.r_group, found.r_doc, found.r_docts


def edges(found: Witnesses, groups: dict[int, list[StepEdge]]) -> Counter[object]:
    """The rows of R_bin with the edges of their groups; notes in `groups` those that are new."""
    for group, *edge in zip(*found.r_group.to_pydict().values(), strict=True):
        groups.setdefault(group, []).append((edge[0], edge[1]))
    rows = zip(*found.r_bin.to_pydict().values(), strict=True)
    return Counter((docid, frozenset(groups[group]), *nodes) for docid, group, *nodes in rows)


def test_executors_find_what_the_driver_finds_while_patterns_come_and_go(spark: SparkSession):
    cases = [random_case(seed, 8, 10) for seed in (1, 2)]
    cases.append((parse_script(CONDITIONS), []))
    documents = numbered([document for _, found in cases for document in found])
    # Documents of our own making are read without limits.
    ours = "<b>" * 300 + "1" + "</b>" * 300, "<a q='1&#10;2'>&#13;\u00fc<c xmlns='u:x'/> <b/></a>"
    documents += [document._replace(docid=document.docid + 10_000) for document in in_stream_s(*ours)]
    with spreading(spark) as stage:
        local, spread = Stage(), Stage(stage)
        for version, (script, _) in enumerate(cases, 1):
            for one in (local, spread):
                one.add(conjuncts_of(script))
            assert_same(local, spread, documents)
            assert stage._shipped.count == version
        assert spread.check(documents) > 100
        for one in (local, spread):
            for _ in range(len(one.standing) // 2):
                one.remove(0)
        assert_same(local, spread, documents)
        assert stage._shipped.count == len(cases) + 1
        while spread.standing:
            spread.remove(0)
        nothing = spread.evaluate(documents)
        assert not nothing.edges and not nothing.values


def test_a_worker_process_compiles_a_version_once():
    class Sent:
        """Stands for a broadcast; counts how often its value is asked for."""

        asked = 0

        @property
        def value(self) -> tuple[Change, Limits]:
            self.asked += 1
            return Change(), Limits()

    sent: Any = Sent()
    for version, asked in ((1, 1), (1, 1), (2, 2), (2, 2)):
        list(evaluate_batches(("test", version), sent, False, False, None, []))
        assert sent.asked == asked
        assert list(spark_module._workers) == [("test", version)], "only the newest is kept"
