"""`mmqjp sinks`: shows and changes where outputs are delivered, with or without a running service."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from common.errors import MmqjpError
from feeds.documents import now_us
from mmqjp.answers.fan_out import Position
from mmqjp.commands.command_line import Failure, debug_option
from mmqjp.commands.configuration import table_of
from mmqjp.commands.console import console, text_table
from mmqjp.commands.formats import tables_of, tz_option
from mmqjp.commands.manage_queries import client, command_on_name, print_changed, print_found, store_options
from mmqjp.commands.options import state_option
from mmqjp.present.item import TimeFormat
from mmqjp.process import pluralise, printable_line
from mmqjp.service.commands import SINKS, Client, add_sink, read_live, run_offline, set_sink, try_sink
from mmqjp.sinks.definition import read_start
from mmqjp.sinks.files import open_destination, try_to_write
from mmqjp.sinks.secrets import Secrets, make_secret
from mmqjp.sinks.sink import DeliveryResult, Message, Receiver
from mmqjp.state.engine_choice import is_held

_Row = Mapping[str, Any]

_COUNTS = ("behind", "delivered", "failed", "given_up")


def print_sinks(rows: Sequence[_Row], now: int) -> None:
    """Prints a table of sinks, and why some do not deliver. `now` is in microseconds."""
    if not rows:
        click.echo("no sinks; mmqjp sinks add --help shows how to add one")
        return
    shown = (
        (row["name"], row["kind"], row["state"], *(f"{row[key]:,}" for key in _COUNTS), printable_line(row["to"]))
        for row in rows
    )
    numbers = [key.replace("_", " ") for key in _COUNTS]
    console().print(text_table(("name", "kind", "state", *numbers, "to"), shown, right=numbers))
    for row in rows:
        if trouble := _trouble(row, now):
            click.echo(f"{row['name']}: {trouble}")


def print_sink(row: _Row, now: int, clock: TimeFormat) -> None:
    click.echo(f"{row['name']}: {row['kind']} to {printable_line(row['to'])}, {row['state']}")
    if trouble := _trouble(row, now):
        click.echo(f"  {trouble}")
    since = f", the oldest since {clock.second(row['behind_since'])}" if row["behind_since"] else ""
    click.echo(f"  has all outputs up to seq {row['acked']}, {row['behind']:,} behind{since}")
    counts = f"{row['delivered']:,} delivered, {row['failed']:,} attempts failed, {row['given_up']:,} given up"
    click.echo(f"  since the service began: {counts}")
    click.echo(f"  defined in {row['file']}" if row["file"] else "  added live")
    for key, value in row["definition"].items():
        click.echo(f"    {key} = {printable_line(_toml(value))}")


def print_failed(found: Mapping[str, Sequence[_Row]], clock: TimeFormat) -> None:
    if not found["undelivered"] and not found["gaps"]:
        click.echo("nothing: the sink has received, or will receive, all its outputs")
    for row in (*found["undelivered"], *found["gaps"]):
        if "seq" in row:
            what = f"output {row['seq']} ({row['id']}) after {pluralise(row['tries'], 'try', 'tries')}"
        else:
            what = f"{row['count']:,} of {row['first']}-{row['last']} given up"
        click.echo(f"{clock.second(row['noted_at'])}  {what}: {printable_line(row['reason'])}")


def _trouble(row: _Row, now: int) -> str:
    parts = [printable_line(row["reason"])] if row["reason"] else []
    if row["next"] is not None:
        parts.append(f"next attempt {_in(row['next'] - now)}")
    return "; ".join(parts)


def _in(microseconds: int) -> str:
    seconds = max(round(microseconds / 1e6), 0)
    size, unit = next((one for one in ((86_400, "d"), (3_600, "h"), (60, "min")) if seconds >= 2 * one[0]), (1, "s"))
    return f"in {seconds // size} {unit}" if seconds else "now"


def _toml(value: object) -> str:
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


@click.group()
@debug_option
def sinks() -> None:
    """Show and change where outputs are delivered.

    \b
    Examples:
      mmqjp sinks list --state state/
      mmqjp sinks add alerts kind=webhook url=https://example.org/hook --state state/

    Sinks in the configuration file are changed there; mmqjp sinks reload makes a running service read it again. Others
    are added and changed with these commands. docs/sinks.md describes all keys.
    """


@sinks.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each sink.")
@store_options
def list_sinks(state: Path, wait: float, as_json: bool) -> None:
    """List the sinks: kind, destination, and how far each is behind.

    \b
    Example:
      mmqjp sinks list --state state/
    """
    print_found(_client(state, wait).ask(SINKS, {}), lambda found: print_sinks(found, now_us()), as_json=as_json)


@sinks.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print an object of JSON.")
@tz_option
@store_options
def show(name: str, state: Path, wait: float, as_json: bool, clock: TimeFormat) -> None:
    """Show a sink: its state, its last failure and its definition. Secrets are shown by name only.

    \b
    Example:
      mmqjp sinks show alerts --state state/
    """
    found = _client(state, wait).ask(SINKS, {"name": name})
    print_found(found, lambda found: print_sink(found, now_us(), clock), as_json=as_json)


@sinks.command()
@click.argument("name")
@click.argument("keys", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option(
    "--from", "start", metavar="START",
    help="Where it begins: now (the default), start, the seq of an output, or the time of a commit.",
)  # fmt: skip
@store_options
def add(name: str, keys: tuple[str, ...], start: str | None, state: Path, wait: float) -> None:
    """Add a sink.

    \b
    Examples:
      mmqjp sinks add alerts kind=webhook url=https://example.org/hook secret=hook --state state/
      mmqjp sinks add chat kind=webhook 'url={secret = "slack"}' 'queries=["same_*"]' wait=30s --state state/
      mmqjp sinks add archive kind=parquet path=archive --from start --state state/

    KEY and VALUE are as in the configuration file. A VALUE that begins with a bracket, a brace or a quote is TOML.
    """
    add_sink(_client(state, wait).ask, state, name, table_of(keys) | ({} if start is None else {"from": start}))
    click.echo(f"{name}: added")


@sinks.command("set")
@click.argument("name")
@click.argument("keys", nargs=-1, required=True, metavar="KEY=VALUE...")
@store_options
def set_keys(name: str, keys: tuple[str, ...], state: Path, wait: float) -> None:
    """Change keys of a sink. It continues from its position. A key without a value (KEY=) gets its default.

    \b
    Example:
      mmqjp sinks set alerts wait=5min queries= --state state/
    """
    set_sink(_client(state, wait).ask, state, name, table_of(keys, empty=True))
    click.echo(f"{name}: changed")


def _change(do: str, what: str, done: str) -> None:
    def change(state: Path, wait: float, name: str) -> list[str]:
        _client(state, wait).ask(f"sinks-{do}", {"name": name})
        return [name]

    sinks.add_command(command_on_name(f"sinks {do}", "alerts", what, change, done))


_change("pause", "Pause a sink. It keeps its position, as far back as its backlog allows.", "paused")
_change("resume", "Make a sink that is paused, stopped or waiting try again at once.", "resumed")


@sinks.command()
@click.argument("name")
@store_options
def test(name: str, state: Path, wait: float) -> None:
    """Send a test message without outputs, and report the result. A sink that writes files writes one and removes it.

    \b
    Example:
      mmqjp sinks test alerts --state state/

    The running service sends it; if none runs, this command does.
    """
    problem = try_sink(_client(state, wait).ask, name, wait) if is_held(state) else _tested_here(state, wait, name)
    if problem is None:
        problem = f"no answer within {wait:g} s; allow more with --wait"
    if problem:
        raise Failure(f"the test of {name} failed: {problem}")
    click.echo(f"{name}: the test was acknowledged")


@sinks.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print an object of JSON.")
@tz_option
@store_options
def failed(name: str, state: Path, wait: float, as_json: bool, clock: TimeFormat) -> None:
    """Show what a sink did not get: outputs that its receiver refused, and outputs that were given up.

    \b
    Example:
      mmqjp sinks failed alerts --state state/
    """
    found = _client(state, wait).ask("sinks-failed", {"name": name})
    print_found(found, partial(print_failed, clock=clock), as_json=as_json)


@sinks.command()
@click.argument("name")
@click.option(
    "--from", "start", metavar="START", required=True,
    help="Where to begin: start, the seq of an output, the time of a commit, or now, which repeats nothing.",
)  # fmt: skip
@store_options
def replay(name: str, start: str, state: Path, wait: float) -> None:
    """Deliver a sink's outputs again, from an output or a time on.

    \b
    Example:
      mmqjp sinks replay alerts --from 2026-05-04T10:30:00Z --state state/

    Only outputs that the store still keeps can be delivered again. Messages have the same ids as before.
    """
    read_start(start)
    again = _client(state, wait).ask("sinks-replay", {"name": name, "from": start})
    click.echo(f"{name}: {'delivers again' if again else 'nothing to deliver again from there on; its position stays'}")


@sinks.command()
@click.argument("name")
@state_option("The state directory of the store.", required=True)
@debug_option
def secret(name: str, state: Path) -> None:
    """Create a secret, store it in the state, and print it this once. Sinks refer to it as NAME.

    \b
    Example:
      mmqjp sinks secret hook --state state/

    It is 32 random bytes, encoded as in Standard Webhooks, in the file secrets/NAME of the state, which only you can
    read.
    """
    click.echo(make_secret(state, name))


_change("remove", "Remove a sink and its position. What it has written stays.", "removed")


@sinks.command()
@store_options
def reload(state: Path, wait: float) -> None:
    """Make a running service read the sinks and secrets of its configuration file again.

    \b
    Example:
      mmqjp sinks reload --state state/
    """
    print_changed(_client(state, wait).ask("sinks-reload", {}), "in the configuration")


def _client(state: Path, wait: float) -> Client:
    return client(state, wait, run_sinks=partial(run_offline, state, tables_of(click.get_current_context())))


def _tested_here(state: Path, wait: float, name: str) -> str | None:
    """Sends a test from this process. Returns "", or the reason of a failure; None if there is no answer in time."""
    found = _client(state, wait).ask(SINKS, {"name": name})
    tables = tables_of(click.get_current_context())()
    definition = tables.sinks[name] if found["file"] else read_live(state, name, found["definition"])
    if not definition.is_push:
        return try_to_write(definition)
    secrets = Secrets(tables.secrets, state)

    async def send() -> DeliveryResult:
        receiver = open_destination(secrets, definition, Position(), lambda text: None)
        assert isinstance(receiver, Receiver), "it is a push sink"
        try:
            now = now_us()
            async with asyncio.timeout(wait):
                return await receiver.send(Message(f"msg_test_{now}", name, -1, -1, (), 0, now))
        finally:
            await receiver.close()

    try:
        verdict = asyncio.run(send())
    except TimeoutError:
        return None
    except (MmqjpError, OSError) as error:
        return secrets.redacted(str(error))
    return verdict.reason or ("" if verdict.kind == "acknowledged" else verdict.kind)
