"""Commands for a store's queries, with or without a running service: subscribe, pause, list, sharing, status and
others. `sharing` shows what queries share and what it costs, `status` the progress of the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from textwrap import indent
from typing import Any

import click

from common.bounds import END
from common.errors import InvalidValue
from common.files import share, whole_file
from mmqjp.commands.command_line import Decorated, Failure, ScriptFailure, debug_option
from mmqjp.commands.console import console, progress_shown, text_table
from mmqjp.commands.formats import open_engine, tz_option
from mmqjp.commands.options import engine_option, shared_option, state_option, text_for_store, wait_option
from mmqjp.explain.pictures import sharing_picture
from mmqjp.explain.plan import SharedTemplate, Sharing
from mmqjp.explain.svg import as_file
from mmqjp.present.item import TimeFormat, truncate
from mmqjp.process import pluralise, printable_line
from mmqjp.queries.model import NOT_REPLACED, can_be_replaced
from mmqjp.service.commands import EXPORT, SHARING, TEXTS, Client, CommandError, RunSinks
from mmqjp.state.engine_choice import DUCKDB, SPARK, choose_engine, stored_engine
from xscl.text import split_script

TEXT_WIDTH = 60  # maximum number of characters of a query's text in a list


def store_options(command: Decorated) -> Decorated:
    """Adds the options of commands on a store: its location, and a time limit for the answer."""
    state = state_option("The state directory of the store. A service may be running on it.", required=True)
    return state(wait_option()(debug_option(command)))


def client(
    state: Path,
    wait: float,
    engine: str | None = None,
    *,
    reader: str = DUCKDB,
    shared: bool = False,
    run_sinks: RunSinks | None = None,
) -> Client:
    """Returns a client of a store, which `engine` creates if missing. `reader` is the engine that reads a Spark store
    beside the process that holds it; `run_sinks` runs sink commands if no process holds the store."""
    kind = stored_engine(state) or (engine and choose_engine(engine).engine)
    if kind is None:
        advice = "check --state, or create one with mmqjp stream or mmqjp subscribe"
        raise Failure(f"there is no store in {state}: {advice}")
    opens = partial(open_engine, kind, state)
    if shared:
        share(state)
    reads = partial(open_engine, reader, state, read_only=True)
    return Client(state, opens, wait, open_read_only=reads, reads_beside=kind == SPARK,
                  run_sinks=run_sinks)  # fmt: skip


def print_changed(names: list[str], word: str) -> None:
    for name in names:
        click.echo(f"{name}: {word}")


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
@click.option("--add", is_flag=True, help="Keep existing queries with the same names.")
@click.option("--backfill", is_flag=True, help="Also answer the queries over all stored documents.")
@shared_option
@store_options
@engine_option
def subscribe(file: Path, add: bool, backfill: bool, shared: bool, state: Path, wait: float, engine: str) -> None:
    """Register the queries of a file, replacing those with the same names.

    \b
    Example:
      mmqjp subscribe stories.xscl --state state/

    They are answered from the next batch on, for documents that arrive from then on. A running service need not be
    restarted. --engine applies only if the store does not exist yet.
    """
    arguments = {"text": text_for_store(file), "add": add, "backfill": backfill}
    try:
        with progress_shown():  # without a running service, this process registers them
            changed = client(state, wait, engine, shared=shared).ask("subscribe", arguments)
    except CommandError as error:
        if "\n" not in str(error):  # not a listing of mistakes
            raise
        raise ScriptFailure(f"{printable_line(str(file))}: {error}") from error
    print_changed(changed, "subscribed")


def command_on_name(
    words: str, name: str, what: str, change: Callable[[Path, float, str], list[str]], done: str
) -> click.Command:
    """Returns the command `words`, which changes something by name. `name` is for the example, `what` the help."""

    @click.command(words.split()[-1], help=f"{what}\n\n\b\nExample:\n  mmqjp {words} {name} --state state/")
    @click.argument("name")
    @store_options
    def command(name: str, state: Path, wait: float) -> None:
        print_changed(change(state, wait, name), done)

    return command


def _change(do: str, what: str, done: str) -> click.Command:
    def change(state: Path, wait: float, name: str) -> Any:
        return client(state, wait).ask(do, {"name": name})

    return command_on_name(do, "same_story", what, change, done)


unsubscribe = _change("unsubscribe", "Remove all queries with a name.", "removed")
_PAUSE = "Pause the queries with a name: they give no outputs, and never see documents that arrive in the meantime."
pause = _change("pause", _PAUSE, "paused")
resume = _change("resume", "Resume the paused queries with a name.", "resumed")


@click.command("list")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each name, or each query of NAME.")
@click.option("--history", is_flag=True, help="List all texts of NAME so far, with dates, newest first.")
@click.option("--xscl", is_flag=True, help="Print all queries and definitions as one script, in their original form.")
@tz_option
@store_options
def list_queries(
    name: str | None, state: Path, as_json: bool, history: bool, xscl: bool, clock: TimeFormat, wait: float
) -> None:
    """List the query names, the number of queries with each, and which are paused.

    \b
    Examples:
      mmqjp list --state state/
      mmqjp list same_story --state state/
      mmqjp list same_story --history --state state/
      mmqjp list --xscl --state state/ > queries.xscl

    With NAME, list the queries with that name: their original text, when they were added, and whether and why they are
    paused.
    """
    if (history and name is None) or (xscl and (name is not None or as_json or history)):
        raise click.UsageError("--history needs a NAME; --xscl takes neither a NAME nor another format")

    def show(found: Any) -> None:
        texts = (truncate(_on_one_line(row.get("source", row["text"])), TEXT_WIDTH) for row in found)
        rows = [(row["name"], str(row["queries"]), _state(row), text) for row, text in zip(found, texts, strict=True)]
        console().print(text_table(("name", "queries", "state", "text"), rows))

    def show_named(found: Any) -> None:
        for row in found:
            click.echo(f"{row['name']}: {_state(row)}, since {clock.iso(row['added_at'])}")
            click.echo(indent(row["source"], "  "))
        if count := found[0].get("belated"):
            click.echo(f"  {_too_late(count)}")
        if pending := found[0].get("pending"):
            click.echo(f"  {_waiting(pending, clock)}")

    def show_texts(found: Any) -> None:
        for row in found:
            click.echo(f"{clock.iso(row['at'])}\n{indent(row['text'].rstrip(), '  ')}")

    store = client(state, wait)
    if xscl:
        click.echo(store.ask(EXPORT, {}), nl=False)
    elif name is not None and history:
        print_found(store.ask(TEXTS, {"name": name}), show_texts, as_json=as_json)
    elif name is None:
        print_found(store.ask("list", {}), show, as_json=as_json)
    else:
        print_found(store.ask("show", {"name": name}), show_named, as_json=as_json)


@click.command()
@click.argument("name")
@click.option(
    "--to", "time", metavar="TIME",
    help="The text as of this time; list --history shows the times. Default: the text before the current one.",
)  # fmt: skip
@tz_option
@store_options
def rollback(name: str, time: str | None, clock: TimeFormat, state: Path, wait: float) -> None:
    """Restore an earlier text of a name, in place of its current queries.

    \b
    Examples:
      mmqjp rollback same_story --state state/
      mmqjp rollback same_story --to 2026-07-16T14:02:00Z --state state/

    mmqjp list NAME --history shows the texts. The restored one becomes the newest and the others stay, so a rollback
    can itself be rolled back.
    """
    store = client(state, wait)
    found = store.ask(TEXTS, {"name": name})
    if not can_be_replaced(name, (row["text"] for row in store.ask("show", {"name": name}))):
        raise Failure(f"{printable_line(name)}: {NOT_REPLACED}")
    try:
        until = None if time is None else clock.read(time)
    except InvalidValue as error:
        raise click.BadParameter(str(error), param_hint="--to") from None
    earlier = found[1:] if until is None else [row for row in found if row["at"] <= until]
    if not earlier:
        when = "" if until is None else f" at {clock.iso(until)}"
        advice = f"mmqjp list {name} --history lists the stored ones"
        raise Failure(f"{printable_line(name)} has no {'earlier ' if until is None else ''}text{when}: {advice}")
    chosen = earlier[0]
    changed = store.ask("subscribe", {"text": chosen["text"], "add": False})
    print_changed(list(dict.fromkeys(changed)), f"as of {clock.iso(chosen['at'])}")


def print_found(found: Any, show: Callable[[Any], object], *, as_json: bool) -> None:
    """Prints an answer with `show`, or as JSON, with one line for each item of a list."""
    if not as_json:
        show(found)
        return
    for row in found if isinstance(found, list) else [found]:
        click.echo(json.dumps(row, ensure_ascii=False))


def _on_one_line(source: str) -> str:
    """A query's text on one line, without comments."""
    return printable_line(" ".join(split_script(source)[0].split()))


def _state(row: dict[str, Any]) -> str:
    return "active" if row["paused"] is None else f"paused: {printable_line(row['paused'])}"


NAMES = 3  # maximum number of query names per template


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--svg", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Also draw queries, rows and templates into a file.",
)  # fmt: skip
@store_options
def sharing(as_json: bool, svg: Path | None, state: Path, wait: float) -> None:
    """Show which templates and rows of R_T the registered queries share, what they cost, and what one more query would
    cost.

    \b
    Examples:
      mmqjp sharing --state state/
      mmqjp sharing --state state/ --svg sharing.svg

    The costliest templates come first. A running service answers between two batches.
    """
    answer = client(state, wait).ask(SHARING, {})
    found = Sharing.from_dict(answer)
    if svg is not None:
        with whole_file(svg) as file:
            file.write(as_file(sharing_picture(found)).encode())
    print_found(answer, lambda _: _print_sharing(found), as_json=as_json)


def _print_sharing(found: Sharing) -> None:
    queries = pluralise(found.queries, "query", "queries")
    click.echo(f"{queries}, {found.forms:,} of them distinct apart from names and windows")
    rows = f"{pluralise(found.rows, 'row')} of R_T in {pluralise(found.templates, 'template')}"
    click.echo(f"they have {rows}, over {pluralise(found.patterns, 'step')} of patterns")
    numbers = ("template", "rows", "subscribers", "last batch", "one more row")
    console().print(text_table((*numbers, "queries"), map(_row, found.shown), right=numbers))
    if more := found.templates - len(found.shown):
        click.echo(f"and {pluralise(more, 'template')} more")


def _row(one: SharedTemplate) -> tuple[str, ...]:
    names, more = one.names(NAMES)
    costs = _milliseconds(one.milliseconds), _milliseconds(one.one_more)
    listed = printable_line(", ".join(names) + (" and more" if more else ""))
    return str(one.template), f"{one.rows:,}", f"{one.subscribers:,}", *costs, listed


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f} ms"


MOST_LISTED = 10  # maximum number of queries listed with equal-time pairs


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
@tz_option
@store_options
def status(state: Path, as_json: bool, clock: TimeFormat, wait: float) -> None:
    """Show the progress of a store's streams, and what it keeps.

    \b
    Example:
      mmqjp status --state state/

    A running service answers between two batches.
    """
    print_found(client(state, wait).ask("status", {}), partial(_print_status, clock), as_json=as_json)


def _print_status(clock: TimeFormat, found: Any) -> None:
    def time_or_dash(microseconds: int | None) -> str:
        return "-" if microseconds is None else clock.iso(microseconds)

    click.echo(f"queries        {found['queries']:,}, {found['paused']:,} of them paused")
    for key in ("batches", "documents", "outputs"):
        click.echo(f"{key:<14} {found[key]:,}")
    click.echo(f"dead letters   {found['dead_letters']:,}")
    click.echo(f"state          {found['state_bytes'] or 0:,} bytes")
    click.echo(f"horizon        {time_or_dash(found['horizon'])}")
    if events := found.get("events"):
        answered = "the end" if (events["horizon"] or 0) >= END else time_or_dash(events["horizon"])
        until, held_by = events.get("until"), printable_line(events.get("feed") or events.get("stream") or "")
        waiting = f"waiting: {events['events']:,}"
        waiting += f", the first until {clock.iso(until)}, for {held_by}" if until else ""
        click.echo(f"events         answered to {answered}; {waiting}; partial matches: {events['partial']:,}")
    click.echo(f"evictable until {time_or_dash(found['evictable_before'])}")
    for name, count in islice(found.get("ties", {}).items(), MOST_LISTED):
        more = "at least " if name in found.get("ties_at_least", ()) else ""
        click.echo(f"equal times    {printable_line(name)}: {more}{count:,} pairs that FOLLOWED BY left out")
    for name, count in islice(found.get("belated", {}).items(), MOST_LISTED):
        click.echo(f"too late       {printable_line(name)}: {_too_late(count)}")
    for one in found.get("absences", ()):
        click.echo(f"waiting        {printable_line(one['query'])}: {_waiting(one, clock)}")
    if times := found.get("rebuilt"):
        click.echo(f"rebuilt        postings that were damaged, {pluralise(times, 'time')}")
    for sink in found.get("sinks", ()):
        reason = f": {printable_line(sink['reason'])}" if sink["reason"] else ""
        click.echo(f"sink           {sink['name']}: {sink['state']}, {sink['behind']:,} behind{reason}")
    numbers, times = ("documents", "bytes"), ("latest", "watermark")
    streams = (
        (printable_line(row["stream"]), *(f"{row[key]:,}" for key in numbers), *(time_or_dash(row[at]) for at in times))
        for row in found["streams"]
    )
    console().print(text_table(("stream", *numbers, *times), streams, right=numbers))


def _too_late(count: int) -> str:
    return f"{pluralise(count, 'document')} came too late to change its earlier outputs"


def _waiting(absence: Mapping[str, Any], clock: TimeFormat) -> str:
    """Describes what absences wait for, from a `mmqjp.answers.absence.PendingAbsence`."""
    documents = pluralise(absence["documents"], "document waits", "documents wait")
    if absence["until"] is None:
        return documents
    held_by = printable_line(absence["feed"] or absence["stream"] or "events")
    return f"{documents}, the first until {clock.iso(absence['until'])}, for {held_by}"
