"""Why there is no output, in a terminal: the verdict on documents, and the funnel of a query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmqjp.explain.funnel_stage import Stage
from mmqjp.present.facts import Fact, Word
from mmqjp.present.item import Item
from mmqjp.present.query_funnels import QueryFunnel, QueryFunnels
from mmqjp.present.terminal import print_facts, print_heading, print_item
from mmqjp.present.times import Clock
from mmqjp.present.why_not_result import WhyNot
from mmqjp.text import printable_line

TITLES = {
    "query": "there is nothing to tell of such a query",
    "document": "there is no such document",
    "dead letter": "a document was refused",
    "pruned": "a document was dropped",
    "blocks": "these are too many documents",
    "paused": "the query did not see them",
    "newer": "the query did not see them",
    "stream": "another stream",
    "pattern": "the block does not match",
    "asked": "what the query asks for is not there",
    "equality": "the values are not equal",
    "together": "the values are not equal at the same nodes",
    "different": "it is one document",
    "order": "the order is wrong",
    "window": "they are too far apart",
    "residual": "a condition is false",
    "mirror": "it is told the other way round",
    "event": "there is no such event",
    "late": "its events came too late",
    "unseen": "the query did not see them",
    "filtered": "a filter keeps it out",
    "condition": "a condition is false",
    "consumed": "another event was first",
    "ended": "the run has ended",
    "group": "they are in no group together",
    "equal": "they are not equal in what has to be",
    "strategy": "something came in between",
    "absent": "something came that must not",
    "letters": "too many letters are missing",
    "maximal": "another match is better",
    "overlapping": "another match was told first",
    "budget": "it was forgotten",
    "waiting": "it is not answered yet",
    "partner": "something came",
    "told": "it was told before",
    "dropped": "the output is missing",
    "too large": "that cannot be found out",
    "output": "there is an output",
}
"""A few words for each kind of verdict."""


def print_why_not(found: WhyNot, clock: Clock, out: Console) -> None:
    """Prints why documents give no output."""
    print_heading(found.query, TITLES.get(found.kind, found.kind), out)
    for item in found.items:
        print_item(item, clock, out)
    print_facts("" if found.kind == "output" else "because", _said(found.part, found.message), out)
    print_facts("hint", _plain(found.hint), out)
    print_facts("outputs", [(Word("name", id),) for id in found.outputs], out)
    tried = f"with {found.tried:,} kept documents of its streams" if found.tried else ""
    print_facts("tried", _plain(tried), out)
    last = found.stages[-1].block if found.tried and found.stages else 0  # what kept documents pass says little
    passed = [stage for stage in found.stages if stage.found and (not last or stage.block == last)]
    print_facts("passed", _passed(passed), out)
    for number, near in enumerate(found.nearest):
        if not number:
            out.print()
            out.print(Text("the nearest of the kept documents", style="bold"))
        for item in _others(near.items, found.items):
            print_item(item, clock, out)
        print_facts("but", _said(near.part, near.message), out)


def print_funnels(found: QueryFunnels, out: Console) -> None:
    """Prints what the queries of a name find in kept documents."""
    if found.message:
        print_heading(found.query, "there is nothing to tell of such a query", out)
        print_facts("because", _plain(found.message), out)
        print_facts("hint", _plain(found.hint), out)
        return
    print_heading(found.query, _documents(found), out)
    for funnel in found.funnels:
        if len(found.funnels) > 1:
            out.print(Text(printable_line(funnel.text), style="dim"), soft_wrap=True)
        _print_funnel(funnel, out)
    outputs = f"{found.outputs:,} output{'' if found.outputs == 1 else 's'} in the store"
    out.print(Text(outputs, style="bold"))


def _documents(found: QueryFunnels) -> str:
    read = f"{found.documents:,} kept document{'' if found.documents == 1 else 's'}"
    return f"{read}, {found.left_out:,} more are too large" if found.left_out else read


def _print_funnel(funnel: QueryFunnel, out: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("stage", "part"):
        table.add_column(column, overflow="fold")
    table.add_column("found", justify="right")
    failed = funnel.failed
    for stage in funnel.stages:
        style = "bold" if stage is failed else ""
        cells = (stage_name(stage), printable_line(stage.part), f"{count_text(stage)}{' ◀' if stage is failed else ''}")
        table.add_row(*(Text(cell, style=style) for cell in cells))
    what = what_is_found(funnel)
    table.add_row(Text("matches"), Text(what), Text(f"{funnel.found:,}"))
    out.print(table)
    if failed is not None:
        print_facts("because", _said(failed.part, failed.message), out)
        print_facts("hint", _plain(failed.hint), out)
    print_facts("note", [(Word("plain", note),) for note in notes(funnel)], out)


def what_is_found(funnel: QueryFunnel) -> str:
    """Returns what gets past all stages, in words."""
    if funnel.of_pattern:
        return "first events of matches"
    return "events of the query" if funnel.of_events else "choices of documents"


def notes(funnel: QueryFunnel) -> Iterable[str]:
    """Yields what else is to be said of a funnel."""
    if funnel.paused:
        yield f"it is paused: {printable_line(funnel.paused)}"
    if funnel.unseen:
        what = "documents and outputs" if funnel.of_events else "documents"
        yield f"{funnel.unseen:,} {what} came before it was registered, or while it was paused, and do not count"
    if funnel.ties:
        pairs = f"{funnel.ties:,} pair{' is' if funnel.ties == 1 else 's are'}"
        yield f"{pairs} left out only because of equal times: JOIN takes them"
    if funnel.left_out:
        yield f"{funnel.left_out:,} documents are too large to search"
    if funnel.incomplete:
        yield "there was too much to look at all: the counts are of a part"


def stage_name(stage: Stage) -> str:
    """Returns a word for a stage."""
    return (
        f"block {stage.block}"
        if stage.block
        else {"equality": "equal", "together": "all equal"}.get(stage.kind, stage.kind)
    )


def count_text(stage: Stage) -> str:
    """Returns what gets past a stage, in words."""
    if stage.unit == "values":
        return f"{stage.left:,} and {stage.right:,} values, {stage.found:,} common"
    more = " or more" if stage.at_least else ""
    return f"{stage.found:,}{more} {stage.unit if stage.found != 1 else stage.unit[:-1]}"


def _passed(stages: Sequence[Stage]) -> list[Fact]:
    """What comes before the stage in the way, each block in a line."""
    lines: dict[int, list[str]] = {}
    for number, stage in enumerate(stages):
        lines.setdefault(stage.block or -number, []).append(printable_line(stage.part))
    return [(Word("plain", "  ".join(parts)),) for parts in lines.values()]


def _said(part: str, message: str) -> list[Fact]:
    if not message:
        return []
    if not part or message.startswith(part):
        return [(Word("plain", printable_line(message)),)]
    return [(Word("name", printable_line(part)), Word("plain", f": {printable_line(message)}"))]


def _plain(text: str) -> list[Fact]:
    return [(Word("plain", printable_line(text)),)] if text else []


def _others(items: Sequence[Item], given: Sequence[Item]) -> list[Item]:
    return [item for item in items if item not in given] or list(items)
