"""Secrets that are used: none is found in the state, its tables and spool, the log, or what commands print, although
receivers repeat all that they get."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmqjp.engine import Session
from tests.support.cli import mmqjp
from tests.support.hook_server import Exchange, answer, hook_server
from tests.support.mail_server import mail_server

KEY = base64.b64encode(b"signing-key-of-32-bytes-or-so-abc").decode()
PATH, PASSWORD, VARIABLE = "T0/B1/pathsecret", "hunter2-password", "env-secret-value"
VALUES = [KEY, "pathsecret", PASSWORD, base64.b64encode(PASSWORD.encode()).decode(), VARIABLE]

CONFIGURATION = """
[secrets]
hook = { file = "hook.key" }
address = { file = "address" }
mail = { env = "MAIL_PASSWORD" }
other = { env = "OTHER" }

[sinks.echoed]
kind = "webhook"
url = { secret = "address" }
secret = ["hook"]
allow_private = true

[sinks.unknown]
kind = "webhook"
url = "https://example.invalid/"
secret = "missing"

[sinks.mailed]
kind = "mail"
server = "smtp://127.0.0.1:SMTP"
starttls = false
to = "ann@example.org"
every = "1h"

[sinks.printed]
kind = "command"
command = ["PYTHON", "-c", "import os, sys; sys.exit(str(dict(os.environ)) + 'OTHER_VALUE')"]
"""


def echo(exchange: Exchange) -> None:
    """Refuses what is posted, and repeats it."""
    answer(400, f"no {exchange.request.path} of {KEY}".encode())(exchange)


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
    for name in ("echoed", "mailed", "printed", "unknown"):
        for arguments in (["show", name], ["show", name, "--json"], ["failed", name, "--json"], ["test", name]):
            done = mmqjp("sinks", *arguments, "--state", "state", "--debug")
            told += done.stdout + done.stderr
    assert "the test of mailed failed: 127.0.0.1 refused the mail: 554 I know [secret mail]" in told
    assert_nowhere(told)
    with Session("duckdb", state=Path("state")) as engine:
        for row in engine.sql("SHOW TABLES", trusted=True).to_pylist():
            assert_nowhere(str(engine.sql(f"SELECT * FROM {row['name']}", trusted=True).to_pylist()))
    for path in Path("state").rglob("*"):
        if path.is_file() and path.parent.name != "secrets":
            assert_nowhere(path.read_bytes().decode("latin-1"))
    assert {path.name for path in Path("state/secrets").iterdir()} == {"made"}
    assert os.environ["OTHER"] == VARIABLE
