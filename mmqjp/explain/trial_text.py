"""Writes what queries found in a sample for people: a table, and a note for each part that found nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from mmqjp.explain.block_trial import BlockTrial
from mmqjp.explain.join_trial import JoinTrial
from mmqjp.explain.nearness import clipped
from mmqjp.explain.sample import Sample
from mmqjp.explain.terms import applied
from mmqjp.explain.trial import MOST_COUNTED, QueryTrial
from mmqjp.text import printable_line, printable_text
from xscl import XsclError
from xscl.algebra.expressions import Span
from xscl.problems import Lines, Problem

PART_WIDTH = 60
"""How many characters of a part of a query are shown."""

_LINE_BREAK = re.compile(r"[ \t\r]*\n\s*")


def table(trials: Sequence[QueryTrial], text: str) -> Table:
    """A row for each block, each equality and each query of a script with this text."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("query", "part", "found"):
        made.add_column(column, overflow="fold")
    for trial in trials:
        paused = f", then paused: {printable_line(trial.paused)}" if trial.paused else ""
        rows = [(trial.name, "outputs", f"{trial.outputs:,}{paused}")]
        rows += [("", part_text(block.block.span, text), _matched(block)) for block in trial.blocks]
        rows += [("", part_text(join.span, text), _joined(join)) for join in trial.joins]
        for row in rows:
            made.add_row(*(Text(cell) for cell in row))
    return made


def notes(trials: Sequence[QueryTrial], text: str, sample: Sample) -> list[XsclError]:
    """A note for each part of a query that found nothing, in the order of their places."""
    lines = Lines(text)
    found = [XsclError(problem, lines) for trial in trials for problem in _problems(trial, text, sample)]
    return sorted(found, key=lambda note: (note.span.start, note.span.end))


def _problems(trial: QueryTrial, text: str, sample: Sample) -> Iterator[Problem]:
    for block in trial.blocks:
        if not block.documents:
            others = ", ".join(
                f"{printable_line(stream)} ({len(trees):,})" for stream, trees in sample.trees.items() if trees
            )
            start = block.block.span.start
            span = Span(start, max(block.stages[0].span.end, start + len(block.block.stream)))
            message = f"there is no document of stream {block.block.stream}"
            yield Problem(message, span, f"there are documents of {others}" if others else "")
        elif block.failed is not None:
            yield _failed(block, text)
    for join in trial.joins:
        if not join.shared and join.left and join.right:
            what = f"the two sides have {join.left:,} and {join.right:,} values, and no two documents share one"
            hint = ""
            if join.functions:
                around = applied(join.functions, "...")
                hint = f"they share {join.shared_then:,} with {around} around both sides"
            elif join.instead:
                texts = " and ".join(f'"{clipped(text)}"' for text in join.near)
                hint = f"{texts} differ in a few words: {join.instead}"
            yield Problem(what, join.span, hint)
    if trial.without_window or trial.in_any_order:
        span = trial.query.source.span
        if trial.without_window:
            yield Problem(
                "nothing joins within the window", span, f"with INF it would give {_outputs(trial.without_window)}"
            )
        else:
            hint = f"JOIN would give {_outputs(trial.in_any_order)}: it takes equal times, and either order"
            yield Problem("nothing is FOLLOWED BY what it joins", span, hint)


def _failed(block: BlockTrial, text: str) -> Problem:
    assert block.failed is not None
    number = block.failed
    stage = block.stages[number]
    documents = f"{block.documents:,} documents of stream {block.block.stream}"
    if block.documents == 1:
        documents = f"the document of stream {block.block.stream}"
    message = f"{part_text(stage.span, text)} matched none of {documents}"
    if number:
        before = block.stages[number - 1]
        message += f"; before it, {part_text(before.span, text)} matched {block.counts[number - 1]:,}"
    return Problem(message, stage.span, block.hint)


def _outputs(count: int) -> str:
    more = " or more" if count == MOST_COUNTED else ""
    return f"{count:,}{more} output{'' if count == 1 else 's'}"


def _matched(block: BlockTrial) -> str:
    found = f"{block.matched:,} of {block.documents:,} documents"
    return f"{found} ({block.left_out:,} too large to try)" if block.left_out else found


def _joined(join: JoinTrial) -> str:
    return f"{join.left:,} and {join.right:,} values, {join.shared:,} shared"


def part_text(span: Span, text: str) -> str:
    """Returns a part of a query on one line, cut short if it is long."""
    start = span.start
    if text[start : start + 1] == "/" and text[max(start - 1, 0) : start] == ".":
        start -= 1  # a step says no more than its axis and name
    part = printable_text(_LINE_BREAK.sub(" ", text[start : span.end]))
    return part if len(part) <= PART_WIDTH else part[: PART_WIDTH - 1] + "…"
