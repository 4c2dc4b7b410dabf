"""Helpers for tests of the page: a site over an engine in this process, and a browser without a screen."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar
from unittest.mock import patch

from fastapi import FastAPI
from jinja2 import FileSystemBytecodeCache
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from mmqjp.engine import Session
from mmqjp.present.recent import RecentAnswers
from mmqjp.service.commands import CommandError, run_command
from mmqjp.service.spool import Command
from mmqjp.web.guard import Guard
from mmqjp.web.readers import CursorReader
from mmqjp.web.serving import make_app, make_routes
from mmqjp.web.site import Access, Hosts, Link, Site

URL = "http://127.0.0.1:8765"
TOKEN = "a-token-that-only-tests-know"
HOSTS = Hosts("127.0.0.1", 8765)

FROM_HERE = {"Sec-Fetch-Site": "same-origin"}
"""What a browser sends with a form of the page."""


_STATE = TemporaryDirectory()
"""The directory of the secrets of sites whose engine has none, and of compiled templates."""


def asking(engine: Session, *run_sinks: Any) -> Callable[[str, Mapping[str, Any]], Any]:
    """Asks an engine of this process as another process would."""
    numbers = count()

    def ask(do: str, arguments: Mapping[str, Any]) -> Any:
        found = run_command(engine, Command(f"{next(numbers)}", do, arguments), *run_sinks)
        if found.error is not None:
            raise CommandError(found.error)
        return found.result

    return ask


def site_of(engine: Session, state: Path | None = None, **options: Any) -> Site:
    given: dict[str, Any] = {"access": Access(TOKEN)} | options
    site = Site(CursorReader(engine), asking(engine), given.pop("access"), URL, state or Path(_STATE.name), **given)
    site._templates.bytecode_cache = FileSystemBytecodeCache(_STATE.name)  # compiled once for all sites
    return site


_SITE = ContextVar[Site]("site")


class SiteOfRequest:
    """Stands for the site of the request in routes that all sites share: building them takes longer than requests."""

    links: ClassVar[list[Link]] = []
    add_links = Site.add_links

    def __getattr__(self, name: str) -> Any:
        return getattr(_SITE.get(), name)


@cache
def shared_routes() -> FastAPI:
    return make_routes(SiteOfRequest())  # type: ignore[arg-type]


def routes_of(site: Site) -> ASGIApp:
    routes = shared_routes()
    site.links[:] = SiteOfRequest.links

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        _SITE.set(site)
        await routes(scope, receive, send)

    return app


def app_of(site: Site, hosts: Hosts = HOSTS) -> Guard:
    with patch("mmqjp.web.serving.make_routes", routes_of):
        return make_app(site, hosts)


def remember_nothing(recent: RecentAnswers) -> RecentAnswers:
    """Has a cache ask for each output, as it does for very many queries."""
    setattr(recent._news, "_read_members", lambda news, *_: setattr(news, "are_many", True))  # noqa: B010  # mypy refuses to assign a method
    return recent


def stranger(site: Site) -> TestClient:
    """A browser that is not logged in, and follows no redirection."""
    return TestClient(app_of(site), base_url=URL, follow_redirects=False)


def visitor(site: Site) -> TestClient:
    """A browser that is logged in."""
    client = stranger(site)
    client.cookies.set(site.access.cookie, site.access.make_cookie())
    return client


def browser(site: Site) -> TestClient:
    """A browser that is logged in. Its forms come from the page."""
    client = visitor(site)
    client.headers.update(FROM_HERE)
    return client


def script(site: Site) -> TestClient:
    client = stranger(site)
    client.headers["Authorization"] = f"Bearer {TOKEN}"
    return client
