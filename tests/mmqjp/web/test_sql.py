"""Questions in SQL on the page: they only read, and their answers are shown as they are."""

import csv
import html
import io

import pytest

from mmqjp.web.areas import sql as views
from tests.support.web import browser, script, stranger


@pytest.fixture
def engine(unchanged_engine):
    return unchanged_engine


def test_a_select_is_answered(site):
    for sql in (
        "SELECT query, seq FROM outputs",
        " select query, seq from outputs ; ",
        "WITH o AS (SELECT * FROM outputs) SELECT query, seq FROM o -- a comment",
        "SELECT query, seq FROM outputs ORDER BY seq DESC",
    ):
        expected = {"columns": ["query", "seq"], "rows": [["book_blog", 0]], "is_cut": False}
        assert script(site).get("/api/v1/sql", params={"sql": sql}).json() == expected
        assert script(site).post("/api/v1/sql", json={"sql": sql}).json() == expected
        page = browser(site).get("/sql", params={"sql": sql})
        assert page.status_code == 200 and "book_blog" in page.text and '<td class="n">0</td>' in page.text


NO_SELECTS = [
    "DROP TABLE answers", "SELECT 1; DROP TABLE answers", "SELECT * FROM read_text('/etc/passwd')",
    "SELECT 1) AS a; DROP TABLE answers; --", "ATTACH 'x.db'", "COPY outputs TO 'x'", "SELECT * FROM nothing",
    "SELECT * FROM '/etc/passwd'", "SELECT (", "INSERT INTO answers VALUES (1)", "PRAGMA version", "\0",
]  # fmt: skip


def test_whatever_is_no_select_is_refused_in_words(site, engine):
    before = engine.sql("SELECT count(*) AS n FROM outputs").to_pylist()
    for sql in NO_SELECTS:
        answer = script(site).get("/api/v1/sql", params={"sql": sql})
        assert answer.status_code == 400 and answer.json()["error"]
        page = browser(site).get("/sql", params={"sql": sql})
        assert page.status_code == 400 and 'id="sql-error"' in page.text
    assert engine.sql("SELECT count(*) AS n FROM outputs").to_pylist() == before


def test_an_answer_has_so_many_rows_and_says_that_there_are_more(site):
    found = script(site).get("/api/v1/sql", params={"sql": "SELECT * FROM range(5000)"}).json()
    assert (len(found["rows"]), found["is_cut"]) == (views.MOST_ROWS, True)
    assert "the first of more" in browser(site).get("/sql", params={"sql": "SELECT * FROM range(5000)"}).text


def test_a_question_that_takes_too_long_ends(site, monkeypatch):
    monkeypatch.setattr(views, "SECONDS", 0.2)
    slow = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE a.range + b.range = 1"
    assert browser(site).get("/sql", params={"sql": slow}).status_code == 503


def test_values_are_shown_as_they_are(site):
    hostile = "SELECT '<script>alert(1)</script>' AS \"<b>\", NULL AS x, [1, 2] AS l, 1.5 AS n, '=1+1' AS f"
    text = browser(site).get("/sql", params={"sql": hostile}).text
    assert "<script>alert" not in text and "<b>" not in text and "&lt;script&gt;" in text and "[1, 2]" in text
    found = browser(site).get("/sql/answer.csv", params={"sql": hostile})
    assert "attachment" in found.headers["content-disposition"]
    assert list(csv.reader(io.StringIO(found.text)))[1] == ["<script>alert(1)</script>", "", "[1, 2]", "1.5", "'=1+1"]


def test_times_are_text(site):
    rows = browser(site).get("/sql/answer.json", params={"sql": "SELECT t1, t1 FROM outputs"}).json()
    assert list(rows[0]) == ["t1", "t1_1"] and rows[0]["t1"].endswith("Z")
    for sql in ("SELECT 'infinity'::date AS a", "SELECT '-infinity'::timestamp AS a"):  # which Python has not
        ((value,),) = script(site).get("/api/v1/sql", params={"sql": sql}).json()["rows"]
        assert isinstance(value, str)
        assert browser(site).get("/sql", params={"sql": sql}).status_code == 200


def test_there_are_questions_to_begin_with_and_the_tables_are_listed(site):
    text = html.unescape(browser(site).get("/sql").text)
    for title, sql in views.EXAMPLES.items():
        assert title in text
        assert script(site).get("/api/v1/sql", params={"sql": sql}).status_code == 200
    found = {one["name"]: one["columns"] for one in script(site).get("/api/v1/tables").json()}
    assert {"query", "seq", "id"} <= set(found["outputs"]) and "documents" in found


def test_strangers_read_nothing(site):
    assert stranger(site).get("/api/v1/sql?sql=SELECT+1").status_code == 401
    assert stranger(site).get("/sql?sql=SELECT+1").status_code == 303


def test_a_question_of_another_page_is_shown_and_not_run(site):
    client, asked = browser(site), {"sql": "SELECT query FROM outputs"}
    found = client.get("/sql", params=asked, headers={"Sec-Fetch-Site": "cross-site"})
    assert "comes from another page" in found.text and "book_blog" not in found.text and asked["sql"] in found.text
    assert "book_blog" in client.get("/sql", params=asked).text
