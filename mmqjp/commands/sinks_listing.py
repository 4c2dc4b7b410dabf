"""How sinks are listed for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich import box
from rich.table import Table
from rich.text import Text

from feeds.dates import iso_utc
from mmqjp.commands.console import console, counted
from mmqjp.text import printable_line

Row = Mapping[str, Any]

_COLUMNS = ("name", "kind", "state", "behind", "delivered", "failed", "given up", "to")
_NUMBERS = frozenset({"behind", "delivered", "failed", "given up"})


def print_sinks(rows: Sequence[Row], now: int) -> None:
    """Prints a table of sinks, and below it why those do not deliver that do not. `now` is in microseconds."""
    if not rows:
        click.echo("no sinks; mmqjp sinks add --help shows how to add one")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in _NUMBERS else "left", overflow="fold")
    for row in rows:
        numbers = (f"{row[column.replace(' ', '_')]:,}" for column in _COLUMNS if column in _NUMBERS)
        table.add_row(*map(Text, (row["name"], row["kind"], row["state"], *numbers, printable_line(row["to"]))))
    console().print(table)
    for row in rows:
        if trouble := _trouble(row, now):
            click.echo(f"{row['name']}: {trouble}")


def print_sink(row: Row, now: int) -> None:
    """Prints one sink."""
    click.echo(f"{row['name']}: {row['kind']} to {printable_line(row['to'])}, {row['state']}")
    if trouble := _trouble(row, now):
        click.echo(f"  {trouble}")
    since = f", the oldest since {_time(row['behind_since'])}" if row["behind_since"] else ""
    click.echo(f"  has all outputs up to seq {row['acked']}, {row['behind']:,} behind{since}")
    counts = f"{row['delivered']:,} delivered, {row['failed']:,} attempts failed, {row['given_up']:,} given up"
    click.echo(f"  since the service began: {counts}")
    click.echo(f"  defined in {row['file']}" if row["file"] else "  added live")
    for key, value in row["definition"].items():
        click.echo(f"    {key} = {printable_line(_toml(value))}")


def print_failed(found: Mapping[str, Sequence[Row]]) -> None:
    """Prints what a sink did not get."""
    if not found["undelivered"] and not found["gaps"]:
        click.echo("nothing: the sink got, or will get, all that it wants")
    for row in found["undelivered"]:
        reason, tries = printable_line(row["reason"]), counted(row["tries"], "try", "tries")
        click.echo(f"{_time(row['noted_at'])}  output {row['seq']} ({row['id']}) after {tries}: {reason}")
    for row in found["gaps"]:
        reason = printable_line(row["reason"])
        click.echo(f"{_time(row['noted_at'])}  {row['count']:,} of {row['first']}-{row['last']} given up: {reason}")


def _trouble(row: Row, now: int) -> str:
    """What keeps a sink from delivering; "" if nothing does."""
    parts = [printable_line(row["reason"])] if row["reason"] else []
    if row["next"] is not None:
        parts.append(f"next attempt {_in(row['next'] - now)}")
    return "; ".join(parts)


def _in(microseconds: int) -> str:
    seconds = max(round(microseconds / 1e6), 0)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"in {seconds // size} {unit}"
    return f"in {seconds} s" if seconds else "now"


def _time(microseconds: int) -> str:
    return iso_utc(microseconds)[:19] + "Z"


def _toml(value: object) -> str:
    """A value as TOML has it, nearly: it is to be read."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case Mapping():
            return f"{{ {', '.join(f'{key} = {_toml(one)}' for key, one in value.items())} }}"
    return str(value)
