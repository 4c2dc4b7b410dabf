"""Serves the page in a process of its own, beside the service in this one. Each ends when the other does."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from threading import Event, Thread
from types import TracebackType
from typing import Self

from common.errors import OperationalError
from mmqjp.service.log import Log
from mmqjp.web.questions import QuestionServer
from mmqjp.web.readers import CursorReader
from mmqjp.web.serve_page import PageOptions

END_SECONDS = 15.0
"""So long the process may take to end; then it is killed."""


class PageEnded(OperationalError, RuntimeError):
    """The process that serves the page has ended by itself."""


class PageProcess:
    """A context manager: inside it, another process serves the page. `stop` is set if that ends before.

    `reader` answers its questions over the store; it is None if that process reads the files of a store itself.
    """

    def __init__(
        self, options: PageOptions, listening: socket.socket, reader: CursorReader | None, log: Log, stop: Event
    ) -> None:
        self._options, self._listening, self._reader = options, listening, reader
        self._log, self._stop = log, stop
        self._ending = False

    def __enter__(self) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            kept = self._listening.fileno(), theirs.fileno()
            command = [sys.executable, "-m", "mmqjp.web.child", json.dumps(self._options.to_dict()), *map(str, kept)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=kept)
        self._pipe = Connection(ours.detach())
        self._thread = Thread(target=self._run, name="mmqjp page", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ended_before, self._ending = self._process.poll(), True
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(END_SECONDS)
        self._pipe.close()
        if ended_before is not None and error is None:
            raise PageEnded(f"the page is not served any more: its process ended with status {ended_before}")

    def _run(self) -> None:
        try:
            QuestionServer(self._pipe, self._reader).run()
        finally:
            if not self._ending:
                self._log.event("serve-failed", status=self._process.wait())
                self._stop.set()
