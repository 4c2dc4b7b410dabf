"""The pages of the engine and of what queries share; the description of the API."""

import re
from pathlib import Path

import pytest

from mmqjp.engine import Session
from mmqjp.explain.plan import MOST_NAMES, SharedRowUse, SharedTemplate, summarise_sharing
from mmqjp.web.areas.engine import HOUR, HOURS
from mmqjp.web.areas.queries import has_others, names_of
from tests.mmqjp.web.conftest import NOW
from tests.support.web import browser, script, site_of, stranger


def test_the_numbers_are_those_of_the_engine(site, engine):
    found = script(site).get("/api/v1/engine").json()
    assert (found["status"]["documents"], found["status"]["outputs"], found["status"]["queries"]) == (2, 1, 2)
    assert found["lag_us"] == 1 and found["counters"]["stage1"] == engine.stage1_counters()
    assert found["plan"] == "signature"
    hours = found["hours"]
    assert len(hours) == HOURS and [hour["begin"] % HOUR for hour in hours] == [0] * HOURS
    assert (sum(hour["documents"] for hour in hours), sum(hour["outputs"] for hour in hours)) == (2, 1)
    text = browser(site).get("/engine").text
    assert "Documents an hour" in text and "Watermark" in text and "<rect" in text
    assert {browser(site).post(path).status_code for path in ("/engine", "/api/v1/engine")} == {405}, "it only reads"


def test_a_new_store_says_what_to_do():
    with Session("duckdb") as engine:
        site = site_of(engine, now=lambda: NOW)
        found = script(site).get("/api/v1/engine").json()
        assert (found["documents_a_second"], found["lag_us"], found["last_batch"]) == (None, None, None)
        text = browser(site).get("/engine").text
    assert "No document has come yet" in text and "No batch has been committed yet" in text


DOCS = Path(__file__).parents[3] / "docs" / "web.md"


@pytest.fixture
def described(unchanged_engine):
    return script(site_of(unchanged_engine)).get("/api/v1/openapi.json").json()


def test_the_description_has_a_twin_of_every_page(described):
    assert {
        "/api/v1/queries", "/api/v1/queries/{name}", "/api/v1/outputs/{id}", "/api/v1/check", "/api/v1/backtest",
        "/api/v1/events", "/api/v1/feeds", "/api/v1/sinks", "/api/v1/sinks/{name}", "/api/v1/engine",
        "/api/v1/sharing", "/api/v1/sql", "/api/v1/tables",
    } <= described["paths"].keys()  # fmt: skip
    assert all(path.startswith("/api/v1/") for path in described["paths"])
    operations = [one for path in described["paths"].values() for one in path.values()]
    assert all(one["summary"] and one["tags"] for one in operations)


def test_the_documentation_lists_every_path(described):
    text = DOCS.read_text("utf-8")
    for path, operations in described["paths"].items():
        named = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), path.removeprefix("/api/v1"))
        parts = named.split("/")
        for method in operations:
            ways = (f"{method.upper()} {named}`", f"…/{parts[-1]}`", f"…/{'/'.join(parts[-2:])}`")
            assert any(way in text for way in ways), f"{method.upper()} {named} is not in docs/web.md"


def test_the_page_shows_what_the_queries_share(site, engine):
    more = "FROM S//book->x1[./author->x2] FOLLOWED BY {x2 = x5, 1 d} S//blog->x4[./author->x5] PUBLISH also"
    engine.subscribe(more)
    found = script(site).get("/api/v1/sharing").json()
    expected = summarise_sharing(engine).to_dict()
    assert {key: found[key] for key in ("queries", "forms", "rows", "templates", "subscribers")} == {
        key: expected[key] for key in ("queries", "forms", "rows", "templates", "subscribers")
    }
    assert (found["queries"], found["rows"], found["templates"]) == (3, 2, 2)
    text = browser(site).get("/sharing").text
    assert "<svg" in text and 'href="/q/also"' in text and 'href="/q/book_blog"' in text
    assert "style=" not in text and "<style" not in text  # which the policy of the page would refuse
    assert stranger(site).get("/api/v1/sharing").status_code == 401
    with Session("duckdb") as empty:
        text = browser(site_of(empty)).get("/sharing").text
    assert "Nothing to share yet" in text and "/new" in text


MANY = tuple(f"q{number}" for number in range(MOST_NAMES))


def test_others_are_told_of_only_if_there_may_be_some():
    for rows, used, others in (
        (2, [(1, ("a",)), (2, ("a", "b"))], False),  # a subscribes to both
        (1, [(5, ("a",))], False),  # five times
        (3, [(1, ("a",)), (1, ("b",))], True),
        (1, [(len(MANY), MANY)], False),
        (1, [(len(MANY) + 1, MANY)], True),
        (2, [(len(MANY), MANY), (1, ("a",))], True),
    ):
        shared = tuple(SharedRowUse(row, *one) for row, one in enumerate(used))
        template = SharedTemplate(0, "", rows, sum(count for count, _ in used), shared)
        assert has_others(template) == others and 0 < len(names_of(template)) <= MOST_NAMES
