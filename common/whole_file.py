"""Files that are there whole or not at all, also after a power failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from common.private import as_its_directory


@contextmanager
def whole_file(path: Path, opener: Callable[[str, int], int] | None = None) -> Iterator[BinaryIO]:
    """A file to write, which gets its name, maybe in the place of another, when the block ends well. Through a link,
    its target is replaced and not the link. `opener` makes it, if it is given. Raises OSError."""
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
    """Makes a file with a text appear, for its owner alone if the directory is. Raises OSError."""
    with whole_file(path, as_its_directory) as file:
        file.write(text.encode())


def sync_directory(path: Path) -> None:
    """Has the names in a directory survive a power failure. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(handle)
