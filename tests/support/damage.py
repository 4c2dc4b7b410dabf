"""Damages files as disks, crashes and people do."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random


def damaged(rng: Random, whole: Path, copy: Path, chosen: Callable[[Path], bool] = lambda path: True) -> str:
    """Copies a directory and damages one of the chosen files: flips a bit, cuts off the end, or writes zeros over a
    stretch. Returns what it did, in words."""
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
