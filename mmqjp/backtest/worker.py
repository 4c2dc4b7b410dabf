"""The process of a back-test: reads a request and documents from standard input, and writes what it finds."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import TextIO

import pyarrow as pa

from common.errors import InputError
from mmqjp.backtest.trial import Request, try_script

NICE = 10
"""How much the work gives way to others."""

MOST_DATA = 6 << 30
"""The most bytes of data that the system gives the process: what it heeds itself is far less."""

MORE_SECONDS = 30
"""Seconds of processor time, for each core, after which the system ends it, if whoever asked has not."""


def main() -> None:
    """Runs one request. Each line of the answer is a JSON object: a `result` so far; at last whether it is `done`, why
    the script was `refused`, or why the work `failed`."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    os.nice(NICE)
    found = json.loads(sys.stdin.buffer.readline())
    request = Request(found["text"], tuple(found["publishers"]), found["seconds"], found["memory"])
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_DATA, MOST_DATA)
    _limit(resource.RLIMIT_CPU, int(request.seconds + MORE_SECONDS) * (os.cpu_count() or 1))
    try:
        with pa.ipc.open_stream(sys.stdin.buffer) as batches:
            for result in try_script(request, iter(batches), time.monotonic, _peak_memory):
                _write(answer, {"result": result.to_dict()})
        _write(answer, {"done": True})
    except BrokenPipeError:
        return  # nobody waits any more
    except InputError as error:
        _write(answer, {"refused": str(error).strip()})
    except Exception as error:
        _write(answer, {"failed": str(error).strip() or type(error).__name__})


def _write(answer: TextIO, found: dict[str, object]) -> None:
    print(json.dumps(found), file=answer, flush=True)


def _peak_memory() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    main()
