"""The command line `mmqjp`."""

from __future__ import annotations

from pathlib import Path

import click

from mmqjp.commands.bench import bench
from mmqjp.commands.check import check
from mmqjp.commands.configuration import NAME, configured
from mmqjp.commands.demo import demo
from mmqjp.commands.errors import MISUSED, CommandLine
from mmqjp.commands.explain import explain
from mmqjp.commands.feeds import feeds
from mmqjp.commands.fetch import fetch
from mmqjp.commands.live import list_queries, pause, query, resume, show, subscribe, unsubscribe
from mmqjp.commands.options import debug_option
from mmqjp.commands.run import run
from mmqjp.commands.status import status
from mmqjp.commands.stream import stream


@click.group(
    "mmqjp",
    cls=CommandLine,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="mmqjp", message="mmqjp %(version)s")
@click.option(
    "--config",
    metavar="FILE",
    envvar="MMQJP_CONFIG",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The configuration. Without it: MMQJP_CONFIG, else {NAME} here and in the user's configuration directory.",
)
@debug_option
@click.pass_context
def main(context: click.Context, config: Path | None) -> None:
    """Standing queries that join XML documents of many streams, all queries at once.

    \b
    Examples:
      mmqjp demo --engine duckdb
      mmqjp run --queries stories.xscl --documents feeds/ --feeds
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(MISUSED)
    context.default_map = configured(main, config)


LIVE = (subscribe, unsubscribe, pause, resume, list_queries, show, query, status)

for command in (run, stream, *LIVE, fetch, feeds, check, explain, demo, bench):
    main.add_command(command)
