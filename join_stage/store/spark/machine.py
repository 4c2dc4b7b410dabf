"""How much memory this machine has, as far as this process may use it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MB = 1 << 20

_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where a container says how much it may use, in the two versions of control groups."""

LEAST_HEAP, MOST_HEAP = 1_024, 16_384
"""The bounds of Spark's heap, in MB."""


def memory_bytes(read: Callable[[Path], str] = Path.read_text) -> int | None:
    """The memory of the machine or, if that is less, of the container; None if the system does not say."""
    found: list[int] = []
    with suppress(ValueError, OSError, AttributeError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _GROUP_LIMITS:
        with suppress(ValueError, OSError):  # "max" is no number
            found.append(int(read(path)))
    return min(found, default=None)


def heap_mb(memory: int | None) -> int:
    """The heap for a Spark that runs in one process of this machine, in MB: a quarter of the memory. Python processes,
    DuckDB, and the files that the system keeps in memory need the rest."""
    if memory is None:
        return 4 * LEAST_HEAP
    return min(max(memory // MB // 4, LEAST_HEAP), MOST_HEAP)
