"""Locks on open files. A lock ends with the process that has it, however that ends."""

from __future__ import annotations

import fcntl


def lock(handle: int, *, shared: bool = False) -> bool:
    """Locks an open file until it is closed, together with others if `shared`. Returns False if another process has
    locked it. Raises OSError if files cannot be locked here."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(handle: int) -> None:
    """Lets others lock the file. Raises OSError."""
    fcntl.flock(handle, fcntl.LOCK_UN)
