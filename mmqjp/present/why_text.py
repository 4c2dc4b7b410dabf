"""Why an output came about, in a terminal: its match, and below it the times, the conditions and what fed it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from mmqjp.explain.text_layout import text_lines
from mmqjp.present.facts import Fact, Word, events, filters, spans, timings, why
from mmqjp.present.output_why import OutputWhy
from mmqjp.present.terminal import print_facts, print_heading, print_rows
from mmqjp.present.times import Clock


def print_why(found: OutputWhy, clock: Clock, out: Console) -> None:
    """Prints why an output came about."""
    output = found.match.output
    print_heading(output.query, f"output {output.id}, number {output.seq}, at {clock.iso(output.t1)}", out)
    print_rows(found.match, clock, out)
    for label, facts in sections(found):
        print_facts(label, facts, out)
    if found.text:
        out.print()
        for line in text_lines(found.text, 0):
            out.print(Text(line, style="dim"), soft_wrap=True)


def sections(found: OutputWhy) -> Iterator[tuple[str, list[Fact]]]:
    """Yields what there is beyond the match, each kind with a word for it."""
    told = why(found.match)
    conditions = [fact for fact in filters(found.match) if fact not in told]
    filled = [] if found.events is None else list(events(found.events))
    times = timings(found.match) if found.events is None else list(spans(found.events))
    parts = ("events", filled), ("times", times), ("filters", conditions), ("made of", list(_fed(found)))
    for label, facts in parts:
        if facts:
            yield label, facts


def _fed(found: OutputWhy) -> Iterator[Fact]:
    for one in found.fed:
        yield Word("plain", "output "), Word("name", one.id), Word("plain", f" of {one.query}")
