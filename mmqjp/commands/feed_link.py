"""`mmqjp feed-link`: prints the link of a query's Atom feed, and revokes it."""

from __future__ import annotations

from pathlib import Path

import click

from mmqjp.commands.manage_queries import client, store_options
from mmqjp.commands.serve import ADDRESS, public_url
from mmqjp.syndication.links import feed_path, links_of


@click.command("feed-link")
@click.argument("name")
@click.option("--revoke", is_flag=True, help="Revoke the link first. A new one is printed.")
@click.option(
    "--public-url", metavar="URL", callback=public_url,
    help=f"The URL under which readers find mmqjp serve. Default: http://{ADDRESS}.",
)  # fmt: skip
@store_options
def feed_link(name: str, revoke: bool, public_url: str, state: Path, wait: float) -> None:
    """Print the link of a query's feed, for a feed reader. mmqjp serve answers it.

    \b
    Examples:
      mmqjp feed-link same_story --state state/
      mmqjp feed-link same_story --state state/ --revoke

    Whoever has the link can read the feed, without a token. Each link can be revoked by itself.
    """
    store = client(state, wait)
    if revoke:
        store.ask("revoke-feed-link", {"name": name})
    key = links_of(state).key(name, store.ask("feed-link", {"name": name}))
    click.echo((public_url or f"http://{ADDRESS}") + feed_path(key, name))
