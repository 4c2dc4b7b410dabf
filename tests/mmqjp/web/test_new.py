"""New queries: what the check finds, and that every form works without a script."""

import html

import pytest

from mmqjp.web.areas.new import LONGEST, MOST_TOLD, NAMES, starters
from tests.support.web import browser, script, site_of, stranger

GOOD = "FROM S//blog->b[./author->a] PUBLISH fresh"
BAD = "FROM S//blog->b[./author->a]\n  FOLLOWED BY { a = tt, 1 d } S//book->c[./author->t] PUBLISH fresh"


def names(site):
    return [row["name"] for row in script(site).get("/api/v1/queries").json()["rows"]]


def test_the_check_tells_the_place_the_mistake_and_what_may_help(site):
    found = script(site).post("/api/v1/check", json={"text": BAD}).json()
    (error,) = found["errors"]
    assert (error["line"], error["column"]) == (2, 21) and "tt is not bound" in error["message"]
    assert error["hint"] and error["shown"].splitlines()[2].strip() == "^^"
    assert (found["queries"], found["mistakes"]) == (0, 1)


def test_the_check_names_the_queries_of_a_correct_text(site):
    found = script(site).post("/api/v1/check", json={"text": f"{GOOD}; FROM S//x"}).json()
    assert (found["queries"], found["names"], found["mistakes"]) == (2, ["fresh", "q2"], 0)


def test_the_check_warns_of_names_that_items_do_not_have(engine, tmp_path):
    (tmp_path / "drops").mkdir()
    text = "FROM S//item->a[./titel->t] PUBLISH fresh"
    found = script(site_of(engine, tmp_path)).post("/api/v1/check", json={"text": text}).json()
    assert found["warnings"] == 1 and "titel" in found["remarks"][0]["shown"]


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_has_no_mistakes(site, text):
    assert script(site).post("/api/v1/check", json={"text": text}).json()["mistakes"] == 0


def test_of_very_many_mistakes_some_are_told_and_all_counted(site):
    text = "; ".join(["FROM S//a->x[./b->y] FOLLOWED BY {y = z, 1 d} S//c->w[./d->v]"] * 50)
    found = script(site).post("/api/v1/check", json={"text": text}).json()
    assert (found["mistakes"], len(found["errors"])) == (50, MOST_TOLD)


def test_a_text_that_is_too_long_is_refused(site):
    answer = script(site).post("/api/v1/check", json={"text": "x" * (LONGEST + 1)})
    assert answer.status_code == 400 and answer.json()["errors"]


def test_the_form_subscribes(site):
    client = browser(site)
    done = client.post("/new", data={"text": GOOD, "do": "subscribe"})
    assert done.status_code == 303 and done.headers["location"].startswith("/q/fresh")
    assert "fresh" in names(site)
    two = client.post("/new", data={"text": f"{GOOD}; {GOOD}2", "do": "subscribe"})
    assert "2 queries: subscribed" in client.get(two.headers["location"]).text


def test_the_form_answers_over_what_is_kept_if_asked_to(site, engine):
    before = len(list(engine.outputs()))
    browser(site).post("/new", data={"text": GOOD, "do": "subscribe", "backfill": "1"})
    assert len(list(engine.outputs())) == before + 1


@pytest.mark.parametrize("do", ["check", "try", "subscribe"])
def test_the_form_shows_mistakes_below_the_text_and_keeps_it(site, do):
    found = browser(site).post("/new", data={"text": BAD, "do": do})
    assert found.status_code == (200 if do == "check" else 400)
    assert "tt is not bound" in found.text and html.escape(BAD.splitlines()[0]) in found.text
    assert 'aria-invalid="true"' in found.text and "fresh" not in names(site)


def test_the_form_says_what_to_do_with_an_empty_text(site):
    found = browser(site).post("/new", data={"text": " ", "do": "subscribe"})
    assert found.status_code == 400 and "There is no query yet" in found.text


def test_what_the_engine_refuses_is_told(site, engine):
    engine.subscribe("FROM fresh//x PUBLISH other")
    found = browser(site).post("/new", data={"text": "FROM other//x PUBLISH fresh", "do": "subscribe"})
    assert found.status_code == 400 and 'role="alert"' in found.text


def test_hostile_texts_are_shown_as_they_are(site):
    text = 'FROM S//a->x[./b = "</textarea><script>alert(1)</script>"] PUBLISH'
    found = browser(site).post("/new", data={"text": text, "do": "check"})
    assert "<script>alert" not in found.text and found.text.count("</textarea>") == 1


def test_there_are_queries_to_begin_with(site):
    assert tuple(one.name for one in starters()) == NAMES
    client = browser(site)
    for one in starters():
        found = client.get("/new", params={"starter": one.name})
        assert html.escape(one.text, quote=False).splitlines()[0] in found.text.replace("&#34;", '"').replace(
            "&#39;", "'"
        )
        assert "No mistakes" in found.text
    assert client.get("/new?starter=none").status_code == 200


def test_a_query_is_changed_by_its_text(site):
    found = browser(site).get("/new?query=nobody")
    assert "FROM S//blog-&gt;b" in found.text and "No mistakes" in found.text
    assert browser(site).get("/new?query=none").status_code in (400, 404)


def test_scripts_subscribe_and_get_mistakes_with_their_places(site):
    client = script(site)
    assert client.post("/api/v1/queries", json={"text": GOOD}).json() == {"names": ["fresh"]}
    refused = client.post("/api/v1/queries", json={"text": BAD})
    assert refused.status_code == 400 and refused.json()["errors"][0]["line"] == 2


def test_strangers_subscribe_to_nothing(site):
    assert stranger(site).post("/api/v1/queries", json={"text": GOOD}).status_code == 401
    elsewhere = browser(site)
    elsewhere.headers["Sec-Fetch-Site"] = "cross-site"
    assert elsewhere.post("/new", data={"text": GOOD, "do": "subscribe"}).status_code == 403
    assert "fresh" not in names(site)


@pytest.fixture
def tried(site):
    """What a back-test of GOOD over the documents of the engine gives, on the page and as JSON."""
    page = browser(site).post("/new", data={"text": GOOD, "do": "try"})
    return page, script(site).post("/api/v1/backtest", json={"text": GOOD}).json()


def test_a_query_is_tried_on_what_is_kept(site, engine, tried):
    page, found = tried
    assert page.status_code == 200 and "Tried on what is kept" in page.text and "The latest" in page.text
    assert (found["documents"], found["outputs"]) == (2, 1)
    assert len(list(engine.outputs())) == 1 and "fresh" not in names(site)


def test_a_query_that_finds_nothing_says_what_may_help(site):
    page = browser(site).post("/new", data={"text": "FROM S//blog->b[./author = 'X'] PUBLISH x", "do": "try"})
    assert "It finds nothing in them" in page.text and "lower-case" in page.text
