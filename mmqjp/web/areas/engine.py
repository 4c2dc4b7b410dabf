"""The engine: throughput, lag, watermarks, caches."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from mmqjp.web.site import Link, Site
from mmqjp.web.views.engine import EngineView, engine_view

LINKS = (Link("/engine", "Engine", 50),)


def router(site: Site) -> APIRouter:
    """Returns the routes."""
    routes = APIRouter()

    @routes.get("/engine", response_class=HTMLResponse)
    def page(request: Request) -> Response:
        found = engine_view(site)
        documents = [(site.clock.minute(hour.begin), hour.documents) for hour in found.hours]
        outputs = [(site.clock.minute(hour.begin), hour.outputs) for hour in found.hours]
        return site.render(request, "engine.html", found=found, documents=documents, outputs=outputs)

    @routes.get("/api/v1/engine", tags=["store"], summary="How the engine does")
    def engine() -> EngineView:
        return engine_view(site)

    return routes
