"""What a store tells of itself: status, metrics, and what a service says of each batch."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.service.log import NullLog
from mmqjp.service.metrics import Metrics
from mmqjp.service.status import store_status
from tests.mmqjp.documents.test_time import HOUR, NOW, SECOND, WINDOW, doc
from tests.support.cli import mmqjp
from tests.support.faults import FaultySession
from tests.support.service import PAIRS, Directory, Events, StopAfter


def test_status_is_the_same_running_and_stopped(tmp_path: Path):
    with Session("duckdb", state=tmp_path, lateness=HOUR) as engine:
        engine.subscribe(f"{WINDOW}; T//b->x FOLLOWED BY {{x = y, 5}} T//b->y PUBLISH other")
        engine.pause("other")
        engine.process([doc(0), doc(1), doc(5, "T"), Document("bad", "<a>", time=NOW)])
        found = store_status(engine).to_dict()
    told = json.loads(mmqjp("status", "--state", tmp_path, "--json").stdout)
    for key in ("batches", "state_bytes"):  # a store that is closed keeps its costs, in one more
        assert told.pop(key) and found.pop(key)
    assert told == json.loads(json.dumps(found))
    assert {key: told[key] for key in ("queries", "paused", "documents", "outputs", "dead_letters")} == {
        "queries": 2, "paused": 1, "documents": 3, "outputs": 2, "dead_letters": 1
    }  # fmt: skip
    assert told["horizon"] == NOW + SECOND - HOUR and told["evictable_before"] == NOW - 9 * SECOND - HOUR
    assert told["streams"][0] == {
        "stream": "S", "documents": 2, "bytes": 16, "latest": NOW + SECOND, "watermark": NOW + SECOND - HOUR
    }  # fmt: skip
    text = mmqjp("status", "--state", tmp_path).stdout
    assert "queries        2, 1 of them paused" in text and "2027-01-15T07:00:01Z" in text


def test_metrics_tell_what_the_log_and_the_status_do(tmp_path: Path):
    place = Directory(tmp_path)
    place.drop("1.jsonl", range(3))
    events = Events()
    metrics = Metrics(events, now=lambda: 12 * SECOND)
    place.ask("subscribe", text=PAIRS, add=False, backfill=False)
    with Session("duckdb", state=place.state, lateness=SECOND, now=lambda: 5 * SECOND) as engine:
        service = place.service(engine, metrics, on_idle=lambda e: metrics.update(store_status(e)))
        service.run(None, StopAfter(10**9))
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.serve(0)}/metrics") as response:
        text = response.read().decode()
    for line in (
        "mmqjp_documents_total 3.0", "mmqjp_outputs_total 3.0", "mmqjp_dead_letters_total 0.0",
        "mmqjp_batch_seconds_count 1.0", 'mmqjp_commands_total{do="subscribe"} 1.0',
        'mmqjp_queries{state="active"} 1.0', 'mmqjp_watermark_seconds{stream="S"} 1.0',
        'mmqjp_kept_documents{stream="S"} 3.0', "mmqjp_evictable_before_seconds -9.0",
        "mmqjp_lag_seconds 10.0", "mmqjp_waiting_files 0.0",
    ):  # fmt: skip
        assert line in text.splitlines()
    assert re.search(r"^mmqjp_state_bytes [1-9]", text, re.M)
    (batch,) = events.named("batch")
    assert (batch["lag_seconds"], batch["waiting_files"]) == (3.0, 0) and batch["state_bytes"]
    with Session("duckdb") as engine:
        Metrics(NullLog()).update(store_status(engine))


def test_a_batch_tells_how_many_files_wait(tmp_path: Path):
    place, events = Directory(tmp_path), Events()
    for name in range(3):
        place.drop(f"{name}.jsonl", range(name * 4, name * 4 + 4))
    place.run(PAIRS, events=events, batch_size=5)
    assert [batch["waiting_files"] for batch in events.named("batch")] == [1, 0, 0]


def test_status_asks_a_store_once(tmp_path: Path):
    FaultySession("duckdb", state=tmp_path).close()
    with FaultySession("duckdb", state=tmp_path) as engine:
        engine.process([doc(0), doc(0, "T")])
        asked: list[str] = []
        select = engine.store.select

        def noted(sql: str, views: Mapping[str, pa.Table] | None = None) -> pa.Table:
            asked.append(sql)
            return select(sql, views)

        with engine.store.instead(select=noted):
            store_status(engine)
            assert len(asked) <= 3  # settings are read once
            store_status(engine)
            assert len(asked) <= 4


def test_metrics_that_cannot_be_served_are_told(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = mmqjp("stream", "--engine", "duckdb", "--source", tmp_path, "--state", tmp_path / "state",
                       "--metrics-port", str(port), "--trigger", "available-now")  # fmt: skip
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith(f"mmqjp: error: metrics cannot be served at 127.0.0.1:{port}: ")
