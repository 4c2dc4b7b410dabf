"""The page of the engine: what it keeps, how far it has come, what it has done."""

from mmqjp.engine import Session
from mmqjp.web.areas.engine import HOUR, HOURS
from tests.mmqjp.web.conftest import NOW
from tests.support.web import browser, script, site_of


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
