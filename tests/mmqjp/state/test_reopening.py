"""Stores that are opened again, of every format, and what is evicted from them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.arrays import packed
from common.errors import InvalidValue
from feeds.documents import Document
from join_stage.plans import PLANS
from join_stage.signature import join
from join_stage.signature.plan import SignaturePlan
from join_stage.store.duckdb import JOURNAL, _read_rows, has_journal
from join_stage.store.protocol import COMMITTED, DUCKDB_FILE, StoreError
from mmqjp.engine import Session
from mmqjp.present.output_why import why_output
from mmqjp.sinks.deliverer import OUTPUT_SINK, OutputDelivery
from mmqjp.sinks.files import open_sink
from mmqjp.state.engine_choice import VISITS_NEWS
from mmqjp.state.eviction import MAX_GAPS, CoverageGap, Gaps, missed_from, with_gap, with_recalled
from mmqjp.tables.schema import FORMER_NAMES, SCHEMA_VERSION
from templates.catalog import Catalog
from templates.witness import ATTRIBUTE_SHIFT, CHAIN_SHIFT, MOST_CHAINS, node_id, plain_node
from tests.generate.documents import SECOND, START
from tests.mmqjp.documents.test_time import kept
from tests.mmqjp.present.test_explanations import select_of
from tests.support.cli import mmqjp
from tests.support.conjuncts import conjuncts_of
from tests.support.delivery import mark_delivered, undelivered
from tests.support.places import DATA
from tests.support.shown import assert_shown
from tests.support.stores import TABLES, parquet_store
from xpath_stage.documents import MAX_ATTRIBUTES
from xscl.algebra import weights
from xscl.algebra.joins import pattern_from_json
from xscl.algebra.near import words
from xscl.algebra.weights import HEAVIEST, chosen_weights, general_weights, learnt_weights, write_weights
from xscl.parser import parse_script
from xscl.syntax import Script

QUERIES = """
S//a->x[./b->y][./c = 'it''s "so"'] FOLLOWED BY {lower-case(y) = lower-case(z), 1 h} S//a->w[./b->z] PUBLISH pairs;
SELECT x FROM pairs/match->x PUBLISH again;
S//a[./b->p] FOLLOWED BY {p = q, 1 h} S//a[./b->q] FOLLOWED BY {q = r AND p != 'n', 1 h} S//a[./b->r] PUBLISH chain;
S//a->m[matches(., 'v+')] PUBLISH filtered
"""


def doc(number: int, text: str = "v") -> Document:
    return Document(f"d{number}", f'<a><b>{text}</b><c>it\'s "so"</c></a>', "S", number * 1_000_000)


def test_texts_are_parsed_when_something_is_delivered(tmp_path, monkeypatch):
    with Session("duckdb", state=tmp_path) as before:
        before.subscribe(QUERIES)
        assert len(before.process([doc(1), doc(2)])) == 4  # pairs, again, and filtered twice
    parsed: list[str] = []

    def parse(text: str, *, stored: bool) -> Script:
        parsed.append(text)
        return parse_script(text, stored=stored)

    monkeypatch.setattr("mmqjp.queries.stored.parse_script", parse)
    with Session("duckdb", state=tmp_path) as again:
        assert again.process([Document("other", "<z/>", "S", 3_000_000)]) == [] and parsed == []
        assert again.process([doc(4, "n")]) == [] and parsed == []
        found = [o.query for o in again.process([doc(5)])]
        assert sorted(found) == ["again"] * 2 + ["chain"] + ["filtered"] + ["pairs"] * 2
        assert len(parsed) == 4


SAME_NODES = [  # queries of one list join the same nodes within the same window, and differ in what else they want
    [
        f"S//a->x[./b->y][./k->k] FOLLOWED BY {{y = z{more}, 1 h}} S//a->w[./b->z][./k->l]"
        for more in ("", " AND k = l", " AND k != l", " AND contains(k, 'o')", " AND k/@u = l/@u")
    ],
    [
        f"S//a->x[./b->y][./k->k] NOT JOIN {{{pred}, 1 s}} S//a->w[./b->z][./k->l]"
        for pred in ("y = z AND k != l", "y = w/b AND k != w/k", "near(y, z, 0.7)", "near(y, w/b, 0.7)")
    ],
]


@pytest.mark.parametrize("queries", SAME_NODES)
@pytest.mark.parametrize("seed", range(3))
def test_queries_that_join_the_same_nodes_stay_apart_when_the_store_is_opened(seed, queries, tmp_path):
    rng = Random(seed)
    script = ";\n".join(f"{text} PUBLISH q{number}" for number, text in enumerate(rng.sample(queries, len(queries))))
    kinds = [
        f"<a><b>{b}</b><k u='{u}'>{k}</k></a>" for b in ("one two", "four five") for u in "12" for k in ("one", "two")
    ]
    documents = [Document(f"d{n}", rng.choice(kinds), "S", n * 1_000_000) for n in range(12)]
    documents.append(Document("last", "<z/>", "S", 10**11))
    found = []
    for name, parts in (("once", [documents]), ("again", [documents[:4], documents[4:7], documents[7:]])):
        got = list[tuple[str, tuple[str, ...]]]()
        for number, part in enumerate(parts):
            with Session("duckdb", state=tmp_path / name, lateness=0) as engine:
                if number == 0:
                    engine.subscribe(script)
                got += [(o.query, o.documents) for one in part for o in engine.process([one])]
        found.append(sorted(got))
    assert len({name for name, _ in found[0]}) > 2 and found[0] == found[1]


def test_a_store_whose_tables_do_not_agree_is_refused(tmp_path):
    with Session("duckdb", state=tmp_path / "whole") as engine:
        engine.subscribe(QUERIES)
    damages = (
        "UPDATE variables SET node = '[1]'",
        "UPDATE variables SET node = '{'",
        "DELETE FROM variables WHERE parent IS NOT NULL",
        "DELETE FROM templates",
        "DELETE FROM inner_placements",
        "UPDATE placements SET streams = NULL",
    )
    for number, damage in enumerate(damages):
        state = shutil.copytree(tmp_path / "whole", tmp_path / f"copy {number}")
        with duckdb.connect(str(state / DUCKDB_FILE)) as connection:
            connection.execute(damage)
        with pytest.raises(StoreError, match="contradict each other"):
            Session("duckdb", state=state)
    result = mmqjp("list", "--state", state)
    assert result.exit_code == 1 and result.stderr.startswith("mmqjp: error: ") and result.stderr.count("\n") == 1


def test_a_query_whose_text_is_not_what_stands_for_it_is_told(tmp_path):
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe("S//a PUBLISH one")
    with duckdb.connect(str(tmp_path / DUCKDB_FILE)) as connection:
        connection.execute("UPDATE added_queries SET text = 'S//b PUBLISH one'")
    with Session("duckdb", state=tmp_path) as engine, pytest.raises(StoreError, match="belongs to another one"):
        engine.process([doc(1)])


@pytest.mark.parametrize(
    "text",
    ["", "1", "[]", '["/","element","","a",[],[]]', '["up","element","","a",[],[],[]]', '["/","text","","a",[],[],[]]',
     '["/","element",1,"a",[],[],[]]', '["/","element","","a",[["=",1]],[],[]]',
     '["/","element","","a",[["!","x"]],[],[]]',
     '["/","element","","a",[],[],["exec"]]', "[" * 100_000],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(text):
    with pytest.raises(ValueError):
        pattern_from_json(text)


def write_store(state: Path) -> None:
    """A store whose queries have chains of functions. This process may have met these before, in another order."""
    rng = Random(7)
    with Session("duckdb", state=state, now=lambda: START) as engine:
        engine.subscribe("; ".join(f"S//*[./k[contains(., '{c}')]]->x PUBLISH f{c}" for c in "xyXY "))
        for n in rng.sample(range(6), 6):
            p, q = "p", "q"
            for function in rng.choices(("lower-case", "upper-case", "normalize-space"), k=n % 4):
                p, q = f"{function}({p})", f"{function}({q})"
            join = f"S//a->x[./k->p] JOIN {{{p} = {q}, INF}} S//b->y[./k->q] PUBLISH join{n}"
            engine.subscribe(join, backfill=True)
            text = rng.choice((" x", "x ", "X", "x  y", " Xy"))
            engine.process([Document(f"{tag}{n}", f"<{tag}><k>{text}</k></{tag}>", "S", START) for tag in "ab"])


def test_a_store_does_not_tell_which_process_wrote_it(tmp_path):
    code = f"from {__name__} import *; write_store(Path({str(tmp_path / 'other')!r}))"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": "5"})
    write_store(tmp_path / "ours")
    found = []
    for state in (tmp_path / "other", tmp_path / "ours"):
        with duckdb.connect(str(state / DUCKDB_FILE)) as store:
            tables = [name for (name,) in store.execute("SHOW TABLES").fetchall()]
            rows = {name: sorted(map(repr, store.execute(f'FROM "{name}"').fetchall())) for name in tables}
        rows["settings"] = [row for row in rows["settings"] if "costs" not in row]  # seconds
        found.append(rows)
    assert found[0] == found[1] and found[0]["chains"] and found[0]["groups"] and found[0]["bound"]


def as_streams(store: duckdb.DuckDBPyConnection, content: bytes) -> bytes:
    """A value of the journal as earlier versions wrote it, with a schema for each table."""
    head, _, rest = content.partition(b"\n")
    streams = {}
    for table, (length, columns) in json.loads(head).items():
        schema = store.sql(f"FROM {table} LIMIT 0").to_arrow_table().schema
        streams[table], rest = packed(_read_rows(rest[:length], schema, columns)), rest[length:]
    lengths = json.dumps({table: len(stream) for table, stream in streams.items()})
    return b"\n".join((lengths.encode(), b"".join(streams.values())))


def test_what_small_batches_committed_before_a_kill_is_read_and_gone_on_with(tmp_path):
    state = tmp_path / "state"
    with Session("duckdb", state=state) as engine:
        engine.load()
        engine.subscribe("S//b->x FOLLOWED BY{x=y, 100} S//b->y PUBLISH p")
        outputs = [output for number in range(4) for output in engine.process([doc(number)])]
        # As a kill leaves them.
        copies = [shutil.copytree(state, tmp_path / name) for name in ("read", "written", "earlier")]
    with duckdb.connect(str(copies[-1] / DUCKDB_FILE)) as connection:
        values = connection.execute(f"SELECT rowid, content FROM {JOURNAL}").fetchall()
        for number, content in values:
            connection.execute(
                f"UPDATE {JOURNAL} SET content = ? WHERE rowid = ?", [as_streams(connection, content), number]
            )
    (copies[-1] / COMMITTED).unlink()
    for copy, read_only in zip(copies, (True, False, False), strict=True):
        with duckdb.connect(str(copy / DUCKDB_FILE), read_only=True) as connection:
            assert has_journal(connection)
        with Session("duckdb", state=copy, read_only=read_only) as engine:
            assert list(engine.outputs()) == outputs and len(outputs) == 6
            assert engine.sql("SELECT count(*) AS n FROM documents")["n"].to_pylist() == [4]
            if not read_only:
                engine.load()
                assert len(engine.process([doc(4)])) == 4 and not engine.process([doc(3)])
        with duckdb.connect(str(copy / DUCKDB_FILE), read_only=True) as connection:
            assert has_journal(connection) == read_only


def test_a_node_id_has_room_for_its_attribute_and_its_chain():
    assert MAX_ATTRIBUTES < 1 << CHAIN_SHIFT - ATTRIBUTE_SHIFT
    highest = node_id((1 << 32) - 1, MAX_ATTRIBUTES, MOST_CHAINS)
    assert highest < 1 << 63 and plain_node(highest) == ((1 << 32) - 1, MAX_ATTRIBUTES)


def test_more_chains_than_numbers_are_refused_and_leave_nothing(monkeypatch):
    monkeypatch.setattr("templates.catalog.MOST_CHAINS", 2)
    catalog = Catalog(known_chains=[("lower-case",), ("host",)])
    fresh, known = conjuncts_of(
        parse_script(
            "S//a->x JOIN {upper-case(x) = y, 1 h} S//b->y; S//a->x JOIN {host(x) = lower-case(y), 1 h} S//b->y"
        )
    )
    with pytest.raises(ValueError, match="more than 2 different chains of functions; begin a new state"):
        catalog.add(fresh, 1, True)
    assert not catalog.steps and len(catalog.chains) == 2
    catalog.add(known, 1, True)
    assert sorted(step.chain for step in catalog.steps.values()) == [0, 0, 1, 2]


LINES = "out.jsonl"
OUTPUTS = "SELECT seq, query, t0, t1, documents, streams, nodes, xml, id FROM outputs ORDER BY seq"


def told(engine: Session, *documents: tuple[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """The outputs when documents come, given by their ids, `b5` in second 5, and values."""
    some = [
        Document(id, f"<{id[0]}><k>{text}</k></{id[0]}>", "S", 1_767_225_600_000_000 + int(id[1:]) * 1_000_000)
        for id, text in documents
    ]
    return [(o.query, o.documents) for o in engine.process(some)]


def write_duckdb(directory: Path, recorded: Path) -> None:
    directory.mkdir()
    with duckdb.connect(str(directory / DUCKDB_FILE)) as connection:
        connection.execute(recorded.read_text("utf-8"))


def write_spark(directory: Path, recorded: Path) -> None:
    """The same store on Spark: its files have the columns of its format, and no others."""
    store = parquet_store(directory)
    with duckdb.connect() as connection:
        connection.execute(recorded.read_text("utf-8"))
        names = connection.sql("SELECT table_name FROM duckdb_tables()").fetchall()
        tables = {name: connection.table(name).to_arrow_table() for (name,) in names}
        if "bound" in tables:
            flat = "SELECT docid, var1, var2, node1, node2 FROM bound JOIN groups USING (grp)"
            tables["r_bin"] = connection.sql(flat).to_arrow_table()
            del tables["bound"]
    now_called = {former: name for name, former in FORMER_NAMES.items()}
    tables = {now_called.get(name, name): rows for name, rows in tables.items()}
    for name, rows in tables.items():
        for field in TABLES[name]:
            if field.name not in rows.column_names:
                rows = rows.append_column(field, pa.nulls(len(rows), field.type))
        store.append(name, rows.select(TABLES[name].names))
    store.commit()
    for name, rows in tables.items():
        for path in store.paths(name):
            pq.write_table(rows, path)
    store.close()
    for manifest in (directory / "manifests").glob("*.json"):  # format 1 has no digests
        tables = json.loads(manifest.read_text())["tables"]
        for name, files in tables.items():
            for file in files:
                file["size"] = (directory / name / file["name"]).stat().st_size
                del file["digest"], file["footer_digest"]
        manifest.write_text(json.dumps({"format": 1, "tables": tables}))


def assert_goes_on(engine: Session) -> None:
    assert list(engine.queries()) == ["pairs", "q2"]
    left = [o.documents for o in undelivered(engine) if o.query == "pairs"]
    assert left == [("a1", "a4"), ("a2", "a4")]
    mark_delivered(engine)
    pairs = [(f"a{m}", f"a{n}", "b5") for m in (1, 2, 4) for n in (1, 2, 4) if m != n]
    assert sorted(documents for _, documents in told(engine, ("b5", "v"))) == pairs
    engine.pause("pairs")
    assert {query for query, _ in told(engine, ("a6", "v"))} == {"q2"}


def assert_is_paused(engine: Session) -> None:
    assert engine.registry.named("pairs")[0].paused == "asked to"
    assert engine.sql("SELECT count(*) AS n FROM settings WHERE key = 'schema_version'")["n"].to_pylist() == [2]


def assert_derives_anew(engine: Session) -> None:
    """Two processes wrote the store. For one of them, 1 was lower-case, for the other normalize-space: the values of
    the first stood for those of the second."""
    rows = engine.sql("SELECT docid, node, strval FROM r_doc").to_pylist()
    values: dict[int, list[str]] = {}
    for row in rows:
        values.setdefault(row["docid"], []).append(row["strval"])
    lower, spaced = (" aa", "aa", " aa", "aa "), ("Aa", "aa", "aa", "aa")
    assert {docid: sorted(found) for docid, found in values.items()} == {
        docid: sorted(pair) for docid, pair in enumerate(zip(lower, spaced, strict=True))
    }
    assert len({(row["docid"], row["node"]) for row in rows}) == len(rows) == 8
    bindings = engine.sql("SELECT bindings FROM matches")["bindings"].to_pylist()
    assert bindings == [[1, 1]] * 7, "no number of functions is left"
    mark_delivered(engine)
    assert told(engine, ("b5", " AA")) == [("lower", ("d1", "b5"))]
    assert told(engine, ("b6", " Aa")) == [("lower", ("d1", "b6")), ("spaced", ("d1", "b6"))]
    engine.subscribe(
        "S//a->x[./k->p] JOIN {upper-case(normalize-space(p)) = upper-case(q), INF} S//b->y[./k->q] PUBLISH both",
        backfill=True,
    )
    found = {o.documents for o in undelivered(engine) if o.query == "both"}
    assert found == {("d1", "d2"), ("d4", "d2")}


def assert_meets_derived(engine: Session) -> None:
    assert told(engine, ("a7", "aA")) == [("both", ("a7", "d2")), ("lower", ("a7", "d2"))]


def left_by_format_4(directory: Path) -> Path:
    """A store of format 4 as SQL, with the file of its output lines. It has those of the last batch too, which the
    process that wrote them was killed before it noted."""
    lines, recorded = directory / LINES, directory / "store.sql"
    with duckdb.connect() as connection:
        connection.execute((DATA / "store_v4.sql").read_text("utf-8"))
        sql = "SELECT query, t0, t1, documents, streams, nodes, xml FROM outputs ORDER BY batch, t1, query, documents"
        found = connection.sql(sql).to_arrow_table().to_pylist()
    rows = [{**row, "nodes": json.loads(row["nodes"])} for row in found]
    lines.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    text = (DATA / "store_v4.sql").read_text("utf-8").replace('"OUT"', json.dumps(str(lines)))
    recorded.write_text(text.replace("4711", str(lines.stat().st_ino)))
    return recorded


def assert_numbered(engine: Session) -> None:
    assert engine._directory is not None
    lines, outputs = engine._directory.parent / LINES, list(engine.outputs())
    assert [output.seq for output in outputs] == list(range(14)) == [o.seq for o in engine.outputs(-1)]
    assert len({output.id for output in outputs}) == 14
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [{**line, "id": o.id, "seq": o.seq} for line, o in zip(written, outputs, strict=True)] == [
        output.to_dict() for output in outputs
    ]
    assert engine.position(OUTPUT_SINK).acked == 8
    sink = open_sink(lines, engine.position(OUTPUT_SINK))
    delivery = OutputDelivery(engine, sink)
    delivery.write(delivery.pending())
    delivery.write(engine.process([Document("d6", "<a><k>v</k></a>", time=1_767_225_606_000_000)]))
    delivery.save_position()
    sink.close()
    after = [json.loads(line) for line in lines.read_text().splitlines()]
    assert after[:9] == written[:9] and [line["seq"] for line in after[9:]] == list(range(9, 14 + 7))
    assert engine.position(OUTPUT_SINK).acked == 20 == engine.last_seq


def assert_has_forms(engine: Session) -> None:
    with duckdb.connect() as connection:
        connection.execute((DATA / "store_v5.sql").read_text("utf-8"))
        before = connection.sql(OUTPUTS).to_arrow_table().to_pylist()
    assert_shown(engine)
    assert engine.sql(OUTPUTS).to_pylist() == before
    counts = engine.sql("SELECT query, count(*) AS n FROM matches GROUP BY query ORDER BY query").to_pylist()
    assert {row["query"]: row["n"] for row in counts} == {"late": 6, "narrow": 1, "pairs": 6, "q2": 5, "readers": 4}
    assert [o.seq for o in engine.outputs(20)] == [21]
    # `narrow` was paused when a3 came, and `late` began with a backfill.
    assert told(engine, ("b20", "v")) == [("narrow", ("a1", "b20")), ("q2", ("a1", "b20")), ("q2", ("a3", "b20"))]
    reasons = engine.take_paused()
    assert set(reasons) == {"pairs", "late"} and all("more than 7 matches in 10,000" in why for why in reasons.values())
    assert_shown(engine)
    assert engine.sql(OUTPUTS).to_pylist()[:22] == before
    assert len({o.id for o in engine.lines()}) == len(list(engine.lines())) == 25
    assert [o.t1 for o in engine.lines()] == sorted(o.t1 for o in engine.outputs())


def assert_tells_once(engine: Session) -> None:
    """What was there goes on, with the forms that it had, and a query may tell once what it finds."""
    assert_shown(engine)
    for table in ("gaps", "undelivered"):
        assert len(engine.sql(f"SELECT * FROM {table}")) == 0
    known = [(o.seq, o.query, o.documents) for o in engine.outputs()]
    assert known == [
        (0, "pairs", ("a1", "b2")), (1, "q2", ("a1", "b2")), (2, "readers", ("a1", "b2")), (3, "pairs", ("a3", "b2"))
    ]  # fmt: skip
    join = "S//a->x[./k->p] JOIN {p = q, 1 min} S//b->y[./k->q]"
    engine.subscribe(f"{join} PUBLISH alike; {join} PUBLISH once ONCE PER (p)")
    forms = {s.name: s.form_id for s in engine.registry.subscriptions.values()}
    assert forms["alike"] == forms["pairs"] != forms["once"]
    found = told(engine, ("b5", "v")) + told(engine, ("b6", "v"))
    assert found.count(("pairs", ("a1", "b6"))) == 1
    assert not any(query == "once" for query, _ in found), "it sees no earlier document"
    found = told(engine, ("a7", "v")) + told(engine, ("b8", "v"))
    assert [documents for query, documents in found if query == "once"] == [("a7", "b5")]
    assert_shown(engine)
    assert engine.sql("SELECT count(*) AS n FROM matches WHERE query = 'once'")["n"].to_pylist() == [3]


def assert_gets_events(engine: Session) -> None:
    for table in ("events", "pattern_state", "definitions", "removed_definitions"):
        assert len(engine.sql(f"SELECT * FROM {table}")) == 0
    assert [o.documents for o in engine.outputs()] == 3 * [("a1", "b2")] + 2 * [("a3", "b4")]
    assert told(engine, ("b5", "v")) == [], "pairs has told of v, and q1 is paused"
    engine.resume("q1")
    assert told(engine, ("b64", "w")) == []


def assert_knows_words(engine: Session) -> None:
    before = [(o.query, o.documents) for o in engine.outputs()]
    assert before == [("pairs", ("a1", "b3")), ("first_after", ("a1", "b3"))]
    engine.subscribe(
        "S//a->x[./k->p] JOIN {near(p, q, 0.5), 1 min} S//b->y[./k->q] PUBLISH alike;"
        "PATTERN SEQ(A a, B b) WHERE {a.k = b.l} WITHIN 1 min PUBLISH sequence"
    )
    found = told(engine, ("b5", "w"), ("a6", "one two"), ("b7", "two one"), ("c8", ""))
    assert {*found} == {("pairs", ("a2", "b5")), ("first_after", ("a2", "b5")), ("alike", ("a6", "b7"))}


class Format(NamedTuple):
    """What is asserted of a store of a format when it is opened, with some options, and of it when it is reopened."""

    check: Callable[[Session], None] = lambda engine: None
    again: Callable[[Session], None] = lambda engine: None
    options: Mapping[str, Any] = {}


FORMATS = {
    1: Format(assert_goes_on, assert_is_paused),
    3: Format(assert_derives_anew, assert_meets_derived),
    4: Format(again=assert_numbered),
    5: Format(again=assert_has_forms, options={"max_outputs": 7}),
    6: Format(assert_tells_once),
    8: Format(assert_gets_events),
    9: Format(assert_knows_words, options={"settle": 0}),
}


def recorded(version: int, directory: Path) -> Path:
    return left_by_format_4(directory) if version == 4 else DATA / f"store_v{version}.sql"


@pytest.mark.parametrize(
    ("version", "plan"),
    [
        *((version, PLANS[version % len(PLANS)]) for version in FORMATS),
        *(pytest.param(version, plan, marks=pytest.mark.soak) for version in (1, 3) for plan in PLANS),
    ],
)
def test_a_store_of_an_older_format_opens(version, plan, tmp_path, caplog):
    write_duckdb(tmp_path / "state", recorded(version, tmp_path))
    check, again, options = FORMATS[version]
    with Session("duckdb", state=tmp_path / "state", plan=plan, **options) as engine:
        before = [output.id for output in engine.outputs()]
        for output in list(engine.outputs())[:3]:
            for asked in (output.id, str(output.seq)):
                assert why_output(select_of(engine), asked).match.output == output
        check(engine)
        assert engine.ledger.setting("schema_version") == str(SCHEMA_VERSION)
    assert caplog.messages.count(VISITS_NEWS) == 1
    caplog.clear()
    with Session("duckdb", state=tmp_path / "state", plan=plan, **options) as engine:
        assert VISITS_NEWS not in caplog.messages
        assert [output.id for output in engine.outputs()][: len(before)] == before
        again(engine)


@pytest.mark.parametrize("version", [1, *(pytest.param(version, marks=pytest.mark.soak) for version in [*FORMATS][1:])])
def test_a_store_of_an_older_format_opens_on_spark(version, spark, tmp_path):
    write_spark(tmp_path / "state", recorded(version, tmp_path))
    check, again, options = FORMATS[version]
    with Session(spark, state=tmp_path / "state", **options) as engine:
        check(engine)
        assert engine.ledger.setting("schema_version") == str(SCHEMA_VERSION)
        if version in (4, 5):
            again(engine)


def test_a_migration_that_is_killed_is_done_again(tmp_path, monkeypatch):
    write_duckdb(tmp_path / "state", recorded(1, tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr("mmqjp.state.engine_choice.whole_batch", lambda store: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Session("duckdb", state=tmp_path / "state")
    with Session("duckdb", state=tmp_path / "state") as engine:
        assert_goes_on(engine)


def test_a_store_of_a_newer_format_is_refused(tmp_path):
    state, newer = tmp_path / "state", SCHEMA_VERSION + 1
    Session("duckdb", state=state).close()
    with duckdb.connect(str(state / DUCKDB_FILE)) as connection:
        connection.execute(f"INSERT INTO settings VALUES ('schema_version', '{newer}', 8)")
    with pytest.raises(StoreError, match=f"has format {newer}, .* reads formats up to {SCHEMA_VERSION}"):
        Session("duckdb", state=state)


def test_manifests_of_a_newer_format_are_refused(tmp_path):
    write_spark(tmp_path, recorded(1, tmp_path))
    for path in (tmp_path / "manifests").glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 3}))
    with pytest.raises(StoreError, match="has format 3; this version of mmqjp reads formats up to 2"):
        parquet_store(tmp_path)


DEFINITIONS = (
    "DEFINE EVENT B FROM S//b->x (id := x/@id, v := number(x/@id)); DEFINE EVENT C FROM S//b->x (id := x/@id);"
)
STANDING = {
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
CASES = ["filtered once chain", "found absent chain2 of_documents", "plain absent B"]


def opened(state: Path) -> Session:
    return Session("duckdb", state=state, settle=0, lateness=0)


def tellers(engine: Session, *times: int) -> set[str]:
    """The queries that tell of documents at some times."""
    found: set[str] = set()
    for time in times:
        xmls = {f"d{time}": f'<b id="{time}"><k>1</k></b>', f"z{time}": "<z/>"}
        some = [Document(id, xml, time=time * SECOND + after) for after, (id, xml) in enumerate(xmls.items())]
        found |= {output.query for output in engine.process(some)}
    return found


@pytest.fixture(scope="module")
def readable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = tmp_path_factory.mktemp("readable") / "s"
    with opened(state) as engine:
        engine.subscribe(DEFINITIONS + ";".join(STANDING.values()))
        assert tellers(engine, 1, 4) == STANDING.keys()
        engine.pause("absent")
        engine.resume("absent")
    return state


@pytest.mark.parametrize("names", [*CASES, *(pytest.param(one, marks=pytest.mark.soak) for one in [*STANDING, "B"])])
def test_queries_that_cannot_be_read_are_set_aside_and_the_others_go_on(names, readable, tmp_path):
    state, unreadable = shutil.copytree(readable, tmp_path / "s"), {*names.split()}
    with duckdb.connect(str(state / DUCKDB_FILE)) as store:
        for name in unreadable:
            table = "definitions" if name == "B" else "added_queries"
            text = "DEFINE EVENT B FROM !" if name == "B" else f"FROM FILTER{{ ) NOT PUBLISH {name}"
            store.execute(f"UPDATE {table} SET text = ? WHERE name = ?", [text, name])
    silent = unreadable.union(*(READERS.get(name, ()) for name in unreadable)) - {"B"}
    with Session("duckdb", state=state, read_only=True) as engine:
        assert engine.queries().keys() == STANDING.keys()
    with opened(state) as engine:
        assert tellers(engine, 12, 22) == STANDING.keys() - silent
        aside = engine.take_paused()
        assert aside.keys() == silent - ({"of_documents"} - unreadable)  # which reads documents that do not come
        assert all(reason.startswith("this version cannot read the query: ") for reason in aside.values())
        for query in aside:
            with pytest.raises(StoreError, match="cannot read"):
                engine.resume(query)
    with opened(state) as engine:
        assert tellers(engine, 32, 42) == STANDING.keys() - silent and not engine.take_paused()
        engine.subscribe(DEFINITIONS + ";".join(STANDING[one] for one in STANDING if one in silent))
        assert tellers(engine, 52, 62) == STANDING.keys()
    with opened(state) as engine:
        assert tellers(engine, 72, 82) == STANDING.keys()
        engine.unsubscribe("absent")


HOUR = 3_600 * SECOND
GAPS = st.lists(st.builds(CoverageGap, st.integers(0, 60), st.integers(0, 20)), max_size=40)


@given(GAPS, st.integers(0, 80))
def test_gaps_miss_nothing_that_any_eviction_left_out(evictions, time):
    gaps: Gaps = ()
    for gap in evictions:
        gaps = with_gap(gaps, gap)
    assert len(gaps) <= MAX_GAPS
    assert all(one.before > other.before for one, other in pairwise(gaps))
    # Of an eviction that a later one took in, its queries are gone, or the later one is as wide.
    for gap in evictions[-1:]:
        if time - gap.window < gap.before:
            low = missed_from(gaps, time)
            assert low is not None and low <= time - gap.window
    low = missed_from(gaps, time)
    if low is not None:
        assert missed_from(with_recalled(gaps, low), time) is None
    else:
        assert all(time - gap.window >= gap.before for gap in gaps)


def at_half_hour(number: int) -> Document:
    return Document(f"d{number}", "<r>v</r>", "S", START + number * HOUR // 2)


def test_documents_are_evicted_when_there_is_a_part_of_the_window_to_evict():
    with Session("duckdb", lateness=0, now=lambda: START + 300 * HOUR) as engine:
        engine.subscribe("S/r->x JOIN {x = y, 32 h} S/r->y PUBLISH pairs")
        engine.process([at_half_hour(half_hours) for half_hours in range(60)])
        counts = [kept(engine)]
        for half_hours in range(60, 84):
            engine.process([at_half_hour(half_hours)])
            counts.append(kept(engine))
        evictions = [number for number, pair in enumerate(pairwise(counts)) if pair[1] <= pair[0]]
        assert max(counts) <= 32 * 2 + 1 + 3
        assert 2 <= len(evictions) <= 16
        mark_delivered(engine)
        engine.prune(0)
        assert kept(engine) == 32 * 2 + 1
        assert engine.sql("SELECT min(t0) AS t FROM documents")["t"][0].as_py() >= START + 9 * HOUR


def posted(tag: str, value: int, second: int) -> Document:
    return Document(f"d{second}", f"<{tag}><k>{value}</k></{tag}>", "S", START + second * SECOND)


def test_postings_that_cannot_be_loaded_are_loaded_again(tmp_path, monkeypatch):
    monkeypatch.setattr(join, "MOST_IN_MEMORY", 0)
    with Session("duckdb", state=tmp_path) as session:
        session.subscribe("S//i->x[./k->p] JOIN {p = q, 1 h} S//o->y[./k->q] PUBLISH n")
        session.process([posted("i", second, second) for second in range(20)])
        session.subscribe("S//i->x[./k->p] PUBLISH m", backfill=True)  # has the postings built anew
        with monkeypatch.context() as full:
            full.setattr("join_stage.signature.plan.READ_DOCUMENTS", 3)
            full.setattr(SignaturePlan, "_settle", _no_room)
            with pytest.raises(StoreError, match="no room"):
                session.process([posted("o", 7, 30)])
        session.pause("m")  # a batch without documents
    with Session("duckdb", state=tmp_path) as session:
        assert [output.query for output in session.process([posted("o", 7, 31), posted("o", 19, 32)])] == ["n", "n"]


def _no_room(plan: SignaturePlan, end: int, *, wholly: bool = False) -> None:
    if end >= 9:
        raise StoreError("no room")


# ---------------------------------------------------------------- the table of weights

TOLD = ("the storm hits the coast", "the coast of Spain", "rain hits Spain and the storm", "the end of the rain")
WEIGHED = 'DECLARE WEIGHTS "{}"; FROM S//i->a[./t->x] JOIN UNORDERED {{similar(x, y, 0.15), INF}} S//i->b[./t->y]'


def storms() -> list[Document]:
    return [Document(f"d{number}", f"<i><t>{text}</t></i>", "S", number * SECOND) for number, text in enumerate(TOLD)]


@pytest.mark.parametrize(
    ("engine", "spreads"),
    [("duckdb", False), *(pytest.param("spark", one, marks=pytest.mark.soak) for one in (False, True))],
)
def test_a_store_keeps_the_table_by_which_it_weighs_words(
    engine: str, spreads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spreads:  # the processes of executors weigh words, too
        monkeypatch.setattr("join_stage.spark.tasks.LEAST_DOCUMENTS", 1)
        monkeypatch.setattr("mmqjp.engine.spread_past", lambda session: 0)
    monkeypatch.setattr(weights._CHOSEN, "holders", 0)  # other tests may leave stores open
    state, lines = tmp_path / "state", [{"id": one.id, "stream": "S", "time": 0, "xml": one.xml} for one in storms()]
    (tmp_path / "told.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    learn = ("words", "learn", "press-1", str(tmp_path / "told.jsonl"), "--state", str(state))
    assert mmqjp(*learn).exit_code == 0 and "keeps its name" in mmqjp(*learn).stderr
    with Session(engine, state=state) as session:
        with pytest.raises(InvalidValue, match="only general-1, press-1"):
            session.subscribe(WEIGHED.format("press-2"))
        session.subscribe(WEIGHED.format("press-1"))
        weight = learnt_weights([words(text) for text in TOLD])
        pairs = {
            (one, other) for one, other in combinations(range(4), 2) if _is_similar(TOLD[one], TOLD[other], weight)
        }
        assert {tuple(sorted(output.documents)) for output in session.process(storms())} == {
            (f"d{one}", f"d{other}") for one, other in pairs
        }
        by_executors = [path for path in (state / "answers").glob("*") if path.stem.count("-") == 3]
        assert bool(by_executors) == spreads
        with pytest.raises(StoreError, match="open in this process"):
            Session("duckdb", state=tmp_path / "other")
        with pytest.raises(InvalidValue, match="weigh words by the table press-1"):
            session.subscribe(WEIGHED.format("general-1"))
    assert chosen_weights() is general_weights()
    path = state / "weights" / "press-1.weights"
    content = path.read_bytes()
    path.unlink()
    for data, message in ((None, "is gone"), (b"", "not a table"), (write_weights({"a": 1}), "is not the table")):
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(StoreError, match=message):
            Session(engine, state=state)
    path.write_bytes(content)
    with Session(engine, state=state, read_only=True):
        assert chosen_weights().name == "press-1"


def _is_similar(one: str, other: str, weight: Mapping[str, int]) -> bool:
    common, either = (
        sum(weight.get(word, HEAVIEST) for word in of) for of in (words(one) & words(other), words(one) | words(other))
    )
    return 100 * common >= 15 * either > 0 and common > 0
