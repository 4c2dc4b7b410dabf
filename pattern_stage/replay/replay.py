"""Runs statements over a finite, complete set of events in a database: one question for all statements of a form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

import numpy as np

from pattern_stage.columns import Columns, Ints
from pattern_stage.definition import Forms
from pattern_stage.flow import Flow, each_once, sorted_flow
from pattern_stage.kernel import Results, no_events
from pattern_stage.replay.alike import Alike, AlikeStatements
from pattern_stage.replay.database import Database
from pattern_stage.replay.question import is_askable, question
from pattern_stage.replay.tables import events_table, parameters_table, results_of
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import NearPattern, Pattern, Statement
from xscl.algebra.events import Stream


def runs_as_sql(stream: Statement) -> TypeGuard[Stream]:
    """Returns whether a statement can be asked of a database (see `pattern_stage.replay.question.is_askable`)."""
    return not isinstance(stream, Pattern | NearPattern) and is_askable(Forms().form(stream)[0])


class Replay:
    """Statements that are run at once over all events that there are."""

    def __init__(self, texts: Texts, database: Database) -> None:
        self._texts, self._database = texts, database
        self._statements = AlikeStatements(question)

    def add(self, statement: int, stream: Stream, since: int) -> None:
        """Adds a statement that runs as SQL. It sees events whose first part has a t1 after `since`.

        Raises:
            NotSql: if it does not run as SQL.
        """
        self._statements.add(statement, stream, since)

    def run(self, events: Mapping[str, Columns]) -> list[Results]:
        """Returns the results of all statements over events, by stream. A stream that is not there has none."""
        found = (self._answered(alike, events) for alike in self._statements)
        return [one for one in found if len(one)]

    def _answered(self, alike: Alike, events: Mapping[str, Columns]) -> Results:
        form = alike.form
        asked = question(form, alike.fixed)
        tables, parts, first = {}, [], 0
        for source in asked.sources:
            some = events.get(source.stream)
            if some is None:
                some = no_events(source.schema)
            tables[source.name] = events_table(source, some, first, self._texts)
            parts.append(some.parts)
            first += len(some)
        since = np.array(alike.since, np.int64)
        tables["p"] = parameters_table(
            asked.parameters, since, alike.windows(), alike.constants(self._texts), self._texts
        )
        answer = self._database.ask(asked.sql, tables)
        made, rows = results_of(asked, answer, form.schema, _stacked(parts))
        flow = each_once(sorted_flow(made, np.arange(len(made)), rows))
        return Results(form.schema, Flow(flow.events, flow.at, np.array(alike.numbers, np.int64)[flow.rows]))


def _stacked(parts: Sequence[Ints]) -> Ints:
    """Returns parts of several sources one after the other. Where one has fewer places, others are -1."""
    places = max(one.shape[1] for one in parts)
    padded: Iterable[Ints] = (np.pad(one, ((0, 0), (0, places - one.shape[1])), constant_values=-1) for one in parts)
    return np.concatenate(list(padded))
