"""The command line `mmqjp`: its commands by name, each imported when it is first used."""

from __future__ import annotations

from pathlib import Path

import click

from mmqjp.commands.command_line import CONFIG, MISUSED, CommandLine, LazyCommand, LazyCommands, debug_option
from mmqjp.commands.configuration import NAME, configured

COMMANDS = LazyCommands(
    {
        "run": LazyCommand("mmqjp.commands.run:run", "Answer queries over existing documents."),
        "stream": LazyCommand("mmqjp.commands.serve:stream", "Answer queries over documents as they arrive."),
        "serve": LazyCommand("mmqjp.commands.serve:serve", "Show queries and matches in a browser."),
        "subscribe": LazyCommand("mmqjp.commands.manage_queries:subscribe", "Register the queries of a file."),
        "unsubscribe": LazyCommand("mmqjp.commands.manage_queries:unsubscribe", "Remove the queries with a name."),
        "pause": LazyCommand("mmqjp.commands.manage_queries:pause", "Pause the queries with a name."),
        "resume": LazyCommand("mmqjp.commands.manage_queries:resume", "Resume the queries with a name."),
        "list": LazyCommand("mmqjp.commands.manage_queries:list_queries", "List the registered queries."),
        "rollback": LazyCommand("mmqjp.commands.manage_queries:rollback", "Return to an earlier text of a name."),
        "matches": LazyCommand("mmqjp.commands.matches:matches", "Show what the queries of a store have matched."),
        "items": LazyCommand("mmqjp.commands.list_items:items", "List the items that a store keeps."),
        "why": LazyCommand("mmqjp.commands.matches:why", "Explain an output."),
        "why-not": LazyCommand("mmqjp.commands.matches:why_not", "Explain why there is no output."),
        "feed-link": LazyCommand("mmqjp.commands.serve:feed_link", "Print or revoke the link of a query's feed."),
        "query": LazyCommand("mmqjp.commands.matches:query", "Query a store in SQL."),
        "status": LazyCommand("mmqjp.commands.manage_queries:status", "Show the progress and content of a store."),
        "fetch": LazyCommand("mmqjp.commands.feeds:fetch", "Fetch the feeds that are due."),
        "feeds": LazyCommand("mmqjp.commands.feeds:feeds", "Manage fetched feeds and their settings."),
        "sinks": LazyCommand("mmqjp.commands.manage_sinks:sinks", "Show and change where outputs are delivered."),
        "show": LazyCommand("mmqjp.commands.matches:show", "Show documents as queries see them."),
        "check": LazyCommand("mmqjp.commands.check:check", "Check query files for mistakes."),
        "check-store": LazyCommand(
            "mmqjp.commands.check_store:check_store", "Check the files and tables of a store, and repair them."
        ),
        "backup": LazyCommand("mmqjp.commands.backup:backup", "Copy a state directory while a service runs."),
        "restore": LazyCommand("mmqjp.commands.backup:restore", "Put the state of a backup in place."),
        "sharing": LazyCommand("mmqjp.commands.manage_queries:sharing", "Show what registered queries share and cost."),
        "backtest": LazyCommand("mmqjp.commands.backtest:backtest", "Try queries on existing documents."),
        "explain": LazyCommand("mmqjp.commands.check:explain", "Explain how queries are run and what they share."),
        "words": LazyCommand("mmqjp.commands.words:words_group", "Learn the weights of words for similar()."),
        "demo": LazyCommand("mmqjp.commands.demo:demo", "Run the packaged example."),
        "bench": LazyCommand("mmqjp.commands.bench:bench", "Run a benchmark."),
    }
)


@click.group(
    "mmqjp", cls=CommandLine, commands=COMMANDS, invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)  # fmt: skip
@click.version_option(package_name="mmqjp", message="mmqjp %(version)s")
@click.option(
    CONFIG, metavar="FILE", envvar="MMQJP_CONFIG", type=click.Path(dir_okay=False, path_type=Path),
    help=f"The configuration file. Default: MMQJP_CONFIG, else {NAME} here and in the user's configuration directory.",
)  # fmt: skip
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
