"""`mmqjp stream`: the service that reads sources until it is stopped."""

from __future__ import annotations

import click

from mmqjp.commands.debug import debug_option
from mmqjp.commands.service import run_service
from mmqjp.commands.stream_options import StreamOptions, stream_options


@click.command()
@stream_options
@debug_option
def stream(given: StreamOptions) -> None:
    """Answer queries over documents as they arrive, until Ctrl-C or SIGTERM.

    \b
    Examples:
      mmqjp stream --engine duckdb --source drops/ --feeds --state state/ --output matches.jsonl
      mmqjp stream --engine duckdb --fetch subscriptions.opml --state state/ --output matches.jsonl

    The documents, matches and offsets of a batch are committed together, so a service that is killed continues where it
    stopped. If the output file is moved away, a new one is created with the next lines, or at once on SIGHUP.
    """
    run_service(given)
