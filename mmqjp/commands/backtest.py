"""`mmqjp backtest`: what a script would have found in stored documents, and what it would cost."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from feeds.feed import EntryForm
from feeds.history import History, Versions
from feeds.tail import settled, tails_of
from mmqjp.backtest import BACKTEST_SECONDS, Backtest, PreparedScript, backtest_documents, prepared, summary
from mmqjp.commands import options
from mmqjp.commands.command_line import Failure, debug_option
from mmqjp.commands.console import console, live_line, text_table
from mmqjp.commands.formats import LISTED_QUERIES, tz_option
from mmqjp.commands.manage_queries import client
from mmqjp.engine import Session
from mmqjp.present.item import MatchSpool, Report, TimeFormat
from mmqjp.present.terminal import print_report
from mmqjp.process import printable_line
from mmqjp.service.commands import CommandError
from mmqjp.service.sql_question import BACKTEST


@click.command(cls=options.FeedsBeforePaths)
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@options.state_option(
    "A store: try its documents, with the registered queries that the script reads. A service may be running on it.",
    exists=True,
)
@click.option(
    "--documents", "paths", metavar="PATH", multiple=True, type=click.Path(exists=True, path_type=Path),
    help="Try these documents instead of those of the store. May be repeated.",
)  # fmt: skip
@options.feeds_option
@options.versions_option
@options.most_versions_option
@options.time_xpath_option
@tz_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@options.wait_option("How long to wait if another process holds the store, not counting the back-test itself.")
@debug_option
def backtest(
    file: Path, state: Path | None, paths: tuple[Path, ...], feeds: EntryForm | None, versions: Versions,
    most_versions: int, time_xpath: str | None, clock: TimeFormat, as_json: bool, wait: float,
) -> None:  # fmt: skip
    """Try a script on existing documents: what it finds, how often, and what it would cost. Nothing is written.

    \b
    Examples:
      mmqjp backtest stories.xscl --state state/
      mmqjp backtest stories.xscl --documents feeds/ --feeds

    The script runs at low priority in its own process, for a minute at most. It is tried on a store's newest 100,000
    documents, in the order in which they arrived.
    """
    if state is None and not paths:
        raise click.UsageError("name a store with --state, or documents with --documents")
    text = options.read_script(file)[0] if state is None else options.text_for_store(file)
    with live_line() as show:
        show("running the back-test ...")
        try:
            if paths:
                if state is not None:
                    asked = client(state, wait).ask(BACKTEST, {"text": text, "script_only": True})
                    script = PreparedScript.from_dict(asked)
                else:
                    with Session("duckdb") as empty:
                        script = prepared(text, empty.registry)
                found = settled(tails_of(paths, feeds=feeds, time_xpath=time_xpath), History(versions, most_versions))
                result = backtest_documents(script, found)
            else:
                assert state is not None
                result = Backtest.from_dict(client(state, wait + BACKTEST_SECONDS).ask(BACKTEST, {"text": text}))
        except CommandError as error:
            raise Failure(f"{file}: {error}") from error
    if as_json:
        click.echo(json.dumps(result.to_dict(), ensure_ascii=False))
        return
    print_result(result, clock)
    if silent := [query.name for query in result.queries if not query.outputs and not query.paused]:
        few = ", ".join(map(printable_line, silent[:LISTED_QUERIES])) + ", ..." * (len(silent) > LISTED_QUERIES)
        on = " ".join(f"--against {shlex.quote(str(path))}" for path in paths) or "--against DOCUMENTS"
        given = f"{shlex.quote(str(file))} {on}" + (f" --feeds={feeds}" if feeds is not None else "")
        click.echo(f"nothing found by {few}: mmqjp check {printable_line(given)} shows which part finds nothing")


def print_result(result: Backtest, clock: TimeFormat) -> None:
    """Prints a summary, a table of the queries, and the last outputs."""
    out = console()
    for line in summary(result, clock):
        click.echo(printable_line(line))
    has_pairs = any(query.pairs is not None for query in result.queries)
    numbers = ("outputs", *(["pairs a document"] * has_pairs))
    rows = []
    for query in result.queries:
        count = f"{query.outputs:,}" + (f", then paused: {query.paused}" if query.paused else "")
        pairs = "-" if query.pairs is None else f"{query.pairs:,.1f}"
        rows.append((query.name, printable_line(count), *([pairs] * has_pairs)))
    out.print(text_table(("query", *numbers), rows, right=numbers))
    if result.latest:
        with MatchSpool().add(reversed(result.latest)) as spool:
            print_report(Report(spool.groups(), result.outputs, clock), out)
