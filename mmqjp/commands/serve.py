"""`mmqjp serve`: a service with a page, or a page for a service that runs already."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from mmqjp.commands.debug import debug_option
from mmqjp.commands.interrupts import stopping
from mmqjp.commands.manage_queries import client
from mmqjp.commands.service import FreeMemory, run_service
from mmqjp.commands.stream_options import StreamOptions, stream_options
from mmqjp.service.log import Log, SharedLog, standard_log
from mmqjp.service.loop import never
from mmqjp.session import Session
from mmqjp.state.choice import SPARK, stored_engine
from mmqjp.state.ownership import InUse, ReadLock

if TYPE_CHECKING:
    from mmqjp.web.readers import StoreReader
    from mmqjp.web.serve_page import PageOptions

ADDRESS = "127.0.0.1:8765"


def address(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, int]:
    """The host and the port of an address like 127.0.0.1:8765 or [::1]:8765."""
    try:
        parts = urlsplit(f"//{value}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.netloc != value or parts.username is not None:
        raise click.BadParameter(f"{value!r:.80} is no address; write HOST:PORT, like {ADDRESS} (port 0: any free one)")
    return host, port


def public_url(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """The URL under which browsers find the page, without a slash at its end; "" for none."""
    if value is None:
        return ""
    try:
        parts = urlsplit(value)
        whole = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        whole = ""
    if not value.isprintable() or value.lower().rstrip("/") != whole or parts.scheme not in ("http", "https"):
        raise click.BadParameter(f"{value!r:.80} is no URL of a site; write one like https://stories.example.org")
    return whole


@click.command()
@stream_options
@click.option(
    "--address", metavar="HOST:PORT", default=ADDRESS, show_default=True, callback=address,
    help="Where to serve the page.",
)  # fmt: skip
@click.option(
    "--public-url", metavar="URL", callback=public_url,
    help="The URL under which browsers find the page, if it is behind a proxy.",
)  # fmt: skip
@click.option("--no-token", is_flag=True, help="Let everybody on this machine use the page.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@debug_option
def serve(given: StreamOptions, address: tuple[str, int], public_url: str, no_token: bool, opens: bool) -> None:
    """Show queries and what they match in a browser, and answer queries over documents as they arrive.

    \b
    Examples:
      mmqjp serve --state state/ --open
      mmqjp serve --state state/ --fetch subscriptions.opml --output matches.jsonl
      mmqjp serve --state state/ --address 0.0.0.0:8765 --public-url https://stories.example.org

    Takes the options of mmqjp stream, and fetches the feeds that are added in the page. Without sources, it shows what
    is there. If a service runs on the state already, the page is served beside it: name no sources then. Prints a link
    that logs a browser in once. Without --output, no output lines are written.
    """
    from mmqjp.web.hosts import is_loopback
    from mmqjp.web.listening import listen
    from mmqjp.web.serve_page import PageOptions

    if given.trigger is None:
        raise click.UsageError("the page is served until it is stopped: --trigger is a duration here")
    if no_token and not is_loopback(address[0]):
        raise click.UsageError(f"--no-token is for loopback addresses, such as {ADDRESS}: others need the token")
    holder = holder_of(given.state)
    if holder is not None and (named := _for_a_service(given)):
        raise click.UsageError(f"{holder}, which reads the sources: leave out {', '.join(named)}")
    options = PageOptions(str(given.state), address[0], public_url, no_token, opens, given.log_form)
    with listen(*address) as listening:
        if holder is None:
            run_service(given, partial(_served_beside, options, listening))
        else:
            _serve_attached(options, listening)


def holder_of(state: Path) -> str | None:
    """Who holds a state, in words; None if nobody does."""
    try:
        ReadLock(state).release()
    except InUse as error:
        return str(error)
    return None


def _for_a_service(given: StreamOptions) -> list[str]:
    """The options that only a service can obey, among those that are given."""
    others = {"--queries": given.queries_path, "--output": given.output, "--checkpoint": given.checkpoint}
    return [*given.named_sources, *(name for name, value in others.items() if value is not None)]


@contextmanager
def _served_beside(
    options: PageOptions, listening: socket.socket, engine: Session, log: Log, stop: Event
) -> Iterator[FreeMemory]:
    """Serves the page, in another process, while a service runs in this one."""
    from mmqjp.web.access import token_of
    from mmqjp.web.page_process import PageProcess
    from mmqjp.web.readers import CursorReader

    if not options.no_token:
        token_of(Path(options.state))  # made before the service has started, for programs that wait for that
    reader = None if stored_engine(Path(options.state)) == SPARK else CursorReader(engine)
    with PageProcess(options, listening, reader, log, stop):
        yield never if reader is None else reader.free_memory


def _serve_attached(options: PageOptions, listening: socket.socket) -> None:
    """Serves the page beside a service of another process, until Ctrl-C or SIGTERM."""
    from mmqjp.web.asking import asking
    from mmqjp.web.readers import FilesReader, SpoolReader
    from mmqjp.web.serve_page import page_served

    state = Path(options.state)
    asks = asking(lambda wait: client(state, wait))
    log = SharedLog(standard_log(options.log_form))
    reader: StoreReader = FilesReader(state) if stored_engine(state) == SPARK else SpoolReader(asks)
    with stopping() as stop, page_served(options, listening, reader, asks, log, stop, holds=False):
        stop.wait()
    log.event("stopped")
