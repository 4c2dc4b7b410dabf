"""Who holds a state directory: one process at a time, whose name others are told, or any number that only look."""

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
from feeds.document import Clock, now_us
from join_stage.store.protocol import StoreError

OWNER = "owner"
"""The file of a state directory that its holder has locked; it says who that is. Those who look share the lock."""

PATIENCE = 120.0
"""Seconds for which whoever would hold a state waits for those who look at it."""

PAUSE = 0.05
"""Seconds between tries."""


class InUse(StoreError):
    """Another process holds the state directory."""


class Ownership:
    """A state directory held by this process until `release`, or until it ends in whatever way.

    It is waited for up to `patience` seconds while others only look; `sleep` lets some pass. Raises InUse, with who
    holds it, and StoreError if the directory cannot be made.
    """

    def __init__(
        self,
        directory: Path,
        now: Clock = now_us,
        *,
        patience: float = PATIENCE,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        try:
            make_state(directory)
            self._handle = make_lock(directory, OWNER)
        except OSError as error:
            raise StoreError(f"cannot open the store in {directory}: {error}") from error
        try:
            waited = 0.0
            while not lock(self._handle):
                if not lock(self._handle, shared=True):
                    raise InUse(f"the store in {directory} is in use by {_holder(directory / OWNER)}")
                unlock(self._handle)
                if waited >= patience:
                    raise InUse(f"the store in {directory} is being looked at by others; try again when they are done")
                sleep(PAUSE)
                waited += PAUSE
        except BaseException as error:
            os.close(self._handle)
            if isinstance(error, OSError):
                raise StoreError(f"cannot open the store in {directory}: {error}") from error
            raise
        os.ftruncate(self._handle, 0)
        os.write(self._handle, json.dumps(_self(now())).encode())

    def release(self) -> None:
        """Lets others hold it."""
        os.close(self._handle)


class Looking:
    """A state directory that nobody comes to hold until `release`; others may look, too. Raises InUse while it is held.

    Where the state may only be read, whoever would hold it is not kept from it.
    """

    def __init__(self, directory: Path) -> None:
        self._handle: int | None = None
        with suppress(OSError):
            self._handle = os.open(directory / OWNER, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if self._handle is not None and not lock(self._handle, shared=True):
                raise InUse(f"the store in {directory} is in use by {_holder(directory / OWNER)}")
        except BaseException as error:
            self.release()
            if isinstance(error, OSError):
                raise StoreError(f"cannot look at the store in {directory}: {error}") from error
            raise

    def release(self) -> None:
        """Lets others hold it."""
        if self._handle is not None:
            os.close(self._handle)


def is_held(directory: Path) -> bool:
    """Whether a process holds the state directory; those who look do not."""
    try:
        Looking(directory).release()
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
