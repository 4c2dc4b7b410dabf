"""The command line `mmqjp`: its commands by name, each imported when it is first used."""

from __future__ import annotations

from pathlib import Path

import click

from mmqjp.commands.command_line import MISUSED, CommandLine, LazyCommand, LazyCommands, debug_option
from mmqjp.commands.configuration import NAME, configured

COMMANDS = LazyCommands(
    {
        "run": LazyCommand("run:run", "Answer queries over existing documents."),
        "stream": LazyCommand("serve:stream", "Answer queries over documents as they arrive."),
        "serve": LazyCommand("serve:serve", "Show queries and matches in a browser."),
        "subscribe": LazyCommand("manage_queries:subscribe", "Register the queries of a file."),
        "unsubscribe": LazyCommand("manage_queries:unsubscribe", "Remove the queries of a name."),
        "pause": LazyCommand("manage_queries:pause", "Pause the queries of a name."),
        "resume": LazyCommand("manage_queries:resume", "Resume the queries of a name."),
        "list": LazyCommand("manage_queries:list_queries", "List the registered queries."),
        "matches": LazyCommand("matches:matches", "Show what the queries of a store have matched."),
        "why": LazyCommand("matches:why", "Show why an output came about."),
        "why-not": LazyCommand("matches:why_not", "Show why there is no output."),
        "feed-link": LazyCommand("serve:feed_link", "Print or revoke the link of a query's feed."),
        "query": LazyCommand("matches:query", "Query a store in SQL."),
        "status": LazyCommand("manage_queries:status", "Show how far a store has come and what it keeps."),
        "fetch": LazyCommand("feeds:fetch", "Fetch the feeds that are due."),
        "feeds": LazyCommand("feeds:feeds", "Show and change what is known of fetched feeds."),
        "sinks": LazyCommand("manage_sinks:sinks", "Show and change where outputs are delivered."),
        "show": LazyCommand("matches:show", "Show documents as queries see them."),
        "check": LazyCommand("check:check", "Check query files for mistakes."),
        "check-store": LazyCommand("check_store:check_store", "Check the files and tables of a store, and mend them."),
        "sharing": LazyCommand("manage_queries:sharing", "Show what registered queries share and cost."),
        "backtest": LazyCommand("backtest:backtest", "Try queries on documents that are there."),
        "explain": LazyCommand("check:explain", "Explain how queries are run and what they share."),
        "demo": LazyCommand("demo:demo", "Run the packaged example."),
        "bench": LazyCommand("bench:bench", "Run a benchmark."),
    }
)


@click.group(
    "mmqjp",
    cls=CommandLine,
    commands=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="mmqjp", message="mmqjp %(version)s")
@click.option(
    "--config",
    metavar="FILE",
    envvar="MMQJP_CONFIG",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The configuration file. Default: MMQJP_CONFIG, else {NAME} here and in the user's configuration directory.",
)
@debug_option
@click.pass_context
def main(context: click.Context, config: Path | None) -> None:
    """Answer many standing queries over streams of XML documents, all of them together.

    \b
    Examples:
      mmqjp demo
      mmqjp run --queries stories.xscl --documents feeds/ --feeds
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(MISUSED)
    context.default_map = configured(main, config)
