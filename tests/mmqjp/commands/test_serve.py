"""`mmqjp serve` as a process: it holds a store or attaches to a service, and says what is wrong."""

import json
import os
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.support.cli import DOCUMENTS, mmqjp, write_documents, write_queries
from tests.support.served import served


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    return write_queries(tmp_path)


def totals(output: Path) -> dict[str, int]:
    names = [json.loads(line)["query"] for line in output.read_text().splitlines()]
    return {name: names.count(name) for name in names}


def test_it_holds_the_store_and_another_attaches(tmp_path, queries):
    drops, state, output = tmp_path / "drops", tmp_path / "state", tmp_path / "out.jsonl"
    drops.mkdir()
    options = "--queries", queries, "--source", drops, "--lateness", "INF", "--output", output, "--log", "json"
    with served(state, *options) as page, page.client() as client:
        assert client.get("/api/v1/queries").json()["names"] == 2
        write_documents(tmp_path / "d.jsonl", DOCUMENTS).rename(drops / "d.jsonl")
        while not output.exists() or len(output.read_text().splitlines()) < 2:
            assert page.process.poll() is None
        while (found := client.get("/api/v1/queries").json())["never"]:
            assert page.process.poll() is None  # the page may lag a commit behind the file
        assert {row["name"]: row["total"] for row in found["rows"]} == totals(output)
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
            assert "of a person" in beside.get("/sql", params={"sql": "SELECT 'of a person'"}).text
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


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_finished_store_is_shown_to_who_has_the_link_until_its_process_is_killed(tmp_path, queries):
    documents, state = write_documents(tmp_path / "d.jsonl", DOCUMENTS), tmp_path / "state"
    done = mmqjp("run", "--engine", "duckdb", "--queries", queries, "--documents", documents, "--state", state)
    assert done.exit_code == 0
    with served(state) as page:
        with httpx.Client(follow_redirects=True, timeout=60) as browser:
            assert "book_blog" in browser.get(page.link).text
            assert "book_blog" in browser.get(page.url).text
        assert httpx.get(page.link).status_code == 200 and "has been used" in httpx.get(page.link).text
        assert httpx.get(f"{page.url}/healthz").text == "ok\n"
        (child,) = children(page.process.pid)
        os.kill(child, signal.SIGKILL)
        status, said = page.ended()
        assert status == 1
        assert "mmqjp: error: the page is not served any more: its process ended with status -9" in said


def test_the_page_ends_with_the_service(tmp_path):
    with served(tmp_path / "state") as page:
        (child,) = children(page.process.pid)
        page.process.kill()
        page.process.wait(120)
        while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
            pass  # it ends by itself


def test_a_port_in_use_is_said_before_anything_else(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = mmqjp("serve", "--state", tmp_path / "state", "--address", f"127.0.0.1:{port}")
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in done.stderr
        assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("--address", "here"), "write HOST:PORT"),
        (("--address", "127.0.0.1:99999"), "write HOST:PORT"),
        (("--public-url", "ftp://x"), "no URL of a site"),
        (("--public-url", "https://x/y"), "no URL of a site"),
        (("--no-token", "--address", "0.0.0.0:0"), "--no-token is for loopback addresses"),
        (("--trigger", "available-now"), "--trigger is a duration here"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, options, wanted):
    done = mmqjp("serve", "--state", tmp_path / "state", *options)
    assert done.exit_code == 2 and wanted in done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.soak
@pytest.mark.spark
def test_on_spark_the_page_reads_the_files(tmp_path, queries):
    state, drops = tmp_path / "state", tmp_path / "drops"
    drops.mkdir()
    options = "--engine", "spark", "--queries", queries, "--source", drops, "--lateness", "INF"
    with served(state, *options) as page, page.client() as client:
        write_documents(tmp_path / "d.jsonl", DOCUMENTS).rename(drops / "d.jsonl")
        while (found := client.get("/api/v1/queries").json())["never"]:
            assert page.process.poll() is None
        assert sum(row["total"] for row in found["rows"]) > 1
        with served(state) as other, other.client() as beside:
            assert beside.get("/api/v1/queries").json() == client.get("/api/v1/queries").json()
            assert beside.post("/api/v1/queries/book_blog/pause").json() == {"names": ["book_blog"]}
            assert other.stop()[0] == 0
        assert page.stop()[0] == 0
