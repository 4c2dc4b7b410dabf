"""What the queries share: templates and rows, what they cost, and a picture of that."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from markupsafe import Markup

from mmqjp.explain.sharing import MOST_NAMES, SharedTemplate, Sharing
from mmqjp.explain.sharing_picture import sharing_picture
from mmqjp.service.commands import SHARING
from mmqjp.web.site import Link, Site

LINKS = (Link("/sharing", "Sharing", 60),)


def router(site: Site) -> APIRouter:
    """Returns the routes."""
    routes = APIRouter()

    def sharing_of_store() -> Sharing:
        return Sharing.from_dict(site.ask(SHARING, {}))

    @routes.get("/sharing", response_class=HTMLResponse)
    def page(request: Request) -> Response:
        found = sharing_of_store()
        picture = Markup(sharing_picture(found))  # escaped by what draws it
        return site.render(
            request, "sharing.html", found=found, picture=picture, names_of=names_of, has_others=has_others
        )

    @routes.get("/api/v1/sharing", tags=["store"], summary="What the queries share, and what it costs")
    def sharing() -> Sharing:
        return sharing_of_store()

    return routes


def names_of(template: SharedTemplate) -> list[str]:
    """Returns some names of queries that have a template, those of its most shared rows first."""
    return _names(template)[:MOST_NAMES]


def has_others(template: SharedTemplate) -> bool:
    """Returns whether there may be more names than these. A query may subscribe to several rows, or several times."""
    cut = any(row.subscribers > len(row.names) >= MOST_NAMES for row in template.most_shared)
    return cut or template.rows > len(template.most_shared) or len(_names(template)) > MOST_NAMES


def _names(template: SharedTemplate) -> list[str]:
    return list(dict.fromkeys(name for row in template.most_shared for name in row.names))
