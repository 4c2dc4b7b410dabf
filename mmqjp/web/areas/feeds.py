"""The feeds of a state, read beside the running fetch: their health, and how they are added, retried and removed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from fastapi import APIRouter, Body, File, Form, Query, Request
from fastapi.responses import HTMLResponse, Response

from common.bounds import EARLIEST
from common.dates import HOUR
from common.errors import InputError
from common.files import make_inside
from feeds.fetch.lists import read_feed_list
from feeds.fetch.state import STATE_FILE, AddedFeed, FeedChange, FeedState, change_feeds
from feeds.items import LONGEST_TITLE, one_line
from mmqjp.documents.watermarks import WATERMARKS, FeedTimes, LastVisit
from mmqjp.process import pluralise
from mmqjp.service.drops import (
    DROPS,
    FeedNotes,
    FeedSummary,
    as_opml,
    chosen_feeds,
    feed_named,
    known_feeds,
    noted_feeds,
)
from mmqjp.tables.lookup import latest_setting
from mmqjp.web.site import MOST_CACHED, NO_STORE, Link, Site, cursor, decode_cursor

ROWS = 100  # feeds per page
WAIT = 3.0  # seconds to wait until a running fetch has applied a change
OVERDUE = 600_000_000  # a feed overdue for this many microseconds shows that no fetch runs

Health = Literal["well", "new", "failing", "stopped"]
WantedFeeds = Literal["", "failing", "late", "stopped"]


@dataclass(frozen=True, slots=True)
class FeedRow(FeedSummary):
    """A feed and its health: `new` before the first visit; `stopped` if it is gone for good and not fetched again.
    `visited_at` is its last complete visit, and `read_to` the last one that the queries know of: how far its time has
    come. `late`: that is longer ago than twice its interval. `holds`: the stream waits for this feed, while others have
    come further by more than its interval."""

    health: Health
    visited_at: int | None
    read_to: int | None
    late: bool
    holds: bool


@dataclass(frozen=True, slots=True)
class FeedPage:
    """A page of feeds. `feeds`, `failing`, `late` and `stopped` count all. `overdue`: feeds are long due, so no fetch
    runs."""

    rows: tuple[FeedRow, ...]
    next: str | None
    feeds: int
    failing: int
    late: int
    stopped: int
    overdue: bool


@dataclass(frozen=True, slots=True)
class FeedsChanged:
    """The result of a change: the number of feeds, and what was left out and why. `made` is false if the running fetch
    has not applied it yet. `known`: feeds to add that were there already."""

    feeds: int
    made: bool
    complaints: tuple[str, ...] = ()
    known: int = 0


def feed_page(site: Site, wanted: WantedFeeds = "", after: str | None = None) -> FeedPage:
    """Returns feeds of a health, from a cursor on. Raises SourceError."""
    known, notes = noted_feeds(_file(site), site.now()) if _file(site).is_file() else ([], {})
    rows = list(map(partial(_row, site.now(), _visits(site), notes), known))
    first, _ = decode_cursor(after, int, str) or (0, "")
    shown = [row for row in rows[max(first, 0) :] if wanted in ("", row.health, "late" if row.late else "")]
    place = {row.url: number for number, row in enumerate(rows)}
    due = [row.next_check for row in rows if row.next_check is not None]
    return FeedPage(
        tuple(shown[:ROWS]),
        cursor(place[shown[ROWS].url], "") if len(shown) > ROWS else None,
        len(rows),
        sum(row.health == "failing" for row in rows),
        sum(row.late for row in rows),
        sum(row.health == "stopped" for row in rows),
        bool(due) and min(due) + OVERDUE < site.now(),
    )


def _added(site: Site, feeds: Sequence[AddedFeed], complaints: Sequence[str] = ()) -> FeedsChanged:
    wanted, there = {feed.url for feed in feeds}, {feed.url for feed in _known(site)}
    made = _change(site, FeedChange(add=tuple(feeds))) if feeds else True
    return FeedsChanged(len(wanted - there), made, tuple(complaints), len(wanted & there))


def _known(site: Site) -> list[FeedState]:
    file = _file(site)
    return known_feeds(file) if file.is_file() else []


def _chosen(site: Site, addresses: Sequence[str]) -> list[FeedState]:
    return chosen_feeds(_known(site), addresses, "this state")


def _change(site: Site, change: FeedChange) -> bool:
    make_inside(site.state, DROPS)
    return change_feeds(_file(site), change, WAIT)


def _file(site: Site) -> Path:
    return site.state / DROPS / STATE_FILE


VISITS = """SELECT stream, feed, arg_max(visited, batch) AS visited, arg_max(earlier, batch) AS earlier,
  arg_max(outcome, batch) AS outcome
FROM feeds GROUP BY stream, feed"""
"""SQL for the last complete visit of each feed that was read, and for what was read of it last."""

SECONDS = 10.0  # time limit of a SELECT


class _FeedTime(NamedTuple):
    """A feed in the store: its last complete visit, None if it had none; that of the feed which has come furthest; and
    whether the stream waits for it."""

    visited: int | None
    furthest: int
    is_waited_for: bool


def _visits(site: Site) -> dict[str, _FeedTime]:
    rows = site.look_up(VISITS, MOST_CACHED, SECONDS).to_pylist()
    if not rows:
        return {}
    noted = latest_setting(lambda sql: site.look_up(sql, 1, SECONDS), WATERMARKS)
    idle_after: int | None = json.loads(noted or "{}").get("idle_after")
    streams: dict[str, FeedTimes] = {}
    for row in rows:
        streams.setdefault(row["stream"], FeedTimes()).put(
            row["feed"], LastVisit(row["visited"], row["earlier"], row["outcome"])
        )
    found: dict[str, _FeedTime] = {}
    for feeds in streams.values():
        least = feeds.least(idle_after)
        for feed, state in feeds.states.items():
            visited, _, outcome = state
            waits = visited == least if outcome == "complete" else state.is_live(idle_after, feeds.greatest)
            found[feed] = _FeedTime(visited if visited > EARLIEST else None, feeds.greatest, waits)
    return found


def _row(now: int, visits: Mapping[str, _FeedTime], notes: Mapping[str, FeedNotes], feed: FeedState) -> FeedRow:
    told = FeedSummary.of(feed, notes)
    signs: dict[Health, object] = {"stopped": told.stopped, "failing": told.errors, "new": told.checked_at is None}
    health: Health = next((health for health, has in signs.items() if has), "well")
    interval = told.interval or HOUR
    read_to, furthest, is_waited_for = visits.get(told.url, _FeedTime(None, 0, False))
    visited_at = told.checked_at if health == "well" else read_to
    late = read_to is not None and not told.stopped and now - read_to > 2 * interval
    holds = is_waited_for and furthest - (read_to or 0) > interval
    return FeedRow(**asdict(told), health=health, visited_at=visited_at, read_to=read_to, late=late, holds=holds)


LINKS = (Link("/feeds", "Feeds", 30),)

LONGEST = 4_000  # maximum length of an address, in characters

OPML = "text/x-opml; charset=utf-8"

_After = Annotated[str | None, Query(description="The `next` of the page before.")]
Address = Annotated[str, Form(max_length=LONGEST)]
_Sent = Annotated[str, Body(description="The feed's address, or that of a page that names it.")]
_Named = Annotated[str, Body(description="Your title, or its folder.")]


def feeds_router(site: Site, routes: APIRouter) -> None:
    def page(
        request: Request,
        wanted: WantedFeeds = "",
        after: str | None = None,
        status: int = 200,
        address: str = "",
        error: str = "",
        list_error: str = "",
    ) -> Response:
        found = feed_page(site, wanted, after)
        return site.render(
            request, "feeds.html", status, changes=True, found=found, wanted=wanted,
            address=address, error=error, list_error=list_error,
        )  # fmt: skip

    @routes.get("/feeds", response_class=HTMLResponse)
    def feeds_page(request: Request, health: WantedFeeds = "", after: _After = None) -> Response:
        return page(request, health, after)

    def changed(done: str, made: FeedsChanged) -> Response:
        text = f"{pluralise(made.feeds, 'feed')} {done}"
        if made.known:
            text += f"; {made.known:,} {'was' if made.known == 1 else 'were'} there already"
        if left_out := len(made.complaints):
            text += f"; {left_out:,} left out, whose addresses are no web addresses"
        return site.show("/feeds", f"{text}." if made.made else f"{text}. The fetch takes that in in a moment.")

    @routes.post("/feeds", response_class=HTMLResponse)
    def add_form(request: Request, address: Address = "", folder: Address = "") -> Response:
        try:
            return changed("added", add(address, folder=folder))
        except InputError as error:
            return page(request, status=400, address=address, error=str(error))

    @routes.post("/feeds/list", response_class=HTMLResponse)
    def list_form(request: Request, opml: Annotated[bytes, File()] = b"") -> Response:
        if not opml:
            return page(request, status=400, list_error="choose a file first")
        try:
            return changed("added", add_list(opml))
        except InputError as error:
            return page(request, status=400, list_error=str(error))

    @routes.post("/feeds/remove")
    def remove_form(address: Address) -> Response:
        return changed("removed", remove(address))

    @routes.post("/feeds/retry")
    def retry_form(address: Address = "") -> Response:
        return changed("due now", retry([address] if address else []))

    @routes.get("/feeds/feeds.opml", include_in_schema=False)
    @routes.get("/api/v1/feeds.opml", tags=["feeds"], summary="Download the feeds as OPML", response_class=Response)
    def download() -> Response:
        named = {"Content-Disposition": 'attachment; filename="feeds.opml"'}
        return Response(as_opml(_known(site)), media_type=OPML, headers=NO_STORE | named)

    @routes.get("/api/v1/feeds", tags=["feeds"], summary="List the feeds")
    def feeds(response: Response, health: WantedFeeds = "", after: _After = None) -> FeedPage:
        response.headers.update(NO_STORE)
        return feed_page(site, health, after)

    @routes.post("/api/v1/feeds", tags=["feeds"], summary="Add a feed")
    def add(address: _Sent, title: _Named = "", folder: _Named = "") -> FeedsChanged:
        feed = feed_named(address.strip())
        return _added(site, [AddedFeed(feed.url, one_line(title)[:LONGEST_TITLE], one_line(folder)[:LONGEST_TITLE])])

    @routes.post("/api/v1/feeds.opml", tags=["feeds"], summary="Add the feeds of a list, in OPML or one address a line")
    def add_list(opml: Annotated[bytes, Body(media_type="text/x-opml")]) -> FeedsChanged:
        found, complaints, *_ = read_feed_list(opml, "the list")
        return _added(site, [AddedFeed(feed.url, feed.title, feed.folder) for feed in found], complaints)

    @routes.delete("/api/v1/feeds", tags=["feeds"], summary="Remove a feed")
    def remove(address: Annotated[str, Query(max_length=LONGEST)]) -> FeedsChanged:
        urls = tuple(feed.url for feed in _chosen(site, [address]))
        return FeedsChanged(len(urls), _change(site, FeedChange(remove=urls)))

    @routes.post(
        "/api/v1/feeds/retry", tags=["feeds"], summary="Make feeds due now; without an address, those that fail"
    )
    def retry(address: Annotated[list[str] | None, Query()] = None) -> FeedsChanged:
        failing = [feed for feed in _known(site) if feed.errors and not feed.stopped]
        urls = tuple(feed.url for feed in (_chosen(site, address) if address else failing))
        return FeedsChanged(len(urls), _change(site, FeedChange(retry=urls)) if urls else True)


ROUTERS = (feeds_router,)
