"""`mmqjp status`: shows how far a store has come and what it keeps."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import click
from rich import box
from rich.table import Table
from rich.text import Text

from feeds.dates import iso_utc
from mmqjp.commands.console import console
from mmqjp.commands.manage_queries import client, store_options
from mmqjp.queries.event_registry import NEVER
from mmqjp.text import printable_line

MOST_LISTED = 10
"""The number of queries whose pairs with equal times are listed."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
@store_options
def status(state: Path, as_json: bool, wait: float) -> None:
    """Show how far the streams of a store have come and what it keeps.

    \b
    Example:
      mmqjp status --state state/

    A running service answers between two batches.
    """
    found = client(state, wait).ask("status", {})
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    click.echo(f"queries        {found['queries']:,}, {found['paused']:,} of them paused")
    for key in ("batches", "documents", "outputs"):
        click.echo(f"{key:<14} {found[key]:,}")
    click.echo(f"dead letters   {found['dead_letters']:,}")
    click.echo(f"state          {found['state_bytes'] or 0:,} bytes")
    click.echo(f"horizon        {_time(found['horizon'])}")
    if events := found.get("events"):
        answered = "the end" if events["horizon"] >= NEVER else _time(events["horizon"])
        waiting = f"waiting: {events['events']:,}; partial matches: {events['partial']:,}"
        click.echo(f"events         answered to {answered}; {waiting}")
    click.echo(f"evictable till {_time(found['evictable_before'])}")
    for name, count in islice(found.get("ties", {}).items(), MOST_LISTED):
        more = "at least " if name in found.get("ties_at_least", ()) else ""
        click.echo(f"equal times    {printable_line(name)}: {more}{count:,} pairs that FOLLOWED BY left out")
    for name, count in found.get("waiting", {}).items():
        click.echo(f"waiting        {printable_line(name)}: {count:,} for their deadline")
    for sink in found.get("sinks", ()):
        reason = f": {printable_line(sink['reason'])}" if sink["reason"] else ""
        click.echo(f"sink           {sink['name']}: {sink['state']}, {sink['behind']:,} behind{reason}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("stream", "documents", "bytes", "latest", "watermark"):
        table.add_column(column, overflow="fold", justify="right" if column in ("documents", "bytes") else "left")
    for row in found["streams"]:
        cells = (printable_line(row["stream"]), f"{row['documents']:,}", f"{row['bytes']:,}")
        table.add_row(*map(Text, (*cells, _time(row["latest"]), _time(row["watermark"]))))
    console().print(table)


def _time(microseconds: int | None) -> str:
    try:
        return "-" if microseconds is None else iso_utc(microseconds)
    except OverflowError:
        return str(microseconds)
