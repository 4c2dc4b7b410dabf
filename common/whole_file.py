"""Writes files that are there whole or not at all, also after a power failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from common.private import open_like_directory

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
