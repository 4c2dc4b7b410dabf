"""Makes the app of a site: the guard, the pages of all areas, and the API with its description."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from mmqjp.web import areas
from mmqjp.web.errors import API, handle_errors
from mmqjp.web.guard import Guard
from mmqjp.web.hosts import Hosts
from mmqjp.web.page_cache import PageCache
from mmqjp.web.site import Site

DESCRIPTION = """What the page of `mmqjp serve` does. Send the header `Authorization: Bearer TOKEN`; the token
is in the file `secrets/token` of the state directory. Times are microseconds since 1970, in UTC. Lists have a `next`,
which gives the next page as the parameter `after`; it is null at the end."""


def make_app(site: Site, hosts: Hosts) -> Guard:
    """Returns the app of a site, which answers requests that name one of `hosts`."""
    app = make_routes(site)
    return Guard(PageCache(app, site.reader, on_change=site.forget_what_was_told), site.access, hosts)


def make_routes(site: Site) -> FastAPI:
    """Returns the routes of a site, without what stands before them."""
    # Its pages about the API load scripts from elsewhere.
    app = FastAPI(title="mmqjp", docs_url=None, redoc_url=None, openapi_url=None)
    handle_errors(app, site)
    for found in sorted(pkgutil.iter_modules(areas.__path__), key=lambda found: found.name):
        area = import_module(f"{areas.__name__}.{found.name}")
        site.add_links(getattr(area, "LINKS", ()))
        app.router.routes.extend(area.router(site).routes)

    described: dict[str, Any] = {}

    @app.get("/api/v1/openapi.json", include_in_schema=False)
    def openapi() -> JSONResponse:
        if not described:
            routes = [route for route in app.routes if getattr(route, "path", "").startswith(API)]
            described.update(get_openapi(title="mmqjp", version="1", description=DESCRIPTION, routes=routes))
        return JSONResponse(described)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> PlainTextResponse:
        return PlainTextResponse("ok\n", headers={"Cache-Control": "no-store"})

    @app.get("/static/{digest}/{name}", include_in_schema=False)
    async def static(digest: str, name: str) -> Response:
        found = site.assets.response(digest, name)
        if found is None:
            raise HTTPException(404, "there is no such file: load the page again")
        return found

    return app
