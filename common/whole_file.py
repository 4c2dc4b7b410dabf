"""Writes files that are there whole or not at all, also after a power failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from common.private import open_like_directory


@contextmanager
def whole_file(path: Path, opener: Callable[[str, int], int] | None = None) -> Iterator[BinaryIO]:
    """A file to write. It appears as `path`, and replaces what is there, when the block ends without an error.

    If `path` is a link, its target is replaced. `opener` is as for `open`. Raises OSError.
    """
    target = path.resolve()
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(draft, "wb", opener=opener) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
    sync_directory(target.parent)


def write_whole(path: Path, text: str) -> None:
    """Writes a file that holds `text`. It is its owner's alone if its directory is. Raises OSError."""
    with whole_file(path, open_like_directory) as file:
        file.write(text.encode())


def sync_directory(path: Path) -> None:
    """Makes the names in a directory survive a power failure. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(handle)
