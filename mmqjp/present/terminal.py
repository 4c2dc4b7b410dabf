"""Matches in a terminal: a heading for each query, and below it what matched and why. Links stay whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from mmqjp.present.facts import Fact, values, why
from mmqjp.present.item import Item
from mmqjp.present.marks import marked_title
from mmqjp.present.match import Match
from mmqjp.present.report import Report, counted, source
from mmqjp.present.times import Clock

INDENT = 18
"""The width of a time and the space after it."""

_STYLES = {"name": "cyan", "value": "", "plain": "dim"}


def print_report(report: Report, out: Console) -> None:
    """Prints the matches of a report."""
    for group in report.groups:
        print_heading(group.name, counted(len(group)), out)
        for match in group.matches:
            print_match(match, report.clock, out)
    zone = f", times in {report.clock.zone_at(newest)}" if (newest := report.newest) is not None else ""
    out.print(Text(f"{report.summary}{zone}", style="bold"))


def print_heading(name: str, about: str, out: Console) -> None:
    """Prints the name of a query and a few words about it."""
    heading = Text(name, style="bold").append(f"  {about}", style="not bold dim")
    for part in heading.wrap(out, out.width):
        part.rstrip()
        out.print(part)
    out.print(Rule(style="dim", characters="─"))


def print_match(match: Match, clock: Clock, out: Console) -> None:
    """Prints a match: its documents, and why they matched, with an empty line behind it."""
    print_rows(match, clock, out)
    out.print()


def print_rows(match: Match, clock: Clock, out: Console) -> None:
    """Prints a match without the empty line."""
    for place, item in enumerate(match.items):
        print_item(item, clock, out, marked_title(match, place))
    print_facts("because", why(match), out)
    for name, text in values(match):
        _print_row(Text(""), Text(f"{name}: ", style="cyan").append(text, style="default"), out)


def print_item(item: Item, clock: Clock, out: Console, title: Sequence[tuple[str, bool]] = ()) -> None:
    """Prints a document. `title` is its title in parts, each with whether it is marked."""
    shown = Text()
    for part, marked in title or ((item.title, False),):
        shown.append(part, style="bold underline" if marked and out.is_terminal else "bold")
    _print_row(Text("" if item.time is None else clock.minute(item.time), style="dim"), shown, out)
    _print_source(item, out)


def print_facts(label: str, facts: Iterable[Fact], out: Console) -> None:
    """Prints facts, one below the other, with a label before the first."""
    for number, fact in enumerate(facts):
        _print_row(Text(label if not number else "", style="dim", justify="right"), _fact(fact), out)


def _print_row(first: Text, second: Text, out: Console) -> None:
    """Prints a time, or a word in its place, and a text beside it."""
    for number, part in enumerate(second.wrap(out, max(out.width - INDENT, 10), overflow="fold")):
        part.rstrip()
        before = Text(first.plain if not number else "", style=first.style)
        before.align(first.justify or "left", INDENT - 2)  # type: ignore[arg-type]  # of the two that are used here
        out.print(Text.assemble(before, "  ", part), soft_wrap=True)


def _print_source(item: Item, out: Console) -> None:
    _print_row(Text(""), Text(source(item), style="dim"), out)
    if item.link:  # not wrapped: a link in two lines cannot be followed
        out.print(Text(" " * INDENT).append(item.link, style=f"blue link {item.link}"), soft_wrap=True)


def _fact(fact: Fact) -> Text:
    text = Text()
    for word in fact:
        text.append(f'"{word.text}"' if word.kind == "value" else word.text, style=_STYLES[word.kind])
    return text
