"""The pages of sinks and their API: what is shown of them, and what can be done."""

from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from mmqjp.service.commands import CommandError, run_command, run_offline
from mmqjp.service.spool import Command
from mmqjp.sinks.definition import SinkTables, read_tables
from mmqjp.web.readers import RecentlyTold
from tests.support.web import browser, script, site_of, stranger

HOOK = {"kind": "webhook", "url": "https://hooks.example/in", "queries": ["same_*"]}
KEYS = "SECRET-TOKEN-IN-ADDRESS"


@pytest.fixture
def tables():
    """What the configuration file says; tests change it."""
    return {"now": SinkTables()}


@pytest.fixture
def site(engine, tmp_path, tables):
    numbers = count()
    run_sinks = partial(run_offline, tmp_path, lambda: tables["now"])

    def ask(do, arguments):
        found = run_command(engine, Command(f"{next(numbers)}", do, arguments), run_sinks)
        if found.error is not None:
            raise CommandError(found.error)
        return found.result

    return replace(site_of(engine, tmp_path), ask=ask)


def added(site, name="alerts", **table):
    return script(site).post("/api/v1/sinks", json={"name": name, "table": HOOK | table})


def test_a_form_adds_a_webhook_or_says_what_is_wrong(site):
    client = browser(site)
    text = client.get("/sinks").text
    assert "No sink yet" in text and "Add a webhook" in text
    wrong = ({"name": "../x", "url": "https://a.example/"}, {"name": "a", "url": "file:///etc/passwd"}, {"name": "a"})
    for form in wrong:
        found = client.post("/sinks", data=form)
        assert found.status_code == 400 and 'role="alert"' in found.text and f'value="{form["name"]}"' in found.text
    assert script(site).get("/api/v1/sinks").json() == []
    form = {"name": "alerts", "url": "https://hooks.example/in", "queries": "same_story, other_*", "wait": "30s"}
    done = client.post("/sinks", data=form)
    assert done.status_code == 303 and "It was added" in client.get(done.headers["location"]).text
    (sink,) = script(site).get("/api/v1/sinks").json()
    assert (sink["name"], sink["kind"], sink["queries"]) == ("alerts", "webhook", ["same_story", "other_*"])
    assert "alerts" in client.get("/sinks").text


def test_a_sink_is_shown_paused_resumed_replayed_and_removed(site):
    assert added(site).json()["state"] == "running"
    found = script(site).get("/api/v1/sinks/alerts").json()
    assert found["definition"]["url"] == "https://hooks.example/in" and found["undelivered"] == found["gaps"] == []
    client = browser(site)
    text = client.get("/sinks/alerts").text
    assert "hooks.example" in text and "same_*" in text and "Nothing was refused or given up so far" in text
    for do in ("pause", "resume", "test", "replay", "remove"):  # getting a page changes nothing
        assert client.get(f"/sinks/alerts/{do}").status_code in (404, 405)
    assert stranger(site).post("/sinks/alerts/pause").status_code in (303, 401, 403)
    assert script(site).get("/api/v1/sinks/alerts").json()["sink"]["state"] == "running"
    for do, state in (("pause", "paused"), ("resume", "running")):
        assert client.post(f"/sinks/alerts/{do}").status_code == 303
        assert script(site).get("/api/v1/sinks/alerts").json()["sink"]["state"] == state
    assert client.post("/sinks/alerts/replay", data={"start": "0"}).status_code == 303
    refused = client.post("/sinks/alerts/replay", data={"start": "yesterday"})
    assert refused.status_code == 400 and 'role="alert"' in refused.text
    gone = client.post("/sinks/alerts/remove")
    assert gone.status_code == 303 and "The sink was removed" in client.get(gone.headers["location"]).text


def test_a_sink_that_waits_can_be_paused_and_can_try_at_once(site):
    added(site)
    waiting, asked = {"state": "waiting", "reason": "HTTP 503", "tries": 2, "next": 1_784_200_000_000_000}, site.ask

    def ask(do, arguments):
        found = asked(do, arguments)
        if do == "sinks":
            return found | waiting if "name" in arguments else [one | waiting for one in found]
        return found

    client = browser(replace(site, ask=ask))
    for path in ("/sinks", "/sinks/alerts"):
        text = client.get(path).text
        assert 'action="/sinks/alerts/pause"' in text and 'action="/sinks/alerts/resume"' in text and "Try now" in text
    text = browser(site).get("/sinks/alerts").text
    assert 'action="/sinks/alerts/pause"' in text and 'action="/sinks/alerts/resume"' not in text


def test_programs_can_do_the_same(site):
    added(site)
    client = script(site)
    assert client.post("/api/v1/sinks/alerts/pause").json()["state"] == "paused"
    assert client.post("/api/v1/sinks/alerts/resume").json()["state"] == "running"
    assert client.post("/api/v1/sinks/alerts/replay", json={"start": "start"}).json()["name"] == "alerts"
    changed = client.patch("/api/v1/sinks/alerts", json={"wait": "5min", "queries": None})
    assert changed.json()["queries"] == ["*"]
    assert client.delete("/api/v1/sinks/alerts").json() == "alerts"
    assert client.get("/api/v1/sinks/alerts").status_code == browser(site).get("/sinks/alerts").status_code == 400
    assert client.post("/api/v1/sinks/alerts/pause").json()["error"] == "no sink is named alerts"


def test_a_test_is_sent_and_its_result_told(site, monkeypatch):
    added(site)
    asked = site.ask
    results = iter([None, "", "the endpoint answered 500", "the endpoint answered 500"])

    def ask(do, arguments):
        return next(results) if do == "sinks-tested" else asked(do, arguments) if do != "sinks-test" else "alerts"

    monkeypatch.setattr("mmqjp.service.commands.SINK_TEST_POLL", 0.0)
    client = browser(replace(site, ask=ask))
    shown = client.get(client.post("/sinks/alerts/test").headers["location"]).text
    assert "The test was acknowledged." in shown
    assert "The test failed: the endpoint answered 500" in client.post("/sinks/alerts/test").text
    found = script(replace(site, ask=ask)).post("/api/v1/sinks/alerts/test").json()
    assert found == {"acknowledged": False, "reason": "the endpoint answered 500"}


def test_the_result_of_a_test_is_not_waited_for_for_ever(site, monkeypatch):
    added(site)
    asked = site.ask
    site = replace(site, ask=lambda do, given: None if do in ("sinks-test", "sinks-tested") else asked(do, given))
    monkeypatch.setattr("mmqjp.web.areas.sinks.TEST_SECONDS", 0.0)
    client = browser(site)
    assert "The test is under way" in client.get(client.post("/sinks/alerts/test").headers["location"]).text
    assert script(site).post("/api/v1/sinks/alerts/test").json()["acknowledged"] is None


def test_what_a_sink_did_not_get_is_listed(site):
    added(site)
    asked = site.ask
    missed = {
        "undelivered": [{"seq": 7, "id": "a" * 32, "tries": 5, "reason": "<b>no</b>", "noted_at": 1}],
        "gaps": [{"first": 8, "last": 1007, "count": 900, "reason": "too old", "noted_at": 1}],
    }
    shown = replace(site, ask=lambda do, arguments: missed if do == "sinks-failed" else asked(do, arguments))
    text = browser(shown).get("/sinks/alerts").text
    assert "8 to 1,007" in text and "900" in text and "&lt;b&gt;no" in text and f"/o/{'a' * 32}" in text


def test_sinks_of_the_file_are_changed_there(site, tables, tmp_path):
    (tmp_path / "hook.key").write_text(KEYS)
    (tmp_path / "hook.key").chmod(0o600)
    sinks = {"chat": {"kind": "webhook", "url": {"secret": "chat"}}}
    settings = {"secrets": {"chat": {"file": "hook.key"}}, "sinks": sinks}
    tables["now"] = read_tables(settings, tmp_path / "mmqjp.toml")
    text = browser(site).get("/sinks/chat").text
    assert "mmqjp sinks reload" in text and "Remove chat" not in text
    assert browser(site).post("/sinks/chat/remove").status_code == 400
    everything = text + browser(site).get("/sinks").text + script(site).get("/api/v1/sinks/chat").text
    assert KEYS not in everything


def test_a_secret_that_is_given_inline_is_neither_passed_on_nor_shown(site):
    added(site)
    passed_on, inner = [], site.ask
    client = script(replace(site, ask=lambda do, given: passed_on.append(given) or inner(do, given)))  # type: ignore[func-returns-value]
    for inline in ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "abcd0123" * 4):
        address = {"url": f"https://ann:{inline}@hooks.example/"}
        for keys in ({"secret": inline}, {"secret": [inline]}, {"url": {"secret": inline}}, address):
            for answer in (
                client.post("/api/v1/sinks", json={"name": "other", "table": HOOK | keys}),
                client.patch("/api/v1/sinks/alerts", json=keys),
            ):
                assert answer.status_code == 400 and answer.json()["error"] and inline not in answer.text
        assert inline not in str(passed_on)


def test_a_sink_that_is_behind_is_not_said_to_have_all(site, engine):
    added(site, **{"from": "start", "queries": ["*"]})
    assert engine.last_seq >= 0
    text = browser(site).get("/sinks/alerts").text
    assert "Nothing was refused or given up so far; what it is behind is still to come." in text


def test_visitors_within_a_second_cost_one_question_and_see_own_changes(site):
    added(site)
    asked, inner = [], site.ask
    shown = replace(site, ask=lambda do, given: asked.append(do) or inner(do, given))  # type: ignore[func-returns-value]
    vars(shown)["_recently"] = RecentlyTold(shown.ask, lambda: 0.0)
    asked.clear()
    client = browser(shown)
    for _ in range(3):
        assert client.get("/sinks/alerts").status_code == 200
    assert sorted(asked) == ["sinks", "sinks-failed"]
    client.post("/sinks/alerts/pause")
    assert "Resume" in client.get("/sinks/alerts").text and asked.count("sinks") == 2
