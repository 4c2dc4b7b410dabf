"""`mmqjp serve`: a service with a page, or a page for a service that runs already."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from mmqjp.backtest.process import SECONDS
from mmqjp.commands.debug import debug_option
from mmqjp.commands.failure import Failure
from mmqjp.commands.interrupts import stopping
from mmqjp.commands.manage_queries import client
from mmqjp.commands.service import FreeMemory, run_service, service_log
from mmqjp.commands.stream_options import StreamOptions, stream_options
from mmqjp.service.backtest_question import BACKTEST
from mmqjp.service.client import Client
from mmqjp.service.log import Log, SharedLog
from mmqjp.session import Session
from mmqjp.state.choice import SPARK, stored_engine
from mmqjp.state.ownership import InUse, ReadLock

if TYPE_CHECKING:
    from mmqjp.web.readers import Ask, StoreReader

ADDRESS = "127.0.0.1:8765"

WAIT = 30.0
"""Seconds that a page waits for the answer of a service."""


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
    from mmqjp.web.server import listen

    if given.trigger is None:
        raise click.UsageError("the page is served until it is stopped: --trigger is a duration here")
    if no_token and not is_loopback(address[0]):
        raise click.UsageError(f"--no-token is for loopback addresses, such as {ADDRESS}: others need the token")
    holder = holder_of(given.state)
    if holder is not None and (named := _for_a_service(given)):
        raise click.UsageError(f"{holder}, which reads the sources: leave out {', '.join(named)}")
    page = Page(given.state, address, public_url, no_token, opens, listen(*address))
    with page.listening:
        if holder is None:
            run_service(given, page.beside_service)
        else:
            page.serve_attached(given.log_form)


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


def _asking(client_that_waits: Callable[[float], Client]) -> Ask:
    """Asks a service. It waits longer for a back-test, which takes its time."""
    soon, later = client_that_waits(WAIT), client_that_waits(WAIT + SECONDS)

    def ask(do: str, arguments: Mapping[str, Any]) -> Any:
        return (later if do == BACKTEST else soon).ask(do, arguments)

    return ask


@dataclass(frozen=True)
class Page:
    """Where and how the page is served."""

    state: Path
    address: tuple[str, int]
    public_url: str
    no_token: bool
    opens: bool
    listening: socket.socket

    @contextmanager
    def beside_service(self, engine: Session, log: Log, stop: Event) -> Iterator[FreeMemory]:
        """Serves the page while a service runs in this process."""
        from mmqjp.web.readers import CursorReader, FilesReader

        def nobody() -> Session:
            raise Failure(f"the store in {self.state} is not held any more; start mmqjp serve again")

        asks = _asking(lambda wait: Client(self.state, nobody, wait))
        if stored_engine(self.state) == SPARK:
            with self._served(FilesReader(self.state), asks, log, stop, holds=True):
                yield lambda: False
        else:
            reader = CursorReader(engine)
            with self._served(reader, asks, log, stop, holds=True):
                yield reader.free_memory

    def serve_attached(self, log_form: str) -> None:
        """Serves the page beside a service of another process, until Ctrl-C or SIGTERM."""
        from mmqjp.web.readers import FilesReader, SpoolReader

        asks = _asking(lambda wait: client(self.state, wait))
        log = SharedLog(service_log(log_form))
        reader: StoreReader = FilesReader(self.state) if stored_engine(self.state) == SPARK else SpoolReader(asks)
        with stopping() as stop, self._served(reader, asks, log, stop, holds=False):
            stop.wait()
        log.event("stopped")

    @contextmanager
    def _served(self, reader: StoreReader, ask: Ask, log: Log, stop: Event, *, holds: bool) -> Iterator[None]:
        from mmqjp.web.access import Access, token_of
        from mmqjp.web.app import make_app
        from mmqjp.web.hosts import Hosts
        from mmqjp.web.server import Server
        from mmqjp.web.site import Site

        host, port = self.address[0], self.listening.getsockname()[1]
        url = self.public_url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
        access = Access(None if self.no_token else token_of(self.state), f"mmqjp-{port}")
        site = Site(reader, ask, access, url, self.state, holds)
        app = make_app(site, Hosts(host, port, self.public_url))
        try:
            with Server(app, self.listening, log, stop), closing(site.hub):
                log.event("serving", url=url, **({} if holds else {"beside": "a running service"}))
                self._tell(access.link(url), is_open=access.is_open)
                yield
        finally:
            reader.close()

    def _tell(self, link: str, *, is_open: bool) -> None:
        """Prints the link, or opens it in a browser."""
        once = "" if is_open else " (this link logs in once; later, the token in secrets/token of the state does)"
        click.echo(f"mmqjp: open {link}{once}", err=True)
        if self.opens:
            Thread(target=webbrowser.open, args=(link,), daemon=True).start()
