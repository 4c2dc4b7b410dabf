"""Why a query gives no output: of documents that are named, and of all that are kept."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response

from mmqjp.present.query_funnels import QueryFunnels
from mmqjp.present.why_not_result import WhyNot
from mmqjp.service.beside import WHY_NOT
from mmqjp.web.site import Site

MOST_DOCUMENTS, LONGEST = 10, 4_000
"""The most documents that are named, and the most characters of a name."""

Documents = Annotated[
    list[Annotated[str, Query(max_length=LONGEST)]],
    Query(
        alias="document",
        max_length=MOST_DOCUMENTS,
        description="A document, by its id, or by an address or title that only one kept document has.",
    ),
]


def router(site: Site) -> APIRouter:
    """Returns the routes."""
    routes = APIRouter()

    def asked(name: str, documents: list[str]) -> tuple[list[str], dict[str, Any]]:
        """The documents that are named, and the answer. It is found beside the batches, where others wait, too."""
        named = [text.strip() for text in documents if text.strip()]
        with site.slow:
            return named, site.ask(WHY_NOT, {"query": name, "documents": named})

    @routes.get("/q/{name}/why-not", response_class=HTMLResponse)
    def page(request: Request, name: str, documents: Documents = []) -> Response:  # noqa: B006  # FastAPI copies it
        named, found = asked(name, documents)
        verdict, funnels = (WhyNot.from_dict(found), None) if named else (None, QueryFunnels.from_dict(found))
        return site.render(request, "why_not.html", name=name, named=named, verdict=verdict, funnels=funnels)

    @routes.get(
        "/api/v1/queries/{name}/why-not",
        tags=["queries"],
        summary="Say why there is no output of named documents, or how many of those kept get past each stage",
    )
    def why_not(name: str, documents: Documents = []) -> dict[str, Any]:  # noqa: B006  # FastAPI copies it
        return asked(name, documents)[1]

    return routes
