import pyarrow as pa
import pytest

from common.bounds import INFINITE
from join_stage.duckdb import DuckDBEngine
from join_stage.protocol import JoinScope, TemplateTable
from join_stage.signature import join
from join_stage.signature.join import SignatureJoin
from templates.catalog import TemplateRow
from templates.graph import Shape
from templates.witness import R_BIN, R_DOC, R_DOCTS, R_GROUP, Witnesses
from tests.generate.joins import SECOND, JoinCase, Result, random_join_case, run_case, sorted_rows

S = JoinScope(INFINITE, frozenset({("S", "S")}))


def by_plan(case: JoinCase, plan: str) -> list[Result]:
    engine = DuckDBEngine(plan=plan)
    results = run_case(engine, case)
    engine.close()
    return results


def test_more_than_64_edges_between_two_documents():
    leaves = range(1, 91)
    docs = [0] * 90 + [1] * 90
    batch = Witnesses(
        pa.table([docs, [*leaves] * 2, [0] * 180, [*leaves] * 2], R_BIN),
        pa.table([[*leaves], [0] * 90, [*leaves]], R_GROUP),
        pa.table([docs, [*leaves] * 2, [f"v{leaf}" for leaf in leaves] * 2, ["S"] * 180], R_DOC),
        pa.table([[0, 1], [0, SECOND], [0, SECOND]], R_DOCTS),
    )
    rows = [TemplateRow(leaf, 0, (0, leaf, leaf + 1, 0, leaf, leaf + 1), INFINITE, True) for leaf in range(1, 90)]
    found = {}
    for plan in ("basic", "signature"):
        engine = DuckDBEngine(plan=plan)
        engine.plan.put_rows(TWO, rows)
        engine.begin()
        found[plan] = sorted_rows(engine.join(batch, 0, S))
        engine.close()
    assert found["signature"] == found["basic"]
    assert [row[0] for row in found["basic"]] == list(range(1, 90))


def test_matches_are_written_out_in_small_parts(monkeypatch: pytest.MonkeyPatch):
    case = random_join_case(3, templates=6)
    expected = by_plan(case, "basic")
    monkeypatch.setattr(join, "CHUNK", 7)
    assert by_plan(case, "signature") == expected


def crowd(count: int, first: int, titles: int) -> Witnesses:
    """Documents of one channel and one author, with so many titles in turn.

    Variables: 0 item, 1 channel, 2 title, 3 author.
    """
    docids = range(first, first + count)
    nodes = (1, 2, 3)
    values = {1: lambda _: "channel", 2: lambda d: f"title {d % titles}", 3: lambda _: ""}
    rows = [(d, n) for d in docids for n in nodes]
    texts = [values[n](d) for d, n in rows]
    return Witnesses(
        pa.table([[d for d, _ in rows], [n for _, n in rows], [0] * len(rows), [n for _, n in rows]], R_BIN),
        pa.table([[1, 2, 3], [0, 0, 0], [1, 2, 3]], R_GROUP),
        pa.table([[d for d, _ in rows], [n for _, n in rows], texts, ["S"] * len(rows)], R_DOC),
        pa.table([list(docids), [d * SECOND for d in docids], [d * SECOND for d in docids]], R_DOCTS),
    )


TWO = TemplateTable(0, Shape(3, (None, 0, 0, None, 3, 3), ((1, 4), (2, 5))))


def pairs_formed(rows: list[tuple[int, ...]], joined: SignatureJoin, batch: Witnesses) -> tuple[int, Result]:
    """How many pairs of postings are formed for a batch, and the matches."""
    for i, variables in enumerate(rows):
        joined.rows.put(TWO.shape, TemplateRow(i, 0, variables, INFINITE, True))
    found = joined.join(batch, S)
    formed = sum(len(part.several.key) for part in found._found if part.several)
    return formed, sorted_rows(found)


CHANNEL_AND_TITLE = (0, 1, 2, 0, 1, 2)


def test_pairs_of_a_value_that_all_share_are_formed_where_another_is_equal():
    joined = SignatureJoin()
    formed, found = pairs_formed([CHANNEL_AND_TITLE], joined, crowd(400, 0, 200))
    assert len(found) == 200
    assert formed == 2 * 200, "for each pair of titles it and the channel; there are 79,800 pairs of channels"


def test_what_is_kept_is_counted_and_goes():
    joined = SignatureJoin()
    joined.rows.put(TWO.shape, TemplateRow(0, 0, CHANNEL_AND_TITLE, INFINITE, True))
    for first in (0, 100, 200):
        joined.join(crowd(100, first, 1000), S)
    nothing = dict.fromkeys(("posting_bytes", "groups", "runs", "run_bytes", "merges"), 0)
    counted = {"documents": 300, "postings": 600, "values": 301}
    assert joined.counters() | {"posting_bytes": 0, "groups": 0} == nothing | counted
    joined.evict(250 * SECOND)
    assert joined.counters()["documents"] == 50
    _, found = pairs_formed([CHANNEL_AND_TITLE], joined, crowd(10, 1250, 1000))
    assert [row[1:3] for row in found] == [(d, d + 1000) for d in range(250, 260)]
