"""Who holds a state directory: one process at a time, whose name others are told."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from feeds.document import Clock, now_us
from join_stage.engine import StoreError

OWNER = "owner"
"""The file of a state directory that its holder has locked; it says who that is."""


class InUse(StoreError):
    """Another process holds the state directory."""


class Ownership:
    """A state directory held by this process until `release`, or until it ends in whatever way.

    Raises InUse, with who holds it, and StoreError if the directory cannot be made.
    """

    def __init__(self, directory: Path, now: Clock = now_us) -> None:
        path = directory / OWNER
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"cannot open the store in {directory}: {error}") from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._handle)
            raise InUse(f"the store in {directory} is in use by {_holder(path)}") from None
        os.ftruncate(self._handle, 0)
        os.write(self._handle, json.dumps(_self(now())).encode())

    def release(self) -> None:
        """Lets others hold it."""
        os.close(self._handle)


def is_held(directory: Path) -> bool:
    """Whether a process holds the state directory."""
    try:
        handle = os.open(directory / OWNER, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
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
