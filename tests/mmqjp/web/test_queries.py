"""The list of queries, a name, an output: as pages and from the API, held against the outputs of the engine."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.present.item import OutputPresenter
from mmqjp.web.tallies import Tallies
from tests.mmqjp.web.conftest import NOW
from tests.support.web import browser, script, site_of

HOUR = 3_600_000_000

NAMES = 230


@contextmanager
def engine_of_many() -> Iterator[Session]:
    with Session("duckdb") as engine:
        filters = ";".join(f"FROM S//a->x[./n = {n % 7}] PUBLISH q{n:03}" for n in range(NAMES))
        joins = ";".join(
            f"FROM S//a->x[./k->k1] FOLLOWED BY {{k1 = k2, {n + 1} d}} S//b->y[./k->k2] PUBLISH j{n}" for n in range(6)
        )
        engine.subscribe(f"{filters};{joins}")
        for day in range(35):
            engine.process(Document(f"{day}-{n}", xml(n), time=at(day, n)) for n in range(6))
            if day == 20:
                engine.pause("j3")
                engine.pause("q005")
        yield engine


@pytest.fixture(scope="module")
def many() -> Iterator[Session]:
    """Many names: some have matched, some are paused, some share a form. Tests leave it as it is."""
    with engine_of_many() as engine:
        yield engine


def xml(n: int) -> str:
    name = "ab"[n % 2]
    return f"<{name}><n>{n}</n><k>value {n % 3}</k></{name}>"


def at(day: int, n: int) -> int:
    return NOW - (34 - day) * 24 * HOUR + n * 1_000_000 - 7 * HOUR


def expected(engine: Session, now: int) -> dict[str, tuple[int, int, int, int]]:
    """For each name that has matched, its outputs in all, in 24 hours and in 7 days, and the last t1."""
    outputs = list(engine.outputs())
    hour = now // HOUR
    total, day, week = (
        Counter(o.query for o in outputs if o.t1 // HOUR >= hour - hours) for hours in (1 << 40, 24, 168)
    )
    last = {o.query: max(p.t1 for p in outputs if p.query == o.query) for o in outputs}
    return {name: (total[name], day[name], week[name], last[name]) for name in total}


def all_rows(client, **fields):
    rows: list[dict[str, Any]] = []
    after: dict[str, str] | None = {}
    while after is not None:
        found = client.get("/api/v1/queries", params=fields | after).json()
        assert len(found["rows"]) <= 100
        rows += found["rows"]
        after = {"after": found["next"]} if found["next"] is not None else None
    assert len(rows) == found["found"]
    return rows


def numbers(rows):
    return {row["name"]: (row["total"], row["day"], row["week"], row["last"]) for row in rows if row["total"]}


@pytest.fixture
def own() -> Iterator[Session]:
    with engine_of_many() as engine:
        yield engine


def test_counts_are_those_of_the_outputs_and_of_each_batch_once(own):
    many, now = own, [NOW]
    client = script(site_of(many, now=lambda: now[0]))
    assert numbers(all_rows(client)) == expected(many, NOW)
    for step in range(3):
        now[0] += 9 * HOUR
        many.process([Document(f"new{step}-{n}", f"<a><n>{n}</n></a>", time=now[0] - n) for n in range(3)])
        assert numbers(all_rows(client)) == expected(many, now[0])
        assert numbers(all_rows(script(site_of(many, now=lambda: now[0])))) == expected(many, now[0])
    many.prune(10 * 24 * HOUR)
    many.process([Document("last", "<a><n>1</n></a>", time=now[0])])
    assert numbers(all_rows(client)) == expected(many, now[0])


def test_lists_are_sorted_searched_and_filtered(many):
    client = script(site_of(many, now=lambda: NOW))
    rows = all_rows(client)
    assert [row["name"] for row in rows] == sorted(many.queries())
    for key in ("day", "week", "total", "last"):
        found = all_rows(client, sort=key)
        assert found == sorted(rows, key=lambda row: (-(row[key] or -(1 << 61)), row["name"]))
    assert [row["name"] for row in all_rows(client, state="paused")] == ["j3", "q005"]
    assert {row["reason"] for row in all_rows(client, state="paused")} == {"asked to"}
    assert all_rows(client, state="never") == [row for row in rows if not row["total"]]
    assert [row["name"] for row in all_rows(client, search="Q00")] == [f"q{n:03}" for n in range(10)]
    assert all_rows(client, search="nothing of the kind") == []
    for after in ("x", "W10", "[[]]", "!!!", "W3RydWUsIngiXQ"):
        assert client.get("/api/v1/queries", params={"after": after}).status_code == 400


def test_pages_of_the_list_lead_through_all_names(many):
    client = browser(site_of(many, now=lambda: NOW))
    address, seen = "/", []
    while address:
        text = client.get(address).text
        seen += [part.split('"')[0] for part in text.split('<th scope="row"><a href="/q/')[1:]]
        rest = text.split('rel="next"')[0].rpartition('href="')[2] if 'rel="next"' in text else ""
        address = rest.split('"')[0].replace("&amp;", "&")
    assert seen == sorted(many.queries())


def test_a_name_shows_what_matches_shows(many):
    client = script(site_of(many, now=lambda: NOW))
    wanted = [match.to_dict() for match in OutputPresenter(many).matches(many.outputs()) if match.output.query == "j5"]
    found: list[dict[str, Any]] = []
    after: dict[str, str] | None = {}
    while after is not None:
        page = client.get("/api/v1/queries/j5/outputs", params={"limit": 7} | after).json()
        found += page["outputs"]
        after = {"after": page["next"]} if page["next"] is not None else None
    assert len(found) > 20 and json.loads(json.dumps(wanted)) == found[::-1]


def test_a_name_has_its_texts_sharers_and_days(many):
    client = script(site_of(many, now=lambda: NOW))
    found = client.get("/api/v1/queries/j3").json()
    assert [one["text"] for one in found["texts"]] == many.queries()["j3"]
    assert found["texts"][0]["paused"] == "asked to" and found["row"]["state"] == "paused"
    (shared,) = found["shared"]
    assert (shared["queries"], shared["same_row"], len(shared["names"])) == (6, 6, 6)
    of_days = Counter(o.t1 // (24 * HOUR) for o in many.outputs() if o.query == "j3")
    today = NOW // (24 * HOUR)
    assert [one["matches"] for one in found["days"]] == [of_days[today - 29 + n] for n in range(30)]
    many.resume("j3")
    assert client.get("/api/v1/queries/j3").json()["row"]["state"] == "active"
    many.pause("j3")


def test_an_output_is_found_by_its_id_with_its_group_and_by_its_number(many):
    client = script(site_of(many, now=lambda: NOW))
    page = browser(site_of(many, now=lambda: NOW))
    output = next(o for o in many.outputs() if o.query == "j5")
    for address in (output.id, output.id[:12], f"{output.id}?group=0", str(output.seq)):
        found = client.get(f"/api/v1/outputs/{address}").json()
        assert (found["id"], found["seq"], found["query"]) == (output.id, output.seq, "j5")
    assert "same <" in page.get(f"/o/{output.id}").text.replace('<span class="plain">', "")
    for nothing in ("0" * 32, "no-id", "999999999", "'; --"):
        assert client.get(f"/api/v1/outputs/{nothing}").status_code == 404
        assert page.get(f"/o/{nothing}").status_code == 404
    text = page.get("/q/j5").text
    links = [part.split('"')[0] for part in text.split('href="/o/')[1:]]
    assert len(links) == 10
    pages = [page.get(f"/o/{link}") for link in links[:3]]
    assert [one.status_code for one in pages] == [200] * 3 and "<mark>" in pages[0].text + text


def test_forms_pause_resume_and_remove(site, engine):
    client = browser(site)
    shown = client.post("/q/nobody/pause").headers["location"]
    assert "nobody: paused" in client.get(shown).text
    assert client.post("/q/nobody/resume", data={"back": "query"}).headers["location"].startswith("/q/nobody?")
    assert "Remove nobody?" in client.get("/q/nobody/remove").text
    assert "nobody" in engine.queries()
    assert "nobody: removed" in client.get(client.post("/q/nobody/remove").headers["location"]).text
    assert "nobody" not in engine.queries()
    assert client.post("/q/nobody/pause").status_code == 400
    assert client.get("/q/nobody").status_code == 404
    found = script(site).delete("/api/v1/queries/nobody")
    assert (found.status_code, found.json()["error"]) == (400, "no query is named 'nobody'")
    assert script(site).delete("/api/v1/queries/book_blog").status_code == 200
    assert "/new" in client.get("/").text and script(site).get("/api/v1/queries").json()["rows"] == []


def test_only_the_answer_to_a_form_makes_a_page_tell_something(site):
    client = browser(site)
    for made_up in ("/?done=pause&name=nobody", "/?told=nobody:+paused", "/?message=x", "/q/nobody?done=revoke"):
        assert 'role="status"' not in client.get(made_up).text
    shown = client.post("/q/nobody/pause").headers["location"]
    first, second = client.get(shown), client.get(shown)
    assert '<p class="told" role="status">nobody: paused</p>' in first.text
    assert first.headers["cache-control"] == "no-store" and 'role="status"' not in second.text


def test_what_is_registered_has_a_version(site, engine):
    seen = [site.tallies.current().registered]
    for change in (engine.pause, engine.resume, engine.unsubscribe):
        change("nobody")
        seen.append(site.tallies.current().registered)
    assert len(set(map(repr, seen))) == 4
    assert Tallies(site.reader, lambda: NOW).current().registered == seen[-1]
