"""The process of a back-test: reads a request and documents from standard input, and writes what it finds."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock, Thread

import pyarrow as pa

from common.errors import InputError
from mmqjp.backtest.trial import Request, try_script

NICE = 10
"""How much the work gives way to others."""

MORE_MEMORY = 2 << 30
"""The system gives the process so many bytes of data more than it should need."""

TOO_LARGE = 1.25
"""If it has so many times the memory that it should need, it ends in the midst of a batch."""

LOOK = 0.5
"""Seconds between two looks whether it should end."""

MORE_SECONDS = 30
"""Seconds of processor time, for each core, after which the system ends it, if whoever asked has not."""


def main() -> None:
    """Runs one request. Each line of the answer is a JSON object: a `result` so far; at last whether it is `done`, why
    the script was `refused`, or why the work `failed`. The process that asks names itself in the arguments."""
    answer = _Answer()
    os.nice(NICE)
    _watch(partial(_has_gone, int(sys.argv[1])))
    found = json.loads(sys.stdin.buffer.readline())
    request = Request(found["text"], tuple(found["publishers"]), found["seconds"], found["memory"])
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_DATA, request.memory + MORE_MEMORY)
    _limit(resource.RLIMIT_CPU, int(request.seconds + MORE_SECONDS) * (os.cpu_count() or 1))
    _watch(partial(_is_too_large, request.memory, answer))
    try:
        with pa.ipc.open_stream(sys.stdin.buffer) as batches:
            for result in try_script(request, iter(batches), time.monotonic, _peak_memory):
                answer.write(result=result.to_dict())
        answer.write(done=True)
    except BrokenPipeError:
        return  # nobody waits any more
    except InputError as error:
        answer.write(refused=str(error).strip())
    except Exception as error:
        answer.write(failed=str(error).strip() or type(error).__name__)


class _Answer:
    """Standard output, to which any thread may write whole lines."""

    def __init__(self) -> None:
        self._lock, self._file = Lock(), os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # what libraries print is no answer

    def write(self, **found: object) -> None:
        with self._lock:
            print(json.dumps(found), file=self._file, flush=True)


def _watch(is_over: Callable[[], bool]) -> None:
    """Ends this process once something is so, whatever it does."""

    def look() -> None:
        while not is_over():
            time.sleep(LOOK)
        os._exit(1)

    Thread(target=look, name="mmqjp watch", daemon=True).start()


def _has_gone(parent: int) -> bool:
    """Whether the process that asked has gone: it may have been killed."""
    return os.getppid() != parent


def _is_too_large(memory: int, answer: _Answer) -> bool:
    """Whether this process needs far more memory than it should, in the midst of a batch."""
    if _peak_memory() <= memory * TOO_LARGE:
        return False
    answer.write(failed=f"it needed more than {memory >> 20:,} MiB of memory")
    return True


def _peak_memory() -> int:
    """The most memory that this process has had, in bytes. What the system counts for it by `getrusage` begins with the
    memory of the process that started it, which may be a large service."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    main()
