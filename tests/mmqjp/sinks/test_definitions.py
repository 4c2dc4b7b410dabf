"""Definitions of sinks: what a table may say, what live ones may not, and errors that name the place and the key."""

import tomllib
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from feeds.documents import from_datetime
from mmqjp.sinks.definition import (
    AtomOptions,
    CommandOptions,
    JsonlOptions,
    MailOptions,
    ParquetOptions,
    SinkDefinition,
    Start,
    WebhookOptions,
    read_sink,
    read_tables,
)
from mmqjp.sinks.secrets import BadSink, SecretName

HOOK = 'kind = "webhook"\nurl = "https://example.org/hook"\n'
MAIL = 'kind = "mail"\nserver = "smtps://mail.example.org"\nto = ["ann@example.org"]\n'
DIGEST = MAIL + 'at = "07:00"\nzone = "Europe/Berlin"'
S, H, DAY = 1_000_000, 3_600_000_000, 86_400_000_000


def of_file(toml: str) -> SinkDefinition:
    return read_sink("x", tomllib.loads(toml), Path("/etc/mmqjp"), file="x.toml")


def live(toml: str) -> SinkDefinition:
    return read_sink("x", tomllib.loads(toml), Path("state/sinks"))


def error(read, toml: str) -> str:
    with pytest.raises(BadSink) as caught:
        read(toml)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("toml", "options"),
    [
        (
            'kind = "webhook"\nurl = { secret = "slack" }\nsecret = ["new", "old"]\nformat = "text"',
            WebhookOptions(SecretName("slack"), (SecretName("new"), SecretName("old")), "text"),
        ),
        (HOOK + "allow_private = true", WebhookOptions("https://example.org/hook", allow_private=True)),
        (MAIL, MailOptions("mail.example.org", 465, "at once", "ann@example.org", ("ann@example.org",))),
        (
            'kind = "mail"\nserver = "smtp://[::1]:25"\nto = "a@b.example"\nsender = "c@d.example"\nuser = "u"\n'
            'password = "mail"\nat = "7:05"\nzone = "Europe/Berlin"\nca = "ca.pem"',
            MailOptions("::1", 25, "starttls", "c@d.example", ("a@b.example",), "u", SecretName("mail"), 425,
                        ZoneInfo("Europe/Berlin"), ca=Path("/etc/mmqjp/ca.pem")),
        ),
        (
            'kind = "mail"\nserver = "smtp://localhost"\nstarttls = false\nto = "a@b.example"\nevery = "1h"',
            MailOptions("localhost", 587, "none", "a@b.example", ("a@b.example",), every_us=H),
        ),
        ('kind = "command"\ncommand = ["notify", "-x"]', CommandOptions(("notify", "-x"))),
        ('kind = "parquet"\npath = "/data/out"\nrows = 10\nevery = "5min"',
         ParquetOptions(Path("/data/out"), 10, 300 * S)),
        ('kind = "atom"\npath = "feed"\nurl = "https://example.org/feed"',
         AtomOptions(Path("/etc/mmqjp/feed"), "https://example.org/feed/")),
    ],
)  # fmt: skip
def test_the_options_of_each_kind(toml, options):
    assert of_file(toml).options == options


def test_the_keys_that_all_have():
    bounds = 'wait = "30s"\nmost = 5\nbacklog = "INF"\nbacklog_outputs = 2000'
    found = of_file(f'{HOOK}queries = ["same_*", "[ab]"]\n{bounds}')
    assert (found.wait_us, found.most, found.backlog_us, found.backlog_outputs) == (30 * S, 5, None, 2000)
    wanted = [name for name in ("same_story", "same", "a", "ab", "A") if found.wants(name)]
    assert wanted == ["same_story", "a"]
    plain = of_file(HOOK)
    assert plain.wants("anything") and plain.start == Start() and not plain.is_live and plain.file == "x.toml"
    assert (plain.wait_us, plain.most, plain.backlog_us, plain.backlog_outputs) == (0, 100, 7 * DAY, 100_000)
    assert live(HOOK).is_live and plain.table == tomllib.loads(HOOK)


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ('"now"', Start()),
        ('"start"', Start(seq=0)),
        ("17", Start(seq=17)),
        ('"17"', Start(seq=17)),
        ('"1970-01-01T00:00:01Z"', Start(time=S)),
        ("1970-01-01T00:00:01Z", Start(time=S)),
    ],
)
def test_where_a_new_sink_begins(given, start):
    assert of_file(f"{HOOK}from = {given}").start == start


@pytest.mark.parametrize(
    ("toml", "key", "cause"),
    [
        ("", "kind", "missing"),
        ('kind = "webhok"', "kind", 'did you mean "webhook"?'),
        (HOOK + 'wiat = "1s"', "wiat", 'did you mean "wait"?'),
        (HOOK + "zzz = 1", "zzz", 'the known ones are "allow_private", "backlog"'),
        ('kind = "webhook"', "url", "missing"),
        (HOOK + "wait = true", "wait", "write a duration"),
        (HOOK + 'wait = "soon"', "wait", "'soon' is not a duration"),
        (HOOK + 'wait = "INF"', "wait", "INF is too long here"),
        (HOOK + 'wait = "2d"', "wait", "at most 1d"),
        (HOOK + 'backlog = "1s"', "backlog", "at least 3600 s"),
        (HOOK + "most = 0", "most", "from 1 to 1,000"),
        (HOOK + "most = true", "most", "whole number"),
        (HOOK + "queries = []", "queries", "a list of texts"),
        (HOOK + "queries = [1]", "queries", "a list of texts"),
        (HOOK + 'from = "later"', "from", "write now, start"),
        (HOOK + "allow_private = 1", "allow_private", "true or false"),
        (HOOK + 'secret = "whsec_abc+/="', "secret", "name a secret"),
        ('kind = "webhook"\nurl = "ftp://x"', "url", "http or https"),
        ('kind = "webhook"\nurl = "https://x:99999/"', "url", "http or https"),
        ('kind = "webhook"\nurl = "https://u:hunter2@x/"', "url", "not written here"),
        ('kind = "webhook"\nurl = { secrt = "a" }', "url", '{ secret = "NAME" }'),
        (MAIL + 'wait = "1s"', "wait", "no such key"),
        (MAIL + 'at = "7"', "at", "write a time"),
        (MAIL + 'at = "07:00"\nzone = "Nowhere/X"', "zone", "the name of a time zone"),
        (MAIL + 'at = "07:00"\nzone = "../../etc/passwd"', "zone", "the name of a time zone"),
        (MAIL + 'at = "07:00"\nevery = "1h"', "every", "either at or every"),
        (MAIL + 'zone = "UTC"', "zone", "belongs to at"),
        (MAIL + 'every = "1s"', "every", "at least 60 s"),
        (MAIL + 'user = "u"', "user", "go together"),
        (MAIL + 'user = "u"\npassword = "Hunter2"', "password", "name a secret"),
        (MAIL + "starttls = false", "starttls", "from the start"),
        (MAIL + 'sender = "a@b.example\\nBcc: c@d.example"', "sender", "without line breaks"),
        (MAIL.replace("ann@example.org", "ann"), "to", "write addresses like"),
        (MAIL.replace("ann@example.org", "ann@example.org, b@c.example"), "to", "write addresses like"),
        (MAIL.replace("ann@example.org", "A <ann@example.org>"), "to", "write addresses like"),
        (MAIL.replace("ann@example.org", "ann@[plg"), "to", "write addresses like"),
        (MAIL.replace("smtps", "http"), "server", "smtps://HOST"),
        (MAIL.replace("//mail", "//u:hunter2@mail"), "server", "name the password"),
        (MAIL.replace("smtps", "smtp") + 'starttls = false\nuser = "u"\npassword = "mail"', "starttls",
         "not sent without"),
        ('kind = "command"\ncommand = []', "command", "a list of texts"),
        ('kind = "jsonl"', "path", "missing"),
        ('kind = "parquet"\npath = "a"\nrows = 1000000', "rows", "half of backlog_outputs"),
        ('kind = "parquet"\npath = "a"\nevery = "5d"', "every", "half of backlog"),
    ],
)  # fmt: skip
def test_errors_name_the_file_and_the_key(toml, key, cause):
    message = error(of_file, toml)
    assert message.startswith(f"the configuration x.toml: sinks.x.{key}: ") and cause in message
    assert "hunter2" not in message.lower() and "abc+" not in message


@pytest.mark.parametrize(
    ("toml", "cause"),
    [
        ('kind = "command"\ncommand = ["rm"]', "the sink x: kind: only the configuration file"),
        (MAIL, "the sink x: kind: only the configuration file"),
        (HOOK + "allow_private = true", "the sink x: allow_private: only a sink of the configuration file"),
        (HOOK + "allow_private = false", "the sink x: allow_private: only a sink of the configuration file"),
        ('kind = "jsonl"\npath = "../x"', "the sink x: path: write a file name"),
        ('kind = "jsonl"\npath = "/tmp/x"', "the sink x: path: write a file name"),
        ('kind = "jsonl"\npath = ".x"', "the sink x: path: write a file name"),
        ('kind = "parquet"\npath = "a/b"', "the sink x: path: write a file name"),
        ('kind = "atom"\nurl = "https://x.example/"\npath = "~"', "the sink x: path: write a file name"),
    ],
)
def test_what_only_the_file_may_say(toml, cause):
    assert cause in error(live, toml)
    assert live('kind = "jsonl"\npath = "out.jsonl"').options == JsonlOptions(Path("state/sinks/out.jsonl"))


@pytest.mark.parametrize("name", ["", "1a", "a b", "a\nb", "a" * 41, "../a", "é", "output"])
def test_names_that_no_sink_may_have(name):
    with pytest.raises(BadSink, match=r"^the configuration x.toml: .*(name begins with a letter|reserved)"):
        read_tables({"sinks": {name: tomllib.loads(HOOK)}}, Path("x.toml"))


@pytest.mark.parametrize("settings", [{"sinks": 1}, {"sinks": {"a": 1}}, {"secrets": []}])
def test_tables_that_are_none(settings):
    with pytest.raises(BadSink, match=r"^the configuration x.toml: s.*write (a )?tables?, as in"):
        read_tables(settings, Path("x.toml"))


def test_two_sinks_do_not_write_to_one_place():
    settings = {name: {"kind": "jsonl", "path": path} for name, path in (("a", "x"), ("b", "y"))}
    assert len(read_tables({"sinks": settings}, Path("x.toml")).sinks) == 2
    settings["c"] = {"kind": "parquet", "path": "x"}
    with pytest.raises(
        BadSink, match=r"^the configuration x.toml: the sinks a and c have the same path .*/x: change one$"
    ):
        read_tables({"sinks": settings}, Path("x.toml"))


def at(year: int, month: int, day: int, hour: int, minute: int = 0, zone: str = "UTC") -> int:
    return from_datetime(datetime(year, month, day, hour, minute, tzinfo=ZoneInfo(zone)))


@pytest.mark.parametrize(
    ("toml", "opened", "closes"),
    [
        (HOOK, 5, None),
        (HOOK + "wait = '2s'", 5, 2 * S + 5),
        (MAIL + "every = '1h'", 5, H + 5),
        (MAIL, 5, DAY + 5),
        (DIGEST, at(2026, 5, 4, 6, 59, zone="Europe/Berlin"), at(2026, 5, 4, 5)),
        (DIGEST, at(2026, 5, 4, 7, zone="Europe/Berlin"), at(2026, 5, 5, 5)),
        (DIGEST, at(2026, 3, 28, 12), at(2026, 3, 29, 5)),  # the clocks went forward in between
        (DIGEST, at(2026, 10, 24, 12), at(2026, 10, 25, 6)),
    ],
)
def test_when_groups_close(toml, opened, closes):
    assert of_file(toml).closes(opened) == closes


def test_a_time_of_day_that_is_skipped_or_repeated_comes_once():
    digest = of_file(MAIL + 'at = "02:30"\nzone = "Europe/Berlin"')
    for first in (at(2026, 3, 28, 12), at(2026, 10, 24, 12)):
        one = digest.closes(first)
        assert one is not None
        two = digest.closes(one)
        assert two is not None
        assert 22 * H < two - one < 26 * H and one - first < DAY
