"""The process of a back-test: whatever ends it, what it reported counts, is told to be cut short, and it is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest

from common.errors import InputError
from join_stage.store.protocol import StoreError
from mmqjp.backtest import process
from mmqjp.backtest.process import NICE, WORKER, BacktestEnded, BacktestFailed, BacktestRefused, run_process
from mmqjp.backtest.script import DOCUMENTS, Backtest, QueryResult, TrialRequest

REPORTED = Backtest(documents=7, queries=(QueryResult("q", 3),))
REQUEST = TrialRequest("FROM S//a", (), 60, 1 << 60)
REPORT = f"import os, sys, signal; sys.stdin.buffer.readline(); print({json.dumps({'result': REPORTED.to_dict()})!r}, "
REPORT += "flush=True); "
HANG = "sys.stdin.buffer.read(); signal.pause()"


class Jumping:
    """A clock that jumps behind the end of all time limits once something has happened."""

    def __init__(self, happened: Callable[[], object]) -> None:
        self._happened = happened

    def __call__(self) -> float:
        return 1e9 if self._happened() else 0.0


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[process._Running]:
    found: list[process._Running] = []
    made = process._Running.__init__

    def noting(self: process._Running, *arguments: object) -> None:
        made(self, *arguments)  # type: ignore[arg-type]  # as it was called
        found.append(self)

    monkeypatch.setattr(process._Running, "__init__", noting)
    return found


def rows(count: int) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        yield pa.RecordBatch.from_pylist(
            [{"id": f"d{number}", "stream": "S", "t0": number, "t1": number, "xml": b"<a/>"}], DOCUMENTS
        )


def test_a_process_that_takes_too_long_is_killed_and_its_report_counts(started: list[process._Running]):
    clock = Jumping(lambda: started and started[0]._reported)
    found = run_process(REQUEST, (), clock=clock, command=python(REPORT + HANG))
    assert found == replace(REPORTED, cut_short="it took more than 60 s")
    assert started[0]._process.returncode is not None


def test_one_that_takes_too_long_for_any_report_has_no_result(started: list[process._Running]):
    with pytest.raises(BacktestFailed, match="it took more than 60 s before the first documents were done"):
        run_process(REQUEST, (), clock=Jumping(lambda: started), command=python(f"import sys, signal; {HANG}"))
    assert started[0]._process.returncode is not None


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "its process ended (status -9)"),
        ("sys.stdout.write('{\"result\": {'); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)",
         "its process ended (status -9)"),
        ('print(\'{"failed": "no room"}\')', "no room"),
    ],
)  # fmt: skip
def test_what_a_process_reported_before_it_ended_counts(after: str, why: str):
    assert run_process(REQUEST, (), command=python(REPORT + after)) == replace(REPORTED, cut_short=why)


def test_a_process_that_ends_without_a_word_has_no_result():
    with pytest.raises(BacktestFailed, match=r"its process ended \(status 3\)"):
        run_process(REQUEST, (), command=python("raise SystemExit(3)"))


def test_it_ends_when_nobody_waits(started: list[process._Running]):
    stop = Event()

    def clock() -> float:
        if started and started[0]._reported:
            stop.set()
        return 0.0

    with pytest.raises(BacktestEnded):
        run_process(REQUEST, (), stop=stop, clock=clock, command=python(REPORT + HANG))
    assert started[0]._process.returncode is not None
    with pytest.raises(BacktestEnded), process._one_at_a_time:  # so does one that waits for its turn
        run_process(REQUEST, (), stop=stop)
    assert len(started) == 1


def test_documents_that_cannot_be_read_end_it(started: list[process._Running]):
    def damaged() -> Iterator[pa.RecordBatch]:
        yield from rows(1)
        raise StoreError("the store is damaged")

    with pytest.raises(StoreError, match="damaged"):
        run_process(REQUEST, damaged(), command=python(REPORT + HANG))
    assert started[0]._process.returncode is not None


def test_an_interrupt_ends_it(started: list[process._Running]):
    def interrupted() -> float:
        if started and started[0]._reported:
            raise KeyboardInterrupt
        return 0.0

    with pytest.raises(KeyboardInterrupt):
        run_process(REQUEST, (), clock=interrupted, command=python(REPORT + HANG))
    assert started[0]._process.returncode is not None
    assert not process._one_at_a_time.locked()


def test_a_script_that_cannot_be_registered_is_refused():
    with pytest.raises(BacktestRefused, match="cycle of PUBLISHed names"):
        run_process(replace(REQUEST, text="FROM p//a PUBLISH q", publishers=("FROM q//a PUBLISH p",)), rows(1))
    assert issubclass(BacktestRefused, InputError)


def test_it_ends_when_a_batch_needs_far_too_much_memory():
    many = "<r>" + "<a>v</a>" * 100 + "</r>"
    batch = pa.RecordBatch.from_pylist(
        [{"id": f"d{n}", "stream": "S", "t0": n, "t1": n, "xml": many.encode()} for n in range(1000)], DOCUMENTS
    )
    try:
        why = run_process(replace(REQUEST, text="FROM S//a PUBLISH all", memory=1 << 20), iter([batch])).cut_short
    except BacktestFailed as error:  # it may end before its first report
        why = str(error)
    assert "it needed more than 1 MiB of memory" in str(why)


def until(done: Callable[[], object]) -> None:
    for _ in range(6000):
        if done():
            return
        Event().wait(0.01)
    raise AssertionError("it never came")


def test_it_gives_way_to_others_and_ends_when_who_asked_is_killed():
    """The worker of a process that is killed gets no signal of its own."""
    code = "import os, subprocess, sys; "
    code += f"worker = subprocess.Popen([*{WORKER!r}, str(os.getpid())], stdin=sys.stdin); "
    code += "print(worker.pid, flush=True); worker.wait()"
    own = os.getpriority(os.PRIO_PROCESS, os.getpid())
    with subprocess.Popen(python(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        pid = int(asking.stdout.readline())
        until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == min(own + NICE, 19))
        asking.kill()
        until(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())


def test_all_documents_reach_it_and_it_says_that_it_is_done():
    found = run_process(REQUEST, rows(100))
    assert (found.documents, found.outputs, found.cut_short) == (100, 100, None)


def test_the_memory_of_whoever_started_it_does_not_count():
    large = bytearray(b"x") * (400 << 20)
    command = "from mmqjp.backtest.process import _peak_memory; print(_peak_memory())"
    found = subprocess.run([sys.executable, "-c", command], capture_output=True, check=True, text=True)
    assert 0 < int(found.stdout) < len(large)
