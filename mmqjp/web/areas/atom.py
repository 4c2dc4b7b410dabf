"""Atom feeds of queries, at addresses with a key: whoever has one needs no token. Each can be revoked by itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from fastapi import APIRouter, Request
from fastapi.responses import Response

from mmqjp.syndication import http
from mmqjp.syndication.http import FeedPages
from mmqjp.web.site import Site
from mmqjp.web.templating import segment
from mmqjp.web.views.query import feed_address, place_in


@dataclass(frozen=True, slots=True)
class FeedLink:
    """The address of a query's feed, for a feed reader."""

    url: str


def router(site: Site) -> APIRouter:
    """Returns the routes."""
    routes = APIRouter()

    @cache
    def pages() -> FeedPages:
        return FeedPages(site.feeds, site.feed_links, site.public_url, site.now)

    def answer(request: Request, key: str, name: str, archive: int | None = None) -> Response:
        tag, since = (request.headers.get(header, "") for header in ("if-none-match", "if-modified-since"))
        found = pages().answer(http.Request(key, name, archive, tag, since))
        return Response(b"" if request.method == "HEAD" else found.body, found.status, dict(found.headers))

    @routes.api_route("/f/{key}/{name}.atom", methods=["GET", "HEAD"])
    def feed(request: Request, key: str, name: str) -> Response:
        return answer(request, key, name)

    @routes.api_route("/f/{key}/{name}/{archive:int}.atom", methods=["GET", "HEAD"])
    def archive(request: Request, key: str, name: str, archive: int) -> Response:
        return answer(request, key, name, archive)

    def revoked(name: str) -> None:
        place_in(site.tallies.current(), name)
        site.ask("revoke-feed-link", {"name": name})

    @routes.post("/q/{name}/feed/revoke")
    def revoke_form(name: str) -> Response:
        revoked(name)
        return site.show(f"/q/{segment(name)}", "The feed has another address.", "#feed")

    @routes.get("/api/v1/queries/{name}/feed", tags=["queries"], summary="Show the address of a query's feed")
    def link(name: str) -> FeedLink:
        place_in(site.tallies.current(), name)
        return FeedLink(feed_address(site, name))

    @routes.post("/api/v1/queries/{name}/feed/revoke", tags=["queries"], summary="Give a query's feed another address")
    def revoke(name: str) -> FeedLink:
        revoked(name)
        return FeedLink(feed_address(site, name))

    return routes
