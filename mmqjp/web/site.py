"""A site: what the pages and the API of one store work with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa
from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from feeds.times import Now, now_us
from mmqjp.garbage import gc_paused
from mmqjp.present.newest import NewestMatches
from mmqjp.present.times import Clock
from mmqjp.syndication.links import Links, links_of
from mmqjp.syndication.store_feeds import StoreFeeds
from mmqjp.web.access import Access
from mmqjp.web.assets import Assets
from mmqjp.web.few import Few
from mmqjp.web.hub import Hub
from mmqjp.web.kept import Kept
from mmqjp.web.readers import Ask, OwnQuestions, StoreReader
from mmqjp.web.recently_told import RecentlyTold
from mmqjp.web.stored_outputs import StoredOutputs
from mmqjp.web.templating import environment, with_query
from mmqjp.web.told import Told
from mmqjp.web.views.tallies import Tallies

MOST_ROWS, SECONDS = 5_000_000, 10.0
"""The bounds of a question for a page."""

TOLD = "told"
"""The field of an address with the key to what the page tells."""


@dataclass(frozen=True, slots=True)
class Link:
    """An entry of the navigation. Entries are in the order of `place`."""

    path: str
    label: str
    place: int


@dataclass(frozen=True)
class Site:
    """What pages are made of.

    - `reader` reads the store, and `ask` puts commands to whoever holds it, through the spool.
    - `access` says who may come in, and `public_url` where browsers find the site, without a slash at its end.
    - `state` is the directory of the state. `holds` says whether this process holds it.
    - `now` is the clock in microseconds, and `clock` shows times.
    """

    reader: StoreReader
    ask: Ask
    access: Access
    public_url: str
    state: Path
    holds: bool = True
    now: Now = now_us
    clock: Clock = field(default_factory=Clock)
    assets: Assets = field(default_factory=Assets)
    links: list[Link] = field(default_factory=list)

    @cached_property
    def own(self) -> OwnQuestions:
        """Reads the store by SQL of ours."""
        return OwnQuestions(self.reader)

    @cached_property
    def slow(self) -> Few:
        """What requests enter that take long: some wait for seconds."""
        return Few()

    @cached_property
    def tallies(self) -> Tallies:
        """The counts of outputs."""
        return Tallies(self.own, self.now, self.matches.recent)

    @cached_property
    def matches(self) -> NewestMatches:
        """Matches as they are shown."""
        select = partial(self.own.select, limit=MOST_ROWS, seconds=SECONDS)
        return NewestMatches(select, self.own.version, self.reader.committed)

    @cached_property
    def feeds(self) -> StoreFeeds:
        """The Atom feeds of queries."""
        return StoreFeeds(self.own, self.matches.recent)

    def prepare(self) -> None:
        """Reads what is new, which most pages need."""
        with gc_paused():  # what is read remains, and to scan it holds up all pages
            self.tallies.current()
            self.matches.forget_what_was_dropped()
            self.feeds.look()

    def prepare_templates(self) -> None:
        """Compiles all templates, which takes some time at the first page of each kind otherwise."""
        for name in self._templates.list_templates(["html"]):
            self._templates.get_template(name)

    @cached_property
    def feed_links(self) -> Links:
        """The keys in the addresses of these feeds."""
        return links_of(self.state)

    @cached_property
    def kept(self) -> Kept:
        """What views have made of the store."""
        return Kept()

    @cached_property
    def kept_for_good(self) -> Kept:
        """What views have made of the store that does not change."""
        return Kept(seconds=inf)

    @cached_property
    def _recently(self) -> RecentlyTold:
        return RecentlyTold(self.ask)

    def look(self, do: str, arguments: Mapping[str, Any]) -> Any:
        """Asks what `ask` does by a command that changes nothing. Nobody waits for an answer that is there already: it
        may be some seconds old while a newer one is under way, but is none from before this site changed something."""
        return self._recently.ask(do, arguments)

    @cached_property
    def _recently_read(self) -> RecentlyTold:
        return RecentlyTold(lambda sql, bounds: self.own.select(sql, **bounds))

    def look_up(self, sql: str, limit: int, seconds: float) -> pa.Table:
        """Returns the rows of SQL, of the same age as what `look` returns."""
        found: pa.Table = self._recently_read.ask(sql, {"limit": limit, "seconds": seconds})
        return found

    def forget_what_was_told(self) -> None:
        """Is told that this site has changed something: what is shown from now on must show that."""
        self._recently.forget()
        self._recently_read.forget()

    @cached_property
    def hub(self) -> Hub:
        """Who listens to what comes."""
        return Hub(StoredOutputs(self.own))

    @cached_property
    def _told(self) -> Told:
        return Told()

    @cached_property
    def _templates(self) -> Environment:
        made = environment(self.clock)
        made.globals["asset"] = self.assets.url
        return made

    def add_links(self, links: Sequence[Link]) -> None:
        """Adds entries to the navigation."""
        self.links.extend(links)
        self.links.sort(key=lambda link: link.place)

    def render(self, request: Request, template: str, status: int = 200, **context: object) -> HTMLResponse:
        """Returns a page: a template that extends `layout.html`, with its context and the `message` that it tells."""
        message = self._told.take(request.query_params.get(TOLD, ""))
        known = {"here": request.url.path, "links": self.links, "site": self, "message": message}
        text = self._templates.get_template(template).render(known | context)
        return HTMLResponse(text, status, {"Cache-Control": "no-store"} if message else None)

    def show(self, path: str, message: str, fragment: str = "") -> RedirectResponse:
        """Returns the answer to a form: the page at a path, which tells a message this once."""
        return RedirectResponse(with_query(path, **{TOLD: self._told.keep(message)}) + fragment, 303)

    def piece(self, template: str, **context: object) -> str:
        """Returns a piece of a page."""
        return self._templates.get_template(template).render(context)
