"""What commands share for fetching: the options, and a fetch that runs until it is done or interrupted."""

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
from feeds.fetch.exchange import ReplyLimits
from feeds.fetch.feed_state import FeedState
from feeds.fetch.fetcher import Report
from feeds.fetch.gates import Courtesy
from feeds.fetch.job import Job
from feeds.fetch.lists import read_feed_lists
from feeds.fetch.schedule import Pace
from feeds.fetch.visit import Outcome, Settings, own_agent
from mmqjp.commands.console import counted
from mmqjp.commands.failure import Failure, Interrupted
from mmqjp.commands.options import AtLeast, duration
from mmqjp.service.fetched_feeds import has_feeds
from mmqjp.text import printable_line

COURTESY, LIMITS = Courtesy(), ReplyLimits()
"""The defaults of the options."""

KEPT = "what was fetched is kept; the same command continues from there"

LISTED_FAILURES = 3
"""How many failures a summary lists."""

KNOWN = ""
"""What `--fetch` has for a LIST if none is given: the feeds that the state knows."""


def finite_duration(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """A duration other than INF, in microseconds."""
    found = duration(context, parameter, value)
    if found is None:
        raise click.BadParameter("INF is not allowed here; write a duration like 1h")
    return found


def user_agent(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """A User-Agent that a header can contain. The default names mmqjp and its version."""
    if value is None:
        return own_agent()
    if not value.strip() or not (value.isascii() and value.isprintable()):
        raise click.BadParameter(f"{value!r:.80} cannot be a User-Agent; write printable ASCII")
    return value


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """The values of the options of `fetch_options`. Durations are microseconds."""

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
        """The fetch job that they describe."""
        limits = ReplyLimits(
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
        "--interval", metavar="DURATION", callback=finite_duration, default="1h", show_default=True,
        help="Time between two fetches of a feed, unless it asks for longer.",
    ),
    click.option("--robots", is_flag=True, help="Obey the robots.txt of each host."),
    click.option(
        "--user-agent", metavar="TEXT", callback=user_agent,
        help="The User-Agent header.  [default: mmqjp and its version]",
    ),
    click.option(
        "--concurrency", metavar="N", type=click.IntRange(1, 1000), default=COURTESY.concurrency, show_default=True,
        help="Most requests at the same time.",
    ),
    click.option(
        "--per-host", metavar="N", type=click.IntRange(1, 100), default=COURTESY.per_host, show_default=True,
        help="Most requests to one host at the same time.",
    ),
    click.option(
        "--spacing", metavar="DURATION", callback=finite_duration, default="1s", show_default=True,
        help="Time between two requests to one host.",
    ),
    click.option(
        "--timeout", metavar="DURATION", callback=finite_duration, default=f"{LIMITS.total:g}s", show_default=True,
        help="Longest time for a whole response.",
    ),
    click.option(
        "--connect-timeout", metavar="DURATION", callback=finite_duration, default=f"{LIMITS.connect:g}s",
        show_default=True, help="Longest time for connecting.",
    ),
    click.option(
        "--read-timeout", metavar="DURATION", callback=finite_duration, default=f"{LIMITS.read:g}s", show_default=True,
        help="Longest time that a server may be silent.",
    ),
    click.option(
        "--most-bytes", metavar="N", type=AtLeast(1), default=LIMITS.body, show_default=True,
        help="Largest response, also after decompression.",
    ),
    click.option(
        "--most-redirects", metavar="N", type=AtLeast(0), default=LIMITS.hops, show_default=True,
        help="Most redirects to follow.",
    ),
    click.option("--allow-private", is_flag=True, help="Also fetch from private and local network addresses."),
)  # fmt: skip


def fetch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options for fetching. The command receives them as `options`, a FetchOptions."""
    names = [field.name for field in fields(FetchOptions)]

    @functools.wraps(command)
    def gathered(**values: Any) -> Any:
        options = FetchOptions(**{name: values.pop(name) for name in names})
        return command(**values, options=options)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered


def fetch_source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of commands that read what they fetch: `--fetch`, `--keep-drops` and those of `fetch_options`."""
    lists = click.option(
        "--fetch", "lists", metavar="LIST", multiple=True, is_flag=False, flag_value=KNOWN,
        help="Feeds to fetch and read: an OPML file, a text file with one address per line, or an address. May be "
        "repeated. Without a LIST: the feeds that the state knows.",
    )  # fmt: skip
    keep = click.option(
        "--keep-drops", callback=duration, metavar="DURATION", default="1d", show_default=True,
        help="How long to keep fetched versions after they are read; the newest of a feed always stays. INF: for ever.",
    )  # fmt: skip
    return lists(keep(fetch_options(command)))


def feeds_to_fetch(lists: Sequence[str], state: Path | None) -> list[FeedState]:
    """The feeds of `--fetch`; none stands for those that the state knows. Raises UsageError if it cannot know any."""
    if KNOWN not in lists:
        return listed_feeds(lists)
    if set(lists) != {KNOWN}:
        raise click.UsageError("--fetch is given with a LIST and without; mmqjp feeds add adds feeds to a state")
    if state is None or not has_feeds(state):
        raise click.UsageError("--fetch without a LIST needs a --state with feeds; name a LIST, or see mmqjp feeds add")
    return []


def listed_feeds(lists: Sequence[str]) -> list[FeedState]:
    """The feeds of lists. Invalid addresses are reported on standard error. Raises Failure if there are no others."""
    feeds, complaints = read_feed_lists(lists)
    for complaint in complaints:
        click.echo(f"mmqjp: {printable_line(complaint)}", err=True)
    if complaints and not feeds:
        raise Failure("none of the addresses in the lists can be fetched; correct the lists")
    return feeds


async def until_signalled(job: Job, watch: bool) -> tuple[Report, list[FeedState], bool]:
    """Fetches until all is done or a signal arrives. Returns the report, the feeds, and whether there was a signal."""
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
    """Fetches what is due, prints a summary, and returns the report.

    Raises Interrupted on Ctrl-C and SIGTERM; its message is `kept`.
    """
    report, feeds, signalled = asyncio.run(until_signalled(job, watch=False))
    summarise(report, feeds)
    if signalled:
        raise Interrupted(kept)
    return report


def require_a_success(report: Report) -> None:
    """Raises Failure if feeds were due but none of them could be fetched."""
    failed = report.counts[Outcome.FAILED] + report.counts[Outcome.STOPPED]
    if failed and failed == report.counts.total():
        raise Failure("no feed that was due could be fetched; mmqjp feeds list shows why")


def summarise(report: Report, feeds: list[FeedState]) -> None:
    """Prints to standard error what was done, and the first failures."""
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    click.echo(f"mmqjp: {counted(len(feeds), 'feed')}, {_done(report, feeds)}", err=True)
    for feed in list(report.failures.values())[:LISTED_FAILURES]:
        click.echo(f"  {printable_line(feed.shown)}: {printable_line(feed.last_error)}", err=True)
    if len(report.failures) > LISTED_FAILURES:
        click.echo(f"  and {len(report.failures) - LISTED_FAILURES:,} more; mmqjp feeds list shows them", err=True)


def _done(report: Report, feeds: list[FeedState]) -> str:
    if report.counts:
        counts = ", ".join(f"{report.counts[outcome]:,} {outcome.value}" for outcome in Outcome)
        return f"{counted(report.counts.total(), 'visit')}: {counts}"
    waiting = [feed.next_check for feed in feeds if not feed.stopped]
    return f"none is due before {iso_utc(min(waiting))[:16]}Z" if waiting else "none is left to fetch"
