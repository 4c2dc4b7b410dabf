"""Timing for the benchmarks of stage 1: the evaluator and the floor, measured in turns, and their ratios."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count, repeat
from typing import cast

from lxml import etree

from bench.stage1_workload import STREAM
from templates.witness import Witnesses
from xpath_stage.documents import ParsedDocument, parse_documents
from xpath_stage.evaluator import XPathStage

ROUNDS = 41
PATIENCE = 2.0
"""A way that takes longer, in seconds, is not measured again."""

Way = Callable[[], object]


def evaluate(stage: XPathStage, texts: Iterable[bytes]) -> Witnesses:
    """What the evaluator finds in documents, which it parses first."""
    trees = cast(Iterable[ParsedDocument], parse_documents(texts))  # all of them can be read
    return stage.evaluate(zip(count(), repeat(STREAM), repeat(0), repeat(0), trees))


def floor(texts: Iterable[bytes]) -> None:
    """Parses documents, with the parser that lxml has for all, and reads every tag."""
    for text in texts:
        for element in etree.fromstring(text).iter():
            element.tag  # noqa: B018  # reading it is the work


def clocked(work: Way) -> float:
    """The seconds that some work takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def in_turns(ways: dict[str, Way], rounds: int) -> dict[str, list[float]]:
    """The seconds of each way in each round. A way that has taken too long is left out of further rounds."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    gc.collect()
    gc.freeze()  # as `mmqjp run` does: what is registered need not be looked through again and again
    gc.disable()  # as the engine does while it processes a batch
    try:
        for _ in range(rounds):
            for name, run in ways.items():
                if sum(taken[name]) < PATIENCE:
                    taken[name].append(clocked(run))
            gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    return taken


def ratio(taken: Sequence[float], baseline: Sequence[float]) -> float:
    """The median of the ratios of the rounds: a machine that is slow for a while is slow for both."""
    return statistics.median(one / other for one, other in zip(taken, baseline, strict=False))
