import html
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from itertools import count

import feedparser
import pytest

from feeds.documents import Document, Visit
from mmqjp.engine import Session
from mmqjp.present.newest import shown_outputs
from mmqjp.web.areas.new import LONGEST, MOST_TOLD, NAMES, starters
from tests.mmqjp.web.conftest import NOW
from tests.support.backtest import try_in_this_process
from tests.support.web import URL, browser, script, site_of, stranger

HOUR = 3_600_000_000


@contextmanager
def engine_of_many(first: int = 0) -> Iterator[Session]:
    with Session("duckdb") as engine:
        filters = ";".join(f"FROM S//a->x[./n = {n % 7}] PUBLISH q{n:03}" for n in range(110))
        joins = ";".join(
            f"FROM S//a->x[./k->k1] FOLLOWED BY {{k1 = k2, {n + 1} d}} S//b->y[./k->k2] PUBLISH j{n}" for n in range(6)
        )
        engine.subscribe(f"{filters};{joins}")
        xmls = [f"<{name}><n>{n}</n><k>value {n % 3}</k></{name}>" for n, name in enumerate("ababab")]
        begin = NOW - 34 * 24 * HOUR - 7 * HOUR
        for days in (range(first, 21), range(max(first, 21), 35)):
            engine.process(
                Document(f"{day}-{n}", xml, time=begin + day * 24 * HOUR + n * 1_000_000)
                for day in days
                for n, xml in enumerate(xmls)
            )
            if days.stop == 21:
                engine.pause("j3")
                engine.pause("q005")
        yield engine


@pytest.fixture(scope="module")
def many():
    """Many names: some have matched, some are paused, some share a form. Tests leave it as it is."""
    with engine_of_many() as engine:
        yield engine


def expected(engine: Session, now: int) -> dict[str, tuple[int, int, int, int]]:
    """For each name that has matched, its outputs in all, in 24 hours and in 7 days, and the last t1."""
    outputs = list(engine.outputs())
    hour = now // HOUR
    total, day, week = (
        Counter(o.query for o in outputs if o.t1 // HOUR >= hour - hours) for hours in (1 << 40, 24, 168)
    )
    last = {o.query: o.t1 for o in sorted(outputs, key=lambda one: one.t1)}
    return {name: (total[name], day[name], week[name], last[name]) for name in total}


def all_pages(client, path, **fields):
    after: dict[str, str] | None = {}
    while after is not None:
        found = client.get(path, params=fields | after).json()
        yield found
        after = {"after": found["next"]} if found["next"] is not None else None


def all_rows(client, **fields):
    pages = list(all_pages(client, "/api/v1/queries", **fields))
    assert all(len(page["rows"]) <= 100 for page in pages)
    rows = [row for page in pages for row in page["rows"]]
    assert len(rows) == pages[-1]["found"]
    return rows


def numbers(rows):
    return {row["name"]: (row["total"], row["day"], row["week"], row["last"]) for row in rows if row["total"]}


def test_counts_are_those_of_the_outputs_and_of_each_batch_once():
    now = [NOW]
    with engine_of_many(first=21) as many:
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


def test_lists_are_sorted_searched_filtered_and_paged(many):
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
    pages, address, seen = browser(site_of(many, now=lambda: NOW)), "/", []
    while address:
        text = pages.get(address).text
        seen += [part.split('"')[0] for part in text.split('<th role="rowheader" scope="row"><a href="/q/')[1:]]
        rest = text.split('rel="next"')[0].rpartition('href="')[2] if 'rel="next"' in text else ""
        address = rest.split('"')[0].replace("&amp;", "&")
    assert seen == sorted(many.queries())


def test_a_name_has_its_texts_sharers_days_and_matches(many):
    client = script(site_of(many, now=lambda: NOW))
    outputs = [output for output in many.outputs() if output.query == "j5"]
    wanted = [match.to_dict() for match in shown_outputs(many, outputs)]
    pages = all_pages(client, "/api/v1/queries/j5/outputs", limit=100)
    found = [output for page in pages for output in page["outputs"]]
    assert len(found) > 100 and json.loads(json.dumps(wanted)) == found[::-1]
    shown = client.get("/api/v1/queries/j3").json()
    assert [one["text"] for one in shown["texts"]] == many.queries()["j3"]
    assert shown["texts"][0]["paused"] == "asked to" and shown["row"]["state"] == "paused"
    (shared,) = shown["shared"]
    assert (shared["queries"], shared["same_row"], len(shared["names"])) == (6, 6, 6)
    of_days = Counter(o.t1 // (24 * HOUR) for o in many.outputs() if o.query == "j3")
    today = NOW // (24 * HOUR)
    assert [one["matches"] for one in shown["days"]] == [of_days[today - 29 + n] for n in range(30)]
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


def test_forms_pause_resume_and_remove(api, pages, engine):
    shown = pages.post("/q/nobody/pause").headers["location"]
    assert "nobody: paused" in pages.get(shown).text
    assert pages.post("/q/nobody/resume", data={"back": "query"}).headers["location"].startswith("/q/nobody?")
    assert "Remove nobody?" in pages.get("/q/nobody/remove").text
    assert "nobody" in engine.queries()
    assert "nobody: removed" in pages.get(pages.post("/q/nobody/remove").headers["location"]).text
    assert "nobody" not in engine.queries()
    assert pages.post("/q/nobody/pause").status_code == 400
    assert pages.get("/q/nobody").status_code == 404
    found = api.delete("/api/v1/queries/nobody")
    assert (found.status_code, found.json()["error"]) == (400, "no query is named 'nobody'")
    assert api.delete("/api/v1/queries/book_blog").status_code == 200
    assert "/new" in pages.get("/").text and api.get("/api/v1/queries").json()["rows"] == []


def test_what_was_done_is_told_once(pages):
    for made_up in ("/?done=pause&name=nobody", "/?told=nobody:+paused", "/?message=x", "/q/nobody?done=revoke"):
        assert 'role="status"' not in pages.get(made_up).text
    shown = pages.post("/q/nobody/pause").headers["location"]
    first, second = pages.get(shown), pages.get(shown)
    assert '<p class="told" role="status">nobody: paused</p>' in first.text
    assert first.headers["cache-control"] == "no-store" and 'role="status"' not in second.text


def address(client, name="book_blog"):
    return client.get(f"/api/v1/queries/{name}/feed").json()["url"].removeprefix(URL)


def test_a_feed_needs_its_key_alone(api, site, engine):
    link = address(api)
    anybody = stranger(site)
    found = anybody.get(link)
    assert (found.status_code, found.headers["content-type"]) == (200, "application/atom+xml; charset=utf-8")
    parsed = feedparser.parse(found.content)
    assert len(parsed.entries) == 1 and parsed.feed.links[0].href == URL + link
    assert anybody.get(link, headers={"If-None-Match": found.headers["etag"]}).status_code == 304
    head = anybody.head(link)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", found.headers["etag"])
    other = link.replace("book_blog", "nobody")
    for wrong in (other, "/f/x/book_blog.atom", link + "x", "/f/x", "/f/../", "/f/%2e%2e/x"):
        assert anybody.get(wrong).status_code in (303, 404), wrong
    assert anybody.get(link, headers={"Host": "evil.example"}).status_code == 421
    key = {"Authorization": f"Bearer {link.split('/')[2]}"}
    assert anybody.get("/api/v1/queries", headers=key).status_code == 401, "the key is not a token"
    engine.process([Document("d3", "<blog><author>Ada</author></blog>", time=NOW)])
    assert len(feedparser.parse(anybody.get(link).content).entries) == 2
    engine.process(Document(f"n{n}", "<blog><author>Ada</author></blog>", time=NOW + n) for n in range(250))
    (archive,) = [one.href for one in feedparser.parse(anybody.get(link).content).feed.links if "archive" in one.rel]
    found = anybody.get(archive.removeprefix(URL))
    assert found.status_code == 200 and "immutable" in found.headers["cache-control"]
    assert len(feedparser.parse(found.content).entries) == 100
    assert anybody.get(link.replace(".atom", "/99.atom")).status_code == 404


def test_a_link_is_revoked_by_itself(api, pages, site):
    before, other = address(api), address(api, "nobody")
    shown = pages.post("/q/book_blog/feed/revoke").headers["location"]
    assert shown.endswith("#feed") and "The feed has a new address." in pages.get(shown).text
    after = address(api)
    assert after != before and after in pages.get("/q/book_blog").text
    anybody = stranger(site)
    assert [anybody.get(one).status_code for one in (before, after, other)] == [410, 200, 200]
    assert api.post("/api/v1/queries/book_blog/feed/revoke").json()["url"] != URL + after
    assert api.get("/api/v1/queries/none/feed").status_code == 404
    assert api.post("/api/v1/queries/none/feed/revoke").status_code == 404


def test_why_there_is_no_match_is_said_of_documents_and_of_all(api, pages, engine):
    engine.process([Document("d4", "<blog><author>ada</author></blog>", time=NOW)])
    found = api.get("/api/v1/queries/book_blog/why-not", params={"document": ["d1", "d4"]}).json()
    assert found["kind"] == "equality"
    text = pages.get("/q/book_blog/why-not?document=d1&document=d4").text
    assert "The values are not equal" in text and "lower-case" in text
    assert "There is no such document" in pages.get("/q/book_blog/why-not?document=%3Cb%3E").text
    assert "<b>" not in pages.get("/q/book_blog/why-not?document=%3Cb%3E").text
    assert api.get("/api/v1/queries/nobody/why-not").json()["funnels"][0]["found"] == 0
    assert "first in the way" in pages.get("/q/nobody/why-not").text
    assert api.get("/api/v1/queries/x/why-not?document=d1").json()["kind"] == "query"
    assert pages.get("/q/nobodi/why-not").status_code == 200
    many = "&".join("document=x" for _ in range(11))
    assert api.get(f"/api/v1/queries/x/why-not?{many}").status_code == 400


QUERIES = """DEFINE EVENT Post FROM S//item->i (site := i/site, title := i/title);
SELECT place, first, later FROM (SELECT site AS place, title AS first FROM Post)
NEXT{place = $2.site} (SELECT site, title AS later FROM Post) WITHIN 5 d PUBLISH next_post"""


def post(number, title, feed=""):
    xml = f"<item><site>Harbour</site><title>{title}</title></item>"
    return Document(f"d{number}", xml, time=NOW - (10 - number) * HOUR, feed=feed)


def test_values_of_events_are_shown_and_their_matches_retraced():
    with Session("duckdb", now=lambda: NOW, lateness=0) as engine:
        engine.subscribe(QUERIES)
        engine.process([post(1, "One"), post(2, "Two"), post(3, "Three"), post(9, "Last")])
        client = browser(site_of(engine, now=lambda: NOW))
        page = client.get("/q/next_post").text
        outputs = client.get("/api/v1/queries/next_post/outputs").json()["outputs"]
        values = [(one["name"], one["text"]) for one in outputs[-1]["selected"]]
        assert values == [("place", "Harbour"), ("first", "One"), ("later", "Two")]
        match = client.get(f"/o/{outputs[0]['id']}").text
        assert f'"/o/{outputs[0]["id"]}' in page and "<h3>The events</h3>" in match and "NEXT Post" in match
        for shown in (page, client.get("/live").text, match):
            assert '<span class="name">place</span>' in shown
            assert '<span class="value" dir="auto">Harbour</span>' in shown
        feed = client.get(client.get("/api/v1/queries/next_post/feed").json()["url"])
        assert "&lt;dt dir=&quot;auto&quot;&gt;place&lt;/dt&gt;&lt;dd dir=&quot;auto&quot;&gt;Harbour" in feed.text
        found = client.get(f"/api/v1/outputs/{outputs[0]['id']}").json()
        assert [part["name"] for part in found["events"]["parts"]] == ["Post", "NEXT Post"]
        asked = {"document": ["d1", "d3"]}
        assert client.get("/api/v1/queries/next_post/why-not", params=asked).json()["kind"] == "consumed"
        page = client.get("/q/next_post/why-not", params=asked).text
        assert "Another event was first" in page and "The nearest of the stored documents" in page
        assert "events get past all." in client.get("/q/next_post/why-not").text


def test_what_absences_wait_for_and_what_came_too_late_is_shown():
    near, far = "https://near.example/", "https://far.example/"
    waiting, late = post(1, "One", near), post(2, "Two", near)
    with Session("duckdb", now=lambda: NOW, lateness=0) as engine:
        engine.subscribe("FROM S//item->a[./site->s] NOT FOLLOWED BY {s = t, 3 h} S//item->b[./site->t] PUBLISH silent")
        client, replies = browser(site := site_of(engine, now=lambda: NOW)), site.replies
        engine.process([Visit(far, NOW, "awaited"), waiting, Visit(near, NOW - 5 * HOUR)])
        pending = client.get("/api/v1/queries/silent").json()["pending"]
        until = waiting.t0 + 3 * HOUR + 1
        assert pending == {"query": "silent", "documents": 1, "until": until, "stream": "S", "feed": far}
        page = client.get("/q/silent").text
        held = f'Furthest behind is <a href="/feeds">{far}</a>.'
        assert "1 document waits until" in page and held in page
        live = client.get("/live").text
        assert '1 document of <a href="/q/silent">silent</a> waits until' in live and held in live
        engine.process([Visit(near, NOW - 4 * HOUR), Visit(far, NOW - 4 * HOUR), late])
        replies.clear()
        page, found = client.get("/q/silent").text, client.get("/api/v1/queries/silent").json()
        assert (found["pending"], found["belated"], found["row"]["total"]) == (None, 1, 1)
        assert "What it waits for" not in page and "1 document came too late to change its earlier outputs." in page


@pytest.mark.parametrize(
    ("settle", "said"),
    [(HOUR, "the first until all feeds were visited after"), ({"S": None, "*": HOUR}, "<code>--settle</code> is INF")],
)
def test_what_stories_and_other_event_queries_wait_for_is_shown_while_nothing_has_matched(settle, said):
    near, far = "https://near.example/", "https://far.example/"
    with Session("duckdb", now=lambda: NOW, lateness=0, settle=settle) as engine:
        engine.subscribe(QUERIES)
        client, replies = browser(site := site_of(engine, now=lambda: NOW)), site.replies
        first = post(1, "One", near)
        engine.process([Visit(far, first.t0), first, post(2, "Two", near), Visit(near, NOW - 5 * HOUR)])
        pages = [client.get(path).text for path in ("/live", "/live?query=next_post", "/q/next_post")]
        for page in pages:
            assert "2 events wait for earlier ones" in page and said in page
            assert (f'Furthest behind is <a href="/feeds">{far}</a>.' in page) == (settle == HOUR)
        found = client.get("/api/v1/queries/next_post").json()["waiting"]
        until = first.t1 + HOUR if settle == HOUR else None
        assert found == found | {"events": 2, "until": until, "stream": "S", "feed": far}
        engine.process([Visit(one, NOW) for one in (near, far)])
        replies.clear()
        assert ("events wait" in client.get("/q/next_post").text) == (settle != HOUR)
        assert "events wait" not in client.get("/live").text or settle != HOUR


DEFINED = "DEFINE EVENT Post FROM S//item-&gt;i (site := i/site, title := i/title)"


def edited(client, name):
    page = client.get("/new", params={"query": name}).text
    (text,) = re.findall(r"(?s)<textarea[^>]*>\n(.*?)</textarea>", page)
    return unescape(text)


def test_a_page_has_what_event_queries_read_and_its_text_can_be_changed():
    with Session("duckdb", now=lambda: NOW, lateness=0) as engine:
        engine.subscribe(f'{QUERIES};\nFROM FILTER{{place = "Harbour"}} next_post PUBLISH harbour')
        engine.subscribe("DEFINE EVENT Unread FROM S//item->i (title := i/title)", add=True)
        client = browser(site_of(engine, now=lambda: NOW))
        page, other = client.get("/q/next_post").text, client.get("/q/harbour").text
        assert DEFINED in page and "Unread" not in page and DEFINED not in other
        assert '<a href="/q/next_post">next_post</a> publishes' in other
        events = client.get("/api/v1/queries/next_post").json()["events"]
        assert events == {"names": ["Post"], "texts": [unescape(DEFINED)], "published": []}
        text, before = edited(client, "next_post"), engine.queries()
        assert text.count("DEFINE") == 1
        assert client.post("/new", data={"text": text, "do": "subscribe"}).status_code == 303
        assert engine.queries() == before
        text = text.replace("5 d", "6 d")
        assert client.post("/new", data={"text": text, "do": "subscribe"}).status_code == 303
        assert "WITHIN 6 d" in client.get("/q/next_post").text and engine.queries().keys() == before.keys()


def test_namespaces_are_declared_once_and_what_is_not_replaced_is_copied():
    with Session("duckdb", now=lambda: NOW) as engine:
        script = 'DECLARE NAMESPACE a = "http://a/"; FROM S//a:one->x; FROM S//two->y'
        assert engine.subscribe(script) == ["q1", "q2"]
        for prefix in "ab":
            text = f'DECLARE NAMESPACE {prefix} = "http://{prefix}/"; FROM S//{prefix}:three->y PUBLISH p'
            engine.subscribe(text, add=True)
        client = browser(site_of(engine, now=lambda: NOW))
        assert edited(client, "q1") == 'DECLARE NAMESPACE a = "http://a/"; FROM S//a:one->x\n'
        text = edited(client, "p")
        assert text.count("DECLARE") == text.count("PUBLISH p") == 2
        assert client.post("/new", data={"text": text, "do": "subscribe"}).status_code == 303
        assert edited(client, "p") == text
        for name, can_be_replaced in {"q2": False, "p": True}.items():
            assert (">Edit<" in client.get(f"/q/{name}").text) == can_be_replaced
            assert ("becomes another query" in client.get("/new", params={"query": name}).text) != can_be_replaced


GOOD = "FROM S//blog->b[./author->a] PUBLISH fresh"
BAD = "FROM S//blog->b[./author->a]\n  FOLLOWED BY { a = tt, 1 d } S//book->c[./author->t] PUBLISH fresh"


def names(api):
    return [row["name"] for row in api.get("/api/v1/queries").json()["rows"]]


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


def test_the_form_subscribes(api, pages, engine):
    before = len(list(engine.outputs()))
    done = pages.post("/new", data={"text": GOOD, "do": "subscribe"})
    assert done.status_code == 303 and done.headers["location"].startswith("/q/fresh")
    assert "fresh" in names(api) and len(list(engine.outputs())) == before
    two = pages.post("/new", data={"text": f"{GOOD}; {GOOD}2", "do": "subscribe"})
    assert "2 queries: subscribed" in pages.get(two.headers["location"]).text
    pages.post("/new", data={"text": f"{GOOD}3", "do": "subscribe", "backfill": "1"})
    assert len(list(engine.outputs())) == before + 1, "it is answered over what is kept"
    assert api.post("/api/v1/queries", json={"text": f"{GOOD}4"}).json() == {"names": ["fresh4"]}
    refused = api.post("/api/v1/queries", json={"text": BAD})
    assert refused.status_code == 400 and refused.json()["errors"][0]["line"] == 2


def test_the_form_shows_mistakes_below_the_text_and_keeps_it(api, pages, engine):
    for do, status in (("check", 200), ("try", 400), ("subscribe", 400)):
        found = pages.post("/new", data={"text": BAD, "do": do})
        assert found.status_code == status and 'aria-invalid="true"' in found.text
        assert "tt is not bound" in found.text and html.escape(BAD.splitlines()[0]) in found.text
    found = pages.post("/new", data={"text": " ", "do": "subscribe"})
    assert found.status_code == 400 and "There is no query yet" in found.text
    text = 'FROM S//a->x[./b = "</textarea><script>alert(1)</script>"] PUBLISH'
    found = pages.post("/new", data={"text": text, "do": "check"})
    assert "<script>alert" not in found.text and found.text.count("</textarea>") == 1
    engine.subscribe("FROM fresh//x PUBLISH other")
    found = pages.post("/new", data={"text": "FROM other//x PUBLISH fresh", "do": "subscribe"})
    assert found.status_code == 400 and 'role="alert"' in found.text, "the engine refuses it"
    assert "fresh" not in names(api)


def test_there_are_queries_to_begin_with(pages):
    assert tuple(one.name for one in starters()) == NAMES
    for one in starters():
        found = pages.get("/new", params={"starter": one.name})
        shown = found.text.replace("&#34;", '"').replace("&#39;", "'")
        assert html.escape(one.text, quote=False).splitlines()[0] in shown and "No mistakes" in found.text
    assert pages.get("/new?starter=none").status_code == 200
    found = pages.get("/new?query=nobody")  # a query is changed by its text
    assert "FROM S//blog-&gt;b" in found.text and "No mistakes" in found.text
    assert pages.get("/new?query=none").status_code in (400, 404)


STORY = """-- What is told twice.
FROM S//item->i1[./title->t1] JOIN {similar(t1, t2, 0.3), 2 d} S//item->i2[./title->t2]
  PUBLISH st STORIES LASTING 7 d  -- a week"""


def test_texts_are_shown_as_typed_with_their_history_and_restored():
    now = count(NOW, 2_000_000)
    with Session("duckdb", now=lambda: next(now)) as engine:
        site = site_of(engine, now=lambda: NOW)
        api, pages = script(site), browser(site)
        first, second = "-- One.\nFROM  S//a\nPUBLISH typed", "-- One, changed.\nFROM S//b PUBLISH typed; -- b"
        added = "FROM S//c\n  PUBLISH typed -- c"
        for text in (first, STORY, second):
            assert api.post("/api/v1/queries", json={"text": text}).status_code == 200
        api.post("/api/v1/queries", json={"text": added, "add": True})
        both = f"{second}\n\n{added}\n"
        shown = [one["text"] for one in api.get("/api/v1/queries/typed/texts").json()]
        assert shown == [both, f"{second}\n", f"{first}\n"]
        assert [one["source"] for one in api.get("/api/v1/queries/typed").json()["texts"]] == [second, added]
        page = html.unescape(pages.get("/q/typed").text)
        assert f"{second}</pre>" in page and f"{added}</pre>" in page
        page = html.unescape(pages.get("/new?query=typed").text)
        assert f"\n{both}</textarea>" in page and "No mistakes. 2 queries" in page
        oldest = api.get("/api/v1/queries/typed/texts").json()[-1]["at"]
        listed = html.unescape(pages.get("/q/typed/texts").text)
        assert listed.count("Restore this text") == 2 and f"{first}\n</pre>" in listed
        assert f"\n{first}\n</textarea>" in html.unescape(pages.get(f"/new?query=typed&at={oldest}").text)
        for name in ("typed", "st"):
            assert f"-- {'What' if name == 'st' else 'One'}" in pages.get(f"/q/{name}").text
        assert "st_pairs" not in pages.get("/q/st").text, "what it is short for"
        assert f"\n{STORY}\n</textarea>" in html.unescape(pages.get("/new?query=st").text)
        script_of_all = pages.get("/queries.xscl").text
        assert script_of_all == f"{STORY.replace('  -- a', ';  -- a')}\n\n{both}"
        assert script_of_all == api.get("/api/v1/queries.xscl").text
        restored = pages.post("/q/typed/texts", data={"at": oldest})
        assert "an earlier text is restored" in pages.get(restored.headers["location"]).text
        newest, *older = api.get("/api/v1/queries/typed/texts").json()
        assert newest["text"] == f"{first}\n" and [one["text"] for one in older] == shown
        for path, given, status in (
            ("/api/v1/queries/typed/restore", {"at": 5}, 400), ("/api/v1/queries/none/restore", {"at": oldest}, 404),
            ("/api/v1/queries/typed/restore", {"at": "x"}, 400), ("/api/v1/queries/typed/restore", {}, 400),
        ):  # fmt: skip
            assert api.post(path, json=given).status_code == status, path
        (unnamed,) = api.post("/api/v1/queries", json={"text": "FROM S//c"}).json()["names"]
        at = {"at": api.get(f"/api/v1/queries/{unnamed}/texts").json()[0]["at"]}
        refused = api.post(f"/api/v1/queries/{unnamed}/restore", json=at)
        assert refused.status_code == 400 and "do not PUBLISH it" in refused.text
        with Session("duckdb", now=lambda: next(now)) as other:
            other.subscribe(script_of_all)
            exported = script(site_of(other)).get("/api/v1/queries.xscl").text
            assert exported == script_of_all


def test_a_query_is_tried_on_what_is_kept(api, pages, engine, monkeypatch):
    try_in_this_process(monkeypatch)
    for text, said in {
        GOOD: ("Tried on stored documents", "The latest"),
        "FROM S//blog->b[./author = 'X'] PUBLISH x": ("It finds nothing in them", "first in the way"),
    }.items():
        page = pages.post("/new", data={"text": text, "do": "try"})
        assert page.status_code == 200 and all(words in page.text for words in said)
    found = api.post("/api/v1/backtest", json={"text": GOOD}).json()
    assert (found["documents"], found["outputs"]) == (2, 1)
    assert len(list(engine.outputs())) == 1 and "fresh" not in names(api)
