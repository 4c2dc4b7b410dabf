"""Files that only their owner may read: they have passwords of feeds, or are part of a state."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def own(path: Path) -> None:
    """Makes a file, if it is missing, that only its owner may read and write, and takes it from others if it is there.
    What SQLite makes beside it is like it."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    mode = path.stat().st_mode
    if mode & 0o077:
        with suppress(PermissionError):  # it is somebody else's
            path.chmod(mode & 0o700)


def as_its_directory(path: str, flags: int) -> int:
    """Opens a file that is its owner's where the directory is, and else whoever's the umask lets."""
    others = Path(path).parent.stat().st_mode & 0o077
    return os.open(path, flags | os.O_CLOEXEC, 0o666 if others else 0o600)
