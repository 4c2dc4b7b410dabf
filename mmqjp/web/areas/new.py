"""New queries: a text is checked, tried on stored documents, shown with outputs per day, and subscribed. Mistakes and
warnings have their places. Also offers starter queries from `mmqjp demo`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Form, Query, Request
from fastapi.responses import HTMLResponse, Response

from common.errors import InputError
from mmqjp.backtest import Backtest, a_day, days_of, novelty
from mmqjp.explain.warnings import warnings_of
from mmqjp.present.query_lookup import event_streams, query_versions
from mmqjp.process import pluralise
from mmqjp.service.drops import DROPS
from mmqjp.service.sql_question import BACKTEST
from mmqjp.web.areas.queries import Changed, editable_script
from mmqjp.web.site import MOST_CACHED, Mistake, Site, segment
from xscl.check_expressions import FUNCTIONS
from xscl.lalr import grammar_keywords
from xscl.parser import parse_script
from xscl.story_queries import PAIRS
from xscl.syntax import Script
from xscl.text import LACKS_EVENTS, XsclError, XsclErrors

LONGEST, MOST_TOLD, MOST_NAMES = 200_000, 20, 1_000
"""Longest text to check, in characters, and maximum number of mistakes, of warnings, and of query names reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark(Mistake):
    """A mistake or warning. `shown` has the line with carets below the place, which has `length` characters."""

    shown: str
    length: int


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking a text. Without mistakes, `queries` counts its queries and `names` has the first names.
    `mistakes` and `warnings` count all; `errors` and `remarks` are the first ones."""

    queries: int = 0
    names: Sequence[str] = ()
    mistakes: int = 0
    errors: Sequence[Remark] = ()
    warnings: int = 0
    remarks: Sequence[Remark] = ()

    @property
    def is_empty(self) -> bool:
        return not self.queries and not self.mistakes

    @property
    def summary(self) -> str:
        if self.is_empty:
            return ""
        if self.mistakes:
            return pluralise(self.mistakes, "mistake")
        names = ", ".join(self.names[:3]) + (" and others" if self.queries > 3 else "")
        found = f"No mistakes. {pluralise(self.queries, 'query', 'queries')}: {names}."
        return f"{found} {pluralise(self.warnings, 'warning')}." if self.warnings else found


def check_script_text(site: Site, text: str) -> Checked:
    """Checks a text. Mistakes are a result, not an error."""
    if not text.strip():
        return Checked()
    try:
        script = parsed(site, text)
    except XsclErrors as found:
        return Checked(mistakes=len(found.errors), errors=_remarks(found.errors, "error"))
    warnings = warnings_of(text, script, "item" if (site.state / DROPS).is_dir() else None)
    names, count = named(script.names()), len({query.span for query in script.all_queries})
    remarks = _remarks(warnings, "warning")
    return Checked(count, names[:MOST_NAMES], warnings=len(warnings), remarks=remarks)


def named(names: Iterable[str]) -> tuple[str, ...]:
    """Names of queries, without hidden queries that stories expand to.

    >>> named(["a", "story.pairs", "story", "a"])
    ('a', 'story')
    """
    found = dict.fromkeys(names)
    return tuple(name for name in found if not (name.endswith(PAIRS) and name.removesuffix(PAIRS) in found))


def parsed(site: Site, text: str) -> Script:
    """Parses a text, which may read events of the store. Raises XsclErrors."""
    try:
        return parse_script(text)
    except XsclErrors as found:
        if not any(error.message.startswith(LACKS_EVENTS) for error in found.errors):
            raise
    return parse_script(text, events=event_streams(partial(site.select, limit=MOST_CACHED)))


def _remarks(found: Iterable[XsclError], kind: str) -> tuple[Remark, ...]:
    return tuple(
        Remark(one.line, one.column, one.message, one.hint or None, shown=one.render(kind=kind), length=one.length)
        for one in islice(found, MOST_TOLD)
    )


NAMES = ("story", "same_story", "follow_up", "retitled", "safety_research", "elsewhere")
"""Starter queries that suit any feeds, in display order."""

_NUMBER = re.compile(r"^-- (?:\d+\. )?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Starter:
    """A starter query: its name, its purpose, and its text."""

    name: str
    purpose: str
    text: str


@cache
def starters() -> tuple[Starter, ...]:
    text = files("mmqjp.demo").joinpath("reader.xscl").read_text("utf-8")
    found = {}
    for block in text.split("\n\n"):
        word = "SELECT" if "\nSELECT" in block else "FROM"
        comment, _, query = block.partition(f"\n{word}")
        if query:
            query = word + query.rstrip("\n;")
            name = query.rpartition("PUBLISH ")[2].split()[0]
            found[name] = Starter(name, " ".join(_NUMBER.sub("", comment).split()), query + "\n")
    return tuple(found[name] for name in NAMES)


Do = Literal["check", "try", "subscribe"]
_Text = Annotated[str, Body(embed=True, max_length=LONGEST, description="A text of XSCL.")]
_Add = Annotated[bool, Body(description="Whether to keep existing queries with the same names.")]
_Backfill = Annotated[bool, Body(description="Whether to evaluate them over stored documents too.")]


def new_router(site: Site, routes: APIRouter) -> None:
    def page(request: Request, status: int = 200, **context: object) -> Response:
        empty: dict[str, Any] = dict.fromkeys(("text", "error", "note"), "") | {"checked": Checked()}
        empty |= {"trial": None, "backfill": False, "add": False}
        empty |= {"keywords": grammar_keywords(), "functions": sorted(FUNCTIONS)}
        return site.render(request, "new.html", status, starters=starters(), **empty | context)

    @routes.get("/new", response_class=HTMLResponse)
    def form(
        request: Request,
        starter: Annotated[str, Query(max_length=200)] = "",
        query: Annotated[str, Query(max_length=200)] = "",
        at: int | None = None,
    ) -> Response:
        text = next((one.text for one in starters() if one.name == starter), "")
        note = ""
        if query:
            text, replaces = editable_script(site, query)
            text = next((one.text for one in query_versions(site.select, query) if one.at == at), text)
            note = "" if replaces else f"{query} has no PUBLISH, so it cannot be replaced: this becomes another query."
        return page(request, text=text, note=note, checked=check_script_text(site, text[:LONGEST]))

    @routes.post("/new", response_class=HTMLResponse)
    def submit(
        request: Request,
        text: Annotated[str, Form(max_length=LONGEST)] = "",
        do: Annotated[Do, Form()] = "check",
        add: Annotated[bool, Form()] = False,
        backfill: Annotated[bool, Form()] = False,
    ) -> Response:
        checked = check_script_text(site, text)
        given: dict[str, Any] = {"text": text, "add": add, "backfill": backfill, "checked": checked}
        if checked.mistakes or checked.is_empty:
            error = "There is no query yet: write one, or start from one of those below." if not text.strip() else ""
            return page(request, 400 if do != "check" or error else 200, **given, error=error)
        if do == "check":
            return page(request, **given)
        try:
            if do == "try":
                trial = Backtest.from_dict(backtest(text))
                summary = {"cost": novelty(trial.novelty), "a_day": a_day(trial), "days": days_of(trial)}
                return page(request, **given, trial=trial, summary=summary)
            names = subscribe(text, add, backfill).names
        except InputError as error:
            return page(request, 400, **given, error=str(error))
        where = f"/q/{segment(names[0])}" if len(names) == 1 else "/"
        shown = names[0] if len(names) == 1 else f"{len(names):,} queries"
        return site.show(where, f"{shown}: subscribed")

    @routes.post("/api/v1/check", tags=["queries"], summary="Check the text of queries")
    def check_text(text: _Text) -> Checked:
        return check_script_text(site, text)

    @routes.post("/api/v1/queries", tags=["queries"], summary="Subscribe to queries")
    def subscribe(text: _Text, add: _Add = False, backfill: _Backfill = False) -> Changed:
        parsed(site, text)  # here, so that mistakes have places
        found: list[str] = site.ask("subscribe", {"text": text, "add": add, "backfill": backfill})
        return Changed(list(named(found)))

    @routes.post("/api/v1/backtest", tags=["queries"], summary="Try queries on stored documents")
    def backtest(text: _Text) -> dict[str, Any]:
        parsed(site, text)
        with site.slow():
            return dict(site.ask(BACKTEST, {"text": text}))


ROUTERS = (new_router,)
