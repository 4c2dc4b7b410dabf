"""`mmqjp demo`: runs the packaged queries over the packaged feeds, and shows what matched and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import as_file, files
from itertools import groupby
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit

import click
from lxml import etree
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from feeds.sources import read_documents
from mmqjp.answers.output import Output
from mmqjp.answers.outputs import Outputs
from mmqjp.commands.console import console
from mmqjp.commands.debug import debug_option
from mmqjp.commands.failure import Failure
from mmqjp.commands.open import chosen_engine, open_engine
from mmqjp.commands.options import engine_option, plan_option, read_script
from mmqjp.explain.terms import term_text
from mmqjp.explain.why import Evidence, JoinedValue
from mmqjp.session import Session
from mmqjp.state.choice import DUCKDB, SPARK
from mmqjp.tables.documents import FROM_OUTSIDE
from mmqjp.text import printable_line
from xscl import Script

EQUATION_WIDTH = 40
"""Longer equations are broken before their equals signs, in characters."""


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """What is shown of a feed entry: its title, the host of its feed, and its time in microseconds."""

    title: str
    host: str
    time: int


@click.command()
@click.option("--both", is_flag=True, help="Run it on duckdb and then on spark, with the times, and compare the lines.")
@click.option("--master", metavar="URL", help="The Spark master. Default: Spark runs on this machine.")
@plan_option
@engine_option
@debug_option
def demo(both: bool, engine: str, plan: str, master: str | None) -> None:
    """Run the packaged example: standing queries over a few small feeds, with what they find and why.

    \b
    Examples:
      mmqjp demo
      mmqjp demo --both
    """
    chosen = DUCKDB if both else chosen_engine(engine, master=master).engine
    out = console()
    with answered(chosen, None if both else master, plan) as found:
        text, script = found.text, found.script
        items = documents_shown(found.session)
        feeds = len({item.host for item in items.values()})
        out.print(f"{len(script.queries)} standing queries, {len(items)} entries of {feeds} feeds, on {chosen}.\n")
        show(out, found.outputs, purposes(text, script), items, Evidence(found.session))
    count = len(found.outputs)
    if both:
        out.print(f"{count} matches on {DUCKDB} in {found.seconds:.1f} s. The same on {SPARK} ...")
        with answered(SPARK, master, plan) as again:
            if again.lines != found.lines:
                raise Failure(f"{SPARK} gives other lines: {len(again.outputs)} matches; please report this")
        out.print(f"The same {count} matches on {SPARK} in {again.seconds:.1f} s, most of it for starting Spark.")
        out.print("Now try your own queries and feeds:")
    else:
        out.print(f"{count} matches. Now try your own queries and feeds:")
    out.print("  mmqjp run --queries FILE.xscl --documents DIRECTORY --feeds")


@dataclass(frozen=True, slots=True)
class Answered:
    """The packaged example after it has run: its text and queries, the outputs and their lines, and the seconds from
    opening the engine to the last output."""

    session: Session
    text: str
    script: Script
    outputs: Outputs
    lines: bytes
    seconds: float


@contextmanager
def answered(engine: str, master: str | None, plan: str) -> Iterator[Answered]:
    """Runs the packaged example on an engine, which is open inside."""
    start = perf_counter()
    with packaged_feeds() as directory, open_engine(engine, master, plan) as opened:
        text, script = read_script(directory / "demo.xscl")
        opened.ensure(script)
        outputs = opened.process(read_documents([directory], feeds="item"))
        lines = b"".join(output.to_line() for output in outputs)
        yield Answered(opened, text, script, outputs, lines, perf_counter() - start)


@contextmanager
def packaged_feeds() -> Iterator[Path]:
    """The directory of the packaged example."""
    with as_file(files("mmqjp.demo")) as directory:
        yield directory


def purposes(text: str, script: Script) -> dict[str, str]:
    """The comment directly above each query, by its name."""
    found = {}
    for name, query in zip(script.names(), script.queries, strict=True):
        comment: list[str] = []
        for line in reversed(text[: query.span.start].splitlines()):
            if not line.startswith("--"):
                break
            comment.insert(0, line.removeprefix("--").strip())
        found[name] = " ".join(comment)
    return found


def documents_shown(engine: Session) -> dict[tuple[str, str], ShownEntry]:
    """What to show of each external document, by (stream, id)."""
    rows = engine.sql(FROM_OUTSIDE, trusted=True).to_pylist()
    return {(row["stream"], row["id"]): _item(row["xml"], row["t0"]) for row in rows}


def _item(xml: str, time: int) -> ShownEntry:
    root = etree.fromstring(xml)
    channel = root.findtext("channel_url", "")
    return ShownEntry(root.findtext("title", ""), urlsplit(channel).hostname or channel, time)


def show(
    out: Console,
    outputs: Sequence[Output],
    about: dict[str, str],
    items: dict[tuple[str, str], ShownEntry],
    evidence: Evidence,
) -> None:
    """Prints the outputs query by query, in the order of the script."""
    order = {name: place for place, name in enumerate(about)}
    for name, found in groupby(sorted(outputs, key=lambda o: order[o.query]), key=lambda o: o.query):
        out.print(Text(name, style="bold cyan").append(f": {about[name]}", style="default not bold"))
        table = Table(box=box.HORIZONTALS, expand=True, show_lines=True, pad_edge=False)
        table.add_column("what, with times in UTC", ratio=5, overflow="fold")
        table.add_column("why", ratio=4, overflow="fold")
        for output in found:
            shown = [items[key] for key in zip(output.streams, output.documents, strict=True)]
            table.add_row(_what(shown), _why(evidence, output))
        out.print(Padding(table, (0, 0, 1, 0)))


def _time(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%d %H:%M")


def _what(items: list[ShownEntry]) -> Text:
    text = Text()
    for item in items:
        text.append("\n" if text else "").append(printable_line(item.title))
        text.append(f"\n  {printable_line(item.host)}, {_time(item.time)}", style="dim")
    return text


def _why(evidence: Evidence, output: Output) -> Text:
    joined = evidence.of(output)
    return Text("\n".join(map(_equation, joined))) if joined else Text("it passes the filter", style="dim")


def _equation(joined: JoinedValue) -> str:
    parts = [*map(term_text, joined.terms), repr(joined.value)]
    line = " = ".join(parts)
    return line if len(line) <= EQUATION_WIDTH else "\n= ".join(parts)
