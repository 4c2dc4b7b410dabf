"""A name: the texts of its queries, their join graphs, what they share with others, and what they have matched."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache, partial

import pyarrow as pa

from common.errors import MmqjpError
from mmqjp.explain.join_graph import join_graph
from mmqjp.present.editable import editable
from mmqjp.present.event_texts import NOTHING, EventsRead, events_read
from mmqjp.present.known_events import event_streams
from mmqjp.present.match import Match
from mmqjp.present.newest import Newest
from mmqjp.queries.changes import UnknownQuery
from mmqjp.queries.event_compile import is_bare, is_event_form
from mmqjp.queries.model import number_of
from mmqjp.syndication.links import feed_path
from mmqjp.tables import page_sql
from mmqjp.web.cursors import places_of, places_text
from mmqjp.web.site import Site
from mmqjp.web.views.queries import QueryRow, query_row
from mmqjp.web.views.tallies import Tally
from xscl.script import NO_EVENTS

OUTPUTS, MOST_OUTPUTS = 10, 100
"""The number of matches on a page, and the most that a script may ask for."""

MOST_TEXTS, MOST_SHARERS = 20, 10
"""The most queries of a name, and of names that share a template, that are listed."""

MOST_ROWS, SECONDS = 100_000, 10.0
"""The bounds of the questions."""

MOST_PLACEMENTS = 2_000_000
"""The most rows of templates that are looked through for sharers."""

KEPT_GRAPHS = 500
"""The most join graphs that are kept."""

EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class QueryText:
    """A query of a name: its number, its text, when it was added, in microseconds, and why it is paused, None if it is
    not."""

    qid: int
    text: str
    added_at: int
    paused: str | None


@dataclass(frozen=True, slots=True)
class Shared:
    """A template of a name's queries: how many queries use it, how many of them share a row with one of the name's, and
    some of their names."""

    template: int
    queries: int
    same_row: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Day:
    """The matches of a day of UTC, by the time of their last document."""

    day: str
    matches: int


@dataclass(frozen=True, slots=True)
class QueryPart:
    """What is known of a name, apart from its matches. `events` are what its event queries read."""

    row: QueryRow
    texts: tuple[QueryText, ...]
    events: EventsRead
    shared: tuple[Shared, ...]
    days: tuple[Day, ...]


@dataclass(frozen=True, slots=True)
class MatchPage:
    """Matches of a name, the newest first, and where the next ones begin."""

    matches: tuple[Match, ...]
    groups: tuple[int, ...]
    next: str | None


def place_in(tally: Tally, name: str) -> int:
    """Returns the place of a name in the tally. Raises UnknownQuery."""
    place = bisect_left(tally.names, name)
    if place == len(tally.names) or tally.names[place] != name:
        raise UnknownQuery(name)
    return place


def query_part(site: Site, name: str) -> QueryPart:
    """Returns what is known of a name. Raises UnknownQuery."""
    tally = site.tallies.current()
    place = place_in(tally, name)
    paused = bool(tally.paused[place])
    texts = site.kept.get(("texts", name), tally.registered, partial(_texts, site, name, paused=paused))
    sharing = site.kept.get("sharing", tally.registered, partial(_sharing, site))
    first = EPOCH + timedelta(days=tally.today - len(tally.days) + 1)
    days = (Day(str(first + timedelta(days=n)), int(count)) for n, count in enumerate(tally.days[:, place]))
    events = site.kept.get(("events", name), tally.registered, partial(read_events, site, name))
    return QueryPart(query_row(tally, place), texts, events, sharing.of(name), tuple(days))


def match_page(site: Site, name: str, after: str | None, most: int = OUTPUTS, *, numbered: bool = False) -> MatchPage:
    """Returns the newest matches of a registered name from a place on. Raises UnknownQuery, InvalidValue."""
    tally = site.tallies.current()
    drops = site.matches.forget_what_was_dropped()
    version = drops, tally.registered, int(tally.total[place_in(tally, name)])
    before = places_of(after)
    make = partial(site.matches.newest, name, before, most, numbered=numbered)
    found: Newest = site.kept.get(("matches", name, before, most, numbered), version, make)
    groups = tuple(first for first, _, _ in found.places)
    return MatchPage(found.matches, groups, None if found.next is None else places_text(found.next))


def feed_address(site: Site, name: str) -> str:
    """Returns the address of a query's Atom feed."""
    key = site.feed_links.key(name, site.feeds.revoked(name))
    return site.public_url + feed_path(key, name)


def graph(text: str, name: str) -> str:
    """Returns the join graph of a query as an SVG element; "" if it cannot be drawn."""
    return _graph(text, name)


@lru_cache(KEPT_GRAPHS)
def _graph(text: str, name: str) -> str:
    try:
        return "" if is_bare(text) else join_graph(text, name)
    except MmqjpError:
        return ""


def select(site: Site, sql: str) -> pa.Table:
    """Returns the rows of SQL that is asked for a page."""
    return site.own.select(sql, MOST_ROWS, SECONDS)


def can_be_replaced(name: str, texts: Iterable[str]) -> bool:
    """Whether the queries of a name PUBLISH it: no script replaces the others, whose names are numbers.

    >>> [can_be_replaced("q1", [text]) for text in ("FROM S//a->x", "FROM S//a->x PUBLISH q1")]
    [False, True]
    """
    return not number_of(name) or any(f" PUBLISH {name}" in text for text in texts)


def read_events(site: Site, name: str) -> EventsRead:
    """Returns what the event queries of a name read."""
    members = site.matches.recent.members(name)
    if members is not None and not any(one.is_registered and is_event_form(one.form) for one in members):
        return NOTHING
    return events_read(partial(select, site), name)


def text_of(site: Site, name: str) -> tuple[str, bool]:
    """Returns the queries of a name as a script that can be changed, and whether it would replace them. Raises
    UnknownQuery."""
    texts = [one["text"] for one in site.ask("show", {"name": name})]
    read = read_events(site, name)
    text = editable(texts, read.texts, NO_EVENTS if read == NOTHING else event_streams(partial(select, site)))
    return text, can_be_replaced(name, texts)


def _texts(site: Site, name: str, *, paused: bool) -> tuple[QueryText, ...]:
    members = None if paused else site.matches.recent.members(name)
    if members is not None:
        some = sorted(one for one in members if one.is_registered)[:MOST_TEXTS]
        return tuple(QueryText(one.qid, one.text, one.added_at, None) for one in some)
    rows = select(site, page_sql.texts(name, MOST_TEXTS, paused=paused)).to_pylist()
    return tuple(QueryText(row["qid"], row["text"], row["added_at"], row["paused"] or None) for row in rows)


class _Sharing:
    """Which names use which rows of which templates."""

    def __init__(self, rows: Sequence[tuple[int, tuple[int, ...], str, int]]) -> None:
        self._queries = Counter[int]()
        self._of_row = Counter[tuple[int, tuple[int, ...]]]()
        self._names: dict[int, list[str]] = {}
        self._rows: dict[str, set[tuple[int, tuple[int, ...]]]] = {}
        for template, variables, name, queries in rows:
            self._queries[template] += queries
            self._of_row[template, variables] += queries
            some = self._names.setdefault(template, [])
            if len(some) < MOST_SHARERS and name not in some:
                some.append(name)
            self._rows.setdefault(name, set()).add((template, variables))

    def of(self, name: str) -> tuple[Shared, ...]:
        """Returns the templates of a name."""
        rows = self._rows.get(name, set())
        return tuple(
            Shared(
                template,
                self._queries[template],
                sum(self._of_row[row] for row in rows if row[0] == template),
                tuple(self._names[template]),
            )
            for template in sorted({template for template, _ in rows})
        )


def _sharing(site: Site) -> _Sharing:
    found = site.own.select(page_sql.PLACEMENTS, MOST_PLACEMENTS, SECONDS)
    columns = (found[name].to_pylist() for name in ("template", "variables", "name", "queries"))
    return _Sharing([(t, tuple(v), n, q) for t, v, n, q in zip(*columns, strict=True)])
