"""The list of queries, and how they are paused, resumed and removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, Response

from mmqjp.web.site import Link, Site
from mmqjp.web.templating import segment
from mmqjp.web.views.queries import Order, QueryPage, Wanted, query_page

LINKS = (Link("/", "Queries", 10),)

LONGEST = 200
"""The most characters that are searched for."""

DONE = {"pause": "paused", "resume": "resumed", "unsubscribe": "removed"}
"""What has happened to a query, by the command."""

Search = Annotated[str, Query(max_length=LONGEST, description="Only names that contain this, whatever its case.")]
After = Annotated[str | None, Query(description="The `next` of the page before.")]


@dataclass(frozen=True, slots=True)
class Changed:
    """The names of the queries that were changed."""

    names: list[str]


def router(site: Site) -> APIRouter:
    """Returns the routes."""
    routes = APIRouter()

    @routes.get("/", response_class=HTMLResponse)
    def page(
        request: Request,
        search: Search = "",
        state: Wanted = "",
        sort: Order = "name",
        after: After = None,
    ) -> Response:
        found = query_page(site.tallies.current(), search, state, sort, after)
        return site.render(request, "queries.html", found=found, search=search, state=state, sort=sort)

    @routes.get("/api/v1/queries", tags=["queries"], summary="List the names of queries")
    def queries(search: Search = "", state: Wanted = "", sort: Order = "name", after: After = None) -> QueryPage:
        return query_page(site.tallies.current(), search, state, sort, after)

    def change(name: str, do: str, back: str) -> Response:
        site.ask(do, {"name": name})
        where = "/" if do == "unsubscribe" or back != "query" else f"/q/{segment(name)}"
        return site.show(where, f"{name}: {DONE[do]}")

    @routes.post("/q/{name}/pause")
    def pause_form(name: str, back: Annotated[str, Form()] = "") -> Response:
        return change(name, "pause", back)

    @routes.post("/q/{name}/resume")
    def resume_form(name: str, back: Annotated[str, Form()] = "") -> Response:
        return change(name, "resume", back)

    @routes.get("/q/{name}/remove", response_class=HTMLResponse)
    def confirm(request: Request, name: str) -> Response:
        return site.render(request, "remove.html", name=name)

    @routes.post("/q/{name}/remove")
    def remove_form(name: str) -> Response:
        return change(name, "unsubscribe", "")

    @routes.post("/api/v1/queries/{name}/pause", tags=["queries"], summary="Pause the queries of a name")
    def pause(name: str) -> Changed:
        return Changed(site.ask("pause", {"name": name}))

    @routes.post("/api/v1/queries/{name}/resume", tags=["queries"], summary="Resume the paused queries of a name")
    def resume(name: str) -> Changed:
        return Changed(site.ask("resume", {"name": name}))

    @routes.delete("/api/v1/queries/{name}", tags=["queries"], summary="Remove the queries of a name")
    def remove(name: str) -> Changed:
        return Changed(site.ask("unsubscribe", {"name": name}))

    return routes
