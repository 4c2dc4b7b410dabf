"""`mmqjp matches`: shows what the queries of a store have matched, when and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

import click

from feeds.times import now_us
from mmqjp.commands.failure import Failure
from mmqjp.commands.formats import (
    FOR_PEOPLE,
    MOST_TEXTS,
    SHOWN,
    chosen_format,
    clock_of,
    few_texts,
    format_option,
    output_option,
    show_matches,
    utc_option,
)
from mmqjp.commands.manage_queries import client, store_options
from mmqjp.commands.options import AtLeast
from mmqjp.present.match import Match
from mmqjp.present.read import MatchReader
from mmqjp.present.times import Clock
from mmqjp.present.wanted import Wanted
from mmqjp.service.client import Client
from mmqjp.service.match_pages import paged_matches
from mmqjp.service.question_runner import QUERY
from mmqjp.session import Session
from xscl.windows import duration_us

LONG_AGO = -(1 << 62)
"""Before all times, in microseconds."""

LISTED = 10
"""How many names an error lists."""


@click.command()
@click.option("--query", "name", metavar="NAME", help="Only the matches of this query.")
@click.option(
    "--since", metavar="TIME|DURATION",
    help="Only matches whose last document is from this time on, such as 2026-07-16, or not older, such as 2d.",
)  # fmt: skip
@click.option(
    "--limit", metavar="N", type=AtLeast(1),
    help=f"Only the newest N. Default: {SHOWN:,} in table, html and markdown, else all.",
)  # fmt: skip
@format_option
@utc_option
@output_option
@store_options
def matches(
    name: str | None, since: str | None, limit: int | None, form: str | None, utc: bool, output: Path | None,
    state: Path, wait: float,
) -> None:  # fmt: skip
    """Show what the queries of a store have matched, when and why.

    \b
    Examples:
      mmqjp matches --state state/ --since 2d
      mmqjp matches --state state/ --format html --output matches.html

    For each match: the documents with title, site and link, the values that made them match, and what the query
    SELECTs. table, html and markdown group matches by query, newest first; csv, json and jsonl have one after the
    other, oldest first, with times in UTC. A running service answers between two batches.
    """
    chosen = chosen_format(form, output)
    clock = clock_of(chosen, utc=utc)
    most = SHOWN if limit is None and chosen in FOR_PEOPLE else limit
    wanted = Wanted(name, None if since is None else time_since(since, clock), most)
    with store_of(client(state, wait)) as store:
        if name is not None:
            _check_name(store, name, state)
        start = wanted.start(store.select)
        found = store.matches(wanted, start)
        total = wanted.count(store.select) if chosen in FOR_PEOPLE else 0
        show_matches(found, chosen, output, clock, total=total, texts=store.texts(name))


class Store(Protocol):
    """Where matches are read."""

    def select(self, sql: str) -> list[dict[str, Any]]:
        """Returns the rows of an SQL query."""

    def matches(self, wanted: Wanted, after: int) -> Iterator[Match]:
        """Yields the wanted matches with numbers greater than `after`."""

    def texts(self, name: str | None) -> dict[str, list[str]]:
        """Returns the texts of the registered queries by name, of one name or of all if they are few."""


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store that this process reads itself."""

    engine: Session

    def select(self, sql: str) -> list[dict[str, Any]]:
        """Returns the rows of an SQL query."""
        found: list[dict[str, Any]] = self.engine.sql(sql, trusted=True).to_pylist()
        return found

    def matches(self, wanted: Wanted, after: int) -> Iterator[Match]:
        """Yields the wanted matches with numbers greater than `after`."""
        return MatchReader(self.engine).matches(wanted.among(self.engine.outputs(after)))

    def texts(self, name: str | None) -> dict[str, list[str]]:
        """Returns the texts of the registered queries by name, of one name or of all if they are few."""
        return few_texts(self.engine.queries() if name is None else {name: self.engine.queries().get(name, [])})


@dataclass(frozen=True, slots=True)
class ServedStore:
    """A store that another process holds, which answers."""

    client: Client

    def select(self, sql: str) -> list[dict[str, Any]]:
        """Returns the rows of an SQL query."""
        found = self.client.ask(QUERY, {"sql": sql, "seconds": None})
        return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]

    def matches(self, wanted: Wanted, after: int) -> Iterator[Match]:
        """Yields the wanted matches with numbers greater than `after`."""
        return paged_matches(self.client.ask, wanted, after)

    def texts(self, name: str | None) -> dict[str, list[str]]:
        """Returns the texts of the registered queries by name, of one name or of all if they are few."""
        condition = "" if name is None else f" AND name = '{name}'"
        rows = self.select(
            f"SELECT name, text FROM queries WHERE removed_at IS NULL{condition} ORDER BY qid LIMIT {MOST_TEXTS + 1}"
        )
        texts: dict[str, list[str]] = {}
        for row in rows:
            texts.setdefault(row["name"], []).append(row["text"])
        return few_texts(texts)


@contextmanager
def store_of(asked: Client) -> Iterator[Store]:
    """The store of a client."""
    with asked.reading() as engine:
        yield ServedStore(asked) if engine is None else OpenedStore(engine)


def time_since(text: str, clock: Clock, now: int | None = None) -> int:
    """The time that --since names, in microseconds: a date or time, in the zone of the clock unless it has its own, or
    a duration before now."""
    if text[:1].isdigit() and text[4:5] == "-":
        try:
            return clock.read(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}", param_hint="--since") from None
    try:
        found = duration_us(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a time, such as 2026-07-16 or 2026-07-16T14:00Z, nor a duration, such as 2d",
            param_hint="--since",
        ) from None
    return LONG_AGO if found is None else (now_us() if now is None else now) - found


def _check_name(store: Store, name: str, state: Path) -> None:
    """Raises Failure if no query was ever registered under a name."""
    known = sorted(row["name"] for row in store.select("SELECT DISTINCT name FROM queries"))
    if name in known:
        return
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {_listed(known)}" if known else "it has no queries"
    raise Failure(f"no query of {state} is called {name!r}; {hint}")


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:LISTED]) + (f" and {len(shown) - LISTED:,} more" if len(shown) > LISTED else "")
