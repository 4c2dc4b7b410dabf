"""`mmqjp feeds`: lists and exports what is known of fetched feeds, and makes feeds due again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from rich import box
from rich.table import Table
from rich.text import Text

from feeds.credentials import without_credentials
from feeds.dates import iso_utc
from feeds.fetch.feed_state import FeedState
from feeds.fetch.opml import ListedFeed, write_opml
from feeds.fetch.state import FetchStore
from mmqjp.commands.console import console, counted
from mmqjp.commands.debug import debug_option
from mmqjp.commands.failure import Failure
from mmqjp.commands.fetch import state_file
from mmqjp.commands.options import Decorated
from mmqjp.commands.sinks import check_output, data_file
from mmqjp.text import printable_line

COLUMNS = ("feed", "status", "checked", "next check", "errors", "last error")


def _state_option(command: Decorated) -> Decorated:
    return click.option(
        "--state", metavar="PATH", required=True, type=click.Path(exists=True, path_type=Path),
        help="The directory of mmqjp fetch --out or of --state, or the fetcher's state file.",
    )(command)  # fmt: skip


@click.group()
@debug_option
def feeds() -> None:
    """Show and change what is known of fetched feeds.

    \b
    Examples:
      mmqjp feeds list --state crawl/
      mmqjp feeds export --state crawl/ --output feeds.opml
      mmqjp feeds retry --state crawl/ https://example.org/feed
    """


@feeds.command("list")
@_state_option
@debug_option
def list_feeds(state: Path) -> None:
    """List the feeds: their last status, when they are fetched next, and what went wrong.

    \b
    Example:
      mmqjp feeds list --state crawl/

    Times are UTC.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        plain = name not in ("feed", "last error")
        table.add_column(name, overflow="fold", no_wrap=plain, min_width=None if plain else 20)
    for feed in _known(state):
        table.add_row(*map(Text, _row(feed)))
    console().print(table)


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
    known = ((f.address or f.url, f) for f in _known(state) if not f.stopped)
    listed = (ListedFeed(url if passwords else without_credentials(url), f.title, f.folder) for url, f in known)
    with data_file(check_output(output)) as file:
        file.write(write_opml(listed))


@feeds.command()
@_state_option
@click.argument("addresses", nargs=-1, metavar="[ADDRESS]...")
@debug_option
def retry(state: Path, addresses: tuple[str, ...]) -> None:
    """Make feeds due now: those of the addresses, even if they are gone for good, or else all that failed.

    \b
    Example:
      mmqjp feeds retry --state crawl/ https://example.org/feed
    """
    with FetchStore(state_file(state), write=True) as store:
        known = store.feeds()
        for address in addresses:
            if not any(address in (feed.url, feed.shown) for feed in known):
                shown = without_credentials(address)
                raise Failure(f"{shown} is not a feed of {state}; mmqjp feeds list shows them")
        chosen = [
            feed
            for feed in known
            if (not {feed.url, feed.shown}.isdisjoint(addresses) if addresses else feed.errors and not feed.stopped)
        ]
        for feed in chosen:
            store.commit(replace(feed, next_check=0, stopped=False))
    click.echo(f"mmqjp: {counted(len(chosen), 'feed')} due now", err=True)


def _known(state: Path) -> list[FeedState]:
    with FetchStore(state_file(state)) as store:
        return store.feeds()


def _row(feed: FeedState) -> tuple[str, ...]:
    return (
        printable_line(feed.shown),
        "stopped" if feed.stopped else str(feed.status or "-"),
        _minute(feed.checked_at),
        "-" if feed.stopped else _minute(feed.next_check),
        str(feed.errors),
        printable_line(without_credentials(feed.last_error)),
    )


def _minute(moment: int) -> str:
    return iso_utc(moment)[:16].replace("T", " ") if moment else "-"
