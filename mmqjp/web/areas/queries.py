"""The pages of queries: the sorted and paged list of names, and a name with its texts, graphs and matches. Also shows
shared templates, and pauses, resumes, removes and edits queries."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow.compute as pc
from fastapi import APIRouter, Body, Form, Query, Request
from fastapi.responses import HTMLResponse, Response
from markupsafe import Markup

from common.arrays import Ints
from common.errors import InvalidValue, MmqjpError, OperationalError
from mmqjp.answers.absence import PendingAbsence
from mmqjp.answers.events_run import WaitingCounts
from mmqjp.explain.pictures import join_graphs, sharing_picture
from mmqjp.explain.plan import Sharing
from mmqjp.present.newest import NewestPage
from mmqjp.present.query_lookup import (
    NOTHING,
    EventsRead,
    QueryVersion,
    editable,
    event_streams,
    events_read,
    exported,
    query_versions,
)
from mmqjp.queries.changes import UnknownQuery
from mmqjp.queries.model import NOT_REPLACED, can_be_replaced, is_bare, is_event_form
from mmqjp.service.commands import SHARING
from mmqjp.service.status import Status
from mmqjp.syndication.atom import feed_path
from mmqjp.tables import lookup
from mmqjp.tables.schema import MOST_SOURCES
from mmqjp.web.site import NO_STORE, Link, Site, cursor, decode_cursor, segment
from mmqjp.web.tallies import NEVER, QueryTally
from xscl.syntax import NO_EVENTS

ROWS, LONGEST = 100, 200  # names per page, and maximum length of a search in characters

QueryState = Literal["active", "paused", "partly paused"]
WantedQueries = Literal["", "active", "paused", "never"]
QuerySort = Literal["name", "last", "day", "week", "total"]


@dataclass(frozen=True, slots=True)
class QueryRow:
    """A name: number of queries, state and its reason; outputs in total, in 24 hours and in 7 days; last t1 or None;
    and outputs on each of the last 30 UTC days, today last."""

    name: str
    queries: int
    state: QueryState
    reason: str | None
    total: int
    day: int
    week: int
    last: int | None
    days: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueryPage:
    """A page of names. `found` counts those selected; `names`, `paused` and `never` (matched) count all."""

    rows: tuple[QueryRow, ...]
    next: str | None
    found: int
    names: int
    paused: int
    never: int


def query_page(
    tally: QueryTally, search: str = "", wanted: WantedQueries = "", order: QuerySort = "name", after: str | None = None
) -> QueryPage:
    """Returns the names that contain `search`, ignoring case, and have the wanted state, from a cursor on."""
    is_paused, is_never = tally.paused > 0, tally.counted_at < 0
    mask = {"active": ~is_paused, "paused": is_paused, "never": is_never}.get(
        wanted, np.ones(len(tally.names), np.bool_)
    )
    if search:
        mask = mask & pc.match_substring(tally.names.folded, search.casefold()).to_numpy(zero_copy_only=False)
    # Descending; ties are in order of names.
    keys = np.zeros(len(tally.names), np.int64) if order == "name" else -tally.column(order)
    places = np.flatnonzero(mask)
    found = len(places)
    if (begin := decode_cursor(after, int, str)) is not None:
        rank = bisect_right(tally.names, begin[1])
        places = places[(keys[places] > begin[0]) | ((keys[places] == begin[0]) & (places >= rank))]
    places = _first(keys, places, ROWS + 1)
    shown, more = places[:ROWS].tolist(), len(places) > ROWS
    return QueryPage(
        tuple(query_row(tally, place) for place in shown),
        cursor(int(keys[shown[-1]]), tally.names[shown[-1]]) if more else None,
        found, len(tally.names), int(is_paused.sum()), int(is_never.sum()),
    )  # fmt: skip


def _first(keys: Ints, places: Ints, most: int) -> Ints:
    """Returns the first ascending places by key and place, without sorting all of them."""
    of = keys[places]
    if len(places) > most:
        least = np.partition(of, most - 1)[most - 1]
        below = places[of < least]
        places = np.concatenate((below, places[of == least][: most - len(below)]))
    return places[np.lexsort((places, keys[places]))]


def query_row(tally: QueryTally, place: int) -> QueryRow:
    queries, paused, name = int(tally.queries[place]), int(tally.paused[place]), tally.names[place]
    total, day, week, last, days = tally.outputs(place)
    return QueryRow(
        name, queries, "active" if not paused else "paused" if paused == queries else "partly paused",
        tally.reasons.get(name), total, day, week, None if last == NEVER else last, tuple(days),
    )  # fmt: skip


LINKS = (Link("/", "Queries", 10), Link("/sharing", "Sharing", 60))

_Search = Annotated[str, Query(max_length=LONGEST, description="Only names that contain this, ignoring case.")]
_After = Annotated[str | None, Query(description="The `next` of the page before.")]


@dataclass(frozen=True, slots=True)
class Changed:
    """The names of the queries that were added or changed."""

    names: list[str]


def queries_router(site: Site, routes: APIRouter) -> None:
    @routes.get("/", response_class=HTMLResponse)
    def page(
        request: Request,
        search: _Search = "",
        state: WantedQueries = "",
        sort: QuerySort = "name",
        after: _After = None,
    ) -> Response:
        found = query_page(site.tallies.current(), search, state, sort, after)
        return site.render(request, "queries.html", found=found, search=search, state=state, sort=sort)

    @routes.get("/api/v1/queries", tags=["queries"], summary="List the names of queries")
    def queries(
        search: _Search = "", state: WantedQueries = "", sort: QuerySort = "name", after: _After = None
    ) -> QueryPage:
        return query_page(site.tallies.current(), search, state, sort, after)

    def add_change(do: str, done: str, summary: str, call: str = "", method: str = "POST") -> None:
        """Adds the form `/q/NAME/DO` and its twin."""
        call = call or do

        @routes.post(f"/q/{{name}}/{do}")
        def form(name: str, back: Annotated[str, Form()] = "") -> Response:
            site.ask(call, {"name": name})
            return site.show(f"/q/{segment(name)}" if back == "query" else "/", f"{name}: {done}")

        path = f"/api/v1/queries/{{name}}{'' if method == 'DELETE' else f'/{do}'}"

        @routes.api_route(path, methods=[method], tags=["queries"], summary=summary, name=do)
        def change(name: str) -> Changed:
            return Changed(site.ask(call, {"name": name}))

    add_change("pause", "paused", "Pause the queries with a name")
    add_change("resume", "resumed", "Resume the paused queries with a name")
    add_change("remove", "removed", "Remove the queries with a name", "unsubscribe", "DELETE")

    @routes.get("/queries.xscl", include_in_schema=False)
    @routes.get(
        "/api/v1/queries.xscl", tags=["queries"], summary="Download all queries as one script", response_class=Response
    )
    def download() -> Response:
        named = {"Content-Disposition": 'attachment; filename="queries.xscl"'}
        text = exported(site.select, MOST_DOWNLOADED)
        return Response(text, headers=NO_STORE | named, media_type="text/plain; charset=utf-8")

    @routes.get("/q/{name}/remove", response_class=HTMLResponse)
    def confirm(request: Request, name: str) -> Response:
        return site.render(request, "remove.html", name=name)


MOST_DOWNLOADED = 10_000  # maximum number of queries downloaded as a script


def versions_router(site: Site, routes: APIRouter) -> None:
    @routes.get("/q/{name}/texts", response_class=HTMLResponse)
    def page(request: Request, name: str) -> Response:
        is_named = can_be_replaced(name, (one.text for one in query_part(site, name).texts))
        return site.render(request, "texts.html", name=name, found=texts(name), is_named=is_named, most=MOST_SOURCES)

    @routes.post("/q/{name}/texts", response_class=HTMLResponse)
    def restore_form(name: str, at: Annotated[int, Form()]) -> Response:
        restore(name, at)
        return site.show(f"/q/{segment(name)}", f"{name}: an earlier text is restored")

    @routes.get("/api/v1/queries/{name}/texts", tags=["queries"], summary="List all texts of a name so far")
    def texts(name: str) -> list[QueryVersion]:
        tally = site.tallies.current()
        place_in(tally, name)
        return site.kept.get(("texts as typed", name), tally.registered, lambda: query_versions(site.select, name))

    @routes.post("/api/v1/queries/{name}/restore", tags=["queries"], summary="Restore an earlier text of a name")
    def restore(name: str, at: Annotated[int, Body(embed=True, description="The time of the text.")]) -> Changed:
        if (text := next((one.text for one in texts(name) if one.at == at), None)) is None:
            raise InvalidValue(f"{name} had no text at this time, or it is no longer stored: see the list of its texts")
        if not can_be_replaced(name, (one.text for one in query_part(site, name).texts)):
            raise InvalidValue(f"{name}: {NOT_REPLACED}")
        found: list[str] = site.ask("subscribe", {"text": text, "add": False})
        return Changed(list(dict.fromkeys(found)))


OUTPUTS, MOST_OUTPUTS = 10, 100  # matches per page, by default and at most

MOST_TEXTS, MOST_SHARERS = 20, 10
"""Maximum number of queries of a name, and of names sharing a template, listed."""

MOST_PLACEMENTS, KEPT_GRAPHS = 2_000_000, 500
"""Maximum number of template rows scanned for sharers, and of cached join graphs."""

EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class QueryDetails:
    """A query with a name: number, text, original text, the time when it was added, in microseconds, and why it is
    paused, or None."""

    qid: int
    text: str
    source: str
    added_at: int
    paused: str | None


@dataclass(frozen=True, slots=True)
class Shared:
    """A template of a name's queries: how many queries use it, how many share a row with these, and some names."""

    template: int
    queries: int
    same_row: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Day:
    """The matches of a UTC day, by the time of their last document."""

    day: str
    matches: int


@dataclass(frozen=True, slots=True)
class QueryPart:
    """The data of a name, apart from its matches. `events` are those that its event queries read. `pending` describes
    what its absences wait for, and `waiting` what its event queries wait for; None if nothing waits, or if the service
    does not answer. `belated` counts documents that came too late to change its outputs. `hidden`: all its outputs go
    only to other queries."""

    row: QueryRow
    texts: tuple[QueryDetails, ...]
    events: EventsRead
    shared: tuple[Shared, ...]
    days: tuple[Day, ...]
    pending: PendingAbsence | None
    waiting: WaitingCounts | None
    belated: int
    hidden: bool


def place_in(tally: QueryTally, name: str) -> int:
    """Returns the index of a name in the tally. Raises UnknownQuery."""
    place = bisect_left(tally.names, name)
    if place == len(tally.names) or tally.names[place] != name:
        raise UnknownQuery(name)
    return place


def query_part(site: Site, name: str) -> QueryPart:
    """Raises UnknownQuery."""
    tally = site.tallies.current()
    place = place_in(tally, name)
    paused = bool(tally.paused[place])
    texts = site.kept.get(("texts", name), tally.registered, partial(_texts, site, name, paused=paused))
    sharing = site.kept.get("sharing", tally.registered, partial(_Sharing, site))
    row = query_row(tally, place)
    first = EPOCH + timedelta(days=tally.today - len(row.days) + 1)
    days = (Day(str(first + timedelta(days=n)), count) for n, count in enumerate(row.days))
    events = site.kept.get(("events", name), tally.registered, partial(read_events, site, name))
    pending, belated = _pending(site, name, texts), _belated(site, name)
    hidden = bool(texts) and all(f" PUBLISH {name} HIDDEN" in one.text for one in texts)
    waiting = None if events == NOTHING else _waiting(site)
    parts = row, texts, events, sharing.of(name), tuple(days)
    return QueryPart(*parts, pending, waiting, belated, hidden)


_ABSENCE = re.compile(r"\bNOT\s+(?:FOLLOWED|PRECEDED|JOIN)\b", re.IGNORECASE)

IS_BELATED = "SELECT 1 AS one FROM belated_counts LIMIT 1"  # mostly empty: then no page need ask for its own
BELATED_SECONDS = 10.0  # time limit of a SELECT


def _pending(site: Site, name: str, texts: Iterable[QueryDetails]) -> PendingAbsence | None:
    if not any(_ABSENCE.search(one.text) for one in texts):
        return None
    with suppress(OperationalError):  # it answers between two batches
        found = site.look("show", {"name": name})[0]["pending"]
        return None if found is None else PendingAbsence.from_dict(found)
    return None


def _waiting(site: Site) -> WaitingCounts | None:
    with suppress(OperationalError):
        found = Status.from_dict(site.look("status", {})).events
        return found if found is not None and found.events else None
    return None


def _belated(site: Site, name: str) -> int:
    if not site.look_up(IS_BELATED, 1, BELATED_SECONDS).num_rows:
        return 0
    select = partial(site.look_up, limit=MOST_TEXTS, seconds=BELATED_SECONDS)
    return lookup.belated_documents(select, name).by_query.get(name, 0)


def match_page(site: Site, name: str, after: str | None, most: int = OUTPUTS, *, numbered: bool = False) -> NewestPage:
    """Returns the newest matches of a registered name from a cursor on; unless `numbered`, only the last output of each
    story. Raises UnknownQuery, InvalidValue."""
    tally = site.tallies.current()
    drops = site.matches.forget_what_was_dropped()
    version = drops, tally.registered, tally.outputs(place_in(tally, name)).total
    before = decode_cursor(after, int, int, int)
    read = partial(site.matches.newest, numbered=True) if numbered else site.matches.cards
    make = partial(read, name, before, most)
    return site.kept.get(("matches", name, before, most, numbered), version, make)


def atom_feed_url(site: Site, name: str) -> str:
    key = site.feed_links.key(name, site.feeds.revoked(name))
    return site.public_url + feed_path(key, name)


@lru_cache(KEPT_GRAPHS)
def graph(text: str, name: str) -> str:
    """Returns the join graph of a query as an SVG element; "" if it cannot be drawn."""
    try:
        return "" if is_bare(text) else join_graphs((name, text))
    except MmqjpError:
        return ""


def read_events(site: Site, name: str) -> EventsRead:
    members = site.recent.members(name)
    if members is not None and not any(one.is_registered and is_event_form(one.form) for one in members):
        return NOTHING
    return events_read(site.select, name)


def editable_script(site: Site, name: str) -> tuple[str, bool]:
    """Returns a name's queries as an editable script, and whether it would replace them. Raises UnknownQuery."""
    found, read = site.ask("show", {"name": name}), read_events(site, name)
    sources = [one["source"] for one in found]
    text = editable(sources, read.texts, NO_EVENTS if read == NOTHING else event_streams(site.select))
    return text, can_be_replaced(name, (one["text"] for one in found))


def _texts(site: Site, name: str, *, paused: bool) -> tuple[QueryDetails, ...]:
    members = None if paused else site.recent.members(name)
    if members is not None:
        some = sorted(one for one in members if one.is_registered)[:MOST_TEXTS]
        found = [QueryDetails(one.qid, one.text, one.text, one.added_at, None) for one in some]
    else:
        rows = site.select(lookup.registered_queries_sql(name, MOST_TEXTS, paused=paused)).to_pylist()
        found = [QueryDetails(r["qid"], r["text"], r["text"], r["added_at"], r["paused"] or None) for r in rows]
    typed = lookup.typed_texts_of(site.select, "qid", [one.qid for one in found])
    sources = {row["qid"]: row["source"] for row in typed}
    return tuple(replace(one, source=sources.get(one.qid, one.text)) for one in found)


class _Sharing:
    """The names that use each row of the templates."""

    def __init__(self, site: Site) -> None:
        self._queries = Counter[int]()
        self._of_row = Counter[tuple[int, tuple[int, ...]]]()
        self._names: dict[int, list[str]] = {}
        self._rows: dict[str, set[tuple[int, tuple[int, ...]]]] = {}
        found = site.select(lookup.PLACEMENTS, MOST_PLACEMENTS)
        columns = (found[name].to_pylist() for name in ("template", "variables", "name", "queries"))
        for template, variables, name, queries in zip(*columns, strict=True):
            row = template, tuple(variables)
            self._queries[template] += queries
            self._of_row[row] += queries
            some = self._names.setdefault(template, [])
            if len(some) < MOST_SHARERS and name not in some:
                some.append(name)
            self._rows.setdefault(name, set()).add(row)

    def of(self, name: str) -> tuple[Shared, ...]:
        users = Counter[int]()
        for row in self._rows.get(name, set()):
            users[row[0]] += self._of_row[row]
        return tuple(Shared(one, self._queries[one], users[one], tuple(self._names[one])) for one in sorted(users))


@dataclass(frozen=True, slots=True)
class OutputPage:
    """Matches, newest first: the JSON objects of their output lines, with `items`, `why` and `selected`, and of stories
    with `card`."""

    outputs: list[dict[str, Any]]
    next: str | None


def query_router(site: Site, routes: APIRouter) -> None:
    @routes.get("/q/{name}", response_class=HTMLResponse)
    def page(request: Request, name: str, after: _After = None) -> Response:
        found = query_part(site, name)
        return site.render(
            request,
            "query.html",
            name=name,
            found=found,
            graphs=[Markup(graph(one.text, name)) for one in found.texts],  # escaped by what draws it
            can_be_replaced=can_be_replaced(name, (one.text for one in found.texts)),
            page=(matches := match_page(site, name, after)),
            next=matches.next and cursor(*matches.next),
            feed=atom_feed_url(site, name),
            days=[(one.day, one.matches) for one in found.days],
            after=after,
        )

    @routes.get("/api/v1/queries/{name}", tags=["queries"], summary="Show the queries with a name")
    def query(name: str) -> QueryPart:
        return query_part(site, name)

    @routes.get("/api/v1/queries/{name}/outputs", tags=["outputs"], summary="List the newest matches of a name")
    def outputs(
        name: str, after: _After = None, limit: Annotated[int, Query(ge=1, le=MOST_OUTPUTS)] = OUTPUTS
    ) -> OutputPage:
        found = match_page(site, name, after, limit, numbered=True)
        return OutputPage([match.to_dict() for match in found.matches], found.next and cursor(*found.next))


def sharing_router(site: Site, routes: APIRouter) -> None:
    @routes.get("/sharing", response_class=HTMLResponse)
    def page(request: Request) -> Response:
        found = sharing()
        picture = Markup(sharing_picture(found))  # escaped by what draws it
        return site.render(request, "sharing.html", found=found, picture=picture)

    @routes.get("/api/v1/sharing", tags=["store"], summary="Show what queries share, and what it costs")
    def sharing() -> Sharing:
        return Sharing.from_dict(site.ask(SHARING, {}))


ROUTERS = (queries_router, versions_router, query_router, sharing_router)
