"""Child processes that may be killed at any time: how one is started, and how it limits itself. What the system does
not offer is left out: a network namespace and Landlock exist on Linux only."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO, cast

LOOK = 0.5  # seconds between two checks of a watch


def start(
    command: Sequence[str],
    *,
    stdin: int | IO[bytes] = subprocess.PIPE,
    stdout: int = subprocess.PIPE,
    environment: Mapping[str, str] = os.environ,
    directory: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a command that imports what this process imports. What it prints to standard error is dropped."""
    paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path if path)
    env = {**environment, "PYTHONPATH": paths}
    # In a session of its own, because Ctrl-C is for whoever asked.
    return subprocess.Popen(
        command, stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL, env=env, cwd=directory, start_new_session=True
    )


def lower(kind: int, most: int) -> None:
    """Lowers a limit of this process, one of `resource`."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def end_when(is_over: Callable[[], bool]) -> None:
    """Ends this process soon after a condition holds, whatever its other threads do."""

    def look() -> None:
        while not is_over():
            time.sleep(LOOK)
        os._exit(1)

    Thread(target=look, name="mmqjp watch", daemon=True).start()


def end_with_parent(parent: int) -> None:
    """Ends this process soon after its parent, whose id is `parent`."""
    end_when(lambda: os.getppid() != parent)


_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000


def leave_network() -> bool:
    """Moves this process, of one thread, to a network without interfaces. Returns whether the system permits it."""
    with suppress(OSError, AttributeError):
        unshare = ctypes.CDLL(None, use_errno=True).unshare
        return bool(unshare(_NEW_NETWORK) == 0 or unshare(_NEW_NETWORK | _NEW_USER) == 0)
    return False


_CREATE, _ADD, _RESTRICT = 444, 445, 446
_RIGHTS = (0, 13, 14, 15, 15, 16)
"""The number of rights to files by version of Landlock; later ones have as many as the last."""
_READ = 1 << 2 | 1 << 3
_NETWORK_SINCE, _NETWORK = 4, 1 << 0 | 1 << 1
_NO_NEW_PRIVILEGES = 38


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64))


class _Below(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def leave_files(readable: Iterable[Path], writable: Iterable[Path]) -> bool:
    """Keeps this thread and those that it starts from other files. Returns whether the system permits it."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        version = cast(int, libc.syscall(_CREATE, None, 0, 1))
        if version < 1:
            return False
        rights = (1 << _RIGHTS[min(version, len(_RIGHTS) - 1)]) - 1
        rules = _Ruleset(rights, _NETWORK if version >= _NETWORK_SINCE else 0)
        size = ctypes.sizeof(rules) if version >= _NETWORK_SINCE else 8
        ruleset = libc.syscall(_CREATE, ctypes.byref(rules), size, 0)
        if ruleset < 0:
            return False
        for paths, allowed in ((readable, _READ), (writable, rights & ~1)):  # nothing is executed
            for path in paths:
                with suppress(OSError):
                    below = _Below(allowed, os.open(path, os.O_PATH | os.O_CLOEXEC))
                    libc.syscall(_ADD, ruleset, 1, ctypes.byref(below), 0)
                    os.close(below.parent)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return bool(libc.syscall(_RESTRICT, ruleset, 0) == 0)
    except (OSError, AttributeError):
        return False
