"""Locks on open files, which end with the process that has them, in whatever way it ends."""

from __future__ import annotations

import fcntl


def lock(handle: int, *, shared: bool = False) -> bool:
    """Locks an open file until it is closed, with others if `shared`; says whether it did, or another's lock is in the
    way. Raises OSError where files cannot be locked."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(handle: int) -> None:
    """Lets others lock the file. Raises OSError."""
    fcntl.flock(handle, fcntl.LOCK_UN)
