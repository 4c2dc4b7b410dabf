"""Shows a store as it was a moment ago while what is new in it is being read, so that no page waits for that."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread, local

import pyarrow as pa

from common.errors import OperationalError
from join_stage.store.following import Committed
from join_stage.store.protocol import StoreError
from mmqjp.service.sql_question import MonotonicClock
from mmqjp.web.readers import StoreReader

LATE = 10.0
"""A page waits rather than show a store of which a newer batch may have been there for so many seconds."""


class SteadyReader:
    """A `StoreReader` around another, whose version is an older one until `prepare` has read what is new: `prepare` is
    called in a thread of its own, in which the version is the newest one. Versions are numbers that grow."""

    def __init__(self, reader: StoreReader, clock: MonotonicClock = time.monotonic) -> None:
        self._reader, self._clock = reader, clock
        self._prepare: Callable[[], object] | None = None
        self._lock, self._own = Lock(), local()
        self._known: object = None
        self._newest = self._shown = 0
        self._looked_at = self._newer_since = float("-inf")
        self._is_preparing = False

    def prepare_by(self, prepare: Callable[[], object]) -> None:
        """Has `prepare` called from now on."""
        self._prepare = prepare

    def begin(self) -> None:
        """Begins to read what there is, before anybody asks."""
        self.version()
        with self._lock:
            self._is_preparing = True
        Thread(target=self._run, args=(self._newest,), name="mmqjp news", daemon=True).start()

    def select(self, sql: str, limit: int, seconds: float, *, asked: bool = False, own: bool = False) -> pa.Table:
        """Returns the rows of a SELECT, as of the newest batch."""
        return self._reader.select(sql, limit, seconds, asked=asked, own=own)

    def version(self) -> int:
        """Returns the number of the version that is shown: in the thread that prepares, that of the newest."""
        with self._lock:
            looked_at, self._looked_at = self._looked_at, self._clock()
            if (version := self._reader.version()) != self._known:
                if self._shown == self._newest:
                    self._newer_since = looked_at  # nobody has looked in between
                self._known = version
                self._newest += 1
            if getattr(self._own, "prepares", False):
                return self._newest
            if self._prepare is None or self._looked_at >= self._newer_since + LATE:
                self._shown = self._newest
            elif self._shown < self._newest and not self._is_preparing:
                self._is_preparing = True
                Thread(target=self._run, args=(self._newest,), name="mmqjp news", daemon=True).start()
            return self._shown

    def committed(self, mark: int) -> Committed | None:
        """Returns what was committed since a look, as of the newest batch."""
        return self._reader.committed(mark)

    def refresh(self) -> None:
        """Is told that this process has just changed the store: what is read from now on shows that."""
        self._reader.refresh()
        with self._lock:
            self._known = self._reader.version()
            self._newest += 1
            self._shown = self._newest

    def close(self) -> None:
        """Ends what is being read."""
        self._reader.close()

    def _run(self, newest: int) -> None:
        self._own.prepares = True
        began_at = self._clock()
        try:
            assert self._prepare is not None
            with suppress(OperationalError, StoreError, OSError):  # whoever looks later asks, and learns of it
                self._prepare()
        finally:
            with self._lock:
                self._shown = max(self._shown, newest)
                self._newer_since = began_at
                self._is_preparing = False
