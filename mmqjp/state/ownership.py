"""Locks a state directory: for one writer at a time, or for any number of readers."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from common.lock import lock, unlock
from common.private import make_lock, make_state
from feeds.times import Now, now_us
from join_stage.store.protocol import StoreError

OWNER_FILE = "owner"
"""The lock file in a state directory. The writer locks it and writes its name into it; readers share the lock."""

LOCK_TIMEOUT = 120.0
"""How long a writer waits for readers, in seconds."""

LOCK_RETRY = 0.05
"""The time between attempts, in seconds."""


class InUse(StoreError):
    """Another process holds the state directory."""


class Ownership:
    """Exclusive ownership of a state directory, until `release` or the end of the process.

    Waits up to `timeout` seconds for readers; `sleep` waits between attempts. Raises InUse, with the name of the
    holder, and StoreError if the directory cannot be created.
    """

    def __init__(
        self,
        directory: Path,
        now: Now = now_us,
        *,
        timeout: float = LOCK_TIMEOUT,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        try:
            make_state(directory)
            self._handle = make_lock(directory, OWNER_FILE)
        except OSError as error:
            raise StoreError(f"cannot open the store in {directory}: {error}") from error
        try:
            waited = 0.0
            while not lock(self._handle):
                if not lock(self._handle, shared=True):
                    raise InUse(f"the store in {directory} is in use by {_holder(directory / OWNER_FILE)}")
                unlock(self._handle)
                if waited >= timeout:
                    raise InUse(f"the store in {directory} is being read by others; try again when they are done")
                sleep(LOCK_RETRY)
                waited += LOCK_RETRY
        except BaseException as error:
            os.close(self._handle)
            if isinstance(error, OSError):
                raise StoreError(f"cannot open the store in {directory}: {error}") from error
            raise
        os.ftruncate(self._handle, 0)
        os.write(self._handle, json.dumps(_self(now())).encode())

    def release(self) -> None:
        """Releases the lock."""
        os.close(self._handle)


class ReadLock:
    """A shared lock that keeps writers out of a state directory, until `release`. Raises InUse if a writer holds it.

    If this process cannot open the lock file, writers are not kept out.
    """

    def __init__(self, directory: Path) -> None:
        self._handle: int | None = None
        with suppress(OSError):
            self._handle = os.open(directory / OWNER_FILE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if self._handle is not None and not lock(self._handle, shared=True):
                raise InUse(f"the store in {directory} is in use by {_holder(directory / OWNER_FILE)}")
        except BaseException as error:
            self.release()
            if isinstance(error, OSError):
                raise StoreError(f"cannot read the store in {directory}: {error}") from error
            raise

    def release(self) -> None:
        """Releases the lock."""
        if self._handle is not None:
            os.close(self._handle)


def is_held(directory: Path) -> bool:
    """Returns whether a writer holds the state directory."""
    try:
        ReadLock(directory).release()
    except InUse:
        return True
    return False


def _self(now: int) -> dict[str, object]:
    name = " ".join([Path(sys.argv[0] or "python").name, *sys.argv[1:2]])
    return {"pid": os.getpid(), "command": name, "since": now}


def _holder(path: Path) -> str:
    try:
        notes = json.loads(path.read_bytes())
        since = datetime.fromtimestamp(notes["since"] // 1_000_000, UTC).isoformat().replace("+00:00", "Z")
        return f"process {int(notes['pid'])} ({notes['command']}, since {since})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
