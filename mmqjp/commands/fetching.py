"""Fetching as commands offer it: the options, one definition for all, and a fetch until it is done or interrupted."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from feeds.dates import iso_utc
from feeds.fetch.clock import SECOND
from feeds.fetch.exchange import Limits
from feeds.fetch.feed_state import FeedState
from feeds.fetch.fetcher import Report
from feeds.fetch.gates import Courtesy
from feeds.fetch.job import Job
from feeds.fetch.lists import read_feed_lists
from feeds.fetch.schedule import Pace
from feeds.fetch.visit import Outcome, Settings, own_agent
from mmqjp.commands.console import counted
from mmqjp.commands.failure import Failure, Interrupted
from mmqjp.commands.options import duration
from mmqjp.text import one_line

COURTESY, LIMITS = Courtesy(), Limits()
"""What holds without options."""

KEPT = "what was fetched is kept; the same command goes on from there"

SHOWN = 3
"""How many failures a summary names."""

DROPS = "drops"
"""The folder of a state directory into which `--fetch` fetches."""


def wait(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """A duration that ends, in microseconds."""
    found = duration(context, parameter, value)
    if found is None:
        raise click.BadParameter("INF is no time to wait")
    return found


def header(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """What a header can say."""
    if value is None:
        return own_agent()
    if not value.strip() or not (value.isascii() and value.isprintable()):
        raise click.BadParameter(f"{value!r:.80} is no User-Agent; write printable ASCII")
    return value


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """What the options of `fetch_options` say; durations are microseconds."""

    interval: int
    robots: bool
    user_agent: str
    concurrency: int
    per_host: int
    spacing: int
    timeout: int
    connect_timeout: int
    read_timeout: int
    most_bytes: int
    most_redirects: int
    allow_private: bool

    def job(self, feeds: Sequence[FeedState], out: Path, *, warc: bool = False, state: Path | None = None) -> Job:
        """The fetch that they describe."""
        limits = Limits(
            body=self.most_bytes,
            connect=self.connect_timeout / SECOND,
            read=self.read_timeout / SECOND,
            total=self.timeout / SECOND,
            hops=self.most_redirects,
        )
        settings = Settings(self.user_agent, limits, Pace(self.interval), self.robots)
        courtesy = Courtesy(self.concurrency, self.per_host, self.spacing)
        return Job(feeds, out, settings, courtesy, self.allow_private, warc, state)


_OPTIONS = (
    click.option(
        "--interval", metavar="DURATION", callback=wait, default="1h", show_default=True,
        help="How long a feed is left alone, if it does not ask for longer.",
    ),
    click.option("--robots", is_flag=True, help="Obey the robots.txt of each host that is fetched from."),
    click.option(
        "--user-agent", metavar="TEXT", callback=header,
        help="Who asks the hosts.  [default: mmqjp with its version]",
    ),
    click.option(
        "--concurrency", metavar="N", type=click.IntRange(1, 1000), default=COURTESY.concurrency, show_default=True,
        help="How many requests there may be at once.",
    ),
    click.option(
        "--per-host", metavar="N", type=click.IntRange(1, 100), default=COURTESY.per_host, show_default=True,
        help="How many of them to one host.",
    ),
    click.option(
        "--spacing", metavar="DURATION", callback=wait, default="1s", show_default=True,
        help="How long a host is left alone between requests.",
    ),
    click.option(
        "--timeout", metavar="DURATION", callback=wait, default=f"{LIMITS.total:g}s", show_default=True,
        help="How long an answer may take in all.",
    ),
    click.option(
        "--connect-timeout", metavar="DURATION", callback=wait, default=f"{LIMITS.connect:g}s", show_default=True,
        help="How long a connection may take.",
    ),
    click.option(
        "--read-timeout", metavar="DURATION", callback=wait, default=f"{LIMITS.read:g}s", show_default=True,
        help="How long a server may be silent.",
    ),
    click.option(
        "--most-bytes", metavar="N", type=click.IntRange(min=1), default=LIMITS.body, show_default=True,
        help="How large an answer may be, also once decompressed.",
    ),
    click.option(
        "--most-redirects", metavar="N", type=click.IntRange(min=0), default=LIMITS.hops, show_default=True,
        help="How many redirects are followed.",
    ),
    click.option("--allow-private", is_flag=True, help="Fetch from private and local network addresses too."),
)  # fmt: skip


def fetch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of how feeds are fetched; the command takes them as `options`, a FetchOptions."""
    names = [field.name for field in fields(FetchOptions)]

    @functools.wraps(command)
    def gathered(**values: Any) -> Any:
        options = FetchOptions(**{name: values.pop(name) for name in names})
        return command(**values, options=options)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered


def fetch_source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of commands that read what they fetch: `--fetch`, `--keep-drops`, and how feeds are fetched."""
    lists = click.option(
        "--fetch", "lists", metavar="LIST", multiple=True,
        help="Fetch feeds and read them: an OPML file, a text file with an address a line, or an address. May be "
        "repeated.",
    )  # fmt: skip
    keep = click.option(
        "--keep-drops", callback=duration, metavar="DURATION", default="1d", show_default=True,
        help="How long versions of feeds stay that are read, but for the newest of each feed; INF: for ever.",
    )  # fmt: skip
    return lists(keep(fetch_options(command)))


def listed_feeds(lists: Sequence[str]) -> list[FeedState]:
    """The feeds of lists; on standard error what in them is no address. Raises Failure if none is."""
    feeds, complaints = read_feed_lists(lists)
    for complaint in complaints:
        click.echo(f"mmqjp: {one_line(complaint)}", err=True)
    if complaints and not feeds:
        raise Failure("none of the lists' addresses is one that can be fetched; mend the lists")
    return feeds


async def until_signalled(job: Job, watch: bool) -> tuple[Report, list[FeedState], bool]:
    """Fetches until all is done or the process is asked to end; what was done, of which feeds, and whether it was."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    report, feeds = await job.run(watch=watch, stop=stop, told=_progress)
    return report, feeds, stop.is_set()


def _progress(report: Report, feed: FeedState, outcome: Outcome) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{report.counts.total():,} fetched, {report.counts[Outcome.NEW]:,} new", nl=False, err=True)


def fetch_once(job: Job, kept: str = KEPT) -> Report:
    """Fetches what is due, says so, and returns what was done. Raises Interrupted, which says what is `kept`, on Ctrl-C
    and SIGTERM."""
    report, feeds, signalled = asyncio.run(until_signalled(job, watch=False))
    summarise(report, feeds)
    if signalled:
        raise Interrupted(kept)
    return report


def demand_some(report: Report) -> None:
    """Raises Failure if feeds were visited and none of them could be fetched."""
    failed = report.counts[Outcome.FAILED] + report.counts[Outcome.STOPPED]
    if failed and failed == report.counts.total():
        raise Failure("no feed that was due could be fetched; mmqjp feeds list shows why")


def summarise(report: Report, feeds: list[FeedState]) -> None:
    """Says on standard error what was done, and the first of what failed."""
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    click.echo(f"mmqjp: {counted(len(feeds), 'feed')}, {_done(report, feeds)}", err=True)
    for feed in list(report.failures.values())[:SHOWN]:
        click.echo(f"  {one_line(feed.shown)}: {one_line(feed.last_error)}", err=True)
    if len(report.failures) > SHOWN:
        click.echo(f"  and {len(report.failures) - SHOWN:,} more; mmqjp feeds list shows them", err=True)


def _done(report: Report, feeds: list[FeedState]) -> str:
    if report.counts:
        counts = ", ".join(f"{report.counts[outcome]:,} {outcome.value}" for outcome in Outcome)
        return f"{counted(report.counts.total(), 'visit')}: {counts}"
    waiting = [feed.next_check for feed in feeds if not feed.stopped]
    return f"none is due before {iso_utc(min(waiting))[:16]}Z" if waiting else "none is left to be fetched"
