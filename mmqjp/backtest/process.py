"""Runs a back-test in a child process, killed on timeout or cancellation. The parent prepares the script and streams
documents to the child's standard input; the child runs them in an in-memory engine and writes its progress as lines of
JSON. Time and memory are limited on both sides."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from typing import IO

import pyarrow as pa

from common import child
from common.errors import InputError, OperationalError
from feeds.documents import Document, Reject
from join_stage.store.protocol import Question, QuestionInterrupted
from mmqjp.backtest.script import (
    DOCUMENTS,
    MOST_CHARACTERS,
    MOST_DOCUMENTS,
    Backtest,
    PreparedScript,
    TrialRequest,
    prepared,
    read_batches,
    select_newest_documents,
    try_script,
)
from mmqjp.engine import Session

BACKTEST_SECONDS, MEMORY = 60.0, 1 << 30
"""Default limits, in seconds and bytes."""

OWN_SHARE = 0.9
"""Fraction of its time after which the process stops by itself, between two batches."""

POLL = 0.05
"""Seconds between two polls of the process."""

WORKER = (sys.executable, "-P", "-m", "mmqjp.backtest.process")
"""Command of the process. Nothing in the working directory is imported."""

_one_at_a_time = Lock()


class BacktestRefused(InputError, ValueError):
    """A script that cannot be run; the message says why."""


class BacktestFailed(OperationalError, RuntimeError):
    """A back-test without a result; the message says why."""


class BacktestEnded(OperationalError, RuntimeError):
    """A cancelled back-test."""


def run_process(
    request: TrialRequest,
    batches: Iterable[pa.RecordBatch],
    *,
    stop: Event | None = None,
    clock: Callable[[], float] = time.monotonic,
    command: Sequence[str] = WORKER,
) -> Backtest:
    """Runs a request over batches of DOCUMENTS, which another thread reads.

    If it exceeds `request.seconds`, or its process is killed, the result is the last progress report, cut short. Runs
    are serialized within this process. `stop` cancels.

    Raises BacktestRefused, BacktestFailed, BacktestEnded, and what iterating `batches` raises.
    """
    ended = Event() if stop is None else stop
    while not _one_at_a_time.acquire(timeout=POLL):
        if ended.is_set():
            raise BacktestEnded("nobody waits for the back-test any more")
    try:
        return _Running(request, batches, clock, command).result(ended)
    finally:
        _one_at_a_time.release()


class _Running:
    def __init__(
        self,
        request: TrialRequest,
        batches: Iterable[pa.RecordBatch],
        clock: Callable[[], float],
        command: Sequence[str],
    ) -> None:
        self._request, self._batches, self._clock = request, batches, clock
        self._start = clock()
        self._reported: Backtest | None = None
        self._refused: str | None = None
        self._failed: str | None = None
        self._done = False
        self._unread: BaseException | None = None
        self._over = False
        self._process = child.start([*command, str(os.getpid())])
        assert self._process.stdin is not None and self._process.stdout is not None
        self._writer = Thread(target=self._write, args=(self._process.stdin,), name="mmqjp back-test", daemon=True)
        self._reader = Thread(target=self._read, args=(self._process.stdout,), name="mmqjp back-test", daemon=True)

    def result(self, stop: Event) -> Backtest:
        """Waits for the result and the end of the process."""
        self._writer.start()
        self._reader.start()
        late = False
        try:
            while self._reader.is_alive() and not stop.is_set() and self._unread is None:
                late = self._clock() - self._start >= self._request.seconds
                if late:
                    break
                self._reader.join(POLL)
        finally:
            self._over = True
            status = self._process.poll() if self._reader.is_alive() else self._process.wait()
            self._process.kill()
            self._process.wait()
            self._reader.join()
            self._writer.join()
        return self._outcome(stop, late=late, status=status)

    def _outcome(self, stop: Event, *, late: bool, status: int | None) -> Backtest:
        if self._refused is not None:
            raise BacktestRefused(self._refused)
        if self._unread is not None:
            raise self._unread
        if stop.is_set():
            raise BacktestEnded("nobody waits for the back-test any more")
        if self._done and self._reported is not None:
            return self._reported
        if self._failed is not None:
            why = self._failed
        elif late:
            why = f"it took more than {self._request.seconds:g} s"
        else:
            why = f"its process ended (status {status})"
        if self._reported is None:
            raise BacktestFailed(f"the back-test has no result: {why} before the first documents were done")
        return replace(self._reported, cut_short=why)

    def _write(self, pipe: IO[bytes]) -> None:
        asked = asdict(replace(self._request, seconds=self._request.seconds * OWN_SHARE))
        try:
            with suppress(BrokenPipeError), pipe:  # its end tells more
                pipe.write(json.dumps(asked).encode() + b"\n")
                with pa.ipc.new_stream(pipe, DOCUMENTS) as stream:
                    for batch in self._batches:
                        if self._over:
                            return
                        stream.write_batch(batch)
        except BaseException as error:  # whoever asked gets it
            if not self._over:
                self._unread = error

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                try:
                    found = json.loads(line)
                except ValueError:
                    return  # the process was killed while it wrote
                if "result" in found:
                    self._reported = Backtest.from_dict(found["result"])
                self._done = "done" in found
                self._refused, self._failed = found.get("refused"), found.get("failed")


@dataclass(frozen=True, slots=True)
class BacktestLimits:
    """Seconds, memory of the process in bytes, and maximum number of (newest) documents."""

    seconds: float = BACKTEST_SECONDS
    memory: int = MEMORY
    documents: int = MOST_DOCUMENTS
    characters: int = MOST_CHARACTERS


DEFAULT = BacktestLimits()


class StoreBacktest:
    """A single-use back-test over a store's documents, read-only and in any thread while another uses the session.
    `command` starts its process."""

    def __init__(
        self, engine: Session, text: str, limits: BacktestLimits = DEFAULT, command: Sequence[str] = WORKER
    ) -> None:
        self._engine, self._text, self._limits, self._command = engine, text, limits, command
        self._stop = Event()
        self._question: Question | None = None

    def run(self) -> Backtest:
        """Returns the result. Raises XsclErrors and other errors in the script, BacktestFailed, BacktestEnded,
        StoreError."""
        try:
            script = prepared(self._text, self._engine.registry)
            kept = select_newest_documents(self._ask, script.streams, self._limits.documents, self._limits.characters)
            request = _request(script, self._limits)
            found = run_process(request, kept.batches, stop=self._stop, command=self._command)
        except QuestionInterrupted:
            raise BacktestEnded("nobody waits for the back-test any more") from None
        cut = found.cut_short
        if cut is None and kept.chosen < kept.total:
            cut = f"only the newest {kept.chosen:,} documents are tried"
        return replace(_with_script(found, script), kept=kept.total, cut_short=cut)

    def interrupt(self) -> None:
        """Cancels. Thread-safe; may be repeated."""
        self._stop.set()
        if self._question is not None:
            self._question.interrupt()

    def _ask(self, sql: str) -> pa.Table:
        self._question = self._engine.question(sql, own=True)
        if self._stop.is_set():
            raise BacktestEnded("nobody waits for the back-test any more")
        return self._question.answer()


def backtest_documents(
    script: PreparedScript, documents: Iterable[Document | Reject], limits: BacktestLimits = DEFAULT
) -> Backtest:
    """Back-tests over documents as they are read. Raises what `StoreBacktest.run` does."""
    refused = given = 0

    def refuse() -> None:
        nonlocal refused
        refused += 1

    def counted(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        nonlocal given
        for batch in batches:
            given += batch.num_rows
            yield batch

    found = run_process(_request(script, limits), counted(read_batches(documents, script.streams, refuse)))
    return replace(_with_script(found, script), kept=given, refused=found.refused + refused)


def _request(script: PreparedScript, limits: BacktestLimits) -> TrialRequest:
    return TrialRequest(script.text, tuple(text for _, text in script.publishers), limits.seconds, limits.memory)


def _with_script(found: Backtest, script: PreparedScript) -> Backtest:
    names = tuple(dict.fromkeys(name for name, _ in script.publishers))
    return replace(found, novelty=script.novelty, publishers=names)


NICE = 10
"""Niceness of the process."""

MORE_MEMORY = 2 << 30
"""Bytes of data that the system limit allows beyond `memory`."""

TOO_LARGE = 1.25
"""Multiple of `memory` above which the process ends within a batch."""

MORE_SECONDS = 30
"""Extra CPU seconds, per core, before the system kills the process."""


def main() -> None:
    """Runs one request. Each output line is a JSON object: a `result` so far; finally `done`, or why the script was
    `refused` or the work `failed`. The arguments identify the parent process."""
    answer = _Answer()
    os.nice(NICE)
    child.end_with_parent(int(sys.argv[1]))
    found = json.loads(sys.stdin.buffer.readline())
    request = TrialRequest(found["text"], tuple(found["publishers"]), found["seconds"], found["memory"])
    child.lower(resource.RLIMIT_CORE, 0)
    child.lower(resource.RLIMIT_DATA, request.memory + MORE_MEMORY)
    child.lower(resource.RLIMIT_CPU, int(request.seconds + MORE_SECONDS) * (os.cpu_count() or 1))
    child.end_when(partial(_is_too_large, request.memory, answer))
    try:
        with pa.ipc.open_stream(sys.stdin.buffer) as batches:
            for result in try_script(request, iter(batches), time.monotonic, _peak_memory):
                answer.write(result=result.to_dict())
        answer.write(done=True)
    except BrokenPipeError:
        return  # nobody waits any more
    except InputError as error:
        answer.write(refused=str(error).strip())
    except Exception as error:
        answer.write(failed=str(error).strip() or type(error).__name__)


class _Answer:
    """Standard output; any thread may write whole lines."""

    def __init__(self) -> None:
        self._lock, self._file = Lock(), os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # what libraries print is no answer

    def write(self, **found: object) -> None:
        with self._lock:
            print(json.dumps(found), file=self._file, flush=True)


def _is_too_large(memory: int, answer: _Answer) -> bool:
    if _peak_memory() <= memory * TOO_LARGE:
        return False
    answer.write(failed=f"it needed more than {memory >> 20:,} MiB of memory")
    return True


def _peak_memory() -> int:
    """Peak memory in bytes. `getrusage` would count that of the parent, possibly a large service."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


if __name__ == "__main__":
    main()
