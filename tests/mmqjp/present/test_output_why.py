"""Why an output came about: how it is named, what fed it, what is said of what has gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from feeds.documents import Document
from join_stage.store.protocol import DUCKDB_FILE
from mmqjp.engine import Session
from mmqjp.explain.join_trial import JoinTiming, Reason
from mmqjp.explain.terms import Operand
from mmqjp.present import output_why
from mmqjp.present.item import UNKNOWN, fact_text, filters, reason_facts, timings
from mmqjp.present.output_why import Fed, NoOutput, OutputWhy, why_output
from mmqjp.tables.lookup import quote_literal
from tests.mmqjp.present.test_event_why import select_of
from tests.support.places import DATA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR = 3_600_000_000
MINUTE = 60_000_000
CHAIN = (
    'FROM S/a->x[./k = "1"][contains(./t, "b")] FOLLOWED BY {x = y, 1 h} S/b->y PUBLISH p; '
    "FROM p//a->l FOLLOWED BY {l = r, INF} S/c->r PUBLISH q"
)


def chain(engine: Session) -> None:
    engine.subscribe(CHAIN)
    xmls = ("<a><k>1</k><t>abc</t></a>", "<b>1abc</b>", "<c>1abc</c>")
    engine.process([Document(f"d{number}", xml, time=number * MINUTE) for number, xml in enumerate(xmls, 1)])


@pytest.fixture(scope="module")
def chained() -> Iterator[Session]:
    """A store that no test changes."""
    with Session("duckdb") as engine:
        chain(engine)
        yield engine


@pytest.mark.parametrize("recent", [0, 1, 100])
def test_an_output_is_named_by_its_id_a_beginning_of_it_or_its_number(
    recent: int, chained: Session, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(output_why, "RECENT", recent)
    for output in chained.outputs():
        for asked in (output.id, output.id[:8].upper(), f" {output.seq} "):
            assert why_output(select_of(chained), asked).match.output == output


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("", "'' is neither"),
        ("it's", '"it\'s" is neither'),
        ("f" * 33, "is neither"),
        ("9" * 40, "is neither"),
        ("f" * 32, "no output has the id ffff"),
        ("77", "no output has the id 77"),
        ("%", "'%' is neither"),
    ],
)
def test_what_is_no_output_is_said(asked: str, said: str, chained: Session):
    with pytest.raises(NoOutput, match=said):
        why_output(select_of(chained), asked)


def test_a_beginning_that_several_ids_have_is_said_with_these():
    with Session("duckdb") as engine:
        engine.subscribe("FROM S/a->x PUBLISH all_of_them")
        engine.process([Document(f"d{number}", "<a/>", time=number) for number in range(200)])
        first = next(o.id[0] for o in engine.outputs() if not o.id[0].isdecimal())
        with pytest.raises(NoOutput, match=f"several outputs have ids that begin with {first}: .* and others"):
            why_output(select_of(engine), first)


def whys(engine: Session) -> list[OutputWhy]:
    return [why_output(select_of(engine), output.id) for output in engine.outputs()]


def test_all_that_held_is_told_and_what_fed_the_output(chained: Session):
    one, other = whys(chained)
    assert [fact_text(fact) for fact in filters(one.match)] == ['contains(t "abc", "b")', 'k = "1"']
    assert [fact_text(fact) for fact in reason_facts(one.match)] == [
        'a "1abc" = b "1abc"'.replace(' "1abc" = b', " = b")
    ]
    assert [fact_text(fact) for fact in timings(one.match)] == [
        "1 min from the first to the last; FOLLOWED BY allows 1 h"
    ]
    assert (one.fed, other.fed) == ((), (Fed(one.match.output.id, "p", (0, 1)),))
    assert [fact_text(fact) for fact in timings(other.match)] == [
        "2 min from the first to the last; FOLLOWED BY allows any time"
    ]
    assert [item.time for item in other.match.items] == [MINUTE, 2 * MINUTE, 3 * MINUTE]
    assert other.text.endswith("PUBLISH q")
    for found in (one, other):
        assert OutputWhy.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_a_chain_has_the_time_of_each_of_its_joins_and_the_nodes_of_all_operands():
    with Session("duckdb") as engine:
        engine.subscribe("FROM S/a->x FOLLOWED BY {x = y, 1 h} S/b/l->y JOIN {y = z, INF} S/c->z")
        xmls = ("<a>v</a>", "<b><l>v</l></b>", "<c>v</c>")
        engine.process([Document(f"d{number}", xml, time=number * MINUTE) for number, xml in enumerate(xmls)])
        found = why_output(select_of(engine), "0")
    assert found.match.reason is not None
    assert found.match.reason.timings == (
        JoinTiming("FOLLOWED BY", HOUR, (0, 0), (MINUTE, MINUTE)),
        JoinTiming("JOIN", None, (0, MINUTE), (2 * MINUTE, 2 * MINUTE)),
    )
    assert [(one.left.node, one.right.node) for one in found.match.reason.joined] == [(0, 1), (1, 0)]
    assert found.match.reason.joined[0].left == Operand("a", "v", (), 0)


def test_an_output_of_a_removed_query_and_one_whose_documents_have_gone(tmp_path: Path):
    with Session("duckdb", state=tmp_path, now=lambda: 20 * HOUR, lateness=0) as engine:
        engine.subscribe("FROM S/a->x FOLLOWED BY {x = y, 6 h} S/b->y PUBLISH gone")
        for xml, hour in {"<a>v</a>": 1, "<b>v</b>": 5}.items():
            engine.process([Document(xml, xml, time=hour * HOUR)])
        engine.unsubscribe("gone")
        engine.subscribe("FROM S/c PUBLISH gone")
        found = why_output(select_of(engine), "0")
        assert found.match.reason is not None and found.match.reason.joined
        assert found.text.startswith("FROM S/a->x FOLLOWED BY")
        engine.subscribe("FROM S/c->x FOLLOWED BY {x = y, 6 h} S/d->y PUBLISH other")
        engine.process([Document("c", "<c/>", time=20 * HOUR)])
        engine.prune(17 * HOUR)
        found = why_output(select_of(engine), "0")
        assert found.match.reason is None and [fact_text(fact) for fact in reason_facts(found.match)] == [UNKNOWN]
        assert [item.is_kept for item in found.match.items] == [False, True]


def test_a_document_that_is_too_large_to_search_has_no_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(output_why, "MAX_REASON_STEPS", 1_000)
    many = "".join(f"<k>{number}</k>" for number in range(2_000))
    with Session("duckdb") as engine:
        engine.subscribe("FROM S/a->x[./k->k] FOLLOWED BY {k = y, INF} S/b->y")
        engine.process([Document("a", f"<a>{many}</a>", time=1), Document("b", "<b>1999</b>", time=2)])
        assert why_output(select_of(engine), "0").match.reason is None


def test_conditions_that_take_too_long_are_left_out_of_a_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(output_why, "MAX_REASON_STEPS", 4_000)
    many = "".join(f"<k>{number}</k>" for number in range(1_000))
    script = 'FROM S/a->x[count(./k) > 7][./k = "999"][not(./k = "x")][contains(./k, ./@k)] PUBLISH p'
    with Session("duckdb") as engine:
        engine.subscribe(script)
        documents = f"<a k=''>{many}</a>", f"<a k='9'><k>999</k>{'<k/>' * 7}</a>"
        engine.process([Document(f"d{number}", xml, time=number) for number, xml in enumerate(documents)])
        large, small = (found.match for found in whys(engine))
    assert large.reason is not None and len(filters(large)) < len(filters(small))
    assert sorted(fact_text(fact) for fact in filters(small)) == [
        'contains(k "999", a/@k "9")', "count(./k) > 7", 'k = "999"', 'not(k "999" = "x")',
    ]  # fmt: skip


def test_a_filter_without_conditions_has_an_empty_reason():
    with Session("duckdb") as engine:
        engine.subscribe("FROM S/a->x")
        engine.process([Document("a", "<a/>", time=1)])
        found = why_output(select_of(engine), "0")
    assert found.match.reason == Reason() and [fact_text(fact) for fact in reason_facts(found.match)] == [
        "passes the filter"
    ]


TEXTS = ("a", "it's", "a\\b'c\\", "\\", "", '"')


def test_texts_are_quoted_as_they_are(chained: Session):
    assert [chained.sql(f"SELECT {quote_literal(text)} AS t")["t"][0].as_py() for text in TEXTS] == [*TEXTS]


@pytest.mark.parametrize("version", [1, 4, *(pytest.param(other, marks=pytest.mark.soak) for other in (3, 5, 6))])
def test_outputs_of_earlier_stores_are_told(tmp_path: Path, version: int):
    with duckdb.connect(str(tmp_path / DUCKDB_FILE)) as connection:
        connection.execute((DATA / f"store_v{version}.sql").read_text("utf-8"))
    with Session("duckdb", state=tmp_path) as engine:
        outputs = list(engine.outputs())
        assert outputs
        for output in outputs:
            for asked in (output.id, str(output.seq)):
                assert why_output(select_of(engine), asked).match.output == output


@pytest.mark.soak
def test_spark_says_the_same(spark: SparkSession, tmp_path: Path, chained: Session):
    with Session(spark, state=tmp_path) as engine:
        chain(engine)
        assert whys(engine) == whys(chained)
        assert [engine.sql(f"SELECT {quote_literal(text)} AS t")["t"][0].as_py() for text in TEXTS] == [*TEXTS]
    with Session("duckdb", state=tmp_path, read_only=True) as engine:
        assert whys(engine) == whys(chained)
