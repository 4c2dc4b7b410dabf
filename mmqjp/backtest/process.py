"""Runs a back-test in a process of its own, which is ended when its time is over or nobody waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from threading import Event, Lock, Thread
from typing import IO

import pyarrow as pa

from common.errors import InputError, OperationalError
from mmqjp.backtest.result import Backtest
from mmqjp.backtest.trial import DOCUMENTS, Request

SECONDS, MEMORY = 60.0, 1 << 30
"""The default limits of a back-test."""

OWN_SHARE = 0.9
"""The part of its time after which a process ends by itself, between two batches."""

POLL = 0.05
"""Seconds between two looks at the process."""

WORKER = (sys.executable, "-P", "-m", "mmqjp.backtest.worker")
"""What starts the process. Nothing in the working directory is imported."""

_one_at_a_time = Lock()


class BacktestRefused(InputError, ValueError):
    """A script that cannot be run. The message says why."""


class BacktestFailed(OperationalError, RuntimeError):
    """A back-test that ended without a result. The message says why."""


class BacktestEnded(OperationalError, RuntimeError):
    """A back-test was ended because nobody waits for it."""


def run_process(
    request: Request,
    batches: Iterable[pa.RecordBatch],
    *,
    stop: Event | None = None,
    clock: Callable[[], float] = time.monotonic,
    command: Sequence[str] = WORKER,
) -> Backtest:
    """Runs a request over batches of DOCUMENTS, which are read in another thread, and returns its result.

    If it does not end in `request.seconds`, or if its process is killed, the result is the last one that it reported,
    cut short. One runs at a time in this process: others wait. `stop` ends it from outside.

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
    """A process with a thread that writes to it and one that reads from it."""

    def __init__(
        self,
        request: Request,
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
        self._process = subprocess.Popen(
            [*command, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,  # Ctrl-C is for whoever asked
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._writer = Thread(target=self._write, args=(self._process.stdin,), name="mmqjp back-test", daemon=True)
        self._reader = Thread(target=self._read, args=(self._process.stdout,), name="mmqjp back-test", daemon=True)

    def result(self, stop: Event) -> Backtest:
        """Waits for the result. The process has ended when this returns."""
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
