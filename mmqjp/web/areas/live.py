"""Outputs as they come: a page, and server-sent events for it and for programs."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import HTMLResponse, Response
from starlette.concurrency import run_in_threadpool

from common.errors import MmqjpError
from mmqjp.present.match import Match
from mmqjp.web.event_stream import COMMENT, EventStream, message
from mmqjp.web.hub import Gap, Hub
from mmqjp.web.site import Link, Site
from mmqjp.web.views.live import latest

LINKS = (Link("/live", "Live", 20),)

QUIET = 15.0
"""After so many seconds without an output, a comment is sent."""

Name = Annotated[str, Query(max_length=200, description="Only the outputs of this query.")]
Form = Annotated[Literal["json", "html"], Query(description="Outputs as JSON, or as a piece of the page.")]
LastId = Annotated[str, Header(alias="Last-Event-ID", description="The id of the last event that was seen.")]
After = Annotated[int | None, Query(ge=-1, le=1 << 62, description="The same, where no header can be sent.")]


def router(site: Site) -> APIRouter:
    """Returns the routes."""
    routes = APIRouter()

    @routes.get("/live", response_class=HTMLResponse)
    def page(request: Request, query: Name = "") -> Response:
        response = site.render(request, "live.html", found=latest(site, query), query=query)
        response.headers["Cache-Control"] = "no-store"
        return response

    @routes.get("/events", include_in_schema=False)
    @routes.get(
        "/api/v1/events",
        tags=["outputs"],
        summary="Follow the outputs, as server-sent events",
        response_class=Response,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def events(query: Name = "", form: Form = "json", last: LastId = "", after: After = None) -> Response:
        site.hub.check()
        seen = int(last) if last.isascii() and last.isdecimal() and len(last) < 19 else after
        return EventStream(_messages(site, site.hub, query, form, seen))

    return routes


async def _messages(site: Site, hub: Hub, query: str, form: str, seen: int | None) -> AsyncGenerator[bytes, None]:
    events = hub.listen(seen, QUIET)
    try:
        async for event in events:
            match event:
                case None:
                    yield COMMENT
                case Gap(first, end):
                    yield message("gap", end, json.dumps({"first": first, "last": end}))
                case Match() if query in ("", event.output.query):
                    yield message("output", event.output.seq, await run_in_threadpool(_data, site, event, form))
    except MmqjpError:
        return  # the store cannot be read now: the client comes back
    finally:
        await events.aclose()


def _data(site: Site, match: Match, form: str) -> str:
    if form == "json":
        return json.dumps(match.to_dict(), ensure_ascii=False)
    return site.piece("match.html", match=match)
