"""The memory that a document takes in the join state, in bytes, on DuckDB, measured in its own process."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench.stage2_engines import become_state, open_engine, put_rows
from bench.stage2_feed import FEED, feed, strings
from bench.stage2_queries import draw, register
from bench.stage2_witnesses import witnesses

QUERIES, STEP = 1000, 5_000
_STATM = Path("/proc/self/statm")


def state_bytes(plan: str, few: int, many: int) -> tuple[float, float | None]:
    """Seconds to keep the documents after the first `few` up to `many`, and bytes of each; None if the system does
    not say."""
    command = [sys.executable, "-m", "bench.stage2_memory", plan, str(few), str(many)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, size = json.loads(done.stdout)
    return seconds, size


def _resident() -> int | None:
    """Bytes of this process that are in memory."""
    if not _STATM.exists():
        return None
    gc.collect()
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _measure(plan: str, few: int, many: int) -> tuple[float, float | None]:
    registered = register(FEED, draw(FEED, QUERIES, len(FEED.paths), 0.8), ("S", "S"))
    items = feed(many)
    store = open_engine("duckdb", plan)
    put_rows(store, registered)

    def extend(first: int, end: int) -> None:
        for start in range(first, end, STEP):
            leaves = strings(items[start : min(start + STEP, end)])
            become_state(store, [(start, witnesses(registered, "S", leaves, start, groups=start == 0))])

    extend(0, few)
    before, begin = _resident(), time.perf_counter()
    extend(few, many)
    seconds, after = time.perf_counter() - begin, _resident()
    store.close()
    size = None if before is None or after is None else (after - before) / (many - few)
    return seconds, size


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
