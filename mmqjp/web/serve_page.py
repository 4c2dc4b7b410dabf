"""Serves the page of a store: makes the site, listens, and says where it is."""

from __future__ import annotations

import socket
import sys
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from mmqjp.service.log import Log
from mmqjp.service.records import records_in

if TYPE_CHECKING:
    from mmqjp.web.readers import Ask, StoreReader


ONCE = " (this link logs in once; later, the token in secrets/token of the state does)"
"""What is said of the link that is printed."""


@dataclass(frozen=True, slots=True)
class PageOptions:
    """How the page is served: of which state, for which host, under which public URL ("" for none), without a token or
    with one; whether a browser is opened; and the format of the log."""

    state: str
    host: str
    public_url: str = ""
    no_token: bool = False
    opens: bool = False
    log_form: str = "text"

    def to_dict(self) -> dict[str, Any]:
        """Returns an object of JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> PageOptions:
        """Returns the options of such an object."""
        return PageOptions(**found)


@contextmanager
def page_served(
    options: PageOptions, listening: socket.socket, reader: StoreReader, ask: Ask, log: Log, stop: Event, *, holds: bool
) -> Iterator[None]:
    """Serves the page inside the block. `stop` is set if that fails. `holds` says whether the store is held by the
    command that serves. Closes the reader."""
    from mmqjp.web.access import Access, token_of
    from mmqjp.web.app import make_app
    from mmqjp.web.hosts import Hosts
    from mmqjp.web.server import Server
    from mmqjp.web.site import Site
    from mmqjp.web.steady import SteadyReader

    host, port, state = options.host, listening.getsockname()[1], Path(options.state)
    url = options.public_url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
    access = Access(None if options.no_token else token_of(state), f"mmqjp-{port}")
    site = Site(reader, ask, access, url, state, holds)
    if isinstance(reader, SteadyReader):
        reader.prepare_by(site.prepare)
        reader.begin()
    app = make_app(site, Hosts(host, port, options.public_url))
    Thread(target=site.prepare_templates, name="mmqjp templates", daemon=True).start()
    said = records_in(log, "uvicorn", "asyncio")
    with closing(reader), said, Server(app, listening, log, stop), closing(site.hub):
        log.event("serving", url=url, **({} if holds else {"beside": "a running service"}))
        link = access.link(url)
        sys.stderr.write(f"mmqjp: open {link}{'' if access.is_open else ONCE}\n")
        sys.stderr.flush()
        if options.opens:
            Thread(target=webbrowser.open, args=(link,), daemon=True).start()
        yield
