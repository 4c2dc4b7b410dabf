"""Locks on open files. A lock ends with the process that has it, however that ends.

Who may read and write a state: its owner alone or, if it is marked as shared, everybody whom the umask lets.

Directories and files of a state get their modes explicitly. A umask holds for the whole process, whose output files are
to follow the user's. A directory that the user made keeps its mode, and what we make in it is private all the same.

Writes files that are there whole or not at all, also after a power failure.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


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


_DRAFT = ".draft"


@contextmanager
def whole_file(path: Path, opener: Callable[[str, int], int] | None = None) -> Iterator[BinaryIO]:
    """A file to write. It appears as `path`, and replaces what is there, when the block ends without an error.

    If `path` is a link, its target is replaced. `opener` is as for `open`. Raises OSError.
    """
    target = path.resolve()
    draft = target.with_name(f".{target.name}.{os.getpid()}{_DRAFT}")
    try:
        with open(draft, "wb", opener=opener) as file:
            yield file
            file.flush()
            sync_file(file.fileno())
        draft.replace(target)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
    sync_directory(target.parent)


def write_whole(path: Path, content: str | bytes) -> None:
    """Makes a file appear, for its owner alone if the directory is. Raises OSError."""
    with whole_file(path, open_like_directory) as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def drafts(directory: Path) -> Iterator[Path]:
    """The drafts in a directory. If nobody is writing there, killed processes have left them."""
    return directory.glob(f".*{_DRAFT}")


def sync_file(handle: int) -> None:
    """Has what is written to a file survive a power failure. Raises OSError."""
    os.fsync(handle)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory survive a power failure. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        sync_file(handle)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(handle)
