import html
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest

from feeds.fetch.state import STATE_FILE, FeedState, FetchStore, source_name
from mmqjp.service.commands import run_offline
from mmqjp.sinks.definition import SinkTables, read_tables
from mmqjp.web.areas import feeds as views
from mmqjp.web.readers import SharedCache
from tests.support.web import asking, browser, script, site_of, stranger

HOSTILE = "<script>alert(1)</script>\"'&\u202e"
OPML = b"""<opml version="2.0"><body><outline text="News"><outline text="A" xmlUrl="https://a.example/feed"/></outline>
<outline text="B" xmlUrl="https://b.example/feed"/><outline text="C" xmlUrl="javascript:alert(1)"/></body></opml>"""


@pytest.fixture
def site(unchanged_engine, tmp_path):
    return site_of(unchanged_engine, tmp_path)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "drops" / STATE_FILE


def put(file, *feeds):
    with FetchStore(file, write=True) as store:
        store.add(feeds)


def feed(url, **known):
    return FeedState(url, source_name(url), **known)


def listed(site):
    return script(site).get("/api/v1/feeds").json()


def test_without_feeds_the_page_says_what_to_do(site):
    found = browser(site).get("/feeds")
    assert found.status_code == 200 and "No feed yet" in found.text and "OPML" in found.text
    assert listed(site) == {"rows": [], "next": None, "feeds": 0, "failing": 0, "stopped": 0, "overdue": False}
    assert script(site).get("/api/v1/feeds.opml").status_code == 200
    assert browser(site).post("/feeds/remove", data={"address": "https://a.example/"}).status_code == 400
    answer = script(site).delete("/api/v1/feeds", params={"address": "https://a.example/"})
    assert answer.status_code == 400 and answer.json()["error"] == "https://a.example/ is not a feed of this state"


def test_the_health_of_feeds_is_shown_with_their_last_errors(site, file):
    ok = {"checked_at": 1, "fetched_at": 1, "next_check": 1 << 60, "status": 200}
    put(
        file,
        feed("https://well.example/", **ok),
        feed("https://failing.example/", **ok | {"errors": 3, "last_error": "the server answered 503"}),
        feed("https://gone.example/", **ok | {"errors": 1, "last_error": "gone for good", "stopped": True}),
        feed("https://me:secret@new.example/", title=HOSTILE, folder=HOSTILE),
    )
    found = listed(site)
    assert [row["health"] for row in found["rows"]] == ["well", "failing", "stopped", "new"]
    assert (found["feeds"], found["failing"], found["stopped"]) == (4, 1, 1)
    text = browser(site).get("/feeds").text
    assert "the server answered 503 (3 times in a row)" in text and "not fetched yet" in text
    assert "secret" not in text + str(found)
    assert "<script>alert" not in text and html.escape(HOSTILE, quote=False)[:30] in text.replace("&#39;", "'")
    only = browser(site).get("/feeds?health=stopped").text
    assert "gone.example" in only and "well.example" not in only


def test_feeds_come_page_by_page(site, file):
    put(file, *(feed(f"https://a.example/{n}", errors=n % 2) for n in range(2 * views.ROWS + 1)))
    client, seen, after = script(site), [], ""
    while after is not None:
        found = client.get("/api/v1/feeds", params={"after": after}).json()
        seen += [row["url"] for row in found["rows"]]
        after = found["next"]
    assert seen == [f"https://a.example/{n}" for n in range(2 * views.ROWS + 1)]
    assert client.get("/api/v1/feeds?after=x").status_code == 400
    page = browser(site).get("/feeds").text
    assert 'rel="next"' in page


def test_forms_add_retry_and_remove_a_feed(site, file):
    client = browser(site)
    added = client.post("/feeds", data={"address": " HTTPS://A.example/feed "})
    assert added.status_code == 303 and "1 feed added." in client.get(added.headers["location"]).text
    with FetchStore(file, write=True) as store:
        (known,) = store.feeds()
        store.commit(feed(known.url, errors=2, stopped=True, next_check=9))
    assert client.post("/feeds/retry", data={"address": "https://a.example/feed"}).status_code == 303
    with FetchStore(file) as store:
        assert [(one.next_check, one.stopped) for one in store.feeds()] == [(0, False)]
    assert client.post("/feeds/remove", data={"address": "https://a.example/feed"}).status_code == 303
    assert listed(site)["feeds"] == 0


def test_what_is_no_web_address_is_told_at_its_field(site):
    client, pages = script(site), browser(site)
    for address in ("", "javascript:alert(1)", "file:///etc/passwd", "no address", "http://"):
        found = pages.post("/feeds", data={"address": address})
        assert found.status_code == 400 and 'aria-invalid="true"' in found.text and 'id="address-error"' in found.text
        assert html.escape(address) in found.text
        assert client.post("/api/v1/feeds", json={"address": address}).status_code == 400


def test_a_list_is_added_and_comes_back_as_opml(site):
    client = browser(site)
    done = client.post("/feeds/list", files={"opml": ("feeds.opml", OPML)})
    text = client.get(done.headers["location"]).text
    assert "2 feeds added; 1 left out" in text
    done = client.post("/feeds/list", files={"opml": ("feeds.opml", OPML)})
    assert "0 feeds added; 2 were there already; 1 left out" in client.get(done.headers["location"]).text
    found = client.get("/feeds/feeds.opml")
    assert "attachment" in found.headers["content-disposition"] and b'xmlUrl="https://a.example/feed"' in found.content
    again = script(site).post("/api/v1/feeds.opml", content=found.content, headers={"Content-Type": "text/x-opml"})
    assert again.json() == {"feeds": 0, "made": True, "complaints": [], "known": 2}
    assert [(row["title"], row["folders"]) for row in listed(site)["rows"]] == [("A", ["News"]), ("B", [])]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"<html>", b"<opml", b'<!DOCTYPE x [<!ENTITY a "b">]><opml/>'])
def test_what_is_no_list_is_told_at_its_field(site, content):
    found = browser(site).post("/feeds/list", files={"opml": ("feeds.opml", content)})
    assert found.status_code == 400 and 'id="opml-error"' in found.text


def test_feeds_that_nobody_fetches_are_told(site, file):
    put(file, feed("https://a.example/", checked_at=1, next_check=2))
    assert listed(site)["overdue"] and "nobody fetches them" in browser(site).get("/feeds").text


HOOK = {"kind": "webhook", "url": "https://hooks.example/in", "queries": ["same_*"]}
KEYS = "SECRET-TOKEN-IN-ADDRESS"


@pytest.fixture
def tables():
    """What the configuration file says; tests change it."""
    return {"now": SinkTables()}


@pytest.fixture
def sinks_site(engine, tmp_path, tables):
    ask = asking(engine, partial(run_offline, tmp_path, lambda: tables["now"]))
    return replace(site_of(engine, tmp_path), ask=ask)


def added(sinks_site, name="alerts", **table):
    return script(sinks_site).post("/api/v1/sinks", json={"name": name, "table": HOOK | table})


def test_a_form_adds_a_webhook_or_says_what_is_wrong(sinks_site):
    client = browser(sinks_site)
    text = client.get("/sinks").text
    assert "No sink yet" in text and "Add a webhook" in text
    wrong = [{"name": "../x", "url": "https://a.example/"}, {"name": "a", "url": "file:///etc/passwd"}, {"name": "a"}]
    for inside in ("127.0.0.1:9", "localhost", "x.localhost.", "[::1]:8000", "192.168.0.7", "[::ffff:10.0.0.1]"):
        wrong.append({"name": "a", "url": f"http://{inside}/in"})
    for form in wrong:
        found = client.post("/sinks", data=form)
        assert found.status_code == 400 and 'role="alert"' in found.text and f'value="{form["name"]}"' in found.text
    assert script(sinks_site).get("/api/v1/sinks").json() == []
    form = {"name": "alerts", "url": "https://hooks.example/in", "queries": "same_story, other_*", "wait": "30s"}
    done = client.post("/sinks", data=form)
    assert done.status_code == 303 and "It was added" in client.get(done.headers["location"]).text
    (sink,) = script(sinks_site).get("/api/v1/sinks").json()
    assert (sink["name"], sink["kind"], sink["queries"]) == ("alerts", "webhook", ["same_story", "other_*"])
    assert "alerts" in client.get("/sinks").text


def test_a_sink_is_shown_paused_resumed_replayed_and_removed(sinks_site):
    assert added(sinks_site).json()["state"] == "running"
    found = script(sinks_site).get("/api/v1/sinks/alerts").json()
    assert found["definition"]["url"] == "https://hooks.example/in" and found["undelivered"] == found["gaps"] == []
    client = browser(sinks_site)
    text = client.get("/sinks/alerts").text
    assert "hooks.example" in text and "same_*" in text and "Nothing was refused or given up so far" in text
    for do in ("pause", "resume", "test", "replay", "remove"):  # getting a page changes nothing
        assert client.get(f"/sinks/alerts/{do}").status_code in (404, 405)
    assert stranger(sinks_site).post("/sinks/alerts/pause").status_code in (303, 401, 403)
    assert script(sinks_site).get("/api/v1/sinks/alerts").json()["sink"]["state"] == "running"
    for do, state in (("pause", "paused"), ("resume", "running")):
        assert client.post(f"/sinks/alerts/{do}").status_code == 303
        assert script(sinks_site).get("/api/v1/sinks/alerts").json()["sink"]["state"] == state
    assert client.post("/sinks/alerts/replay", data={"start": "0"}).status_code == 303
    refused = client.post("/sinks/alerts/replay", data={"start": "yesterday"})
    assert refused.status_code == 400 and 'role="alert"' in refused.text
    gone = client.post("/sinks/alerts/remove")
    assert gone.status_code == 303 and "The sink was removed" in client.get(gone.headers["location"]).text


def test_a_sink_that_waits_can_be_paused_and_can_try_at_once(sinks_site):
    added(sinks_site)
    waiting = {"state": "waiting", "reason": "HTTP 503", "tries": 2, "next": 1_784_200_000_000_000}
    asked = sinks_site.ask

    def ask(do, arguments):
        found = asked(do, arguments)
        if do == "sinks":
            return found | waiting if "name" in arguments else [one | waiting for one in found]
        return found

    client = browser(replace(sinks_site, ask=ask))
    for path in ("/sinks", "/sinks/alerts"):
        text = client.get(path).text
        assert 'action="/sinks/alerts/pause"' in text and 'action="/sinks/alerts/resume"' in text and "Try now" in text
    text = browser(sinks_site).get("/sinks/alerts").text
    assert 'action="/sinks/alerts/pause"' in text and 'action="/sinks/alerts/resume"' not in text


def test_programs_can_do_the_same(sinks_site):
    added(sinks_site)
    client = script(sinks_site)
    assert client.post("/api/v1/sinks/alerts/pause").json()["state"] == "paused"
    assert client.post("/api/v1/sinks/alerts/resume").json()["state"] == "running"
    assert client.post("/api/v1/sinks/alerts/replay", json={"start": "start"}).json()["name"] == "alerts"
    changed = client.patch("/api/v1/sinks/alerts", json={"wait": "5min", "queries": None})
    assert changed.json()["queries"] == ["*"]
    refused = client.patch("/api/v1/sinks/alerts", json={"url": "http://127.0.0.1/"})
    assert refused.status_code == 400 and "127.0.0.1 is not a public address" in refused.json()["error"]
    assert client.delete("/api/v1/sinks/alerts").json() == "alerts"
    assert client.get("/api/v1/sinks/alerts").status_code == browser(sinks_site).get("/sinks/alerts").status_code == 400
    assert client.post("/api/v1/sinks/alerts/pause").json()["error"] == "no sink is named alerts"


def test_a_test_is_sent_and_its_result_told(sinks_site, monkeypatch):
    added(sinks_site)
    asked = sinks_site.ask
    results = iter([None, "", "the endpoint answered 500", "the endpoint answered 500"])

    def ask(do, arguments):
        return next(results) if do == "sinks-tested" else asked(do, arguments) if do != "sinks-test" else "alerts"

    monkeypatch.setattr("mmqjp.service.commands.SINK_TEST_POLL", 0.0)
    client = browser(replace(sinks_site, ask=ask))
    shown = client.get(client.post("/sinks/alerts/test").headers["location"]).text
    assert "The test was acknowledged." in shown
    assert "The test failed: the endpoint answered 500" in client.post("/sinks/alerts/test").text
    programs = script(replace(sinks_site, ask=ask))
    found = programs.post("/api/v1/sinks/alerts/test").json()
    assert found == {"acknowledged": False, "reason": "the endpoint answered 500"}
    results = iter([None, None])
    monkeypatch.setattr("mmqjp.web.areas.sinks.TEST_SECONDS", 0.0)
    assert "The test is under way" in client.get(client.post("/sinks/alerts/test").headers["location"]).text
    assert programs.post("/api/v1/sinks/alerts/test").json()["acknowledged"] is None


def test_what_a_sink_did_not_get_is_listed(sinks_site):
    added(sinks_site)
    asked = sinks_site.ask
    missed = {
        "undelivered": [{"seq": 7, "id": "a" * 32, "tries": 5, "reason": "<b>no</b>", "noted_at": 1}],
        "gaps": [{"first": 8, "last": 1007, "count": 900, "reason": "too old", "noted_at": 1}],
    }
    shown = replace(sinks_site, ask=lambda do, arguments: missed if do == "sinks-failed" else asked(do, arguments))
    text = browser(shown).get("/sinks/alerts").text
    assert "8 to 1,007" in text and "900" in text and "&lt;b&gt;no" in text and f"/o/{'a' * 32}" in text


def test_sinks_of_the_file_are_changed_there(sinks_site, tables, tmp_path):
    (tmp_path / "hook.key").write_text(KEYS)
    (tmp_path / "hook.key").chmod(0o600)
    sinks = {"chat": {"kind": "webhook", "url": {"secret": "chat"}}}
    settings = {"secrets": {"chat": {"file": "hook.key"}}, "sinks": sinks}
    tables["now"] = read_tables(settings, tmp_path / "mmqjp.toml")
    text = browser(sinks_site).get("/sinks/chat").text
    assert "mmqjp sinks reload" in text and "Remove chat" not in text
    assert browser(sinks_site).post("/sinks/chat/remove").status_code == 400
    everything = text + browser(sinks_site).get("/sinks").text + script(sinks_site).get("/api/v1/sinks/chat").text
    assert KEYS not in everything


def test_a_secret_that_is_given_inline_is_neither_passed_on_nor_shown(sinks_site):
    added(sinks_site)
    ask = Mock(wraps=sinks_site.ask)
    client = script(replace(sinks_site, ask=ask))
    for inline in ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "abcd0123" * 4):
        address = {"url": f"https://ann:{inline}@hooks.example/"}
        for keys in ({"secret": inline}, {"secret": [inline]}, {"url": {"secret": inline}}, address):
            for answer in (
                client.post("/api/v1/sinks", json={"name": "other", "table": HOOK | keys}),
                client.patch("/api/v1/sinks/alerts", json=keys),
            ):
                assert answer.status_code == 400 and answer.json()["error"] and inline not in answer.text
        assert inline not in str(ask.mock_calls)


def test_a_sink_that_is_behind_is_not_said_to_have_all(sinks_site, engine):
    added(sinks_site, **{"from": "start", "queries": ["*"]})
    assert engine.last_seq >= 0
    text = browser(sinks_site).get("/sinks/alerts").text
    assert "Nothing was refused or given up so far; what it is behind is still to come." in text


def test_visitors_within_a_second_cost_one_question_and_see_own_changes(sinks_site):
    added(sinks_site)
    asked, inner = [], sinks_site.ask
    shown = replace(sinks_site, ask=lambda do, given: asked.append(do) or inner(do, given))  # type: ignore[func-returns-value]
    vars(shown)["replies"] = SharedCache(clock=lambda: 0.0)
    client = browser(shown)
    for _ in range(3):
        assert client.get("/sinks/alerts").status_code == 200
    assert sorted(asked) == ["sinks", "sinks-failed"]
    client.post("/sinks/alerts/pause")
    assert "Resume" in client.get("/sinks/alerts").text and asked.count("sinks") == 2
