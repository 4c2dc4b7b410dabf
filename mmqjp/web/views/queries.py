"""The list of queries: names with their states and counts of outputs, in several orders, page by page."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mmqjp.web.cursors import cursor, place_of
from mmqjp.web.views.tallies import NEVER, Ints, Tally

ROWS = 100
"""The names on a page."""

State = Literal["active", "paused", "partly paused"]
Wanted = Literal["", "active", "paused", "never"]
Order = Literal["name", "last", "day", "week", "total"]


@dataclass(frozen=True, slots=True)
class QueryRow:
    """A name: its number of queries, state and the reason for that; its outputs in all, in 24 hours and in 7 days; and
    the t1 of the last one in microseconds, None if it has never matched."""

    name: str
    queries: int
    state: State
    reason: str | None
    total: int
    day: int
    week: int
    last: int | None


@dataclass(frozen=True, slots=True)
class QueryPage:
    """A page of names. `found` counts those that are looked for, and `names` all; `paused` and `never` count those that
    are paused, and that have never matched."""

    rows: tuple[QueryRow, ...]
    next: str | None
    found: int
    names: int
    paused: int
    never: int


def query_page(
    tally: Tally, search: str = "", wanted: Wanted = "", order: Order = "name", after: str | None = None
) -> QueryPage:
    """Returns the names that contain `search`, whatever its case, and have the wanted state, from a place on."""
    is_paused, is_never = tally.paused > 0, tally.total == 0
    mask = np.ones(len(tally.names), np.bool_)
    if search:
        sought = search.casefold()
        mask &= np.fromiter((sought in name.casefold() for name in tally.names), np.bool_, len(tally.names))
    match wanted:
        case "active":
            mask &= ~is_paused
        case "paused":
            mask &= is_paused
        case "never":
            mask &= is_never
    keys = _keys(tally, order)
    places = np.flatnonzero(mask)
    found = len(places)
    places = places[np.lexsort((places, keys[places]))]
    if (begin := place_of(after)) is not None:
        rank = bisect_right(tally.names, begin[1])
        later = (keys[places] > begin[0]) | ((keys[places] == begin[0]) & (places >= rank))
        places = places[later]
    shown = places[:ROWS].tolist()
    more = len(places) > ROWS
    return QueryPage(
        tuple(query_row(tally, place) for place in shown),
        cursor(int(keys[shown[-1]]), tally.names[shown[-1]]) if more else None,
        found,
        len(tally.names),
        int(is_paused.sum()),
        int(is_never.sum()),
    )


def query_row(tally: Tally, place: int) -> QueryRow:
    """Returns the row of the name at a place of the tally."""
    queries, paused = int(tally.queries[place]), int(tally.paused[place])
    last = int(tally.last[place])
    return QueryRow(
        tally.names[place],
        queries,
        "active" if not paused else "paused" if paused == queries else "partly paused",
        tally.reasons[place],
        int(tally.total[place]),
        int(tally.day[place]),
        int(tally.week[place]),
        None if last == NEVER else last,
    )


def _keys(tally: Tally, order: Order) -> Ints:
    """The numbers by which names are in order, the greatest first; those with equal ones are in the order of names."""
    match order:
        case "last":
            return -tally.last
        case "day":
            return -tally.day
        case "week":
            return -tally.week
        case "total":
            return -tally.total
    return np.zeros(len(tally.names), np.int64)
