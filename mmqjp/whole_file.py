"""Files that are there whole or not at all, also after a power failure."""

from __future__ import annotations

import os
from pathlib import Path

from join_stage.private import as_its_directory


def write_whole(path: Path, text: str) -> None:
    """Makes a file with a text appear, for its owner alone if the directory is. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "w", encoding="utf-8", opener=as_its_directory) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
