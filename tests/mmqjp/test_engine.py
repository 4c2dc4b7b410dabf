"""The engine's life: subscriptions that come and go, state that is found again, late and faulty documents, failures."""

from pathlib import Path

import duckdb
import pytest

from feeds.documents import Document, Reject
from join_stage.protocol import PLANS
from join_stage.store.protocol import DUCKDB_FILE
from mmqjp.engine import Session
from templates.catalog import Catalog
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.oracle.evaluation import comparable
from tests.support.agreement import as_row
from tests.support.faults import FaultySession, Injected, armed, fail
from tests.support.in_turn import in_turn
from tests.support.pairs import PAIRS, doc, pairs
from xscl.parser import parse_script
from xscl.problems import XsclErrors


def test_a_batch_joins_itself_and_what_came_before(engine: Session):
    engine.subscribe(PAIRS)
    assert pairs(engine.process([doc(1), doc(2)])) == [("d1", "d2")]
    found = pairs(engine.process([doc(3), doc(0)]))
    assert found == [("d0", "d1"), ("d0", "d2"), ("d0", "d3"), ("d1", "d3"), ("d2", "d3")]


def test_a_query_sees_only_documents_that_arrive_after_it(engine: Session):
    engine.subscribe(PAIRS)
    engine.process([doc(1)])
    engine.subscribe(PAIRS + " PUBLISH later")
    assert {(o.query, o.documents) for o in engine.process([doc(2)])} == {("q1", ("d1", "d2"))}
    assert {o.documents for o in engine.process([doc(3)]) if o.query == "later"} == {("d2", "d3")}
    engine.unsubscribe("later")
    engine.subscribe(PAIRS + " PUBLISH later")
    assert {o.query for o in engine.process([doc(4)])} == {"q1"}, "a name that comes back starts anew"


def test_a_removed_query_stops_and_frees_what_only_it_needed(engine: Session):
    engine.subscribe(PAIRS + " PUBLISH one; S/b->x JOIN {x = y, INF} S/b->y JOIN {y = z, INF} S/b->z PUBLISH two")
    engine.process([doc(1)])
    engine.unsubscribe("two")
    assert {o.query for o in engine.process([doc(2)])} == {"one"}
    engine.unsubscribe("one")
    assert engine.process([doc(3)]) == []
    assert not engine.catalog.steps and not engine.queries()
    with pytest.raises(KeyError, match="no query is named 'one'"):
        engine.unsubscribe("one")


def test_unnamed_queries_are_numbered_on(engine: Session):
    assert engine.subscribe("S/a; S/b PUBLISH b; S/c") == ["q1", "b", "q3"]
    engine.unsubscribe("q3")
    assert engine.subscribe("S/d; S/e") == ["q4", "q5"]


def test_ensure_registers_nothing_twice(engine: Session):
    script = parse_script("S/a; S/a; S/b PUBLISH b")
    assert engine.ensure(script) == engine.ensure(script) == ["q1", "q2", "b"]
    assert len(engine.process([doc(1)])) == 2


def test_a_bad_script_or_a_cycle_with_earlier_queries_registers_nothing(engine: Session):
    with pytest.raises(XsclErrors, match="nosuch"):
        engine.subscribe("S/a; S/a->x JOIN {nosuch = x, 1} S/b->y")
    assert not engine.queries()
    engine.subscribe("late/match PUBLISH early")
    with pytest.raises(ValueError, match=r"a cycle of PUBLISHed names: .*registered earlier"):
        engine.subscribe("early/match PUBLISH late")
    assert list(engine.queries()) == ["early"]


def test_a_document_met_again_is_counted_and_ignored(engine: Session):
    engine.subscribe(PAIRS)
    engine.process([doc(1), doc(1, "other")])
    assert engine.process([doc(1), doc(2), doc(1, stream="T")])[0].documents == ("d1", "d2")
    counters = engine.counters()
    assert (counters.documents, counters.duplicates, counters.outputs) == (3, 2, 1)


def test_what_cannot_be_read_becomes_a_dead_letter_and_the_rest_goes_on(engine: Session):
    engine.subscribe(PAIRS)
    bad: list[Document | Reject] = [
        Document("broken", "<a><b></a>", time=1),
        Document("d2", "<a>", time=0),
        Document("bomb", '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', time=1),
        Document("own", "<a/>", "#hidden", 1),
        Document("eternal", "<a/>", time=2**62),
        Reject("line 7", "S", None, "not JSON", b"{"),
    ]
    assert pairs(engine.process([doc(1), *bad, doc(2)])) == [("d1", "d2")]
    assert engine.counters().duplicates == 0, "a document that was refused is not the first of its id"
    reasons = {row["id"]: row["reason"] for row in engine.dead_letters()}
    assert reasons.keys() == {"broken", "d2", "bomb", "own", "eternal", "line 7"}
    assert reasons["broken"].startswith("line 1, column") and reasons["line 7"] == "not JSON"
    assert {row["id"]: row["raw"] for row in engine.dead_letters()}["broken"] == b"<a><b></a>"


def test_who_embeds_the_engine_is_warned_of_dead_letters(engine: Session, caplog: pytest.LogCaptureFixture):
    engine.process([doc(1)])
    assert not caplog.messages and not engine.last_dead_letters()
    engine.process([Document("bro\nken", "<a><b></a>", time=1)])
    (message,) = caplog.messages
    assert message.startswith("a document is a dead letter, bro ken: line 1, column ") and "\n" not in message
    engine.process([Document("c", "<", time=1), doc(2), Document("d", ">", time=1)])
    assert caplog.messages[1].startswith("2 dead letters, c: ")
    assert [letter["id"] for letter in engine.last_dead_letters()] == ["c", "d"]
    with Session("duckdb", quiet=True) as quiet:
        quiet.process([Document("e", "<", time=1)])
        assert len(quiet.last_dead_letters()) == 1
    assert len(caplog.messages) == 2


def test_eviction_drops_what_no_document_can_pair_with():
    with Session("duckdb", lateness=5_000_000) as engine:
        engine.subscribe(PAIRS)
        engine.process([doc(n, seconds=n * 10) for n in range(100)])
        assert engine.sql("SELECT count(*) AS n FROM r_docts")["n"][0].as_py() <= 3
        assert pairs(engine.process([doc(100, seconds=1000)])) == [("d99", "d100")]


@pytest.mark.parametrize(("seed", "plan"), in_turn(seeds(3, 15), PLANS))
def test_a_store_that_has_r_bin_edge_by_edge_goes_on(seed: int, plan: str, tmp_path: Path):
    script, documents = random_case(seed)
    with Session("duckdb", plan=plan) as engine:
        engine.ensure(script)
        expected = [engine.process(documents[:4]), engine.process(documents[4:])]
    with Session("duckdb", plan=plan, state=tmp_path) as engine:
        engine.ensure(script)
        assert comparable(map(as_row, engine.process(documents[:4]))) == comparable(map(as_row, expected[0]))
        before = engine.sql("SELECT * FROM r_bin ORDER BY ALL")
    with duckdb.connect(str(tmp_path / DUCKDB_FILE)) as store:  # as the first version wrote it
        store.execute("CREATE TABLE edges AS SELECT * FROM r_bin; DROP VIEW r_bin; DROP TABLE bound")
        store.execute("ALTER TABLE edges RENAME TO r_bin")
    with Session("duckdb", plan=plan, state=tmp_path) as engine:
        assert engine.sql("SELECT * FROM r_bin ORDER BY ALL") == before
        assert comparable(map(as_row, engine.process(documents[4:]))) == comparable(map(as_row, expected[1]))


def test_matches_are_kept_once_for_all_queries_that_share_a_row(engine: Session):
    engine.subscribe(PAIRS + " PUBLISH one; S/a->p JOIN {p = q, 20} S/a->q PUBLISH two")
    engine.process([doc(1), doc(2)])
    assert engine.sql("SELECT count(*) AS n FROM match_rows")["n"][0].as_py() == 2
    rows = engine.sql("SELECT query, docid1, docid2, bindings FROM matches ORDER BY ALL").to_pylist()
    expected = [("one", 0, 1, [0, 0]), ("two", 0, 1, [0, 0]), ("two", 1, 0, [0, 0])]
    assert [tuple(row.values()) for row in rows] == expected


def test_an_unknown_engine_or_plan_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="'duckdb', 'spark' or a SparkSession, not 'flink'"):
        Session("flink")
    with pytest.raises(ValueError, match="a plan is one of basic, views, signature, not 'magic'"):
        Session("duckdb", plan="magic", state=tmp_path)
    Session("duckdb", state=tmp_path).close()


def test_the_plan_views_finds_in_its_cache_what_came_before(tmp_path: Path):
    with Session("duckdb", plan="views", state=tmp_path) as engine:
        engine.subscribe(PAIRS)
        for number in range(4):
            assert len(engine.process([doc(number)])) == number
        counted = engine.stage2_counters()
        assert (counted["hits"], counted["misses"], counted["evictions"], counted["values"]) == (2, 1, 0, 1)
        assert counted["bytes"] > 0
    for plan in ("basic", "views"):  # the state does not know who wrote it, and the cache starts anew
        with Session("duckdb", plan=plan, state=tmp_path) as engine:
            number = 4 if plan == "basic" else 5
            assert len(engine.process([doc(number)])) == number
            assert engine.stage2_counters().get("misses") == (None if plan == "basic" else 1)
            assert bool(engine.stage2_counters()) == (plan == "views")


def test_slices_larger_than_the_bound_are_used_and_not_kept():
    with Session("duckdb", plan="views", cache_bytes=0) as engine:
        engine.subscribe(PAIRS)
        assert [len(engine.process([doc(number)])) for number in range(4)] == [0, 1, 2, 3]
        counted = engine.stage2_counters()
        assert (counted["hits"], counted["misses"], counted["values"], counted["bytes"]) == (0, 3, 0, 0)


def test_r_t_has_a_row_for_each_query_as_in_table_6_4(engine: Session):
    engine.subscribe(
        PAIRS + " PUBLISH one; S/a->p JOIN {p = q, 20} S/a->q PUBLISH two; S/b->p JOIN {p = q, INF} S/a->q"
    )
    engine.process([])
    rows = engine.sql("SELECT q.name, t.* FROM r_t_0 t JOIN queries q ON q.qid = t.qid ORDER BY t.qid").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("one", 0, 0, 0, 10_000_000),
        ("two", 1, 0, 0, 20_000_000),
        ("q3", 2, 1, 0, None),
    ]


def test_a_filter_notes_a_match_for_each_node(engine: Session):
    engine.subscribe("S//a")
    assert len(engine.process([Document("d", "<r>" + "<a/>" * 50 + "</r>", time=0)])) == 50
    assert engine.sql("SELECT count(DISTINCT bindings) AS n FROM match_rows")["n"][0].as_py() == 50


def test_another_script_over_one_state_is_known_again(tmp_path: Path):
    for script, names in (("S/a", ["q1"]), ("S/a", ["q1"]), ("S/b", ["q2"]), ("S/b", ["q2"])):
        with Session("duckdb", state=tmp_path) as engine:
            assert engine.ensure(parse_script(script)) == names


def test_a_late_document_on_a_published_stream_is_a_dead_letter():
    with Session("duckdb", lateness=0) as engine:
        engine.subscribe("S//a->x JOIN {x = y, 1 s} S//b->y PUBLISH P; P//c->u JOIN {u = v, 10 s} S//b->v")
        engine.process([Document("b1", "<b>v</b>", time=5_000_000)])
        engine.process([Document("b2", "<b>v</b>", time=1_000_000_000)])
        assert engine.process([Document("p", "<c>v</c>", "P", 5_000_000)]) == []
        assert [row["id"] for row in engine.dead_letters()] == ["p"]


def test_functions_may_nest_deeply_and_names_that_libxml2_does_not_know_stand_in_conditions(engine: Session):
    nested = "lower-case(upper-case(lower-case(upper-case(lower-case(x)))))"
    engine.subscribe(f"S//a->x JOIN {{{nested} = lower-case(y), 5}} S//b->y; S//c[not(./𐐀)]")
    xmls = {"d": "<a>V</a>", "e": "<b>v</b>", "with": "<c><𐐀/></c>", "without": "<c/>"}
    assert pairs(engine.process([Document(id, xml, time=0) for id, xml in xmls.items()])) == [("d", "e"), ("without",)]


def test_a_reject_of_anything_is_kept(engine: Session):
    engine.process([Reject("\ud800", "S", 2**70, "no\udfff", "raw")])
    assert [(row["id"], row["time"]) for row in engine.dead_letters()] == [("\\ud800", None)]


def test_documents_of_one_shape_are_walked_twice_and_memory_holds_no_trees_between_batches(engine: Session):
    engine.subscribe(PAIRS)
    for number in range(5):
        engine.process([doc(number)])
    assert not any("tree" in vars(record) for record in engine.records._records.values())
    counters = engine.stage1_counters()
    assert (counters["shape_misses"], counters["shape_hits"], counters["flushes"]) == (2, 3, 0)
    assert counters["states"] > 0


def test_an_engine_that_is_closed_may_be_closed_again(tmp_path: Path):
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe(PAIRS)
        engine.process([doc(1), doc(2)])
        engine.close()
    engine.close()
    with Session("duckdb", state=tmp_path) as again:
        assert pairs(list(again.outputs())) == [("d1", "d2")]


# ---------------------------------------------------------------- failures leave no trace


def test_a_batch_that_fails_leaves_no_trace(engine: FaultySession):
    engine.subscribe(PAIRS)
    engine.process([doc(1)])
    before = engine.counters()
    with engine.store.failing("commit"), pytest.raises(Injected):
        engine.process([doc(2), doc(3)])
    assert engine.counters() == before
    assert pairs(engine.process([doc(2), doc(3)])) == [("d1", "d2"), ("d1", "d3"), ("d2", "d3")]
    assert engine.sql("SELECT count(*) AS n FROM outputs")["n"][0].as_py() == 3


def test_a_failed_batch_can_bring_shapes_that_were_new_with_it(engine: FaultySession):
    engine.subscribe("S//a->x FOLLOWED BY {x = y, 10} S//a->y")
    nested, again = (Document(id, "<b><a>v</a></b>", time=at) for at, id in enumerate(("nested", "again")))
    with engine.store.failing("commit"), pytest.raises(Injected):
        engine.process([nested])
    engine.process([nested])
    assert pairs(engine.process([again])) == [("nested", "again")]


def test_a_script_that_cannot_be_registered_leaves_nothing(engine: FaultySession):
    with armed((Catalog, "add"), fail, calls=2), pytest.raises(Injected):
        engine.subscribe("S/a PUBLISH one; S/b PUBLISH two")
    assert not engine.queries() and not engine.catalog.steps and not engine.process([doc(1)])
    engine.subscribe("S/a PUBLISH one")
    assert [o.query for o in engine.process([doc(2)])] == ["one"]


def test_a_commit_that_fails_in_the_database_is_taken_back(engine: FaultySession):
    engine.subscribe(PAIRS)

    def taken_back() -> None:
        engine.store.rollback()
        raise Injected

    with engine.store.failing("commit", call=taken_back), pytest.raises(Injected):
        engine.process([doc(1), doc(2)])
    assert pairs(engine.process([doc(1), doc(2)])) == [("d1", "d2")]
