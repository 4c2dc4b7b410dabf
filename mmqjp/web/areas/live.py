"""Pages of outputs: the newest ones live, one with its reason, why there is none, and Atom feeds. Live outputs are
server-sent events; an output's page has its documents side by side, with joined values marked; feeds have addresses
with a key, which need no token and can be revoked separately."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import HTMLResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from common.errors import MmqjpError, OperationalError
from mmqjp.answers.absence import PendingAbsence
from mmqjp.answers.events_run import WaitingCounts
from mmqjp.present.item import ShownMatch, WhyNot, last_told
from mmqjp.present.output_why import NoOutput, OutputWhy, why_output
from mmqjp.present.why_not import QueryFunnels
from mmqjp.service.sql_question import WHY_NOT
from mmqjp.service.status import Status
from mmqjp.syndication import serve_feeds
from mmqjp.tables.lookup import external_docids
from mmqjp.web.areas.queries import atom_feed_url, place_in
from mmqjp.web.site import COMMENT, MOST_CACHED, Link, OutputGap, ServerSentEvents, Site, message, segment


@dataclass(frozen=True, slots=True)
class FeedLink:
    """The address of a query's feed, for a feed reader."""

    url: str


def atom_router(site: Site, routes: APIRouter) -> None:
    def answer(request: Request, key: str, name: str, archive: int | None = None) -> Response:
        tag, since = (request.headers.get(header, "") for header in ("if-none-match", "if-modified-since"))
        return site.feed_pages.answer(serve_feeds.FeedRequest(key, name, archive, tag, since))

    @routes.api_route("/f/{key}/{name}.atom", methods=["GET", "HEAD"])
    def feed(request: Request, key: str, name: str) -> Response:
        return answer(request, key, name)

    @routes.api_route("/f/{key}/{name}/{archive:int}.atom", methods=["GET", "HEAD"])
    def archive(request: Request, key: str, name: str, archive: int) -> Response:
        return answer(request, key, name, archive)

    @routes.post("/q/{name}/feed/revoke")
    def revoke_form(name: str) -> Response:
        revoke(name)
        return site.show(f"/q/{segment(name)}", "The feed has a new address.", "#feed")

    @routes.get("/api/v1/queries/{name}/feed", tags=["queries"], summary="Show the address of a query's feed")
    def link(name: str) -> FeedLink:
        place_in(site.tallies.current(), name)
        return FeedLink(atom_feed_url(site, name))

    @routes.post("/api/v1/queries/{name}/feed/revoke", tags=["queries"], summary="Give a query's feed a new address")
    def revoke(name: str) -> FeedLink:
        place_in(site.tallies.current(), name)
        site.ask("revoke-feed-link", {"name": name})
        return FeedLink(atom_feed_url(site, name))


MOST_WAITING = 5  # maximum number of queries with waiting absences shown

SHOWN, LOOKED_THROUGH, MOST_NUMBERS = 30, 300, 20_000
"""Newest outputs shown at first; outputs searched for them unless too few are shown; and maximum numbers searched in
that case: hidden queries use some numbers, and a story many."""


@dataclass(frozen=True, slots=True)
class LatestOutputs:
    """The latest outputs, newest first. Later ones follow after the number `newest`, -1 if there is none yet. Without
    outputs, the waiting `events` and `absences`, if the service reports them."""

    matches: tuple[ShownMatch, ...]
    newest: int
    events: WaitingCounts | None = None
    absences: tuple[PendingAbsence, ...] = ()


def latest(site: Site, query: str) -> LatestOutputs:
    """Returns the latest outputs, of all names or one; of each story, only the last one."""

    def read() -> LatestOutputs:
        newest = site.recent.greatest()
        numbers, shown = LOOKED_THROUGH if query else SHOWN, list[ShownMatch]()
        while True:
            found = site.matches.between(max(newest - numbers, -1), newest, query or None, whole=False)
            shown = list(last_told(found[::-1]))[:SHOWN]
            if len(shown) == SHOWN or len(found) >= LOOKED_THROUGH or numbers >= min(newest + 1, MOST_NUMBERS):
                return LatestOutputs(tuple(shown), newest)
            numbers *= 4

    found: LatestOutputs = site.kept.get(("latest", query), site.reader.version(), read)
    if not found.matches:
        with suppress(OperationalError):  # it answers between two batches
            status = Status.from_dict(site.look("status", {}))
            absences = (one for one in status.absences if query in ("", one.query))
            events = status.events if status.events and status.events.events else None
            return replace(found, events=events, absences=tuple(islice(absences, MOST_WAITING)))
    return found


LINKS = (Link("/live", "Live", 20),)

QUIET = 15.0  # seconds without an output after which a keep-alive comment is sent

_Name = Annotated[str, Query(max_length=200, description="Only the outputs of this query.")]
_Form = Annotated[Literal["json", "html"], Query(description="Outputs as JSON, or as a piece of the page.")]
LastId = Annotated[str, Header(alias="Last-Event-ID", description="The id of the last event received.")]
_AfterSeq = Annotated[int | None, Query(ge=-1, le=1 << 62, description="The same, where no header can be sent.")]


def live_router(site: Site, routes: APIRouter) -> None:
    @routes.get("/live", response_class=HTMLResponse)
    def page(request: Request, query: _Name = "") -> Response:
        return site.render(request, "live.html", changes=True, found=latest(site, query), query=query)

    @routes.get("/events", include_in_schema=False)
    @routes.get(
        "/api/v1/events",
        tags=["outputs"],
        summary="Follow the outputs, as server-sent events",
        response_class=Response,
        responses={200: {"content": {"text/event-stream": {}}}},
    )
    async def events(query: _Name = "", form: _Form = "json", last: LastId = "", after: _AfterSeq = None) -> Response:
        site.hub.check()
        seen = int(last) if last.isascii() and last.isdecimal() and len(last) < 19 else after
        return ServerSentEvents(_messages(site, query, form, seen))


async def _messages(site: Site, query: str, form: str, seen: int | None) -> AsyncGenerator[bytes, None]:
    def data(match: ShownMatch) -> str:
        if form == "json":
            return json.dumps(match.to_dict(), ensure_ascii=False)
        return site.piece("match.html", match=match)

    events = site.hub.listen(seen, QUIET)
    try:
        async for event in events:
            match event:
                case None:
                    yield COMMENT
                case OutputGap(first, end):
                    yield message("gap", end, json.dumps({"first": first, "last": end}))
                case ShownMatch() if query in ("", event.output.query):
                    yield message("output", event.output.seq, await run_in_threadpool(data, event))
    except MmqjpError:
        return  # the store cannot be read now: the client reconnects
    finally:
        await events.aclose()


LONGEST_OUTPUT_ID = 64  # maximum length of an id, in characters
SECONDS = 10.0  # time limit of a SELECT

_FIRST = "The first number of the output's group, which speeds up finding it."
_Group = Annotated[int | None, Query(ge=0, lt=1 << 62, description=_FIRST)]


def output_router(site: Site, routes: APIRouter) -> None:
    def found(id: str, group: int | None) -> OutputWhy:
        """Explains an output. Cacheable until the output or its documents are deleted."""
        drops = site.matches.forget_what_was_dropped()
        recent = site.recent
        make = partial(why_output, site.select, id[:LONGEST_OUTPUT_ID], group, recent, recent.documents)
        try:
            return site.kept.get(("why", id), drops, make)
        except NoOutput as error:
            raise HTTPException(404, str(error)) from None

    def numbers(match: ShownMatch) -> dict[tuple[str, str], int]:
        select = partial(site.look_up, limit=MOST_CACHED, seconds=SECONDS)
        return external_docids(select, (item.id for item in match.items if item.is_kept))

    @routes.get("/o/{id}", response_class=HTMLResponse)
    def page(request: Request, id: str, group: _Group = None) -> Response:
        why = found(id, group)
        return site.render(request, "output.html", found=why, numbers=numbers(why.match))

    @routes.get("/api/v1/outputs/{id}", tags=["outputs"], summary="Show an output, and the reason for it")
    def output(id: str, group: _Group = None) -> dict[str, Any]:
        why = found(id, group)
        known = numbers(why.match)
        return why.to_dict() | {"item_numbers": [known.get((item.id, item.stream)) for item in why.match.items]}


MOST_DOCUMENTS, LONGEST_DOCUMENT_NAME = 10, 4_000
"""Maximum number of named documents, and length of a name in characters."""

_Documents = Annotated[
    list[Annotated[str, Query(max_length=LONGEST_DOCUMENT_NAME)]],
    Query(
        alias="document",
        max_length=MOST_DOCUMENTS,
        description="A document, by its id, or by an address or title that only one stored document has.",
    ),
]


def why_not_router(site: Site, routes: APIRouter) -> None:
    def asked(name: str, documents: list[str]) -> tuple[list[str], dict[str, Any]]:
        """Returns the named documents, and the answer, computed beside the batches."""
        named = [text.strip() for text in documents if text.strip()]
        with site.slow():
            return named, site.ask(WHY_NOT, {"query": name, "documents": named})

    @routes.get("/q/{name}/why-not", response_class=HTMLResponse)
    def page(request: Request, name: str, documents: _Documents = []) -> Response:  # noqa: B006  # FastAPI copies it
        named, found = asked(name, documents)
        verdict, funnels = (WhyNot.from_dict(found), None) if named else (None, QueryFunnels.from_dict(found))
        return site.render(request, "why_not.html", name=name, named=named, verdict=verdict, funnels=funnels)

    @routes.get(
        "/api/v1/queries/{name}/why-not",
        tags=["queries"],
        summary="Explain why named documents give no output, or how many stored ones get past each stage",
    )
    def why_not(name: str, documents: _Documents = []) -> dict[str, Any]:  # noqa: B006  # FastAPI copies it
        return asked(name, documents)[1]


ROUTERS = (atom_router, live_router, output_router, why_not_router)
