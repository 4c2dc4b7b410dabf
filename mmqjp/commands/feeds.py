"""`mmqjp feeds`: lists, exports and changes what is known of fetched feeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from feeds.fetch.changes import Added, FeedChange, change_feeds
from feeds.fetch.feed_state import FeedState
from feeds.fetch.state import FetchStore
from feeds.text import LONGEST_TITLE, one_line
from mmqjp.commands.console import console, counted
from mmqjp.commands.debug import debug_option
from mmqjp.commands.feeds_listing import listed, listed_as_json
from mmqjp.commands.fetching import listed_feeds
from mmqjp.commands.options import Decorated
from mmqjp.commands.sinks import check_output, data_file
from mmqjp.service.fetched_feeds import (
    as_opml,
    chosen_feeds,
    feed_named,
    known_feeds,
    new_state_file,
    state_file,
)
from mmqjp.text import printable_line

WAIT = 5.0
"""Seconds to wait for a fetch that runs to take in a change."""

LATER = "; the fetch that is running will take it in"


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
      mmqjp feeds add https://example.org/feed --folder News --state crawl/
      mmqjp feeds export --state crawl/ --output feeds.opml
    """


@feeds.command("list")
@_state_option
@click.option("--json", "as_json", is_flag=True, help="Write a line of JSON for each feed.")
@debug_option
def list_feeds(state: Path, as_json: bool) -> None:
    """List the feeds: their last status, when they are fetched next, what you call them, and what went wrong.

    \b
    Example:
      mmqjp feeds list --state crawl/

    Times are UTC.
    """
    known = _known(state)
    lines = listed_as_json(known) if as_json else (f"{line}\n".encode() for line in listed(known, console().width))
    with data_file(None) as file:
        for line in lines:
            file.write(line)


@feeds.command()
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS|LIST...")
@click.option(
    "--state", metavar="PATH", required=True, type=click.Path(path_type=Path),
    help="The directory of mmqjp fetch --out or of --state, or the fetcher's state file. It is made if it is missing.",
)  # fmt: skip
@click.option("--folder", metavar="NAME", default="", help="The folder to put the feeds into, as News or News/World.")
@click.option("--title", metavar="TEXT", default="", help="What you call the feed.  [default: its own title]")
@debug_option
def add(addresses: tuple[str, ...], state: Path, folder: str, title: str) -> None:
    """Add feeds, or give feeds that are known already a folder or title.

    \b
    Examples:
      mmqjp feeds add https://example.org/feed --folder News --state crawl/
      mmqjp feeds add subscriptions.opml --state crawl/

    A LIST is an OPML file or a text file with one address per line. The feeds
    are fetched by mmqjp fetch without a LIST, and by mmqjp run, stream and
    serve with --fetch without a LIST.
    """
    folder, title = _name(folder, "--folder"), _name(title, "--title")
    feeds = [feed for one in addresses for feed in (listed_feeds([one]) if Path(one).is_file() else [feed_named(one)])]
    wanted = {feed.url: Added(feed.url, title or feed.title, folder or feed.folder) for feed in feeds}
    if title and len(wanted) > 1:
        raise click.UsageError("--title is for one feed, and several are given")
    file = new_state_file(state)
    known = {feed.url for feed in known_feeds(file)} if file.exists() else set()
    made = change_feeds(file, FeedChange(add=tuple(wanted.values())), WAIT)
    new = len(wanted.keys() - known)
    told = f"{counted(new, 'new feed')}, {counted(len(known) + new, 'feed')} in all"
    click.echo(f"mmqjp: {told}{'' if made else LATER}", err=True)


@feeds.command()
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS...")
@_state_option
@debug_option
def remove(addresses: tuple[str, ...], state: Path) -> None:
    """Remove feeds. They are not fetched any more; what was fetched stays.

    \b
    Example:
      mmqjp feeds remove https://example.org/feed --state crawl/
    """
    chosen = _chosen(_known(state), addresses, state)
    made = change_feeds(state_file(state), FeedChange(remove=tuple(feed.url for feed in chosen)), WAIT)
    click.echo(f"mmqjp: {counted(len(chosen), 'feed')} removed{'' if made else LATER}", err=True)


@feeds.command()
@click.argument("address")
@click.argument("title")
@_state_option
@debug_option
def rename(address: str, title: str, state: Path) -> None:
    """Call a feed by another title. With an empty TITLE, it has its own title again.

    \b
    Example:
      mmqjp feeds rename https://example.org/feed "My news" --state crawl/

    The entries that are fetched from then on have it as their feed_title.
    """
    name = _name(title, "TITLE")
    with FetchStore(state_file(state), write=True) as store:
        for feed in _chosen(store.feeds(), [address], state):
            store.commit(replace(feed, title=name))
            told = f"is called {printable_line(name)}" if name else "has its own title"
            click.echo(f"mmqjp: {feed.shown} {told}", err=True)


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
    found = as_opml(_known(state), passwords=passwords)
    with data_file(check_output(output)) as file:
        file.write(found)


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
    known = _known(state)
    failed = [feed for feed in known if feed.errors and not feed.stopped]
    chosen = _chosen(known, addresses, state) if addresses else failed
    made = change_feeds(state_file(state), FeedChange(retry=tuple(feed.url for feed in chosen)), WAIT)
    click.echo(f"mmqjp: {counted(len(chosen), 'feed')} due now{'' if made else LATER}", err=True)


def _known(state: Path) -> list[FeedState]:
    return known_feeds(state_file(state))


def _chosen(known: list[FeedState], addresses: Sequence[str], state: Path) -> list[FeedState]:
    return chosen_feeds(known, addresses, f"{state}; mmqjp feeds list shows them")


def _name(text: str, option: str) -> str:
    """A title or the path of a folder. Raises UsageError if it is too long."""
    name = one_line(text)
    if len(name) > LONGEST_TITLE:
        raise click.UsageError(f"{option} has {len(name):,} characters; write at most {LONGEST_TITLE:,}")
    return name
