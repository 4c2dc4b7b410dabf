"""Statements find in a kernel what the examples of the papers and hand-checked cases say (docs/semantics.md, sections
20 to 26). The oracle is judged by them, too: by the tests that the kernel finds what the oracle does."""

from __future__ import annotations

import re
from typing import Any

import pytest

from common.limits import UNLIMITED, Quota
from pattern_stage.kernel import Kernel
from tests.generate.documents import SECOND
from tests.oracle.cases import brief_events, cases, written
from tests.support.event_agreement import MakeKernel, Run, Runner, Told

LATE = 10_000_000 * SECOND
"""All windows are over then."""


def run(
    statements: str, streams: str, make: MakeKernel | None = None, limits: Quota = UNLIMITED, until: int = LATE
) -> Runner:
    """Runs statements over streams such as `S(name price:number) IBM 80 @1 | - 22 @2-3 ; T(a) u @3`."""
    given = [re.fullmatch(r"(\w+)\((.*?)\) ?(.*)", stream) for stream in streams.split(" ; ")]
    world = written(statements.split("; "), [(one[1], one[2], one[3]) for one in given if one])
    runner = Runner(world, Run((until,)), make, limits)
    runner.results()
    assert not runner.exceeded
    return runner


def told(runner: Runner) -> list[str]:
    """The matches of a pattern, such as `1 2 | 6 @9`: the events of each variable, and when it is known."""
    return sorted(map(_told, runner.told[0]), key=lambda line: [int(w) if w.isdigit() else -1 for w in line.split()])


def _told(match: Told) -> str:
    bound, known, errors, _ = match
    variables = " | ".join(" ".join(str(part) for one in some for part in one.parts) for some in bound)
    return f"{variables} @{known / SECOND:.10g}" + (f" -{errors}" if errors else "")


@pytest.mark.parametrize(("statements", "streams", "expected"), cases("events"))
def test_the_last_statement_finds(statements: str, streams: str, expected: list[str]):
    runner = run(statements, streams)
    assert brief_events(runner.found_by(len(runner.told) - 1)) == expected


@pytest.mark.parametrize(("statement", "streams", "expected"), cases("patterns"))
def test_a_pattern_tells(statement: str, streams: str, expected: list[str]):
    assert told(run(statement, streams)) == expected


# ---------------------------------------------------------------- runs

Q3 = (
    "PATTERN SEQ(Stock+ a[], Stock b) WHERE {} {{[symbol] AND a[1].volume > 1000 AND "
    "a[i].price > {}(a[..i-1].price) AND b.volume < 80% * a[a.LEN].volume}} WITHIN 100 s"
)
QUOTES = (
    "Stock(symbol price:number volume:number) A 100 1010 @1 | A 120 990 @2 | A 120 1005 @3 | A 121 999 @4 | "
    "A 120 999 @5 | A 125 750 @6 | A 120 950 @7 | A 120 700 @8"
)


def test_s1_any_match():
    assert len(told(run(Q3.format("skip_till_any_match", "avg"), QUOTES))) == 68


@pytest.mark.parametrize(
    ("function", "is_merged", "waiting"), [("avg", True, 2), ("avg", False, 2), ("max", True, 1), ("max", False, 2)]
)
def test_s2_runs_that_remember_the_same_are_one(function: str, is_merged: bool, waiting: int):
    """After the fourth quote there are the runs of the first and of the third one. With max instead of avg they
    remember the same."""
    kernels: list[Kernel] = []

    def make(texts: Any, lineage: Any, run: Run) -> Kernel:
        kernels.append(Kernel(texts, lineage, merged=is_merged))
        return kernels[-1]

    run(Q3.format("skip_till_next_match", function), QUOTES, make, until=5 * SECOND)
    assert kernels[0].instances()[1].tolist() == [waiting]
