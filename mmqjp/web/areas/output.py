"""An output: its documents side by side, with the joined values marked, and why it came about."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from mmqjp.present.output_why import NoOutput, OutputWhy, why_output
from mmqjp.web.site import Site
from mmqjp.web.views.query import select

LONGEST = 64
"""The most characters of an id."""

Group = Annotated[
    int | None, Query(ge=0, lt=1 << 62, description="The first number of the group, which finds it faster.")
]


def router(site: Site) -> APIRouter:
    """Returns the routes."""
    routes = APIRouter()

    def found(id: str, group: int | None) -> OutputWhy:
        """Why an output came about. Outputs do not change, but they and their documents may go."""
        matches = site.matches
        drops = matches.forget_what_was_dropped()
        make = partial(why_output, partial(select, site), id[:LONGEST], group, matches.recent, matches.documents)
        try:
            return site.kept.get(("why", id), drops, make)
        except NoOutput as error:
            raise HTTPException(404, str(error)) from None

    @routes.get("/o/{id}", response_class=HTMLResponse)
    def page(request: Request, id: str, group: Group = None) -> Response:
        return site.render(request, "output.html", found=found(id, group))

    @routes.get("/api/v1/outputs/{id}", tags=["outputs"], summary="Show an output, and why it came about")
    def output(id: str, group: Group = None) -> dict[str, Any]:
        return found(id, group).to_dict()

    return routes
