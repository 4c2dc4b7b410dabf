"""`mmqjp query`: rows in every format, with times and nodes that can be read."""

import csv
import io
import json
from typing import Any

import pytest
from lxml import html
from markdown_it import MarkdownIt

from mmqjp.engine import Session
from mmqjp.tables.schema import SCHEMA, TIMES
from tests.support.cli import mmqjp

SQL = "SELECT query, t1, nodes, documents, batch FROM outputs ORDER BY seq LIMIT 1"
HOSTILE = """SELECT '<b>&"|`*' AS "a|<b>", NULL AS n, '=1' AS f"""


@pytest.fixture
def state(finished_story):
    return finished_story


def parsed(text: str) -> Any:
    return html.document_fromstring(text)


def asked(state, sql, *options):
    result = mmqjp("query", sql, "--state", state, *options)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout_bytes.decode()


ROW = {"query": "book_blog", "t1": "2026-01-03T00:00:00Z", "nodes": {"x1": 0, "x4": 0}, "documents": ["d1", "d3"]}


def test_times_and_nodes_can_be_read(state, tmp_path):
    (line,) = asked(state, SQL).splitlines()
    found = json.loads(line)
    assert found.items() >= ROW.items()
    assert json.loads(asked(state, SQL, "--format", "json")) == [found]
    raw = json.loads(asked(state, SQL, "--raw"))
    assert (raw["t1"], json.loads(raw["nodes"])) == (1767398400000000, ROW["nodes"])
    assert "2026-01-03T00:00:00Z" in asked(state, SQL, "--format", "table", "--utc")
    found = json.loads(asked(state, "SELECT min(t0), max(o.t1), max(batch) FROM outputs o"))
    assert list(found.values())[:2] == ["2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"]
    (row,) = csv.DictReader(io.StringIO(asked(state, SQL, "--format", "csv")))
    read = {"t1": row["t1"], "nodes": json.loads(row["nodes"]), "documents": json.loads(row["documents"])}
    assert read.items() <= ROW.items()
    assert asked(state, SQL, "--format", "html", "--output", tmp_path / "rows.html") == ""
    assert (tmp_path / "rows.html").read_text().rstrip().endswith("</html>"), "it is written whole"


def test_hostile_texts_stay_texts(state):
    (row,) = csv.reader(io.StringIO(asked(state, HOSTILE, "--format", "csv").split("\r\n", 1)[1]))
    assert row == ['<b>&"|`*', "", "'=1"]
    page = parsed(asked(state, HOSTILE, "--format", "html"))
    assert [cell.text for cell in page.iter("th", "td")] == ["a|<b>", "n", "f", '<b>&"|`*', None, "=1"]
    text = MarkdownIt("commonmark").enable("table").render(asked(state, HOSTILE, "--format", "markdown"))
    cells = parsed(text).xpath("//th | //td")
    assert [cell.text_content() for cell in cells] == ["a|<b>", "n", "f", '<b>&"|`*', "", "=1"]


def test_a_table_is_aligned(state):
    lines = asked(state, "SELECT 'a' AS name, 1 AS n UNION ALL SELECT 'bb', 20 ORDER BY n", "--format", "table")
    assert [line.rstrip() for line in lines.splitlines() if line.strip()][-2:] == [" a       1", " bb     20"]


def test_an_answer_without_rows_has_a_header(state):
    assert asked(state, "SELECT query, t0 FROM outputs LIMIT 0", "--format", "csv") == "query,t0\r\n"
    assert asked(state, "SELECT query FROM outputs LIMIT 0", "--format", "json") == "[]\n"


def test_every_value_of_sql_can_be_written(state):
    sql = """SELECT sum(t1) AS s, 1.5 AS d, DATE '2026-01-02' AS day, 'x'::BLOB AS b, [1.5::DOUBLE] AS l,
{'a': DATE '2026-01-03'} AS o, 'nan'::DOUBLE AS f, true AS t FROM outputs"""
    found = json.loads(asked(state, sql), parse_constant=pytest.fail)
    assert found == {
        "s": 1767398400000000 * 2 + 1767484800000000, "d": 1.5, "day": "2026-01-02", "b": "x", "l": [1.5],
        "o": {"a": "2026-01-03"}, "f": "nan", "t": True,
    }  # fmt: skip


def test_every_time_of_the_tables_is_known():
    named = {name for table in SCHEMA.tables.values() for name in table.names}
    assert {name for name in named if name.endswith("_at")} | {"t0", "t1", "time"} == TIMES - {"timestamp"}
    with Session("duckdb") as engine:
        assert "timestamp" in engine.sql("SELECT * FROM r_docts").column_names


def test_columns_with_one_name_are_all_in_an_object(state):
    sql = "SELECT 1 AS x, 2 AS x, 3 AS x_2, 4 AS x"
    row = {"x": 1, "x_3": 2, "x_2": 3, "x_4": 4}
    assert json.loads(asked(state, sql, "--format", "json")) == [row]
    assert json.loads(asked(state, sql, "--format", "jsonl")) == row
    assert asked(state, sql, "--format", "csv").splitlines()[0] == "x,x,x_2,x"
