"""The memory and processor time of a process and its descendants, from /proc. Uses the standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_PARENT, _USER, _SYSTEM = 1, 11, 12
"""Where the fields of /proc/PID/stat are, counted from the one after the name."""


def resident_bytes(root: int) -> int:
    """Bytes in memory. Pages that processes share count for each of them. 0 where the system does not say."""
    size = 0
    for pid in _tree(root):
        fields = _read(_PROC / str(pid) / "statm").split()
        size += int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0
    return size


def processor_seconds(root: int) -> float:
    """Seconds of all processors so far, without those of processes that have ended. 0 where the system does not say."""
    ticks = sum(int(fields[_USER]) + int(fields[_SYSTEM]) for pid in _tree(root) if (fields := _stat(pid)))
    return ticks / os.sysconf("SC_CLK_TCK")


def _tree(root: int) -> Iterator[int]:
    """The process, and all that it or a descendant started."""
    if not _PROC.is_dir():
        return
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[_PARENT]), []).append(int(entry.name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def _stat(pid: int) -> list[str]:
    # The name, which comes before, may contain anything.
    return _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()


def _read(path: Path) -> str:
    """The text of a file; "" if the process has ended meanwhile."""
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
