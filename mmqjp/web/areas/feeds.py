"""The feeds: their health, and how they are added, retried and removed, one by one or as OPML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Body, File, Form, Query, Request
from fastapi.responses import HTMLResponse, Response

from common.errors import InputError
from mmqjp.web.site import Link, Site
from mmqjp.web.views import feeds as views
from mmqjp.web.views.feeds import FeedPage, FeedsChanged, WantedFeeds

LINKS = (Link("/feeds", "Feeds", 30),)

LONGEST = 4_000
"""The most characters of an address."""

OPML = "text/x-opml; charset=utf-8"
FRESH = {"Cache-Control": "no-store"}
"""The fetch changes what is shown without a commit."""

DONE = {"add": "added", "remove": "removed", "retry": "due now"}
"""What has happened to feeds, by what was asked for."""

After = Annotated[str | None, Query(description="The `next` of the page before.")]
Address = Annotated[str, Form(max_length=LONGEST)]


@dataclass(frozen=True, slots=True)
class NewFeed:
    """A feed to add: its address, or that of a page that names it, what you call it, and its folder."""

    address: str
    title: str = ""
    folder: str = ""


def router(site: Site) -> APIRouter:
    """Returns the routes."""
    routes = APIRouter()

    def page(
        request: Request,
        wanted: WantedFeeds = "",
        after: str | None = None,
        status: int = 200,
        address: str = "",
        error: str = "",
        list_error: str = "",
    ) -> Response:
        found = views.feed_page(site, wanted, after)
        response = site.render(
            request, "feeds.html", status, found=found, wanted=wanted,
            address=address, error=error, list_error=list_error,
        )  # fmt: skip
        response.headers.update(FRESH)
        return response

    @routes.get("/feeds", response_class=HTMLResponse)
    def feeds_page(request: Request, health: WantedFeeds = "", after: After = None) -> Response:
        return page(request, health, after)

    def changed(do: str, change: Callable[[], FeedsChanged]) -> Response:
        return site.show("/feeds", _message(do, change()))

    @routes.post("/feeds", response_class=HTMLResponse)
    def add_form(request: Request, address: Address = "", folder: Address = "") -> Response:
        try:
            return changed("add", lambda: views.add_feed(site, address, folder=folder))
        except InputError as error:
            return page(request, status=400, address=address, error=str(error))

    @routes.post("/feeds/list", response_class=HTMLResponse)
    def list_form(request: Request, opml: Annotated[bytes, File()] = b"") -> Response:
        if not opml:
            return page(request, status=400, list_error="choose a file first")
        try:
            return changed("add", lambda: views.add_list(site, opml))
        except InputError as error:
            return page(request, status=400, list_error=str(error))

    @routes.post("/feeds/remove")
    def remove_form(address: Address) -> Response:
        return changed("remove", lambda: views.remove_feed(site, address))

    @routes.post("/feeds/retry")
    def retry_form(address: Address = "") -> Response:
        return changed("retry", lambda: views.retry_feeds(site, [address] if address else []))

    @routes.get("/feeds/feeds.opml", include_in_schema=False)
    @routes.get("/api/v1/feeds.opml", tags=["feeds"], summary="Download the feeds as OPML", response_class=Response)
    def download() -> Response:
        named = {"Content-Disposition": 'attachment; filename="feeds.opml"'}
        return Response(views.opml(site), media_type=OPML, headers=FRESH | named)

    @routes.get("/api/v1/feeds", tags=["feeds"], summary="List the feeds")
    def feeds(response: Response, health: WantedFeeds = "", after: After = None) -> FeedPage:
        response.headers.update(FRESH)
        return views.feed_page(site, health, after)

    @routes.post("/api/v1/feeds", tags=["feeds"], summary="Add a feed")
    def add(feed: NewFeed) -> FeedsChanged:
        return views.add_feed(site, feed.address, feed.title, feed.folder)

    @routes.post("/api/v1/feeds.opml", tags=["feeds"], summary="Add the feeds of a list, in OPML or one address a line")
    def add_list(opml: Annotated[bytes, Body(media_type="text/x-opml")]) -> FeedsChanged:
        return views.add_list(site, opml)

    @routes.delete("/api/v1/feeds", tags=["feeds"], summary="Remove a feed")
    def remove(address: Annotated[str, Query(max_length=LONGEST)]) -> FeedsChanged:
        return views.remove_feed(site, address)

    @routes.post(
        "/api/v1/feeds/retry", tags=["feeds"], summary="Make feeds due now; without an address, those that fail"
    )
    def retry(address: Annotated[list[str] | None, Query()] = None) -> FeedsChanged:
        return views.retry_feeds(site, address or [])

    return routes


def _message(done: str, made: FeedsChanged) -> str:
    """What to say after a change."""
    text = f"{made.feeds:,} feed{'' if made.feeds == 1 else 's'} {DONE[done]}"
    if left_out := len(made.complaints):
        text += f"; {left_out:,} left out, whose addresses are no web addresses"
    return f"{text}." if made.made else f"{text}. The fetch takes that in in a moment."
