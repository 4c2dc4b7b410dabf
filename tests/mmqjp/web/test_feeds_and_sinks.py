import html
import re
from dataclasses import replace
from functools import partial
from unittest.mock import Mock
from urllib.parse import urlencode

import pytest

from common.dates import HOUR
from feeds.documents import Visit, now_us
from feeds.fetch.http import Hints
from feeds.fetch.settings import FeedSettings, SettingsOf
from feeds.fetch.state import STATE_FILE, FeedState, FetchStore, source_name
from mmqjp.service.commands import run_offline
from mmqjp.sinks.definition import SinkTables, read_tables
from mmqjp.web.areas import feeds as views
from mmqjp.web.areas.sinks import FORMS
from mmqjp.web.readers import SharedCache
from tests.support.web import asking, browser, script, site_of, stranger

HOSTILE = "<script>alert(1)</script>\"'&\u202e"
OPML = b"""<opml version="2.0"><body><outline text="News"><outline text="A" xmlUrl="https://a.example/feed"/></outline>
<outline text="B" xmlUrl="https://b.example/feed"/><outline text="C" xmlUrl="javascript:alert(1)"/></body></opml>"""


@pytest.fixture
def tables():
    """What the configuration file says; tests change it."""
    return {"now": SinkTables()}


@pytest.fixture
def site(engine, tmp_path, tables):
    ask = asking(engine, partial(run_offline, tmp_path, lambda: tables["now"]))
    return replace(site_of(engine, tmp_path), ask=ask)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "drops" / STATE_FILE


def put(file, *feeds):
    with FetchStore(file, write=True) as store:
        store.add(feeds)


def feed(url, **known):
    return FeedState(url, source_name(url), **known)


def test_without_feeds_the_page_says_what_to_do(api, pages):
    found = pages.get("/feeds")
    assert found.status_code == 200 and "No feed yet" in found.text and "OPML" in found.text
    nothing: dict[str, object] = {
        "rows": [],
        "next": None,
        "feeds": 0,
        "failing": 0,
        "stopped": 0,
        "overdue": False,
        "late": 0,
        "pushed": 0,
        "unpushed": 0,
    }
    assert api.get("/api/v1/feeds").json() == nothing
    assert api.get("/api/v1/feeds.opml").status_code == 200
    assert pages.post("/feeds/remove", data={"address": "https://a.example/"}).status_code == 400
    answer = api.delete("/api/v1/feeds", params={"address": "https://a.example/"})
    assert answer.status_code == 400 and answer.json()["error"] == "https://a.example/ is not a feed of this state"


def test_the_health_of_feeds_is_shown_with_their_last_errors(api, pages, file):
    ok = {"checked_at": 1, "fetched_at": 1, "next_check": 1 << 60, "status": 200}
    put(
        file,
        feed("https://well.example/", **ok),
        feed("https://failing.example/", **ok | {"errors": 3, "last_error": "the server answered 503"}),
        feed("https://gone.example/", **ok | {"errors": 1, "last_error": "gone for good", "stopped": True}),
        feed("https://me:secret@new.example/", title=HOSTILE, folder=HOSTILE),
    )
    found = api.get("/api/v1/feeds").json()
    assert [row["health"] for row in found["rows"]] == ["well", "failing", "stopped", "new"]
    assert (found["feeds"], found["failing"], found["stopped"], found["overdue"]) == (4, 1, 1, False)
    text = pages.get("/feeds").text
    assert "the server answered 503 (3 times in a row)" in text and "not fetched yet" in text
    assert "secret" not in text + str(found)
    assert "<script>alert" not in text and html.escape(HOSTILE, quote=False)[:30] in text.replace("&#39;", "'")
    only = pages.get("/feeds?health=stopped").text
    assert "gone.example" in only and "well.example" not in only
    put(file, feed("https://late.example/", checked_at=1, next_check=2))
    assert api.get("/api/v1/feeds").json()["overdue"] and "no fetch is running" in pages.get("/feeds").text


def test_how_far_feeds_have_come_and_which_is_late_or_holds_the_others_up(api, pages, file, site, engine):
    """By feed, the hours since its last complete visit, and those between two visits."""
    feeds, now = {"day": (30, 24), "fast": (1, 0.1), "failing": (4, 24), "gone": (99, 24)}, now_us()
    visits = [Visit(f"https://{name}.example/", now - ago * HOUR) for name, (ago, _) in feeds.items()]
    first = Visit("https://first.example/", now)
    engine.process([replace(first, outcome="awaited"), *visits, replace(visits[-1], outcome="ended", time=now)])
    put(file, feed(first.feed), *(
        feed(visit.feed, checked_at=visit.time, fetched_at=1, next_check=now + HOUR, status=200,
             errors=visit.feed.count("failing"), stopped="gone" in visit.feed, hints=Hints(wait=int(wait * HOUR)))
        for visit, (_, wait) in zip(visits, feeds.values(), strict=True)
    ))  # fmt: skip

    def those_with(key, **parameters):
        site.replies.clear()
        rows = api.get("/api/v1/feeds", params=parameters).json()["rows"]
        return {row["url"][8:].partition(".")[0] for row in rows if row[key]}

    assert (those_with("late"), those_with("holds"), those_with("read_to")) == ({"fast"}, {"first"}, {*feeds})
    assert those_with("url", health="late") == {"fast"}
    page = pages.get("/feeds").text
    assert page.count("holds the others up") == 1 and page.count("late</span>, due every&nbsp;6\xa0min") == 1
    engine.process([first])
    assert those_with("holds") == {"day"}
    engine.process([replace(first, feed=visits[0].feed)])
    assert those_with("holds") == set()


def test_feeds_come_page_by_page(api, pages, file):
    put(file, *(feed(f"https://a.example/{n}", errors=n % 2) for n in range(2 * views.ROWS + 1)))
    seen, after = [], ""
    while after is not None:
        found = api.get("/api/v1/feeds", params={"after": after}).json()
        seen += [row["url"] for row in found["rows"]]
        after = found["next"]
    assert seen == [f"https://a.example/{n}" for n in range(2 * views.ROWS + 1)]
    assert api.get("/api/v1/feeds?after=x").status_code == 400
    assert 'rel="next"' in pages.get("/feeds").text


def test_forms_add_retry_and_remove_a_feed(api, pages, file):
    added = pages.post("/feeds", data={"address": " HTTPS://A.example/feed "})
    assert added.status_code == 303 and "1 feed added." in pages.get(added.headers["location"]).text
    with FetchStore(file, write=True) as store:
        (known,) = store.feeds()
        store.commit(feed(known.url, errors=2, stopped=True, next_check=9))
    assert pages.post("/feeds/retry", data={"address": "https://a.example/feed"}).status_code == 303
    with FetchStore(file) as store:
        assert [(one.next_check, one.stopped) for one in store.feeds()] == [(0, False)]
    assert pages.post("/feeds/remove", data={"address": "https://a.example/feed"}).status_code == 303
    assert api.get("/api/v1/feeds").json()["feeds"] == 0


def test_what_is_no_web_address_or_no_list_is_told_at_its_field(api, pages):
    for address in ("", "javascript:alert(1)", "file:///etc/passwd", "no address", "http://"):
        found = pages.post("/feeds", data={"address": address})
        assert found.status_code == 400 and 'aria-invalid="true"' in found.text and 'id="address-error"' in found.text
        assert html.escape(address) in found.text
        assert api.post("/api/v1/feeds", json={"address": address}).status_code == 400
    for content in (b"", b"\xff\xfe", b"<html>", b"<opml", b'<!DOCTYPE x [<!ENTITY a "b">]><opml/>'):
        found = pages.post("/feeds/list", files={"opml": ("feeds.opml", content)})
        assert found.status_code == 400 and 'id="opml-error"' in found.text, content


def test_a_list_is_added_and_comes_back_as_opml(api, pages):
    new = "New: https://a.example/feed, https://b.example/feed. Left out: the list:"
    for told in (f"2 feeds added; 1 left out or changed. {new}", "0 feeds added; 2 were there already; 1 left out"):
        done = pages.post("/feeds/list", files={"opml": ("feeds.opml", OPML)})
        assert told in pages.get(done.headers["location"]).text
    found = pages.get("/feeds/feeds.opml")
    assert "attachment" in found.headers["content-disposition"] and b'xmlUrl="https://a.example/feed"' in found.content
    again = api.post("/api/v1/feeds.opml", content=found.content, headers={"Content-Type": "text/x-opml"})
    assert again.json() == {"feeds": 0, "made": True, "complaints": [], "known": 2, "new": []}
    rows = api.get("/api/v1/feeds").json()["rows"]
    assert [(row["title"], row["folders"]) for row in rows] == [("A", ["News"]), ("B", [])]


HOOK = {"kind": "webhook", "url": "https://hooks.example/in", "queries": ["same_*"]}


@pytest.fixture
def added(api):
    """A sink is there."""
    answer = api.post("/api/v1/sinks", json={"name": "alerts", "table": HOOK}).json()
    assert answer["state"] == "running"


def answering(site, **answers):
    """The site, where some commands, without hyphens, are answered by functions of their arguments."""

    def ask(do, arguments):
        answer = answers.get(do.replace("-", "_"), partial(site.ask, do))
        return answer(arguments)

    return replace(site, ask=ask)


def test_each_kind_that_may_be_added_live_is_and_what_is_wrong_is_said_of_its_field(api, pages, site, tmp_path):
    tester = browser(answering(site, sinks_tested=lambda given: ""))  # no service runs, which would know
    filled = {"webhook": {"url": "https://a.example/"}, "jsonl": {"path": "x"}, "parquet": {"path": "y", "rows": "10"}}
    filled["atom"] = {"path": "z", "url": "https://a.example/feeds/", "title": "T"}
    assert filled.keys() == FORMS.keys()
    for kind, form in filled.items():
        page = pages.get("/sinks", params={"kind": kind}).text
        assert all(f'name="{key}"' in page for key in form) and "[sinks.morning]" in page
        assert pages.post("/sinks", data={"kind": kind, "name": kind, **form, "from": "start"}).status_code == 303
        if kind != "webhook":
            told = tester.post(f"/sinks/{kind}/test")
            assert "A file was written there" in tester.get(told.headers["location"]).text
            assert (tmp_path / "sinks").is_dir() and not list((tmp_path / "sinks").rglob(".mmqjp-test-*"))
        assert pages.post(f"/sinks/{kind}/pause").status_code == 303
    assert {one["name"]: (one["kind"], one["state"]) for one in api.get("/api/v1/sinks").json()} == {
        kind: (kind, "paused") for kind in FORMS
    }
    for form, field in (
        ({"kind": "webhook", "name": "a", "url": "http://127.0.0.1/"}, "url"), ({"kind": "jsonl", "name": "a"}, "path"),
        ({"kind": "webhook", "name": "a", "url": "https://a.example", "wait": "long"}, "wait"),
        ({"kind": "webhook", "name": "a", "url": "https://a.example", "from": "soon"}, "from"),
        ({"kind": "webhook", "name": "a", "url": "https://ann:word@a.example"}, "url"),
        ({"kind": "jsonl", "name": "a", "path": "../up"}, "path"),
        ({"kind": "jsonl", "name": "a", "path": "x"}, "path"),
        ({"kind": "parquet", "name": "a", "path": "q", "rows": "many"}, "rows"),
        ({"kind": "parquet", "name": "a", "path": "q", "rows": "9" * 30}, "rows"),
        ({"kind": "parquet", "name": "a", "path": "q", "every": "INF"}, "every"),
        ({"kind": "jsonl", "name": "jsonl", "path": "q"}, "name"),
        ({"kind": "jsonl", "name": "1", "path": "q"}, "name"),
        ({"kind": "jsonl", "name": "output", "path": "q"}, "name"), ({"kind": "mail", "name": "a"}, ""),
        ({"kind": "command", "name": "a", "command": "sh"}, ""),
    ):  # fmt: skip
        page = pages.post("/sinks", data=form)
        assert page.status_code == 400 and 'role="alert"' in page.text, form
        assert not field or f'id="{field}-error"' in page.text, form
    assert len(api.get("/api/v1/sinks").json()) == len(FORMS)


def test_a_secret_is_made_and_shown_once(api, pages, tmp_path):
    page = pages.post("/sinks/secrets", data={"name": "hook"})
    (value,) = set(re.findall(r"whsec_[\w+/=]+", html.unescape(page.text)))
    assert (tmp_path / "secrets" / "hook").read_text().strip() == value and page.headers["cache-control"] == "no-store"
    assert value not in pages.get("/sinks").text and "<option>hook</option>" in pages.get("/sinks").text
    for name, said in (("hook", "exists"), ("push-token", "reserved"), ("../x", "is made of"), ("", "is made of")):
        page = pages.post("/sinks/secrets", data={"name": name})
        assert page.status_code == 400 and said in page.text and 'id="secret-name-error"' in page.text
        assert value not in page.text
    made = api.post("/api/v1/secrets", json={"name": "other"}).json()
    assert made["value"].startswith("whsec_") and api.get("/api/v1/secrets").json() == ["hook", "other"]
    form = {"kind": "webhook", "name": "signed", "url": "https://a.example/", "secret": "hook"}
    assert pages.post("/sinks", data=form).status_code == 303
    assert value not in api.get("/api/v1/sinks/signed").text + pages.get("/sinks/signed").text


def test_a_form_adds_a_webhook_or_says_what_is_wrong(api, pages):
    text = pages.get("/sinks").text
    assert "No sink yet" in text and "Add a sink" in text
    wrong = [{"name": "../x", "url": "https://a.example/"}, {"name": "a", "url": "file:///etc/passwd"}, {"name": "a"}]
    for inside in ("127.0.0.1:9", "localhost", "x.localhost.", "[::1]:8000", "192.168.0.7", "[::ffff:10.0.0.1]"):
        wrong.append({"name": "a", "url": f"http://{inside}/in"})
    for form in wrong:
        found = pages.post("/sinks", data=form)
        assert found.status_code == 400 and 'role="alert"' in found.text and f'value="{form["name"]}"' in found.text
    assert api.get("/api/v1/sinks").json() == []
    form = {"name": "alerts", "url": "https://hooks.example/in", "queries": "same_story, other_*", "wait": "30s"}
    done = pages.post("/sinks", data=form)
    assert done.status_code == 303 and "It was added" in pages.get(done.headers["location"]).text
    (sink,) = api.get("/api/v1/sinks").json()
    assert (sink["name"], sink["kind"], sink["queries"]) == ("alerts", "webhook", ["same_story", "other_*"])
    assert "alerts" in pages.get("/sinks").text


def test_a_sink_is_shown_paused_resumed_replayed_and_removed(added, site, api, pages):
    found = api.get("/api/v1/sinks/alerts").json()
    assert found["definition"]["url"] == "https://hooks.example/in" and found["undelivered"] == found["gaps"] == []
    text = pages.get("/sinks/alerts").text
    assert "hooks.example" in text and "same_*" in text and "Nothing was refused or given up so far" in text
    assert 'action="/sinks/alerts/pause"' in text and 'action="/sinks/alerts/resume"' not in text
    for do in ("pause", "resume", "test", "replay", "remove"):  # getting a page changes nothing
        assert pages.get(f"/sinks/alerts/{do}").status_code in (404, 405)
    assert stranger(site).post("/sinks/alerts/pause").status_code in (303, 401, 403)
    assert api.get("/api/v1/sinks/alerts").json()["sink"]["state"] == "running"
    for do, state in (("pause", "paused"), ("resume", "running")):
        assert pages.post(f"/sinks/alerts/{do}").status_code == 303
        assert api.get("/api/v1/sinks/alerts").json()["sink"]["state"] == state
    assert pages.post("/sinks/alerts/replay", data={"start": "0"}).status_code == 303
    refused = pages.post("/sinks/alerts/replay", data={"start": "yesterday"})
    assert refused.status_code == 400 and 'role="alert"' in refused.text
    gone = pages.post("/sinks/alerts/remove")
    assert gone.status_code == 303 and "The sink was removed" in pages.get(gone.headers["location"]).text


def test_a_sink_that_waits_can_be_paused_and_can_try_at_once(added, site):
    waiting = {"state": "waiting", "reason": "HTTP 503", "tries": 2, "next": 1_784_200_000_000_000}

    def sinks(arguments):
        found = site.ask("sinks", arguments)
        return found | waiting if "name" in arguments else [one | waiting for one in found]

    for path in ("/sinks", "/sinks/alerts"):
        text = browser(answering(site, sinks=sinks)).get(path).text
        assert 'action="/sinks/alerts/pause"' in text and 'action="/sinks/alerts/resume"' in text and "Try now" in text


def test_programs_can_do_the_same(added, api, pages):
    assert api.post("/api/v1/sinks/alerts/pause").json()["state"] == "paused"
    assert api.post("/api/v1/sinks/alerts/resume").json()["state"] == "running"
    assert api.post("/api/v1/sinks/alerts/replay", json={"start": "start"}).json()["name"] == "alerts"
    changed = api.patch("/api/v1/sinks/alerts", json={"wait": "5min", "queries": None})
    assert changed.json()["queries"] == ["*"]
    refused = api.patch("/api/v1/sinks/alerts", json={"url": "http://127.0.0.1/"})
    assert refused.status_code == 400 and "127.0.0.1 is not a public address" in refused.json()["error"]
    assert api.delete("/api/v1/sinks/alerts").json() == "alerts"
    assert api.get("/api/v1/sinks/alerts").status_code == pages.get("/sinks/alerts").status_code == 400
    assert api.post("/api/v1/sinks/alerts/pause").json()["error"] == "no sink is named alerts"
    api.post("/api/v1/sinks", json={"name": "late", "table": HOOK | {"from": "start", "queries": ["*"]}})
    told = "Nothing was refused or given up so far; what it is behind is still to come."
    assert told in pages.get("/sinks/late").text


def test_a_test_is_sent_and_its_result_told(added, site, monkeypatch):
    results = iter([None, "", "the endpoint answered 500", "the endpoint answered 500", None, None])
    told = answering(site, sinks_test=lambda given: "alerts", sinks_tested=lambda given: next(results))
    monkeypatch.setattr("mmqjp.service.commands.SINK_TEST_POLL", 0.0)
    pages, api = browser(told), script(told)
    shown = pages.get(pages.post("/sinks/alerts/test").headers["location"]).text
    assert "The test was acknowledged." in shown
    assert "The test failed: the endpoint answered 500" in pages.post("/sinks/alerts/test").text
    found = api.post("/api/v1/sinks/alerts/test").json()
    assert found == {"acknowledged": False, "reason": "the endpoint answered 500"}
    monkeypatch.setattr("mmqjp.web.areas.sinks.TEST_SECONDS", 0.0)
    assert "The test is under way" in pages.get(pages.post("/sinks/alerts/test").headers["location"]).text
    assert api.post("/api/v1/sinks/alerts/test").json()["acknowledged"] is None


def test_what_a_sink_did_not_get_is_listed(added, site):
    missed = {
        "undelivered": [{"seq": 7, "id": "a" * 32, "tries": 5, "reason": "<b>no</b>", "noted_at": 1}],
        "gaps": [{"first": 8, "last": 1007, "count": 900, "reason": "too old", "noted_at": 1}],
    }
    text = browser(answering(site, sinks_failed=lambda given: missed)).get("/sinks/alerts").text
    assert "8 to 1,007" in text and "900" in text and "&lt;b&gt;no" in text and f"/o/{'a' * 32}" in text


def test_sinks_of_the_file_are_changed_there(api, pages, tables, tmp_path):
    (tmp_path / "hook.key").write_text("SECRET-TOKEN-IN-ADDRESS")
    (tmp_path / "hook.key").chmod(0o600)
    sinks = {"chat": {"kind": "webhook", "url": {"secret": "chat"}}}
    settings = {"secrets": {"chat": {"file": "hook.key"}}, "sinks": sinks}
    tables["now"] = read_tables(settings, tmp_path / "mmqjp.toml")
    text = pages.get("/sinks/chat").text
    assert "mmqjp sinks reload" in text and "Remove chat" not in text
    assert pages.post("/sinks/chat/remove").status_code == 400
    assert "SECRET" not in text + pages.get("/sinks").text + api.get("/api/v1/sinks/chat").text


def test_a_secret_that_is_given_inline_is_neither_passed_on_nor_shown(added, site):
    ask = Mock(wraps=site.ask)
    client = script(replace(site, ask=ask))
    for inline in ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "abcd0123" * 4):
        address = {"url": f"https://ann:{inline}@hooks.example/"}
        for keys in ({"secret": inline}, {"secret": [inline]}, {"url": {"secret": inline}}, address):
            for answer in (
                client.post("/api/v1/sinks", json={"name": "other", "table": HOOK | keys}),
                client.patch("/api/v1/sinks/alerts", json=keys),
            ):
                assert answer.status_code == 400 and answer.json()["error"] and inline not in answer.text
        assert inline not in str(ask.mock_calls)


def test_visitors_within_a_second_cost_one_question_and_see_own_changes(added, site):
    ask = Mock(wraps=site.ask)
    shown = replace(site, ask=ask)
    vars(shown)["replies"] = SharedCache(clock=lambda: 0.0)
    client = browser(shown)
    for _ in range(3):
        assert client.get("/sinks/alerts").status_code == 200
    assert sorted(call.args[0] for call in ask.mock_calls) == ["sinks", "sinks-failed"]
    client.post("/sinks/alerts/pause")
    assert "Resume" in client.get("/sinks/alerts").text
    assert [call.args[0] for call in ask.mock_calls].count("sinks") == 2


# ---------------------------------------------------------------- settings of feeds


def url_of(path, **fields):
    return f"{path}?{urlencode(fields)}"


def test_the_settings_of_a_feed_are_kept_by_a_form_or_what_is_wrong_is_said_at_its_field(api, pages, site, file):
    api.post("/api/v1/feeds", json={"address": "https://a.example/feed", "folder": "News"})
    place = url_of("/feeds/edit", url="https://a.example/feed")
    assert "Settings" in pages.get("/feeds").text and "Empty fields are as in" in pages.get(place).text
    form = {"interval": "15min", "headers": "X-Key: 1\nAccept-Language: de", "cookies": "a=b=c",
            "block": "sport\ntitle:/^ad/", "user": "ada", "new_password": "s3cret", "versions": "ignore",
            "hub": "false", "proxy": "http://evil:1"}  # fmt: skip
    done = pages.post(place, data=form)
    assert done.status_code == 303
    text = pages.get(done.headers["location"]).text
    assert "The settings are saved" in text and "title:/^ad/</textarea>" in text and "s3cret" not in text
    (secret,) = (site.state / "secrets").glob("feed-*")
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("s3cret\n", 0o600)
    name = secret.name
    own = {
        "interval": "15 min", "headers": {"X-Key": "1", "Accept-Language": "de"}, "cookies": {"a": "b=c"},
        "hub": False, "block": ["sport", "title:/^ad/"], "user": "ada", "password": {"secret": name},
        "versions": "ignore",
    }  # fmt: skip
    where = {"params": {"url": "https://a.example/feed"}}
    assert api.get("/api/v1/feeds/settings", **where).json()["own"] == own
    assert b'mmqjp:interval="15 min"' in pages.get("/feeds/feeds.opml").content
    for wrong, key, cause in (
        ({"interval": "soon"}, "interval", "is not a duration"),
        ({"headers": "X"}, "headers", "write NAME: VALUE"),
        ({"headers": "X: a\rY: b\nHost: c"}, "headers", "Host cannot be set here"),
        ({"password": "other", "new_password": ""}, "password", "only the configuration file and mmqjp feeds set name"),
        ({"headers": "X: {secret = other}"}, "headers", "since they are sent to the feed&#39;s host"),
        ({"block": "path:["}, "block", "not a path in XPath"),
        ({"hub": "maybe"}, "hub", "write true or false"),
    ):
        found = pages.post(place, data=form | {"password": name, "new_password": ""} | wrong)
        assert found.status_code == 400 and f'id="{key}-error"' in found.text and cause in found.text, wrong
        assert key in ("password", "hub") or html.escape(wrong[key], quote=False).split("\n")[-1] in found.text
    assert api.get("/api/v1/feeds/settings", **where).json()["own"] == own
    # Another password takes the place of the first, and none remains when it is taken away.
    assert pages.post(place, data=form | {"new_password": "other"}).status_code == 303
    (secret,) = (site.state / "secrets").glob("feed-*")
    assert secret.read_text() == "other\n" and secret.name != name
    no_feed = api.put("/api/v1/feeds/settings", params={"folder": "News"}, json={"table": {}, "new_password": "x"})
    assert no_feed.status_code == 400 and "a password goes to one host" in no_feed.text
    # What is empty is unset, and then as it is in the folder.
    api.put(
        "/api/v1/feeds/settings", params={"folder": "News"}, json={"table": {"encoding": "koi8-r", "interval": "2h"}}
    )
    assert pages.post(place, data=dict.fromkeys([*form, "auth", "password"], "")).status_code == 303
    assert not secret.exists()
    assert "Now <code>2 h</code>, from a folder" in pages.get(place).text
    assert api.get("/api/v1/feeds/settings", **where).json()["own"] == {}
    pages.post(place, data={"user": "ada", "new_password": "third"})
    assert [*(site.state / "secrets").glob("feed-*")]
    assert pages.post("/feeds/remove", data={"address": "https://a.example/feed"}).status_code == 303
    assert not [*(site.state / "secrets").glob("feed-*")]


def test_what_only_the_machine_may_set_is_shown_and_not_set(api, pages, site, file):
    put(file, feed("https://a.example/feed"))
    where = {"params": {"url": "https://a.example/feed"}}
    for table in ({"proxy": "http://evil:1"}, {"allow_private": ["localhost"]}, {"verify": False}, {"ca": "x.pem"}):
        answer = api.put("/api/v1/feeds/settings", **where, json={"table": table})
        assert (
            answer.status_code == 400 and "only the configuration file and mmqjp feeds set may set this" in answer.text
        )
    with FetchStore(file, write=True) as store:
        store.change_settings("feed", "https://a.example/feed", {"verify": False, "proxy": "http://p.example:1"})
    text = pages.get(url_of("/feeds/edit", url="https://a.example/feed")).text
    assert "The certificate is not checked" in text and "http://p.example:1" in text
    assert "certificate not checked" in pages.get("/feeds").text
    assert api.put("/api/v1/feeds/settings", **where, json={"table": {"verify": None}}).status_code == 200
    assert pages.get(url_of("/feeds/edit", url="https://none.example/")).status_code == 400
    assert pages.get("/feeds/edit?folder=News").status_code == 200


def test_a_feed_inside_the_network_is_refused_at_once_with_what_allows_it(api, pages, file):
    for address in ("http://192.168.1.5/feed", "http://nas.lan/feed", "http://localhost:8000/", "http://[::1]/f"):
        found = pages.post("/feeds", data={"address": address})
        host = address.split("/")[2].removesuffix(":8000").strip("[]")
        assert found.status_code == 400 and f"--allow-private {host} of mmqjp feeds add allows it" in found.text
    opml = b"<opml><body><outline xmlUrl='http://nas.lan/feed'/><outline xmlUrl='https://a.example/'/></body></opml>"
    done = api.post("/api/v1/feeds.opml", content=opml, headers={"Content-Type": "text/x-opml"}).json()
    assert done["new"] == ["https://a.example/"] and "nas.lan is not a public address" in done["complaints"][0]
    with FetchStore(file, write=True) as store:
        store.change_settings("folder", "", {"allow_private": ["nas.lan"]})
    assert pages.post("/feeds", data={"address": "http://nas.lan/feed"}).status_code == 303


def test_what_the_configuration_sets_goes_before_what_the_page_sets(site, file):
    put(file, feed("https://a.example/feed"))
    fixed = SettingsOf({"https://a.example/feed": FeedSettings(interval=HOUR)}, {})
    for one in (replace(site, feed_settings=fixed), replace(site, allow_private=True)):
        pages = browser(one)
        text = pages.get(url_of("/feeds/edit", url="https://a.example/feed")).text
        assert ("The configuration file sets interval" in text) is not one.allow_private
        status = pages.post("/feeds", data={"address": "http://nas.lan/feed"}).status_code
        assert status == (303 if one.allow_private else 400)
