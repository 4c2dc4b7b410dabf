"""New queries: the text is checked, tried on what is kept, and subscribed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import Field

from common.errors import InputError
from mmqjp.backtest.result import Backtest
from mmqjp.backtest.text import a_day, novelty
from mmqjp.service.backtest_question import BACKTEST
from mmqjp.web.site import Site
from mmqjp.web.templating import segment
from mmqjp.web.views.check import LONGEST, Checked, check, parsed
from mmqjp.web.views.query import text_of
from mmqjp.web.views.starters import starters
from mmqjp.web.views.trial import days_of

Do = Literal["check", "try", "subscribe"]
Text = Annotated[str, Field(max_length=LONGEST)]


@dataclass(frozen=True, slots=True)
class QueryText:
    """A text of XSCL."""

    text: Text


@dataclass(frozen=True, slots=True)
class NewQueries:
    """Queries to subscribe to. They replace all of their names, unless `add`. With `backfill`, they are answered over
    the documents that are kept, too."""

    text: Text
    add: bool = False
    backfill: bool = False


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The names of the queries."""

    names: list[str]


def router(site: Site) -> APIRouter:
    """Returns the routes."""
    routes = APIRouter()

    def page(request: Request, status: int = 200, **context: object) -> Response:
        empty = {
            "text": "",
            "checked": Checked(),
            "trial": None,
            "error": "",
            "note": "",
            "backfill": False,
            "add": False,
        }
        return site.render(request, "new.html", status, starters=starters(), **empty | context)

    def subscribed(text: str, *, add: bool, backfill: bool) -> list[str]:
        parsed(site, text)  # here, so that mistakes come with their places
        found: list[str] = site.ask("subscribe", {"text": text, "add": add, "backfill": backfill})
        return list(dict.fromkeys(found))

    def tried(text: str) -> dict[str, Any]:
        with site.slow:
            found: dict[str, Any] = site.ask(BACKTEST, {"text": text})
            return found

    @routes.get("/new", response_class=HTMLResponse)
    def form(
        request: Request,
        starter: Annotated[str, Query(max_length=200)] = "",
        query: Annotated[str, Query(max_length=200)] = "",
    ) -> Response:
        text = next((one.text for one in starters() if one.name == starter), "")
        note = ""
        if query:
            text, replaces = text_of(site, query)
            note = "" if replaces else f"{query} has no PUBLISH, so nothing replaces it: this becomes another query."
        return page(request, text=text, note=note, checked=check(site, text[:LONGEST]))

    @routes.post("/new", response_class=HTMLResponse)
    def submit(
        request: Request,
        text: Annotated[str, Form(max_length=LONGEST)] = "",
        do: Annotated[Do, Form()] = "check",
        add: Annotated[bool, Form()] = False,
        backfill: Annotated[bool, Form()] = False,
    ) -> Response:
        given: dict[str, Any] = {"text": text, "add": add, "backfill": backfill, "checked": check(site, text)}
        if given["checked"].mistakes or given["checked"].is_empty:
            error = "There is no query yet: write one, or begin with one of those below." if not text.strip() else ""
            return page(request, 400 if do != "check" or error else 200, **given, error=error)
        if do == "check":
            return page(request, **given)
        try:
            if do == "try":
                trial = Backtest.from_dict(tried(text))
                told = {"cost": novelty(trial.novelty), "a_day": a_day(trial), "days": days_of(trial)}
                return page(request, **given, trial=trial, told=told)
            names = subscribed(text, add=add, backfill=backfill)
        except InputError as error:
            return page(request, 400, **given, error=str(error))
        where = f"/q/{segment(names[0])}" if len(names) == 1 else "/"
        shown = names[0] if len(names) == 1 else f"{len(names):,} queries"
        return site.show(where, f"{shown}: subscribed")

    @routes.post("/api/v1/check", tags=["queries"], summary="Check the text of queries")
    def check_text(given: QueryText) -> Checked:
        return check(site, given.text)

    @routes.post("/api/v1/queries", tags=["queries"], summary="Subscribe to queries")
    def subscribe(given: NewQueries) -> Subscribed:
        return Subscribed(subscribed(given.text, add=given.add, backfill=given.backfill))

    @routes.post("/api/v1/backtest", tags=["queries"], summary="Try queries on the documents that are kept")
    def backtest(given: QueryText) -> dict[str, Any]:
        parsed(site, given.text)
        return tried(given.text)

    return routes
