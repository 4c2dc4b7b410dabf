"""Helpers for tests of the page: a site over an engine in this process, and a browser without a screen."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from starlette.testclient import TestClient

from mmqjp.engine import Session
from mmqjp.present.item import IN_UTC
from mmqjp.present.recent import RecentAnswers
from mmqjp.service.commands import run_command
from mmqjp.service.spool import Command
from mmqjp.web.access import Access, Hosts
from mmqjp.web.readers import CursorReader
from mmqjp.web.serving import make_app
from mmqjp.web.site import Site

URL = "http://127.0.0.1:8765"
TOKEN = "a-token-that-only-tests-know"
HOSTS = Hosts("127.0.0.1", 8765)

FROM_HERE = {"Sec-Fetch-Site": "same-origin"}
"""What a browser sends with a form of the page."""


_STATE = TemporaryDirectory()
"""The directory of the secrets of sites whose engine has none."""


def site_of(engine: Session, state: Path | None = None, **options: Any) -> Site:
    numbers = iter(range(10**9))

    def ask(do: str, arguments: Mapping[str, Any]) -> Any:
        from mmqjp.service.commands import CommandError

        found = run_command(engine, Command(f"{next(numbers)}", do, arguments))
        if found.error is not None:
            raise CommandError(found.error)
        return found.result

    given: dict[str, Any] = {"access": Access(TOKEN), "clock": IN_UTC} | options
    return Site(CursorReader(engine), ask, given.pop("access"), URL, state or Path(_STATE.name), **given)


def remember_nothing(recent: RecentAnswers) -> RecentAnswers:
    """Has a cache ask for each output, as it does for very many queries."""
    setattr(recent._news, "_read_members", lambda news: setattr(news, "are_many", True))  # noqa: B010  # a method
    return recent


def stranger(site: Site) -> TestClient:
    """A browser that is not logged in, and follows no redirection."""
    return TestClient(make_app(site, HOSTS), base_url=URL, follow_redirects=False)


def browser(site: Site) -> TestClient:
    """A browser that is logged in. Its forms come from the page."""
    client = stranger(site)
    client.cookies.set(site.access.cookie, site.access.make_cookie())
    client.headers.update(FROM_HERE)
    return client


def script(site: Site) -> TestClient:
    client = stranger(site)
    client.headers["Authorization"] = f"Bearer {TOKEN}"
    return client
