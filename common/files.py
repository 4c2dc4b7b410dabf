"""Atomic and durable file writes, file locks, and the modes of a state's files.

A lock ends with the process that holds it. Files and directories of a state get explicit modes: they are private to the
owner or, if the state is marked as shared, follow the umask. A directory that the user created keeps its mode.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO
from zlib import crc32


def lock(handle: int, *, shared: bool = False) -> bool:
    """Locks a file until it is closed. Returns False if another process holds it. Raises OSError without locks."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(handle: int) -> None:
    fcntl.flock(handle, fcntl.LOCK_UN)


SHARED = "shared"  # the file in a state directory that marks the state as shared
OTHERS = 0o077  # mode bits of group and others


def with_home(path: str) -> Path:
    """Expands `~` and `~user`. Where there is no such user, or no home, the path stays as it is."""
    with suppress(RuntimeError):
        return Path(path).expanduser()
    return Path(path)


def is_shared(state: Path) -> bool:
    return (state / SHARED).exists()


def share(state: Path) -> None:
    """Marks a state as shared, creating it if needed: files created in it later follow the umask. Raises OSError."""
    state.mkdir(parents=True, exist_ok=True)
    (state / SHARED).touch()


def make_state(state: Path) -> None:
    state.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        state.mkdir(0o700)
    if not state.is_dir():
        raise NotADirectoryError(f"{state} is not a directory")


SECRETS = "secrets"  # the directory of secrets in a state


def make_inside(state: Path, *names: str) -> Path:
    """Creates a directory and its parents inside a state directory. Raises OSError."""
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
    """Opens a lock file in a state directory, creating it if needed. Whoever can open it can take the lock, so its mode
    admits only those who may write the state. Raises OSError."""
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
    """Sets the umask inside the block, for a child process that writes only into a state."""
    before = os.umask(OTHERS)
    if shared:
        os.umask(before)
    try:
        yield
    finally:
        os.umask(before)


def open_like_directory(path: str | Path, flags: int) -> int:
    """An `opener` for `open`: a new file is private if its directory is, else follows the umask."""
    others = Path(path).parent.stat().st_mode & OTHERS
    return os.open(path, flags | os.O_CLOEXEC, 0o666 if others else 0o600)


def keep_private(path: Path) -> None:
    """Restricts an existing file or directory of ours to its owner: a library or an older version created it."""
    with suppress(FileNotFoundError, PermissionError):
        mode = path.stat().st_mode
        if mode & OTHERS:
            path.chmod(mode & 0o700)


def make_private_file(path: Path) -> None:
    """Creates a file or restricts it to its owner. SQLite's side files get the same mode. Raises OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    keep_private(path)


_DRAFT = ".draft"


@contextmanager
def whole_file(
    path: Path, opener: Callable[[str, int], int] | None = None, *, synced: bool = True
) -> Iterator[BinaryIO]:
    """A file that atomically replaces `path`, or a link's target, when the block ends without error. Unless `synced`, a
    power failure may leave another content. Raises OSError."""
    target = path.resolve()
    draft = target.with_name(f".{target.name}.{os.getpid()}{_DRAFT}")
    try:
        with open(draft, "wb", opener=opener) as file:
            yield file
            file.flush()
            if synced:
                sync_file(file.fileno())
        draft.replace(target)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
    if synced:
        sync_directory(target.parent)


def write_whole(path: Path, content: str | bytes, *, synced: bool = True) -> None:
    """Writes a file atomically, private if its directory is. Raises OSError."""
    with whole_file(path, open_like_directory, synced=synced) as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def make_secret_file(path: Path, content: bytes) -> bool:
    """Makes a whole file for its owner alone, unless there is one. Returns whether it did. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            sync_file(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


_MARK = 80  # bytes of a mark


def write_mark(path: Path, *numbers: int) -> None:
    """Overwrites a file of a few numbers in a state directory, in place and without a sync: in some microseconds. After
    a power failure it may hold earlier numbers, but none later than what was synced before. Raises OSError."""
    text = " ".join(map(str, numbers))
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666 if is_shared(path.parent) else 0o600)
    try:
        os.pwrite(handle, f"{text} {crc32(text.encode())}".ljust(_MARK - 1).encode() + b"\n", 0)
    finally:
        os.close(handle)


def read_mark(path: Path) -> tuple[int, ...] | None:
    """The numbers of a mark; None if it is missing, or empty by a power failure. Raises ValueError if it is damaged."""
    try:
        content = path.read_bytes().strip(b"\0")
    except OSError:
        return None
    text, _, checksum = content.decode("ascii").strip().rpartition(" ")
    if text and crc32(text.encode()) != int(checksum):
        raise ValueError("its checksum differs")
    return tuple(map(int, text.split())) or None


def drafts(directory: Path) -> Iterator[Path]:
    """Drafts in a directory. If nobody is writing there, killed processes have left them."""
    return directory.glob(f".*{_DRAFT}")


def sync_file(handle: int) -> None:
    os.fsync(handle)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        sync_file(handle)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(handle)
