"""`mmqjp feeds` and `mmqjp fetch`: manage the list of fetched feeds, and fetch those that are due, politely. Each new
version is stored. The fetch options are shared with other commands; a fetch runs until done or interrupted."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from common.dates import DAY, SECOND, iso_utc
from common.errors import OperationalError
from feeds.documents import now_us
from feeds.fetch.fetcher import FetchReport, Job, Outcome, Settings, own_agent
from feeds.fetch.http import ReplyLimits
from feeds.fetch.lists import FeedLists, read_feed_lists
from feeds.fetch.settings import (
    NONE,
    NOTHING_SET,
    BadSettings,
    FeedSettings,
    SecretValue,
    SettingsOf,
    effective_settings,
    read_feed_tables,
)
from feeds.fetch.state import (
    STATE_FILE,
    AddedFeed,
    FeedChange,
    FeedState,
    FetchStore,
    Pace,
    SettingsChange,
    SettingsScope,
    change_feeds,
)
from feeds.items import LONGEST_TITLE, one_line, without_credentials
from mmqjp.commands.command_line import Failure, Interrupted, debug_option
from mmqjp.commands.configuration import read_configurations, table_of
from mmqjp.commands.console import console
from mmqjp.commands.formats import check_output, data_file, tables_of, tz_option
from mmqjp.commands.options import AtLeast, duration, feed_memory_option, number, option, parse_duration, with_options
from mmqjp.present.item import TimeFormat
from mmqjp.process import json_line, pluralise, printable_line
from mmqjp.service import drops
from mmqjp.service.sql_question import QUERY
from mmqjp.sinks.secrets import Secrets, store_secret
from mmqjp.state.engine_choice import stored_engine
from mmqjp.tables.lookup import items_by_feed
from mmqjp.web.tallies import DAYS, FeedItems, tally_feeds

_ROW = "{:<8} {:<17} {:<17} {:>6}{}  {}"
_KEPT = "  {:>6}  {:<16}"
_INDENT = " " * 9


Notes = Mapping[str, drops.FeedNotes]


def table_lines(
    feeds: Iterable[FeedState], notes: Notes, width: int, clock: TimeFormat, kept: Mapping[str, FeedItems] | None = None
) -> Iterator[str]:
    """Formats a table; with `kept`, also the number of stored items of each feed and the time of the last new one.
    Addresses end lines, uncut; other remarks go on their own lines, wrapped to `width` if possible."""

    def minute(moment: int) -> str:
        return clock.minute(moment) if moment else "-"

    more = "" if kept is None else _KEPT.format("items", "last new")
    yield _ROW.format("status", f"checked ({clock.zone_at(now_us())})", "next check", "errors", more, "feed")
    for feed in feeds:
        status = "stopped" if feed.stopped else str(feed.status or "-")
        due = "-" if feed.stopped else minute(feed.next_check)
        if kept is not None:
            items = kept.get(feed.shown, FeedItems())
            more = _KEPT.format(f"{items.items:,}", minute(items.last or 0))
        yield _ROW.format(status, minute(feed.checked_at), due, feed.errors, more, printable_line(feed.shown))
        called = " ".join(filter(None, (feed.title, f"({', '.join(feed.folders)})" if feed.folders else "")))
        count = pluralise(feed.hints.undated, "entry", "entries")
        undated = f"{count} with a date that cannot be read" if feed.hints.undated else ""
        for text in (
            called,
            without_credentials(feed.last_error),
            undated,
            *notes.get(feed.url, drops.FeedNotes())[:2],
        ):
            yield from textwrap.wrap(
                printable_line(text), max(width, len(_INDENT) + 1), initial_indent=_INDENT, subsequent_indent=_INDENT,
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip


def listed_as_json(
    feeds: Iterable[FeedState], notes: Notes, kept: Mapping[str, FeedItems] | None = None
) -> Iterator[bytes]:
    """Yields a JSON line per feed. Times are ISO 8601 in UTC; null for never."""
    for feed in feeds:
        fields = asdict(drops.FeedSummary.of(feed, notes))
        items = FeedItems() if kept is None else kept.get(feed.shown, FeedItems())
        fields |= {"items": None if kept is None else items.items, "last_new": items.last}
        times = {key: fields[key] for key in ("checked_at", "changed_at", "next_check", "last_new")}
        yield json_line(fields | {key: None if time is None else iso_utc(time) for key, time in times.items()})


DEFAULTS, LIMITS = Settings(""), ReplyLimits()

KEPT = "what was fetched is stored; the same command continues from there"

LISTED = 3  # maximum number of failures or new feeds in a summary
KNOWN = ""  # value of `--fetch` without a LIST: the feeds in the state
NO_LIST = FeedLists([], [], {}, {})


def finite_duration(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """Parses a duration other than INF, in microseconds."""
    found = parse_duration(context, parameter, value)
    if found is None:
        raise click.BadParameter("INF is not allowed here; write a duration like 1h")
    return found


def user_agent(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """Validates a User-Agent for a header. The default names mmqjp and its version."""
    if value is None:
        return own_agent()
    if not value.strip() or not (value.isascii() and value.isprintable()):
        raise click.BadParameter(f"{value!r:.80} cannot be a User-Agent; write printable ASCII")
    return value


def configured_settings(context: click.Context) -> SettingsOf:
    """Returns the settings of feeds in the command's configuration. Raises UsageError."""
    found = NOTHING_SET
    for path, settings in read_configurations(context.find_root().params.get("config")):
        try:
            found = found.over(read_feed_tables(settings, path))
        except BadSettings as error:
            raise click.UsageError(str(error)) from None
    return found


def secret_values(context: click.Context, file: Path) -> SecretValue:
    """Returns a function that looks up secrets for the fetcher with a state file."""
    secrets = Secrets(tables_of(context)().secrets, drops.secrets_home(file))
    return lambda name: drops.secret_value(secrets, name)


_finite = partial(duration, callback=finite_duration)


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How feeds are fetched. Durations are microseconds."""

    interval: int = _finite("--interval", "1h", "Time between two fetches of a feed, unless it asks for more.")
    robots: bool = option("--robots", is_flag=True, help="Obey the robots.txt of each host.")
    user_agent: str = option(
        "--user-agent", metavar="TEXT", callback=user_agent,
        help="The User-Agent header.  [default: mmqjp and its version]",
    )  # fmt: skip
    concurrency: int = number(
        "--concurrency", DEFAULTS.concurrency, "Most requests at the same time.", click.IntRange(1, 1000)
    )
    per_host: int = number(
        "--per-host", DEFAULTS.per_host, "Most requests to one host at the same time.", click.IntRange(1, 100)
    )
    spacing: int = _finite("--spacing", "1s", "Time between two requests to one host.")
    timeout: int = _finite("--timeout", f"{LIMITS.total:g}s", "Longest time for a whole response.")
    connect_timeout: int = _finite("--connect-timeout", f"{LIMITS.connect:g}s", "Longest time for connecting.")
    read_timeout: int = _finite(
        "--read-timeout", f"{LIMITS.read:g}s", "Longest time to wait for the next bytes of a response."
    )
    most_bytes: int = number("--most-bytes", LIMITS.body, "Largest response, also after decompression.")
    most_redirects: int = number("--most-redirects", LIMITS.hops, "Most redirects to follow.", AtLeast(0))
    allow_private: bool = option(
        "--allow-private", is_flag=True, help="Also fetch from private and local network addresses."
    )

    def job(self, listed: FeedLists, out: Path, *, warc: bool = False, state: Path | None = None) -> Job:
        """Raises UsageError if the configuration cannot be used."""
        context = click.get_current_context()
        connect, read, total = (time / SECOND for time in (self.connect_timeout, self.read_timeout, self.timeout))
        limits = ReplyLimits(body=self.most_bytes, connect=connect, read=read, total=total, hops=self.most_redirects)
        secret = secret_values(context, state or out / STATE_FILE)
        settings = Settings(
            self.user_agent, limits, Pace(self.interval), self.robots, self.concurrency, self.per_host, self.spacing,
            self.allow_private, feeds=configured_settings(context), secret=secret,
        )  # fmt: skip
        return Job(listed.feeds, out, settings, warc, state, listed.changes)


def feeds_to_fetch(lists: Sequence[str], state: Path | None) -> FeedLists:
    """Returns the feeds that `--fetch` names; none if it has no lists, which means those of the state. Raises
    UsageError without a state."""
    if KNOWN not in lists:
        return read_lists(lists)
    if set(lists) != {KNOWN}:
        raise click.UsageError("--fetch is given both with and without a LIST; mmqjp feeds add adds feeds to a state")
    if state is None or not drops.has_feeds(state):
        raise click.UsageError("--fetch without a LIST needs a --state with feeds; name a LIST, or see mmqjp feeds add")
    return NO_LIST


def read_lists(lists: Sequence[str]) -> FeedLists:
    """Reports invalid addresses and settings on standard error; raises Failure if no address is valid."""
    found = read_feed_lists(lists)
    for complaint in found.complaints:
        click.echo(f"mmqjp: {printable_line(complaint)}", err=True)
    if found.complaints and not found.feeds:
        raise Failure("none of the addresses in the lists can be fetched; correct the lists")
    return found


async def until_signalled(job: Job, watch: bool) -> tuple[FetchReport, list[FeedState], bool]:
    """Fetches until done or signalled. Returns the report, the feeds, and whether a signal arrived."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, stop.set)

    def show_progress(report: FetchReport, feed: FeedState, outcome: Outcome) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{report.counts.total():,} fetched, {report.counts[Outcome.NEW]:,} new", nl=False, err=True)

    report, feeds = await job.run(watch=watch, stop=stop, on_visit=show_progress)
    return report, feeds, stop.is_set()


def fetch_once(job: Job, kept: str = KEPT) -> FetchReport:
    """Fetches due feeds, and prints a summary. Raises Interrupted, with the message `kept`, on Ctrl-C and SIGTERM."""
    report, feeds, signalled = asyncio.run(until_signalled(job, watch=False))
    print_fetch_summary(report, feeds)
    if signalled:
        raise Interrupted(kept)
    return report


def require_a_success(report: FetchReport) -> None:
    """Raises Failure if feeds were due and all failed."""
    failed = report.counts[Outcome.FAILED] + report.counts[Outcome.STOPPED]
    if failed and failed == report.counts.total():
        raise Failure("no feed that was due could be fetched; mmqjp feeds list shows why")


def print_fetch_summary(report: FetchReport, feeds: list[FeedState]) -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    if report.counts:
        shown = [outcome for outcome in Outcome if outcome is not Outcome.PAGE]
        counts = ", ".join(f"{report.counts[outcome]:,} {outcome.value}" for outcome in shown)
        done = f"{pluralise(report.counts.total(), 'visit')}: {counts}"
    elif waiting := [feed.next_check for feed in feeds if not feed.stopped]:
        done = f"none is due before {iso_utc(min(waiting))[:16]}Z"
        if failed := sum(feed.errors > 0 and not feed.stopped for feed in feeds):
            done += f"; {failed:,} of them failed last, and mmqjp feeds retry makes these due now"
    else:
        done = "none is left to fetch"
    done += f"; {pluralise(report.pages, 'older page')} read" if report.pages else ""
    click.echo(f"mmqjp: {pluralise(len(feeds), 'feed')}, {done}", err=True)
    failures = [f"{feed.shown}: {feed.last_error}" for feed in report.failures.values()]
    _print_first(failures, "; mmqjp feeds list shows them")


WAIT = 5.0  # seconds to wait for a running fetch to apply a change

LATER = "; the running fetch will apply it"


_state_option = click.option(
    "--state", metavar="PATH", required=True, type=click.Path(exists=True, path_type=Path),
    help="The directory of mmqjp fetch --out or of --state, or the fetcher's state file.",
)  # fmt: skip


_allow_private_option = click.option(
    "--allow-private", metavar="HOST", multiple=True,
    help="A host that may have an address inside your network: a name, an address, or a network like 192.168.1.0/24.",
)  # fmt: skip


@click.group()
@debug_option
def feeds() -> None:
    """Show and change the list of fetched feeds and their settings.

    \b
    Examples:
      mmqjp feeds list --state crawl/
      mmqjp feeds add https://example.org/feed --folder News --state crawl/
      mmqjp feeds set https://example.org/feed interval=15min --state crawl/
      mmqjp feeds export --state crawl/ --output feeds.opml
    """


@feeds.command("list")
@_state_option
@click.option("--json", "as_json", is_flag=True, help="Write a line of JSON for each feed.")
@tz_option
@debug_option
def list_feeds(state: Path, as_json: bool, clock: TimeFormat) -> None:
    """List the feeds: last status, time of the next fetch, your title and folder, and errors.

    \b
    Example:
      mmqjp feeds list --state crawl/
    """
    known, kept = drops.noted_feeds(drops.state_file(state), now_us()), _kept_items(state)
    shown = (f"{line}\n".encode() for line in table_lines(*known, console().width, clock, kept))
    lines = listed_as_json(*known, kept) if as_json else shown
    with data_file(None) as file:
        for line in lines:
            file.write(line)
    configured, settings = configured_settings(click.get_current_context()), _settings(drops.state_file(state))
    for feed in known[0]:
        if effective_settings(feed.url, feed.folders, configured, settings, feed.shown).verify is False:
            click.echo(f"mmqjp: warning: {UNVERIFIED.format(feed.shown)}", err=True)


def _kept_items(state: Path) -> dict[str, FeedItems] | None:
    """Returns the items that a state's store keeps of each feed; None without a store, or if it is busy."""
    if not state.is_dir() or stored_engine(state) is None:
        return None
    from mmqjp.commands.manage_queries import client  # no other command here needs a store

    today = now_us() // DAY
    try:
        found = client(state, WAIT).ask(QUERY, {"sql": items_by_feed(today - DAYS + 1), "seconds": WAIT})
    except OperationalError as error:
        click.echo(f"mmqjp: items are not counted: {error}", err=True)
        return None
    return tally_feeds((dict(zip(found["columns"], row, strict=True)) for row in found["rows"]), today)


@feeds.command()
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS|LIST...")
@click.option(
    "--state", metavar="PATH", required=True, type=click.Path(path_type=Path),
    help="The directory of mmqjp fetch --out or of --state, or the fetcher's state file. Created if missing.",
)  # fmt: skip
@click.option(
    "--folder", metavar="NAME", default="", help="The folder to put the feeds into, such as News or News/World."
)
@click.option("--title", metavar="TEXT", default="", help="Your title for the feed.  [default: its own title]")
@click.option(
    "--history", metavar="DURATION", help="How far back to read the feed's older pages, like 2y. INF: all of them."
)
@_allow_private_option
@click.option("--set", "keys", metavar="KEY=VALUE", multiple=True, help="A setting, as in mmqjp feeds set.")
@debug_option
def add(
    addresses: tuple[str, ...], state: Path, folder: str, title: str, history: str | None,
    allow_private: tuple[str, ...], keys: tuple[str, ...],
) -> None:  # fmt: skip
    """Add feeds, or give known feeds a folder, a title or settings.

    \b
    Examples:
      mmqjp feeds add https://example.org/feed --folder News --state crawl/
      mmqjp feeds add subscriptions.opml --state crawl/
      mmqjp feeds add https://example.org/feed --history 2y --set interval=30min --state crawl/

    A LIST is an OPML file or a text file with one address per line. The feeds are fetched by mmqjp fetch without a
    LIST, and by mmqjp run, stream and serve with --fetch without a LIST. Settings in an OPML file are taken over,
    except those that could do harm, which only mmqjp feeds set sets.
    """
    folder, title = _name(folder, "--folder"), _name(title, "--title")
    table = _table(keys, allow_private) | ({} if history is None else {"history": history})
    file = drops.new_state_file(state)
    given = FeedSettings.from_table(table)
    _require_secrets(given, file)
    files = [one for one in addresses if Path(one).is_file()]
    listed = read_lists(files) if files else NO_LIST
    named = {feed.url: feed for feed in (drops.feed_named(one) for one in addresses if one not in files)}
    named |= {feed.url: feed for feed in listed.feeds}
    if title and len(named) > 1:
        raise click.UsageError("--title is for one feed, but several are given")
    known = drops.known_feeds(file) if file.exists() else []
    settings = configured_settings(click.get_current_context()).over(_settings(file))
    outside, refused = list(named.values()), list[str]()
    if not _fetches_anywhere(click.get_current_context()):
        outside, refused = drops.without_private(outside, known, given, settings)
    for complaint in refused:
        if len(named) == 1:
            raise Failure(complaint)
        click.echo(f"mmqjp: {printable_line(complaint)}; it is left out", err=True)
    added = []
    for feed in outside:
        own = listed.settings.get(feed.url, NONE).to_table() | given.to_table()
        text = FeedSettings.from_table(own).to_json() if own else ""
        added.append(AddedFeed(feed.url, title or feed.title, folder or feed.folder, text))
    of_folders = tuple(one for one in listed.changes if one.scope == "folder")
    made = change_feeds(file, FeedChange(add=tuple(added), settings=of_folders), WAIT) if added else True
    there = {feed.url for feed in known}
    new = [feed.url for feed in added if feed.url not in there]
    summary = f"{pluralise(len(new), 'new feed')}, {pluralise(len(known) + len(new), 'feed')} in all"
    if again := len(added) - len(new):
        summary += f"; {again:,} {'was' if again == 1 else 'were'} there already"
    click.echo(f"mmqjp: {summary}{'' if made else LATER}", err=True)
    if again:
        _print_first([without_credentials(url) for url in new], "")


def _fetches_anywhere(context: click.Context) -> bool:
    """Whether the configuration lets a command fetch from private addresses."""
    defaults = context.find_root().default_map or {}
    return any(defaults.get(name, {}).get("allow_private") is True for name in ("fetch", "run", "stream", "serve"))


def _print_first(lines: Sequence[str], where: str) -> None:
    for line in lines[:LISTED]:
        click.echo(f"  {printable_line(line)}", err=True)
    if len(lines) > LISTED:
        click.echo(f"  and {len(lines) - LISTED:,} more{where}", err=True)


@feeds.command("set")
@click.argument("given", nargs=-1, metavar="[ADDRESS]... [KEY=VALUE]...")
@click.option(
    "--folder", "folders", metavar="NAME", multiple=True, help="A folder; its settings apply unless a feed has its own."
)
@click.option("--all", "for_all", is_flag=True, help="All feeds; applies unless a feed or its folder has its own.")
@_allow_private_option
@_state_option
@debug_option
def set_feeds(
    given: tuple[str, ...], folders: tuple[str, ...], for_all: bool, allow_private: tuple[str, ...], state: Path
) -> None:
    """Change how feeds are fetched and read. A key without a value (KEY=) gets its default.

    \b
    Examples:
      mmqjp feeds set https://example.org/feed interval=15min 'block=["title:sponsored"]' --state crawl/
      mmqjp feeds set --folder News versions=ignore --state crawl/
      mmqjp feeds set https://example.org/feed user=ada password=example --state crawl/
      mmqjp feeds set http://nas.lan/feed --allow-private nas.lan --state crawl/
      mmqjp feeds set --all --allow-private 192.168.1.0/24 --state crawl/

    docs/fetching.md describes all keys. A VALUE that begins with a bracket, a brace or a quote is TOML. A running fetch
    applies the change to its next requests. Settings in the configuration file are changed there.
    """
    addresses = [one for one in given if not _KEY.match(one)]
    table = _table([one for one in given if _KEY.match(one)], allow_private)
    if not table:
        raise click.UsageError("write a setting, such as interval=30min")
    if not (addresses or folders or for_all):
        raise click.UsageError("name feeds by their addresses, or folders with --folder, or --all")
    file = drops.state_file(state)
    known = _settings(file)
    scopes: list[tuple[SettingsScope, str]] = [("feed", feed.url) for feed in _chosen(_known(state), addresses, state)]
    scopes += [("folder", name) for name in (*(_name(one, "--folder") for one in folders), *([""] if for_all else []))]
    for scope, name in scopes:
        before = (known.feeds if scope == "feed" else known.folders).get(name, NONE)
        after = before.changed(table)
        _require_secrets(after, file)
        if after.verify is False and before.verify is not False:
            what = without_credentials(name) or "all feeds"
            click.echo(f"mmqjp: warning: {UNVERIFIED.format(what)}", err=True)
    changes = tuple(SettingsChange(scope, name, json.dumps(table)) for scope, name in scopes)
    made = change_feeds(file, FeedChange(settings=changes), WAIT)
    where = configured_settings(click.get_current_context())
    for scope, name in scopes:
        configured = (where.feeds if scope == "feed" else where.folders).get(name, NONE).to_table()
        if fixed := sorted(configured.keys() & table.keys()):
            what = without_credentials(name) or "all feeds"
            click.echo(
                f"mmqjp: the configuration also sets {', '.join(fixed)} of {what} and takes precedence", err=True
            )
    click.echo(f"mmqjp: {pluralise(len(scopes), 'setting')} changed{'' if made else LATER}", err=True)


@feeds.command()
@click.argument("address")
@click.option("--json", "as_json", is_flag=True, help="Print an object of JSON.")
@_state_option
@debug_option
def show(address: str, as_json: bool, state: Path) -> None:
    """Show a feed's settings: its own, its folders' and the configuration's. Secrets are shown by name only.

    \b
    Example:
      mmqjp feeds show https://example.org/feed --state crawl/
    """
    (feed,) = _chosen(_known(state), [address], state)
    file = drops.state_file(state)
    configured = configured_settings(click.get_current_context())
    found = effective_settings(feed.url, feed.folders, configured, _settings(file), feed.shown)
    table = found.to_table()
    if as_json:
        with data_file(None) as output:
            output.write(json_line({"url": feed.shown, "settings": table}))
        return
    click.echo(f"{printable_line(feed.shown)}{'' if table else ': no settings'}")
    for key, value in table.items():
        click.echo(f"  {key} = {printable_line(value if isinstance(value, str) else json.dumps(value))}")
    if found.verify is False:
        click.echo(f"mmqjp: warning: {UNVERIFIED.format(feed.shown)}", err=True)


@feeds.command("secret")
@click.argument("name")
@_state_option
@debug_option
def read_secret(name: str, state: Path) -> None:
    """Store a secret that settings refer to, such as a password. It is read from standard input, and never shown.

    \b
    Examples:
      mmqjp feeds secret example --state crawl/
      pass show example.org | mmqjp feeds secret example --state crawl/
    """
    asked = click.prompt("Secret", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    store_secret(drops.secrets_home(drops.state_file(state)), name, asked.strip())
    click.echo(f"mmqjp: {name}: stored", err=True)


UNVERIFIED = "{}: the certificate is not checked, so anybody in between can read and change what is fetched"

_KEY = re.compile(r"[a-z_]+=")


def _table(keys: Sequence[str], allow_private: Sequence[str]) -> dict[str, Any]:
    return table_of(keys, empty=True) | ({"allow_private": list(allow_private)} if allow_private else {})


def _settings(file: Path) -> SettingsOf:
    if not file.exists():
        return NOTHING_SET
    with FetchStore(file) as store:
        return store.settings()


def _require_secrets(settings: FeedSettings, file: Path) -> None:
    """Raises an InputError for an unknown secret: the user may have written the value instead of the name."""
    value = secret_values(click.get_current_context(), file)
    for one in settings.secrets():
        value(one.name)


@feeds.command()
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS...")
@_state_option
@debug_option
def remove(addresses: tuple[str, ...], state: Path) -> None:
    """Remove feeds. They are no longer fetched; fetched versions stay.

    \b
    Example:
      mmqjp feeds remove https://example.org/feed --state crawl/
    """
    chosen = _chosen(_known(state), addresses, state)
    made = change_feeds(drops.state_file(state), FeedChange(remove=tuple(feed.url for feed in chosen)), WAIT)
    click.echo(f"mmqjp: {pluralise(len(chosen), 'feed')} removed{'' if made else LATER}", err=True)


@feeds.command()
@click.argument("address")
@click.argument("title")
@_state_option
@debug_option
def rename(address: str, title: str, state: Path) -> None:
    """Give a feed another title. An empty TITLE restores its own.

    \b
    Example:
      mmqjp feeds rename https://example.org/feed "My news" --state crawl/

    Entries fetched from then on have it as their feed_title.
    """
    name = _name(title, "TITLE")
    with FetchStore(drops.state_file(state), write=True) as store:
        for feed in _chosen(store.feeds(), [address], state):
            store.commit(replace(feed, title=name))
            outcome = f"is called {printable_line(name)}" if name else "has its own title"
            click.echo(f"mmqjp: {feed.shown} {outcome}", err=True)


@feeds.command()
@_state_option
@click.option(
    "--output", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="Where to write the list. Default, or with -: standard output.",
)  # fmt: skip
@click.option("--passwords", is_flag=True, help="Include the user names and passwords in addresses.")
@debug_option
def export(state: Path, output: Path | None, passwords: bool) -> None:
    """Write the feeds as OPML, for other feed readers or another fetch.

    Feeds that are gone for good are left out. A feed that has moved permanently is listed under its new address. User
    names and passwords in addresses are left out, unless you give --passwords.

    \b
    Example:
      mmqjp feeds export --state crawl/ --output feeds.opml
    """
    found = drops.as_opml(_known(state), _settings(drops.state_file(state)), passwords=passwords)
    with data_file(check_output(output)) as file:
        file.write(found)


@feeds.command()
@_state_option
@click.argument("addresses", nargs=-1, metavar="[ADDRESS]...")
@debug_option
def retry(state: Path, addresses: tuple[str, ...]) -> None:
    """Make feeds due now: those with these addresses, even if they are gone for good, or else all that failed.

    \b
    Example:
      mmqjp feeds retry --state crawl/ https://example.org/feed
    """
    known = _known(state)
    failed = [feed for feed in known if feed.errors and not feed.stopped]
    chosen = _chosen(known, addresses, state) if addresses else failed
    made = change_feeds(drops.state_file(state), FeedChange(retry=tuple(feed.url for feed in chosen)), WAIT)
    click.echo(f"mmqjp: {pluralise(len(chosen), 'feed')} due now{'' if made else LATER}", err=True)


def _known(state: Path) -> list[FeedState]:
    return drops.known_feeds(drops.state_file(state))


def _chosen(known: list[FeedState], addresses: Sequence[str], state: Path) -> list[FeedState]:
    return drops.chosen_feeds(known, addresses, f"{state}; mmqjp feeds list shows them")


def _name(text: str, option: str) -> str:
    """Raises UsageError if a title or folder path is too long."""
    name = one_line(text)
    if len(name) > LONGEST_TITLE:
        raise click.UsageError(f"{option} has {len(name):,} characters; write at most {LONGEST_TITLE:,}")
    return name


def given_or_configured(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the lists on the command line, else those of the configuration, which some versions of click ignore."""
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
    help=f"Where to store the state of each feed.  [default: {STATE_FILE} in the directory of --out]",
)  # fmt: skip
@click.option(
    "--once/--watch", default=True, help="Fetch due feeds and stop, or keep running until Ctrl-C.  [default: once]"
)
@with_options(FetchOptions, "options")
@feed_memory_option
@debug_option
def fetch(lists: tuple[str, ...], out: Path, warc: bool, state: Path | None, once: bool, options: FetchOptions) -> None:
    """Fetch the feeds that are due, and store each new version.

    \b
    Examples:
      mmqjp fetch subscriptions.opml --out crawl/
      mmqjp fetch --out crawl/ --watch
      mmqjp run --queries stories.xscl --documents crawl/ --feeds

    A LIST is an OPML file, a text file with one address per line, or an address. Without one, the feeds of earlier runs
    and of mmqjp feeds add are fetched.

    An interrupted or killed fetch loses nothing: the same command continues from there.
    """
    listed = read_lists(lists)
    fetch_state = out / STATE_FILE if state is None else drops.state_file(state)
    if not lists and not fetch_state.is_file():
        raise click.UsageError(f"{fetch_state} does not exist yet: name a list of feeds, as in mmqjp fetch feeds.opml")
    job = options.job(listed, out, warc=warc, state=fetch_state)
    if once:
        require_a_success(fetch_once(job))
    else:
        report, known, _ = asyncio.run(until_signalled(job, watch=True))
        print_fetch_summary(report, known)
