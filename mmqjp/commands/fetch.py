"""`mmqjp fetch`: gets the feeds that are due, politely, and keeps each new version of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from feeds.fetch.state import STATE_FILE
from mmqjp.commands.debug import debug_option
from mmqjp.commands.fetching import (
    DROPS,
    FetchOptions,
    demand_some,
    fetch_once,
    fetch_options,
    listed_feeds,
    summarise,
    until_signalled,
)


@click.command()
@click.option(
    "--feeds", "lists", metavar="LIST", multiple=True,
    help="An OPML file, a text file with an address a line, or an address. May be repeated. "
    "Without it: all feeds of earlier runs.",
)  # fmt: skip
@click.option(
    "--out", metavar="DIR", required=True, type=click.Path(file_okay=False, path_type=Path),
    help="Where the versions of the feeds go.",
)  # fmt: skip
@click.option("--warc", is_flag=True, help="Write WARC files instead of a directory for each feed.")
@click.option(
    "--state", metavar="FILE", type=click.Path(path_type=Path),
    help=f"What is remembered of each feed.  [default: {STATE_FILE} in the directory of --out]",
)  # fmt: skip
@click.option("--once/--watch", default=True, help="Fetch what is due and end, or go on until Ctrl-C.  [default: once]")
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
    """Fetch the feeds that are due, and keep each version of them that is new.

    \b
    Examples:
      mmqjp fetch --feeds subscriptions.opml --out crawl/
      mmqjp fetch --out crawl/ --watch
      mmqjp run --queries stories.xscl --documents crawl/ --feeds

    A fetch that is interrupted, or killed, loses nothing: the same command goes on from there.
    """
    feeds = listed_feeds(lists)
    remembered = out / STATE_FILE if state is None else state_file(state)
    if not lists and not remembered.is_file():
        raise click.UsageError(f"{remembered} is not there yet: name some feeds with --feeds")
    job = options.job(feeds, out, warc=warc, state=remembered)
    if once:
        demand_some(fetch_once(job))
    else:
        report, known, _ = asyncio.run(until_signalled(job, watch=True))
        summarise(report, known)


def state_file(path: Path) -> Path:
    """The state that a path means: the file, or that of a directory of `fetch`, or that of `run` and `stream`."""
    if not path.is_dir():
        return path
    here, below = path / STATE_FILE, path / DROPS / STATE_FILE
    return below if below.exists() and not here.exists() else here
