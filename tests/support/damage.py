"""Damages files as disks, crashes and people do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random


def damaged(rng: Random, whole: Path, copy: Path, chosen: Callable[[Path], bool] = lambda path: True) -> str:
    """Makes a copy of a directory with damage to one of the chosen files: a bit is another, the end is cut off, or a
    stretch is all zeros. What was done, in words."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    files = sorted(path for path in copy.rglob("*") if path.is_file() and path.stat().st_size and chosen(path))
    path = rng.choice(files)
    content = bytearray(path.read_bytes())
    at, how = rng.randrange(len(content)), rng.choice(("flip", "flip", "cut", "zeros"))
    if how == "flip":
        content[at] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del content[at:]
    else:
        content[at : at + 200] = bytes(len(content[at : at + 200]))
    path.write_bytes(content)
    return f"{how} at {at} of {path.relative_to(copy)}"
