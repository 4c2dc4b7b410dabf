"""Patterns over a finite, complete set of events in two phases: a database says which windows may have a match, and a
kernel looks for matches in these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeGuard

import numpy as np

from pattern_stage.columns import Columns
from pattern_stage.definition import Form
from pattern_stage.kernel import Results, no_events
from pattern_stage.limits import Excess
from pattern_stage.matching.match_windows import match_windows
from pattern_stage.replay.alike import Alike, AlikeStatements, Constants
from pattern_stage.replay.database import Database
from pattern_stage.replay.tables import events_table, parameters_table
from pattern_stage.replay.window_question import WindowQuestion, window_question
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import Pattern, Statement


class Matcher(Protocol):
    """What looks for matches: see `pattern_stage.kernel.Kernel`."""

    @property
    def exceeded(self) -> Mapping[int, Excess]: ...

    def add(self, statement: int, stream: Statement, since: int) -> None: ...

    def begin(self, until: int) -> None: ...

    def feed(self, events: Mapping[str, Columns]) -> list[Results]: ...

    def end(self) -> list[Results]: ...


MakeMatcher = Callable[[], Matcher]
"""Makes one without statements."""


def has_match_windows(statement: Statement) -> TypeGuard[Pattern]:
    """Returns whether a statement is matched in two phases: a PATTERN of a strategy that skips events, with sets or
    without."""
    return isinstance(statement, Pattern) and match_windows(statement) is not None


class WindowedReplay:
    """Patterns that are run at once over all events that there are."""

    def __init__(self, texts: Texts, database: Database, make_matcher: MakeMatcher) -> None:
        self._texts, self._database, self._make_matcher = texts, database, make_matcher
        self._statements = AlikeStatements(_any_window)
        self._patterns: dict[int, Pattern] = {}
        self.exceeded: dict[int, Excess] = {}
        """The statements that have exceeded a limit of their matcher."""

    def add(self, statement: int, pattern: Pattern, since: int) -> None:
        """Adds a statement for which `has_match_windows` holds. It sees events whose first part has a t1 after
        `since`."""
        self._statements.add(statement, pattern, since)
        self._patterns[statement] = pattern

    def run(self, events: Mapping[str, Columns], until: int) -> list[Results]:
        """Returns the matches of all statements in events, by stream, that become known before `until`. A stream that
        is not there has none."""
        return [one for alike in self._statements for one in self._matches(alike, events, until)]

    def _matches(self, alike: Alike, events: Mapping[str, Columns], until: int) -> list[Results]:
        if not any(len(events.get(name, ())) for number in alike.numbers for name in self._patterns[number].streams):
            return []
        matcher = self._make_matcher()
        for number, since in zip(alike.numbers, alike.since, strict=True):
            matcher.add(number, self._patterns[number], since)
        matcher.begin(until)
        found = matcher.feed(self.surviving(alike, events)) + matcher.end()
        self.exceeded |= matcher.exceeded
        return found

    def surviving(self, alike: Alike, events: Mapping[str, Columns]) -> dict[str, Columns]:
        """Returns the events, by stream, in windows that may have a match of any of some statements."""
        windows = alike.windows()
        asked = window_question(alike.form, alike.fixed, max((int(one.max()) for one in windows), default=0))
        given = [events.get(source.stream, no_events(source.schema)) for source in asked.sources]
        starts = np.cumsum([0, *map(len, given)])
        tables = {
            source.name: events_table(source, some, first, self._texts)
            for source, some, first in zip(asked.sources, given, starts.tolist(), strict=False)
        }
        since = np.array(alike.since, np.int64)
        tables["p"] = parameters_table(asked.parameters, since, windows, alike.constants(self._texts), self._texts)
        kept = np.sort(self._database.ask(asked.sql, tables)["k"].to_numpy())
        bounds = np.searchsorted(kept, starts)
        return {
            source.stream: some.take(kept[begin:end] - first)
            for source, some, first, begin, end in zip(
                asked.sources, given, starts.tolist(), bounds.tolist(), bounds[1:].tolist(), strict=False
            )
        }


def _any_window(form: Form, fixed: Constants) -> WindowQuestion:
    return window_question(form, fixed, 0)
