"""`mmqjp fetch`: fetches the feeds that are due, politely, and stores each new version."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from feeds.fetch.state import STATE_FILE
from mmqjp.commands.debug import debug_option
from mmqjp.commands.fetching import (
    FetchOptions,
    fetch_once,
    fetch_options,
    listed_feeds,
    require_a_success,
    summarise,
    until_signalled,
)
from mmqjp.service.fetched_feeds import state_file


def given_or_configured(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """The lists on the command line, else those of the configuration, which some versions of click pass over."""
    return value or tuple(context.lookup_default(parameter.name or "") or ())


@click.command()
@click.argument("lists", nargs=-1, metavar="[LIST]...", callback=given_or_configured)
@click.option(
    "--out", metavar="DIR", required=True, type=click.Path(file_okay=False, path_type=Path),
    help="Where to store the versions of the feeds.",
)  # fmt: skip
@click.option("--warc", is_flag=True, help="Write WARC files instead of one directory per feed.")
@click.option(
    "--state", metavar="FILE", type=click.Path(path_type=Path),
    help=f"Where to store what is known of each feed.  [default: {STATE_FILE} in the directory of --out]",
)  # fmt: skip
@click.option(
    "--once/--watch", default=True, help="Fetch what is due and stop, or keep running until Ctrl-C.  [default: once]"
)
@fetch_options
@debug_option
def fetch(
    lists: tuple[str, ...],
    out: Path,
    warc: bool,
    state: Path | None,
    once: bool,
    options: FetchOptions,
) -> None:
    """Fetch the feeds that are due, and store each new version.

    \b
    Examples:
      mmqjp fetch subscriptions.opml --out crawl/
      mmqjp fetch --out crawl/ --watch
      mmqjp run --queries stories.xscl --documents crawl/ --feeds

    A LIST is an OPML file, a text file with one address per line, or an address. Without one, the feeds of earlier runs
    and of mmqjp feeds add are fetched.

    A fetch that is interrupted or killed loses nothing: the same command continues from there.
    """
    feeds = listed_feeds(lists)
    fetch_state = out / STATE_FILE if state is None else state_file(state)
    if not lists and not fetch_state.is_file():
        raise click.UsageError(f"{fetch_state} does not exist yet: name a list of feeds, as in mmqjp fetch feeds.opml")
    job = options.job(feeds, out, warc=warc, state=fetch_state)
    if once:
        require_a_success(fetch_once(job))
    else:
        report, known, _ = asyncio.run(until_signalled(job, watch=True))
        summarise(report, known)
