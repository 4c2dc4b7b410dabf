"""The program as a process, `mmqjp serve` and `mmqjp demo`."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from threading import Event

import httpx
import pytest

from mmqjp.commands.demo import purposes
from mmqjp.commands.serve import run_service
from mmqjp.engine import Session
from mmqjp.service.log import NullLog
from mmqjp.web.readers import CursorReader
from mmqjp.web.serving import PageEnded, PageOptions, listen, page_process
from tests.support.cli import DOCUMENTS, mmqjp, write_documents, write_queries
from tests.support.served import served
from xscl.parser import parse_script

INTERRUPTED_WHILE_LOADING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "mmqjp.commands.serve":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["mmqjp", "stream", "--help"]
from mmqjp.__main__ import main
main()
"""


def python(*arguments: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, env=os.environ | environment, timeout=300, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_what_prints_only_loads_only_what_it_needs_and_ctrl_c_meanwhile_is_one_line():
    assert python("-c", INTERRUPTED_WHILE_LOADING) == (130, "", "mmqjp: interrupted\n")
    status, _, said = python("-c", LIGHT)
    assert (status, said) == (0, "")


def test_output_is_utf_8_whatever_the_locale(tmp_path):
    document = {"id": "é…", "time": "2026-01-01", "xml": "<a>ß 書 \U0001f600</a>"}
    documents = write_documents(tmp_path / "d.jsonl", [document])
    locale = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    status, printed, said = python("-m", "mmqjp", "show", str(documents), **locale)
    assert status == 0, said
    assert "S  é…  2026" in printed and "ß 書 \U0001f600" in printed


LIGHT = """
import sys
from mmqjp.cli import main
for option in ("--version", "--help"):
    try:
        main([option])
    except SystemExit as end:
        assert not end.code, end.code
heavy = {'pyspark', 'duckdb', 'numpy', 'pyarrow', 'lxml', 'lark', 'feeds', 'xscl', 'join_stage'}
sys.exit(repr(heavy & sys.modules.keys()) if heavy & sys.modules.keys() else 0)
"""


ENDING = """
import atexit, sys, threading, duckdb
import mmqjp.cli
from mmqjp.process import QUESTION_THREAD

class Kept:
    def __del__(self):
        print("freed")

def ask():
    connection = duckdb.connect()
    begun.set()
    connection.execute("SELECT count(*) FROM range(60000000) a(x), range(20) b(y) WHERE x * y % 7 = 3").fetchall()

def answer():
    kept.append(Kept())
    atexit.register(print, "at the end")
    {before}
    print("answered")
    sys.exit({status!r})

kept, begun = [], threading.Event()
mmqjp.cli.main = answer
from mmqjp.__main__ import main
main()
"""
ASKING = "threading.Thread(target=ask, name=QUESTION_THREAD, daemon=True).start(); begun.wait()"


@pytest.mark.parametrize(
    ("before", "status", "printed"),
    [
        ("pass", 3, ["answered", "at the end"]),
        ("threading.Timer(0.2, print, ['later']).start()", 3, ["answered", "later", "at the end", "freed"]),
        (ASKING, 3, ["answered"]),
        ("pass", "not flat: memory", ["answered", "at the end", "freed"]),
    ],
)
def test_a_program_ends_at_once_unless_something_runs_or_is_wrong(before, status, printed):
    found, out, said = python("-c", ENDING.format(before=before, status=status))
    assert (found, out.splitlines(), said) == (
        (status, printed, "") if isinstance(status, int) else (1, printed, f"{status}\n")
    )


def test_it_holds_the_store_and_another_attaches(tmp_path):
    drops, state, output = tmp_path / "drops", tmp_path / "state", tmp_path / "out.jsonl"
    queries = write_queries(tmp_path)
    drops.mkdir()
    options = "--queries", queries, "--source", drops, "--lateness", "INF", "--output", output, "--log", "json"
    with served(state, *options) as page, page.client() as client:
        assert client.get("/api/v1/queries").json()["names"] == 2
        write_documents(tmp_path / "d.jsonl", DOCUMENTS).rename(drops / "d.jsonl")
        while not output.exists() or len(output.read_text().splitlines()) < 2:
            assert page.process.poll() is None
        while (found := client.get("/api/v1/queries").json())["never"]:
            assert page.process.poll() is None  # the page may lag a commit behind the file
        names = [json.loads(line)["query"] for line in output.read_text().splitlines()]
        assert {row["name"]: row["total"] for row in found["rows"]} == {name: names.count(name) for name in names}
        for more in (("--source", tmp_path), ("--fetch", "https://a.example"), ("--queries", queries)):
            done = mmqjp("serve", "--state", state, "--address", "127.0.0.1:0", *more)  # the service reads the sources
            assert done.exit_code == 2 and "is in use by process" in done.stderr
            assert f"leave out {more[0]}" in done.stderr
        with served(state, "--log", "json") as other, other.client() as beside:
            assert beside.get("/api/v1/queries").json() == client.get("/api/v1/queries").json()
            assert beside.post("/api/v1/queries/book_blog/pause").json() == {"names": ["book_blog"]}
            while not client.get("/api/v1/queries", params={"state": "paused"}).json()["found"]:
                assert page.process.poll() is None  # the page learns of other processes' changes a moment later
            assert client.post("/api/v1/queries/book_blog/resume").status_code == 200
            assert client.get("/api/v1/queries", params={"state": "paused"}).json()["found"] == 0
            assert "of a person" in beside.post("/sql", data={"sql": "SELECT 'of a person'"}).text
            for one in (page, other):
                with socket.create_connection(("127.0.0.1", int(one.url.rpartition(":")[2]))) as connection:
                    connection.sendall(b"this is not HTTP\r\n\r\n")
                    assert b"400" in connection.recv(1_000)
            ended = [other.stop(), page.stop(signal.SIGINT)]
        for status, said in ended:
            events = [json.loads(line) for line in said.splitlines()]
            (warned,) = [event for event in events if event["event"] == "said"]
            assert (status, warned["by"], warned["level"]) == (0, "uvicorn.error", "warning")
            assert "Invalid HTTP request" in warned["text"] and events[-1]["event"] == "stopped"
            assert "SELECT" not in said and "select" not in said, "questions of pages are not logged"


def test_a_page_whose_service_is_gone_waits_for_no_client(tmp_path, monkeypatch):
    def with_patient_server(command, **options):
        program = "import sys; from mmqjp.web import serving; serving.STOP_SECONDS = 10**6; serving.main(*sys.argv[1:])"
        return popen([command[0], "-c", program, *command[3:]], **options)

    def killed():
        address = f"http://127.0.0.1:{opened.getsockname()[1]}/events"
        with page as (process, pipe), httpx.stream("GET", address, timeout=60) as stream:
            assert stream.status_code == 200
            with socket.socket(fileno=os.dup(pipe.fileno())) as ours:
                ours.shutdown(socket.SHUT_RDWR)  # as the end of the service does
            process.wait(60)

    popen = subprocess.Popen
    monkeypatch.setattr("mmqjp.web.serving.subprocess.Popen", with_patient_server)
    options = PageOptions(str(tmp_path), "127.0.0.1", no_token=True)
    with Session("duckdb", state=tmp_path) as engine, listen("127.0.0.1", 0) as opened:
        page = page_process(options, opened, CursorReader(engine), NullLog(), Event())
        with pytest.raises(PageEnded, match="status 1"):
            killed()


def test_an_address_in_use_is_waited_for_and_then_said(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("mmqjp.web.serving.ADDRESS_SECONDS", 0.1)
        done = mmqjp("serve", "--state", tmp_path / "state", "--address", f"127.0.0.1:{port}")
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in done.stderr
        assert not (tmp_path / "state").exists()
        monkeypatch.undo()
        listen("127.0.0.1", port, lambda seconds: taken.close()).close()


def test_the_demo_shows_every_query_with_what_it_is_for_and_why_it_matched():
    result = mmqjp("demo", "--engine", "duckdb")
    assert (result.exit_code, result.stderr) == (0, "")
    shown, flat = result.stdout, " ".join(result.stdout.split())
    assert "11 standing queries, 32 entries of 7 feeds, on duckdb." in shown
    joins = ("same_story", "follow_up", "book_blog", "retitled", "correction", "new_from_author", "bargain")
    for name in (*joins, "nearly_same", "silent", "first_cut", "first_release"):
        assert re.search(rf"^{name}  [A-Z].*", shown, re.MULTILINE)
    for reason in (
        '"Old observatory to reopen in spring" = "Old Observatory to Reopen in Spring" by lower-case',
        'nothing with channel_url = channel_url "https://tinkervale.example/" followed within 6 d, until 2026-11-11',
    ):
        assert reason in flat
    *_, count, how, see, serve = shown.rstrip().splitlines()
    assert count.startswith("19 matches.")
    assert how == "  mmqjp run --queries FILE.xscl --documents DIRECTORY --feeds"
    assert (see, serve) == ("See the same in a browser:", "  mmqjp demo --serve")
    assert "\x1b" not in shown and max(map(len, shown.splitlines())) <= 100
    text = "-- of the file\n\n-- one\n-- more\nFROM S//a PUBLISH x;\n\nFROM b PUBLISH y; -- not z\nFROM c PUBLISH z"
    assert purposes(text, parse_script(text)) == {"x": "one more", "y": "", "z": ""}


def test_it_is_served(monkeypatch):
    """The options with which `mmqjp serve` is called are right, and so is what they make of the packaged example."""
    seen = []

    def look(engine, log, stop):
        seen.append(engine)
        return nullcontext(lambda: False)

    def run(given, beside):
        run_service(replace(given, trigger=None), look)
        seen.append(given)

    monkeypatch.setattr("mmqjp.commands.serve.run_service", run)
    result = mmqjp("demo", "--serve", "--engine", "duckdb")
    assert result.exit_code == 0, result.stderr
    assert "outputs=16" in result.stderr
    assert not seen[-1].state.exists()
