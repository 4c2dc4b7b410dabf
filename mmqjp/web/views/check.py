"""Checks the text of queries: its mistakes and warnings with their places, or what its queries are called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mmqjp.explain.warnings import warnings_of
from mmqjp.present.known_events import event_streams
from mmqjp.service.fetched_feeds import DROPS
from mmqjp.web.site import MOST_ROWS, SECONDS, Site
from xscl import Script, XsclError, XsclErrors, parse_script
from xscl.problems import LACKS_EVENTS

LONGEST = 200_000
"""The most characters of a text that is checked."""

MOST_TOLD = 20
"""The most mistakes, and the most warnings, that are told."""

MOST_NAMES = 1_000
"""The most names of queries that are told."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A mistake or a warning: its place, counted from 1, what it is, and what may help (None: nothing is known).

    `shown` has the line with carets below the place.
    """

    line: int
    column: int
    message: str
    hint: str | None
    shown: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found in a text. `queries` counts its queries, and `names` has the first of their names, if it has no
    mistakes. `mistakes` and `warnings` count all, and the first of them are `errors` and `remarks`."""

    queries: int = 0
    names: Sequence[str] = ()
    mistakes: int = 0
    errors: Sequence[Remark] = ()
    warnings: int = 0
    remarks: Sequence[Remark] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in the text yet."""
        return not self.queries and not self.mistakes

    @property
    def summary(self) -> str:
        """What was found, in a few words."""
        if self.is_empty:
            return ""
        if self.mistakes:
            return _counted(self.mistakes, "mistake")
        names = ", ".join(self.names[:3]) + (" and others" if self.queries > 3 else "")
        found = f"No mistakes. {_counted(self.queries, 'query', 'queries')}: {names}."
        return f"{found} {_counted(self.warnings, 'warning')}." if self.warnings else found


def check(site: Site, text: str) -> Checked:
    """Checks a text. A script of mistakes is an answer, not an error."""
    if not text.strip():
        return Checked()
    try:
        script = parsed(site, text)
    except XsclErrors as found:
        return Checked(mistakes=len(found.errors), errors=_remarks(found.errors, "error"))
    warnings = warnings_of(text, script, "item" if (site.state / DROPS).is_dir() else None)
    names = tuple(dict.fromkeys(script.names()))
    return Checked(
        len(script.all_queries), names[:MOST_NAMES], warnings=len(warnings), remarks=_remarks(warnings, "warning")
    )


def parsed(site: Site, text: str) -> Script:
    """Returns the script of a text, which may read the events of the store. Raises XsclErrors."""
    try:
        return parse_script(text)
    except XsclErrors as found:
        if not any(error.message.startswith(LACKS_EVENTS) for error in found.errors):
            raise
    known = event_streams(lambda sql: site.own.select(sql, MOST_ROWS, SECONDS))
    return parse_script(text, events=known)


def _remarks(found: Iterable[XsclError], kind: str) -> tuple[Remark, ...]:
    return tuple(
        Remark(one.line, one.column, one.message, one.hint or None, one.render(kind=kind))
        for one, _ in zip(found, range(MOST_TOLD), strict=False)
    )


def _counted(number: int, one: str, more: str = "") -> str:
    return f"{number:,} {one if number == 1 else more or one + 's'}"
