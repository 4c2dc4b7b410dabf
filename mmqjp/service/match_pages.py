"""Matches for other processes: the service that holds a store hands them over in pages, between two batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from common.errors import InputError
from mmqjp.answers.output import Output
from mmqjp.present.match import Match
from mmqjp.present.read import PAGE, MatchReader
from mmqjp.present.wanted import Wanted
from mmqjp.session import Session

MATCHES = "matches"
"""The command that asks for a page."""

LOOKED_THROUGH = 20_000
"""So many outputs are looked through for one page: the documents that arrive meanwhile wait."""


class BadRequest(InputError, ValueError):
    """A page of matches was asked for in a wrong way."""


def page_of_matches(engine: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the first wanted matches with numbers greater than `after`, and the `after` of the next page, which is
    None if there is none. Raises BadRequest."""
    name, since, last = arguments.get("name"), arguments.get("since"), arguments.get("after")
    if not isinstance(name, str | None) or not isinstance(since, int | None) or not isinstance(last, int):
        raise BadRequest("a page of matches is asked for by a name, a time since, and the number after which it begins")
    wanted, found = Wanted(name, since), list[Output]()
    for output in islice(engine.outputs(last), LOOKED_THROUGH):
        last = output.seq
        if wanted.has(output):
            found.append(output)
            if len(found) == PAGE:
                break
    matches = [match.to_dict() for match in MatchReader(engine).matches(found)]
    return {"matches": matches, "after": last if last < engine.last_seq else None}


def paged_matches(ask: Callable[[str, Mapping[str, Any]], Any], wanted: Wanted, after: int) -> Iterator[Match]:
    """Yields the wanted matches with numbers greater than `after`. `ask` puts a command to the service."""
    place: int | None = after
    while place is not None:
        page = ask(MATCHES, {"name": wanted.name, "since": wanted.since, "after": place})
        yield from map(Match.from_dict, page["matches"])
        place = page["after"]
