"""New queries: what the check finds, and that every form works without a script."""

import html

import pytest

from mmqjp.web.areas.new import LONGEST, MOST_TOLD, NAMES, starters
from tests.support.backtest import try_in_this_process
from tests.support.web import browser, script, site_of, stranger

GOOD = "FROM S//blog->b[./author->a] PUBLISH fresh"
BAD = "FROM S//blog->b[./author->a]\n  FOLLOWED BY { a = tt, 1 d } S//book->c[./author->t] PUBLISH fresh"


def names(site):
    return [row["name"] for row in script(site).get("/api/v1/queries").json()["rows"]]


def test_the_check_tells_the_place_the_mistake_and_what_may_help(unchanged_engine, tmp_path):
    (tmp_path / "drops").mkdir()
    client = script(site_of(unchanged_engine, tmp_path))

    def check(text):
        return client.post("/api/v1/check", json={"text": text}).json()

    found = check(BAD)
    (error,) = found["errors"]
    assert (error["line"], error["column"]) == (2, 21) and "tt is not bound" in error["message"]
    assert error["hint"] and error["shown"].splitlines()[2].strip() == "^^"
    assert (found["queries"], found["mistakes"]) == (0, 1)
    found = check(f"{GOOD}; FROM S//x")
    assert (found["queries"], found["names"], found["mistakes"]) == (2, ["fresh", "q2"], 0)
    found = check("FROM S//item->a[./titel->t] PUBLISH fresh")
    assert found["warnings"] == 1 and "titel" in found["remarks"][0]["shown"]
    assert check("")["mistakes"] == check(" \n")["mistakes"] == 0
    found = check("; ".join(["FROM S//a->x[./b->y] FOLLOWED BY {y = z, 1 d} S//c->w[./d->v]"] * 50))
    assert (found["mistakes"], len(found["errors"])) == (50, MOST_TOLD)
    answer = client.post("/api/v1/check", json={"text": "x" * (LONGEST + 1)})
    assert answer.status_code == 400 and answer.json()["errors"]


def test_the_form_subscribes(site, engine):
    client = browser(site)
    before = len(list(engine.outputs()))
    done = client.post("/new", data={"text": GOOD, "do": "subscribe"})
    assert done.status_code == 303 and done.headers["location"].startswith("/q/fresh")
    assert "fresh" in names(site) and len(list(engine.outputs())) == before
    two = client.post("/new", data={"text": f"{GOOD}; {GOOD}2", "do": "subscribe"})
    assert "2 queries: subscribed" in client.get(two.headers["location"]).text
    client.post("/new", data={"text": f"{GOOD}3", "do": "subscribe", "backfill": "1"})
    assert len(list(engine.outputs())) == before + 1, "it is answered over what is kept"


def test_the_form_shows_mistakes_below_the_text_and_keeps_it(site, engine):
    client = browser(site)
    for do, status in (("check", 200), ("try", 400), ("subscribe", 400)):
        found = client.post("/new", data={"text": BAD, "do": do})
        assert found.status_code == status and 'aria-invalid="true"' in found.text
        assert "tt is not bound" in found.text and html.escape(BAD.splitlines()[0]) in found.text
    found = client.post("/new", data={"text": " ", "do": "subscribe"})
    assert found.status_code == 400 and "There is no query yet" in found.text
    text = 'FROM S//a->x[./b = "</textarea><script>alert(1)</script>"] PUBLISH'
    found = client.post("/new", data={"text": text, "do": "check"})
    assert "<script>alert" not in found.text and found.text.count("</textarea>") == 1
    engine.subscribe("FROM fresh//x PUBLISH other")
    found = client.post("/new", data={"text": "FROM other//x PUBLISH fresh", "do": "subscribe"})
    assert found.status_code == 400 and 'role="alert"' in found.text, "the engine refuses it"
    assert "fresh" not in names(site)


def test_there_are_queries_to_begin_with(site):
    assert tuple(one.name for one in starters()) == NAMES
    client = browser(site)
    for one in starters():
        found = client.get("/new", params={"starter": one.name})
        shown = found.text.replace("&#34;", '"').replace("&#39;", "'")
        assert html.escape(one.text, quote=False).splitlines()[0] in shown and "No mistakes" in found.text
    assert client.get("/new?starter=none").status_code == 200
    found = client.get("/new?query=nobody")  # a query is changed by its text
    assert "FROM S//blog-&gt;b" in found.text and "No mistakes" in found.text
    assert client.get("/new?query=none").status_code in (400, 404)


def test_scripts_subscribe_and_get_mistakes_with_their_places_and_strangers_do_not(site):
    assert stranger(site).post("/api/v1/queries", json={"text": GOOD}).status_code == 401
    elsewhere = browser(site)
    elsewhere.headers["Sec-Fetch-Site"] = "cross-site"
    assert elsewhere.post("/new", data={"text": GOOD, "do": "subscribe"}).status_code == 403
    assert "fresh" not in names(site)
    client = script(site)
    assert client.post("/api/v1/queries", json={"text": GOOD}).json() == {"names": ["fresh"]}
    refused = client.post("/api/v1/queries", json={"text": BAD})
    assert refused.status_code == 400 and refused.json()["errors"][0]["line"] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD, ("Tried on what is kept", "The latest")),
        ("FROM S//blog->b[./author = 'X'] PUBLISH x", ("It finds nothing in them", "lower-case")),
    ],
)
def test_a_query_is_tried_on_what_is_kept(unchanged_engine, monkeypatch, text, said):
    try_in_this_process(monkeypatch)
    site = site_of(unchanged_engine)
    page = browser(site).post("/new", data={"text": text, "do": "try"})
    assert page.status_code == 200 and all(words in page.text for words in said)
    if text == GOOD:
        found = script(site).post("/api/v1/backtest", json={"text": text}).json()
        assert (found["documents"], found["outputs"]) == (2, 1)
    assert len(list(unchanged_engine.outputs())) == 1 and "fresh" not in names(site)
