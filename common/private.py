"""Who may read and write a state: its owner alone or, if it is marked as shared, everybody whom the umask lets.

Directories and files of a state get their modes explicitly. A umask holds for the whole process, whose output files are
to follow the user's. A directory that the user made keeps its mode, and what we make in it is private all the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SHARED = "shared"
"""The file in a state directory that marks the state as shared."""

OTHERS = 0o077
"""The bits of a mode that are for anyone but the owner."""


def is_shared(state: Path) -> bool:
    """Whether the umask decides who may use a state."""
    return (state / SHARED).exists()


def share(state: Path) -> None:
    """Marks a state as shared, and makes its directory if it is missing. What is made in it later follows the umask.
    Raises OSError."""
    state.mkdir(parents=True, exist_ok=True)
    (state / SHARED).touch()


def make_state(state: Path) -> None:
    """Makes a state directory, and those above it, where they are missing. Raises OSError."""
    state.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        state.mkdir(0o700)
    if not state.is_dir():
        raise NotADirectoryError(f"{state} is no directory")


def make_inside(state: Path, *names: str) -> Path:
    """Makes a directory inside a state directory, and those on the way to it. Returns its path. Raises OSError."""
    mode = 0o777 if is_shared(state) else 0o700
    path = state
    for name in names:
        path = path / name
        with suppress(FileExistsError):
            path.mkdir(mode)
        if mode == 0o700:
            keep_private(path)  # an older version may have made it
    return path


def make_lock(state: Path, name: str) -> int:
    """Opens a lock's file in a state directory, and makes it if it is missing. Only those who may write the state may
    open it, since whoever opens the file can take the lock. Returns its descriptor. Raises OSError."""
    path = state / name
    with suppress(FileExistsError):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if is_shared(state) else 0o600)
        mode = os.fstat(handle).st_mode & 0o777
        os.fchmod(handle, mode & (mode & 0o222) * 3)  # whoever may not write it may not read it: 0o644 becomes 0o600
        return handle
    if not is_shared(state):
        keep_private(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def umask_of(*, shared: bool) -> Iterator[None]:
    """Sets the umask for a process that is started meanwhile, and writes into a state and nowhere else."""
    before = os.umask(OTHERS)
    if shared:
        os.umask(before)
    try:
        yield
    finally:
        os.umask(before)


def open_like_directory(path: str | Path, flags: int) -> int:
    """An `opener` for `open`: a new file is its owner's alone if the directory is, and else follows the umask."""
    others = Path(path).parent.stat().st_mode & OTHERS
    return os.open(path, flags | os.O_CLOEXEC, 0o666 if others else 0o600)


def keep_private(path: Path) -> None:
    """Makes a file or directory its owner's alone if it is there and ours: a library or an older version made it."""
    with suppress(FileNotFoundError, PermissionError):
        mode = path.stat().st_mode
        if mode & OTHERS:
            path.chmod(mode & 0o700)


def make_private_file(path: Path) -> None:
    """Makes a file if it is missing, and makes it its owner's alone if it is there. Files that SQLite puts beside it
    get the same mode. Raises OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    keep_private(path)
