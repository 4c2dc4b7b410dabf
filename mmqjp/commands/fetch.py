"""`mmqjp fetch`: gets the feeds that are due, politely, and keeps each new version of them."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import click

from feeds.dates import iso_utc
from feeds.fetch.archive import Archive
from feeds.fetch.drop_archive import DropArchive
from feeds.fetch.feed_state import FeedState
from feeds.fetch.fetcher import Report
from feeds.fetch.fetcher import fetch as fetch_feeds
from feeds.fetch.gates import Courtesy
from feeds.fetch.lists import read_feed_lists
from feeds.fetch.schedule import Pace
from feeds.fetch.state import STATE_FILE, FetchStore
from feeds.fetch.visit import Outcome, Settings
from feeds.fetch.warc_archive import WarcArchive
from mmqjp.commands.console import counted
from mmqjp.commands.errors import Interrupted
from mmqjp.commands.options import debug_option, duration
from mmqjp.text import one_line

COURTESY, PACE = Courtesy(), Pace()
"""What holds without options."""

SHOWN = 3
"""How many failures the summary names."""


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
@click.option(
    "--interval", metavar="DURATION", callback=duration, default="1h", show_default=True,
    help="How long a feed is left alone, if it does not ask for longer.",
)  # fmt: skip
@click.option("--robots", is_flag=True, help="Obey the robots.txt of each host.")
@click.option(
    "--concurrency", metavar="N", type=click.IntRange(1, 1000), default=COURTESY.concurrency, show_default=True,
    help="How many requests there may be at once.",
)  # fmt: skip
@click.option(
    "--per-host", metavar="N", type=click.IntRange(1, 100), default=COURTESY.per_host, show_default=True,
    help="How many of them to one host.",
)  # fmt: skip
@click.option(
    "--spacing", metavar="DURATION", callback=duration, default="1s", show_default=True,
    help="How long a host is left alone between requests.",
)  # fmt: skip
@click.option("--allow-private", is_flag=True, help="Fetch from private and local network addresses too.")
@debug_option
def fetch(
    lists: tuple[str, ...],
    out: Path,
    warc: bool,
    state: Path | None,
    once: bool,
    interval: int | None,
    robots: bool,
    concurrency: int,
    per_host: int,
    spacing: int | None,
    allow_private: bool,
) -> None:
    """Fetch the feeds that are due, and keep each version of them that is new.

    \b
    Examples:
      mmqjp fetch --feeds subscriptions.opml --out crawl/
      mmqjp fetch --out crawl/ --watch
      mmqjp run --queries stories.xscl --documents crawl/ --feeds

    A fetch that is interrupted, or killed, loses nothing: the same command goes on from there.
    """
    if interval is None or spacing is None:
        raise click.BadParameter("INF is no time to wait")
    feeds, complaints = read_feed_lists(lists)
    for complaint in complaints:
        click.echo(f"mmqjp: {one_line(complaint)}", err=True)
    remembered = out / STATE_FILE if state is None else state_file(state)
    if not lists and not remembered.is_file():
        raise click.UsageError(f"{remembered} is not there yet: name some feeds with --feeds")
    with FetchStore(remembered, write=True) as store:
        store.add(feeds)
        known = store.feeds()
        if lists:
            wanted = {feed.url for feed in feeds}
            known = [feed for feed in known if feed.url in wanted]
        archive: Archive = WarcArchive(out, store.archive_mark(), store.save_mark) if warc else DropArchive(out)
        pace = Pace(interval=interval, longest=max(PACE.longest, interval))
        settings = Settings(agent=user_agent(), pace=pace, robots=robots)
        courtesy = Courtesy(concurrency, per_host, spacing)
        with closing(archive):
            report, signalled = asyncio.run(
                _until_signalled(known, store, archive, settings, courtesy, allow_private, not once)
            )
    _summarise(report, known)
    if signalled and once:
        raise Interrupted("what was fetched is kept; the same command goes on from there")


def state_file(path: Path) -> Path:
    """The state that a path means: the file, or that of a directory."""
    return path / STATE_FILE if path.is_dir() else path


def user_agent() -> str:
    """How we say who we are."""
    return f"mmqjp/{version('mmqjp')} (feed fetcher)"


async def _until_signalled(
    feeds: list[FeedState],
    store: FetchStore,
    archive: Archive,
    settings: Settings,
    courtesy: Courtesy,
    allow_private: bool,
    watch: bool,
) -> tuple[Report, bool]:
    """Fetches until all is done or the process is asked to end; says whether it was."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    report = await fetch_feeds(
        feeds, store, archive, settings, courtesy, allow_private=allow_private, watch=watch, stop=stop, told=_progress
    )
    return report, stop.is_set()


def _progress(report: Report) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{report.counts.total():,} fetched, {report.counts[Outcome.NEW]:,} new", nl=False, err=True)


def _summarise(report: Report, feeds: list[FeedState]) -> None:
    """Says on standard error what was done, and the first of what failed."""
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    click.echo(f"mmqjp: {counted(len(feeds), 'feed')}, {_done(report, feeds)}", err=True)
    for feed in list(report.failures.values())[:SHOWN]:
        click.echo(f"  {one_line(feed.url)}: {one_line(feed.last_error)}", err=True)
    if len(report.failures) > SHOWN:
        click.echo(f"  and {len(report.failures) - SHOWN:,} more; mmqjp feeds list shows them", err=True)


def _done(report: Report, feeds: list[FeedState]) -> str:
    if report.counts:
        counts = ", ".join(f"{report.counts[outcome]:,} {outcome.value}" for outcome in Outcome)
        return f"{counted(report.counts.total(), 'visit')}: {counts}"
    waiting = [feed.next_check for feed in feeds if not feed.stopped]
    return f"none is due before {iso_utc(min(waiting))[:16]}Z" if waiting else "none is left to be fetched"
