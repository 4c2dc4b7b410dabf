"""`mmqjp feeds`: lists, exports and changes what is known of fetched feeds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from feeds.credentials import refused, without_credentials
from feeds.fetch.failures import FetchError
from feeds.fetch.feed_state import FeedState
from feeds.fetch.lists import feed_of_address
from feeds.fetch.opml import ListedFeed, write_opml
from feeds.fetch.state import FetchStore
from feeds.text import LONGEST_TITLE, one_line
from mmqjp.commands.console import console, counted
from mmqjp.commands.debug import debug_option
from mmqjp.commands.failure import Failure
from mmqjp.commands.feeds_listing import listed, listed_as_json
from mmqjp.commands.fetch import new_state_file, state_file
from mmqjp.commands.options import Decorated
from mmqjp.commands.sinks import check_output, data_file
from mmqjp.text import printable_line


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
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS...")
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
    Example:
      mmqjp feeds add https://example.org/feed --folder News --state crawl/

    They are fetched by mmqjp fetch without a LIST, and by mmqjp run and mmqjp stream with --fetch without a LIST.
    """
    folder, title = _name(folder, "--folder"), _name(title, "--title")
    if title and len(addresses) > 1:
        raise click.UsageError("--title is for one feed, and several addresses are given")
    added = {feed.url: replace(feed, folder=folder, title=title) for feed in map(_feed, addresses)}
    with FetchStore(new_state_file(state), write=True) as store:
        known = {feed.url: feed for feed in store.feeds()}
        for url in added.keys() & known.keys() if not folder else ():
            added[url] = replace(added[url], folder=known[url].folder)
        store.add(added.values())
    new = len(added.keys() - known.keys())
    click.echo(f"mmqjp: {counted(new, 'new feed')}, {counted(len(known) + new, 'feed')} in all", err=True)


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
    with FetchStore(state_file(state), write=True) as store:
        chosen = _chosen(store.feeds(), addresses, state)
        store.remove(feed.url for feed in chosen)
    click.echo(f"mmqjp: {counted(len(chosen), 'feed')} removed", err=True)


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
    known = ((f.address or f.url, f) for f in _known(state) if not f.stopped)
    shown = ((url if passwords else without_credentials(url), f) for url, f in known)
    found = (ListedFeed(url, f.title, folder) for url, f in shown for folder in f.folders or ("",))
    with data_file(check_output(output)) as file:
        file.write(write_opml(found))


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
        failed = [feed for feed in known if feed.errors and not feed.stopped]
        chosen = _chosen(known, addresses, state) if addresses else failed
        for feed in chosen:
            store.commit(replace(feed, next_check=0, stopped=False))
    click.echo(f"mmqjp: {counted(len(chosen), 'feed')} due now", err=True)


def _known(state: Path) -> list[FeedState]:
    with FetchStore(state_file(state)) as store:
        return store.feeds()


def _feed(address: str) -> FeedState:
    """The feed of an address. Raises Failure if it is no web address."""
    try:
        return feed_of_address(address)
    except FetchError as error:
        raise Failure(f"{without_credentials(str(error))}; name a feed by its http or https address") from None


def _chosen(known: list[FeedState], addresses: Sequence[str], state: Path) -> list[FeedState]:
    """The feeds that addresses stand for: those that have them, or else have them with a name and password.

    Raises Failure for an address that is no feed's, or could be several feeds'.
    """
    chosen: dict[str, FeedState] = {}
    for address in addresses:
        spellings = {address}
        with suppress(FetchError):  # an address that cannot be fetched is no feed's
            spellings.add(feed_of_address(address).url)
        found = [feed for feed in known if feed.url in spellings] or [feed for feed in known if feed.shown in spellings]
        if len(found) > 1:
            cause = f"{_shown(address)} is the address of {len(found):,} feeds, with different names or passwords"
            raise Failure(f"{cause}; write it with the name and password of one of them")
        if not found:
            raise Failure(f"{_shown(address)} is not a feed of {state}; mmqjp feeds list shows them")
        chosen |= {feed.url: feed for feed in found}
    return list(chosen.values())


def _shown(address: str) -> str:
    """An address as it was given, without name and password."""
    try:
        return feed_of_address(address).shown
    except FetchError:
        return refused(address)


def _name(text: str, option: str) -> str:
    """A title or the path of a folder. Raises UsageError if it is too long."""
    name = one_line(text)
    if len(name) > LONGEST_TITLE:
        raise click.UsageError(f"{option} has {len(name):,} characters; write at most {LONGEST_TITLE:,}")
    return name
