"""Event patterns: how fast statements are registered, and how much memory each takes. A case is a process of its own.

LinearStat has up to 46,656 forms. Statements that are `different` have three filters, each of which compares attributes
of its own, in its own ways, so that hardly two are alike.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Literal

from bench.patterns_workload import SCHEMA, chain_of, statements, stream_of
from bench.stage2_report import Column, Line
from common.arrays import Ints
from pattern_stage.kernel import Kernel
from pattern_stage.values import Texts
from xscl.algebra.events import AllOf, Atom, Attribute, Comparison, Constant, EventCondition, Stream
from xscl.algebra.values import CompareOp

Kind = Literal["LinearStat", "different"]
_STATM = Path("/proc/self/statm")
_TOGETHER = 1000
"""So many statements are made before they are registered."""


@dataclass(frozen=True)
class Case:
    """So many statements of a kind."""

    kind: Kind
    queries: int


def cases(queries: Sequence[int] | None, *, quick: bool) -> list[Case]:
    """What is measured. With `quick` there are fewer statements."""
    if queries or quick:
        return [Case(kind, number) for number in queries or [5_000] for kind in ("LinearStat", "different")]
    return [Case("LinearStat", 100_000), Case("LinearStat", 400_000), Case("different", 20_000)]


def measure(case: Case) -> Iterator[Line]:
    """The line of a case. Raises CalledProcessError if its process fails."""
    command = [sys.executable, "-m", "bench.patterns_memory", case.kind, str(case.queries)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, size = json.loads(done.stdout)
    details = {"registered": case.queries / seconds, "bytes": size}
    yield Line("patterns", asdict(case), None, "registration", seconds, case.queries, None, None, details=details)


COLUMNS: tuple[Column, ...] = (
    ("kind", lambda line: line.case["kind"]),
    ("statements", lambda line: line.case["queries"]),
    ("registered/s", lambda line: line.details["registered"]),
    ("bytes of each", lambda line: line.details["bytes"]),
)


def asked(case: Case) -> Iterator[Stream]:
    """The statements, each made when it is asked for."""
    if case.kind == "LinearStat":
        return (stream_of("LinearStat", steps) for steps in statements(case.queries))
    chance = Random(1)
    return (chain_of([_different(chance) for _ in range(3)]) for _ in range(case.queries))


def _different(chance: Random) -> EventCondition:
    """A condition on some attributes, each compared in any way."""
    atoms: list[Atom] = []
    for name, kind in SCHEMA:
        if chance.random() < 0.5:
            continue
        ways: tuple[CompareOp, ...] = ("=", "!=") if kind == "string" else ("<", "<=", ">", ">=")
        value = f"v{chance.randrange(100)}" if kind == "string" else round(chance.random(), 2)
        atoms.append(Comparison(chance.choice(ways), Attribute("left", name, kind), Constant(value)))
    return AllOf(tuple(atoms))


class _NoLineage:
    """There are no events."""

    def ends(self, numbers: Ints) -> Ints:
        raise AssertionError("no event has a number")

    def together(self, parts: Ints, groups: Ints) -> Ints:
        raise AssertionError("no event has parts")


def _batched(streams: Iterator[Stream], size: int) -> Iterator[list[Stream]]:
    """Yields so many at a time."""
    while some := list(islice(streams, size)):
        yield some


def _registered(case: Case) -> tuple[float, float | None]:
    """Seconds of CPU to register all statements, and the bytes that each takes; None if the system does not say."""
    kernel = Kernel(Texts(), _NoLineage())
    seconds, before = 0.0, _resident()
    for first, streams in enumerate(_batched(asked(case), _TOGETHER)):
        begin = time.thread_time()
        for number, stream in enumerate(streams, first * _TOGETHER):
            kernel.add(number, stream, -1)
        seconds += time.thread_time() - begin
    begin = time.thread_time()
    kernel.run({}, 0)
    seconds += time.thread_time() - begin
    after = _resident()
    return seconds, None if before is None or after is None else (after - before) / case.queries


def _resident() -> int | None:
    """Bytes of this process that are in memory, without what was freed."""
    if not _STATM.exists():
        return None
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    kind: Kind = "different" if sys.argv[1] == "different" else "LinearStat"
    print(json.dumps(_registered(Case(kind, int(sys.argv[2])))))
