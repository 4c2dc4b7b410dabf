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


def lost_or_swapped(rng: Random, whole: Path, copy: Path) -> str:
    """Copies a directory, and removes a file, or gives two files each other's content. Returns what it did."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    path, other = rng.choice(files), rng.choice(files)
    if path == other or rng.random() < 0.5:
        path.unlink()
        return f"removed {path.relative_to(copy)}"
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)
    return f"swapped {path.relative_to(copy)} and {other.relative_to(copy)}"
