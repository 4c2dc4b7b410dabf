"""A name of queries: its texts, join graph, sharers, matches a day and latest matches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from markupsafe import Markup

from mmqjp.web.site import Site
from mmqjp.web.views.query import (
    MOST_OUTPUTS,
    OUTPUTS,
    QueryPart,
    can_be_replaced,
    feed_address,
    graph,
    match_page,
    query_part,
)

After = Annotated[str | None, Query(description="The `next` of the page before.")]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Matches, the newest first: the JSON objects of their output lines, with `items`, `why` and `selected`."""

    outputs: list[dict[str, Any]]
    next: str | None


def router(site: Site) -> APIRouter:
    """Returns the routes."""
    routes = APIRouter()

    @routes.get("/q/{name}", response_class=HTMLResponse)
    def page(request: Request, name: str, after: After = None) -> Response:
        found = query_part(site, name)
        return site.render(
            request,
            "query.html",
            name=name,
            found=found,
            graphs=[Markup(graph(one.text, name)) for one in found.texts],  # escaped by what draws it
            can_be_replaced=can_be_replaced(name, (one.text for one in found.texts)),
            page=match_page(site, name, after),
            feed=feed_address(site, name),
            days=[(one.day, one.matches) for one in found.days],
            after=after,
        )

    @routes.get("/api/v1/queries/{name}", tags=["queries"], summary="Show the queries of a name")
    def query(name: str) -> QueryPart:
        return query_part(site, name)

    @routes.get("/api/v1/queries/{name}/outputs", tags=["outputs"], summary="List the newest matches of a name")
    def outputs(
        name: str, after: After = None, limit: Annotated[int, Query(ge=1, le=MOST_OUTPUTS)] = OUTPUTS
    ) -> Outputs:
        found = match_page(site, name, after, limit, numbered=True)
        return Outputs([match.to_dict() for match in found.matches], found.next)

    return routes
