"""Definitions of sinks: what a table may say, what live ones may not, and errors that name the place and the key; and
secrets, which are read from files and the environment, made in a state, and never shown."""

import base64
import json
import os
import stat
import sys
import tomllib
import traceback
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from feeds.documents import from_datetime
from mmqjp.engine import Session
from mmqjp.sinks import definition as kinds
from mmqjp.sinks import secrets as of_secrets
from mmqjp.sinks.definition import SinkDefinition, Start, read_sink, read_tables
from mmqjp.sinks.secrets import BadSink, EnvSecret, FileSecret, SecretError, SecretName, Secrets, make_secret
from tests.support.cli import mmqjp
from tests.support.feed_server import Request, hook_server
from tests.support.mail_server import mail_server

HOOK = 'kind = "webhook"\nurl = "https://example.org/hook"\n'
MAIL = 'kind = "mail"\nserver = "smtps://mail.example.org"\nto = ["ann@example.org"]\n'
DIGEST, NIGHTLY = (f'{MAIL}at = "{time}"\nzone = "Europe/Berlin"' for time in ("07:00", "02:30"))
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
            kinds.WebhookOptions(SecretName("slack"), (SecretName("new"), SecretName("old")), "text"),
        ),
        (HOOK + "allow_private = true", kinds.WebhookOptions("https://example.org/hook", allow_private=True)),
        (MAIL, kinds.MailOptions("mail.example.org", 465, "at once", "ann@example.org", ("ann@example.org",))),
        (
            'kind = "mail"\nserver = "smtp://[::1]:25"\nto = "a@b.example"\nsender = "c@d.example"\nuser = "u"\n'
            'password = "mail"\nat = "7:05"\nzone = "Europe/Berlin"\nca = "ca.pem"',
            kinds.MailOptions("::1", 25, "starttls", "c@d.example", ("a@b.example",), "u", SecretName("mail"), 425,
                        ZoneInfo("Europe/Berlin"), ca=Path("/etc/mmqjp/ca.pem")),
        ),
        (
            'kind = "mail"\nserver = "smtp://localhost"\nstarttls = false\nto = "a@b.example"\nevery = "1h"',
            kinds.MailOptions("localhost", 587, "none", "a@b.example", ("a@b.example",), every_us=H),
        ),
        ('kind = "command"\ncommand = ["notify", "-x"]', kinds.CommandOptions(("notify", "-x"))),
        ('kind = "command"\ncommand = ["x"]\nbody = "json"', kinds.CommandOptions(("x",), "json")),
        ('kind = "jsonl"\npath = "/x"\nbody = "json"', kinds.JsonlOptions(Path("/x"), "json")),
        ('kind = "parquet"\npath = "/data/out"\nrows = 10\nevery = "5min"',
         kinds.ParquetOptions(Path("/data/out"), 10, 300 * S)),
        ('kind = "atom"\npath = "feed"\nurl = "https://example.org/feed"',
         kinds.AtomOptions(Path("/etc/mmqjp/feed"), "https://example.org/feed/")),
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
        (MAIL + "top = 10", "top", "go together"),
        (MAIL + 'by = "members"', "top", "go together"),
        (MAIL + 'top = 101\nby = "n"', "top", "from 1 to 100"),
        (MAIL + 'top = 10\nmost = 20\nby = "n"', "most", "either top or most"),
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
    assert live('kind = "jsonl"\npath = "out.jsonl"').options == kinds.JsonlOptions(Path("state/sinks/out.jsonl"))


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
        # A time of day that is skipped or repeated comes once.
        (NIGHTLY, at(2026, 3, 28, 12), at(2026, 3, 29, 1, 30)),
        (NIGHTLY, at(2026, 3, 29, 1, 30), at(2026, 3, 30, 0, 30)),
        (NIGHTLY, at(2026, 10, 24, 12), at(2026, 10, 25, 0, 30)),
        (NIGHTLY, at(2026, 10, 25, 0, 30), at(2026, 10, 26, 1, 30)),
    ],
)
def test_when_groups_close(toml, opened, closes):
    assert of_file(toml).closes(opened) == closes


# ------------------------------------------------------------ secrets

VALUE = "hunter2-Correct/Horse"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "hook.key"
    path.write_text(f"{VALUE}\n")
    path.chmod(0o600)
    return path


def sources(toml: str, base: Path = Path("/etc/mmqjp")):
    return of_secrets.read_sources(tomllib.loads(toml), base, file="x.toml")


def refusal(secrets: Secrets, name: str = "hook") -> str:
    with pytest.raises(SecretError) as caught:
        secrets.value(name)
    shown = "".join(traceback.format_exception(caught.value))
    assert VALUE not in shown
    return str(caught.value)


def test_secrets_are_in_files_beside_the_configuration_or_in_the_environment(path, monkeypatch):
    found = sources('a = { file = "hook.key" }\nb = { file = "/x/y" }\nc = { env = "HOOK" }', path.parent)
    assert found == {"a": FileSecret(path), "b": FileSecret(Path("/x/y")), "c": EnvSecret("HOOK")}
    of_nobody = sources('a = { file = "~nobody-of-this-name/key" }', path.parent)
    assert of_nobody == {"a": FileSecret(path.parent / "~nobody-of-this-name/key")}
    monkeypatch.setenv("HOOK", f" {VALUE}x ")
    secrets = Secrets(found)
    assert secrets.value("a") == secrets.value(SecretName("a")) == VALUE and secrets.value("c") == VALUE + "x"
    assert secrets.names() == ["a", "b", "c"] and secrets.variables() == {"HOOK"}
    assert VALUE not in repr(secrets) + str(secrets) and repr(secrets) == "Secrets(a, b, c)"


@pytest.mark.parametrize(
    "given", [f'"{VALUE}"', f'{{ value = "{VALUE}" }}', f'["{VALUE}"]', "{}", f'{{ file = "a", {VALUE[:7]} = 1 }}',
              '{ file = "a", env = "b" }', '{ file = "" }', r'{ file = "a\u0000b" }',
              f'{{ inline = {{ file = "{VALUE}" }} }}']
)  # fmt: skip
def test_a_secret_that_is_written_down_is_refused_and_not_shown(given):
    with pytest.raises(BadSink) as caught:
        sources(f"hook = {given}")
    assert str(caught.value).startswith("the configuration x.toml: secrets.hook: write { file")
    assert VALUE[:7] not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(BadSink, match=r"^the configuration x.toml: secrets: a secret's name is made of") as caught:
        sources(f'"{VALUE}" = {{ env = "X" }}')
    assert VALUE not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o777])
def test_a_file_that_others_can_read_is_refused(path, mode):
    path.chmod(mode)
    told = f"the secret hook is refused: others can read {path}; chmod 600 {path}"
    assert refusal(Secrets({"hook": FileSecret(path)})) == told


def test_secrets_that_cannot_be_read(path, monkeypatch, tmp_path):
    secrets = Secrets({"hook": FileSecret(path), "env": EnvSecret("MISSING")})
    for content, cause in ((b" \n", "is empty"), (b"a\nb", "several lines"), (b"\xff", "not UTF-8"),
                           (b"a" * 65_537, "more than 65,536 bytes")):  # fmt: skip
        path.write_bytes(content)
        assert cause in refusal(secrets)
    path.unlink()
    assert "No such file" in refusal(secrets)
    path.mkdir()
    assert "Is a directory" in refusal(secrets)
    path.rmdir()
    os.mkfifo(path, 0o600)
    assert "is not a file" in refusal(secrets)
    monkeypatch.delenv("MISSING", raising=False)
    assert refusal(secrets, "env") == "the secret env is not there: the environment has no MISSING"
    # An unknown name may be the secret itself.
    assert refusal(secrets, VALUE).startswith("a secret is named that is not known (known: env, hook)")


def test_a_secret_is_made_in_the_state_for_its_owner_alone(path, tmp_path):
    state = tmp_path / "state"
    value = make_secret(state, "hook")
    assert len(base64.b64decode(value.removeprefix("whsec_"))) == 32 and value.startswith("whsec_")
    made = state / "secrets" / "hook"
    assert stat.S_IMODE(made.stat().st_mode) == 0o600 and stat.S_IMODE(made.parent.stat().st_mode) == 0o700
    assert Secrets({}, state).value("hook") == value
    assert Secrets({"hook": FileSecret(path)}, state).value("hook") == VALUE, "the configuration comes first"
    assert make_secret(state, "other") != value
    assert Secrets({}, state).names() == ["hook", "other"]
    with pytest.raises(SecretError, match="the secret hook exists") as caught:
        make_secret(state, "hook")
    assert value not in str(caught.value)
    with pytest.raises(BadSink):
        make_secret(state, "../x")


def test_the_token_of_the_page_is_no_secret_of_sinks(tmp_path):
    make_secret(tmp_path, "hook")
    for name in ("token", ".links"):
        (tmp_path / "secrets" / name).write_text(VALUE)
        with pytest.raises(BadSink):
            make_secret(tmp_path, name)
    assert Secrets({}, tmp_path).names() == ["hook"]
    assert "is not known (known: hook)" in refusal(Secrets({}, tmp_path), "token")


def test_of_a_secret_address_only_the_host_is_shown(path):
    address = "https://user:pass@hooks.example.org:8443/services/T0/B0/abcdef?x=1"
    path.write_text(address)
    secrets, name = Secrets({"slack": FileSecret(path)}), SecretName("slack")
    assert secrets.address(name) == address and secrets.shown_address(name) == "hooks.example.org"
    assert secrets.address("http://x/") == secrets.shown_address("http://x/") == "http://x/"
    path.write_text(VALUE)
    assert secrets.shown_address(name) == "secret slack"
    with pytest.raises(SecretError, match=r"^the secret slack is not an http or https address$"):
        secrets.address(name)
    path.unlink()
    assert secrets.shown_address(name) == "secret slack"


def test_texts_of_others_lose_the_secrets_that_they_repeat_and_what_is_secret_in_an_address(path, tmp_path):
    address = tmp_path / "address"
    address.write_text("https://hooks.example.org/T0/abcdef?x=1")
    address.chmod(0o600)
    secrets = Secrets({"hook": FileSecret(path), "slack": FileSecret(address), "gone": FileSecret(tmp_path / "no")})
    encoded = base64.b64encode(VALUE.encode()).decode()
    told = secrets.redacted(f"bad {VALUE}, {encoded}; POST /T0/abcdef?x=1 at hooks.example.org")
    assert told == "bad [secret hook], [secret hook]; POST [secret slack] at hooks.example.org"
    path.write_text(
        "https://ann:p%40ssword@hooks.example.org/services/T0/0123456789abcdefXYZ?token=key%2Fof-sixteen-and"
    )
    secrets = Secrets({"slack": FileSecret(path)})
    login = base64.b64encode(b"ann:p@ssword").decode()
    told = secrets.redacted(f"Basic {login} p@ssword; no 0123456789abcdefXYZ of T0 in services; key/of-sixteen-and")
    assert told == "Basic [secret slack] [secret slack]; no [secret slack] of T0 in services; [secret slack]"


KEY = base64.b64encode(b"signing-key-of-32-bytes-or-so-abc").decode()
PATH, PASSWORD, VARIABLE = "T0/B1/pathsecret", "hunter2-password", "env-secret-value"
VALUES = [KEY, "pathsecret", PASSWORD, base64.b64encode(PASSWORD.encode()).decode(), VARIABLE]

CONFIGURATION = """
[secrets]
hook = { file = "hook.key" }
address = { file = "address" }
mail = { env = "MAIL_PASSWORD" }
other = { env = "OTHER" }

[sinks]
echoed = { kind = "webhook", url = { secret = "address" }, secret = ["hook"], allow_private = true }
unknown = { kind = "webhook", url = "https://example.invalid/", secret = "missing" }
mailed = { kind = "mail", server = "smtp://127.0.0.1:SMTP", starttls = false, to = "ann@example.org", every = "1h" }

[sinks.printed]
kind = "command"
command = ["PYTHON", "-c", "import os, sys; sys.exit(str(dict(os.environ)) + 'OTHER_VALUE')"]
"""


def echo(request: Request) -> None:
    request.answer(400, f"no {request.path} of {KEY}".encode())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the configuration and a document that matches."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAIL_PASSWORD", PASSWORD)
    monkeypatch.setenv("OTHER", VARIABLE)
    with mail_server() as server, hook_server(*1_000 * [echo]) as hooks:
        address = f"http://127.0.0.1:{hooks.port}/{PATH}"
        for name, value in (("hook.key", f"whsec_{KEY}"), ("address", address)):
            Path(name).write_text(value)
            Path(name).chmod(0o600)
        server.answers["DATA"] = f"554 I know {PASSWORD}"
        text = CONFIGURATION.replace("SMTP", str(server.port)).replace("PYTHON", sys.executable)
        Path("mmqjp.toml").write_text(text.replace("OTHER_VALUE", f"{VARIABLE[:3]}' + '{VARIABLE[3:]}"))
        Path("queries.xscl").write_text("FROM S//a->x PUBLISH every")
        Path("drops").mkdir()
        Path("drops/1.jsonl").write_text(json.dumps({"id": "d1", "time": 1, "xml": "<a/>"}) + "\n")
        yield tmp_path


def assert_nowhere(text: str) -> None:
    assert [value for value in VALUES if value in text] == []


def test_no_secret_is_found_anywhere(place):
    told = ""
    for _ in range(2):
        options = ["--source", "drops", "--queries", "queries.xscl", "--state", "state", "--output", "out.jsonl"]
        done = mmqjp("stream", *options, "--engine", "duckdb", "--trigger", "available-now", "--lateness", "INF",
                     "--max-ahead", "INF", "--log", "json")  # fmt: skip
        assert done.exit_code == 0, done.stderr
        told += done.stdout + done.stderr
    events = [json.loads(line) for line in told.splitlines()]
    reasons = {event["name"]: event["reason"] for event in events if event["event"] == "sink" and "reason" in event}
    assert "[secret address]" in reasons["echoed"] and "[secret hook]" in reasons["echoed"]
    assert "[secret other]" in reasons["printed"] and "MAIL_PASSWORD" not in reasons["printed"]
    assert "a secret is named that is not known" in reasons["unknown"]
    for arguments in (["list"], ["list", "--json"], ["reload"], ["secret", "made"]):
        told += mmqjp("sinks", *arguments, "--state", "state").stdout
    more = ["kind=webhook", "url={secret='address'}", "--from", "start"]
    for arguments in (["add", "live", *more], ["set", "live", "wait=1s"]):
        told += mmqjp("sinks", *arguments, "--state", "state").stdout
    for name in ("echoed", "mailed", "printed", "unknown", "live"):
        for arguments in (["show", name, "--json"], ["failed", name, "--json"], ["test", name]):
            done = mmqjp("sinks", *arguments, "--state", "state", "--debug")
            told += done.stdout + done.stderr
    assert "the test of mailed failed: 127.0.0.1 refused the mail: 554 I know [secret mail]" in told
    urls = "https://example.org/hook", "https://me:pathsecret@example.org/", '{secret="pathsecret-x"}'
    for url, key in (*((url, "secret=pathsecret-lower") for url in urls), (urls[0], "secret=PS-pathsecret"),
                     (urls[0], 'secret=["pathsecret+/="]'), (urls[0], "pathsecret")):  # fmt: skip
        done = mmqjp("sinks", "add", "inline", "kind=webhook", f"url={url}", key, "--state", "state")
        assert done.exit_code and done.stderr.count("\n") == 1
        told += done.stdout + done.stderr
    assert_nowhere(told)
    with Session("duckdb", state=Path("state")) as engine:
        tables = [row["name"] for row in engine.sql("SHOW TABLES", trusted=True).to_pylist()]
        assert {"settings", "commands", "undelivered"} <= set(tables)
        for table in tables:
            assert_nowhere(str(engine.sql(f"SELECT * FROM {table}", trusted=True).to_pylist()))
    for path in Path("state").rglob("*"):
        if path.is_file() and path.parent.name != "secrets":
            assert_nowhere(path.read_bytes().decode("latin-1"))
    assert {path.name for path in Path("state/secrets").iterdir()} == {"made"}
    assert os.environ["OTHER"] == VARIABLE
