"""Who may read and write a state: its owner, or where a mark in it says so, whoever the umask of its processes lets.

Directories and files of a state are made with modes of their own. A umask would be one for the whole process, and its
outputs are the user's. A directory that the user has made stays as it is; what is made in it is its owner's still.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SHARED = "shared"
"""The file of a state directory that says that the umask is to tell who may read and write it."""

OTHERS = 0o077
"""The bits of a mode that are not its owner's."""


def is_shared(state: Path) -> bool:
    """Whether a state is for others, too."""
    return (state / SHARED).exists()


def share(state: Path) -> None:
    """Makes a state one for others: its directory, if it is not there, and what is made in it from now on."""
    state.mkdir(parents=True, exist_ok=True)
    (state / SHARED).touch()


def make_state(state: Path) -> None:
    """Makes a state directory, and those above it, if they are missing. Raises OSError."""
    state.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        state.mkdir(0o700)
    if not state.is_dir():
        raise NotADirectoryError(f"{state} is no directory")


def make_inside(state: Path, *names: str) -> Path:
    """Makes a directory in a state directory, and those on the way to it, and returns it. Raises OSError."""
    mode = 0o777 if is_shared(state) else 0o700
    path = state
    for name in names:
        path = path / name
        with suppress(FileExistsError):
            path.mkdir(mode)
        if mode == 0o700:
            keep_private(path)  # of an older version
    return path


def make_lock(state: Path, name: str) -> int:
    """Opens the file of a lock in a state directory, which nobody else may do than who may write the state: a lock can
    be taken by whoever may open its file. Raises OSError."""
    path = state / name
    with suppress(FileExistsError):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if is_shared(state) else 0o600)
        mode = os.fstat(handle).st_mode & 0o777
        os.fchmod(handle, mode & (mode & 0o222) * 3)  # to read only with write: 0o644 becomes 0o600
        return handle
    if not is_shared(state):
        keep_private(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def umask_of(*, shared: bool) -> Iterator[None]:
    """The umask, for a while, that a process is to inherit which writes into a state and nowhere else."""
    before = os.umask(OTHERS)
    if shared:
        os.umask(before)
    try:
        yield
    finally:
        os.umask(before)


def as_its_directory(path: str | Path, flags: int) -> int:
    """An `opener` of files, for their owners where the directory is its owner's, else as the umask says."""
    others = Path(path).parent.stat().st_mode & OTHERS
    return os.open(path, flags | os.O_CLOEXEC, 0o666 if others else 0o600)


def keep_private(path: Path) -> None:
    """Takes a file or directory, if it is there and ours, from all others: it was made by a library, or by an older
    version."""
    with suppress(FileNotFoundError, PermissionError):
        mode = path.stat().st_mode
        if mode & OTHERS:
            path.chmod(mode & 0o700)


def own(path: Path) -> None:
    """Makes a file, if it is missing, that only its owner may read and write, and takes it from others if it is there.
    What SQLite makes beside it is like it."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    keep_private(path)
