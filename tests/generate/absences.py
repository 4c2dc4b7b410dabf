"""Random absences: scripts of other queries, some of whose joins then say what did not come."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.generate.documents import SECOND, chance
from tests.oracle.evaluation import mentioned
from xscl.algebra.joins import NEGATED, JoinOp
from xscl.algebra.values import ElementConstructor
from xscl.check_expressions import visible_names
from xscl.syntax import Input, Join, Query, Script, SelectItems, SelectStar, SubQuery, Window

ABSENCES: tuple[JoinOp, ...] = ("NOT FOLLOWED BY", "NOT JOIN", "NOT PRECEDED BY")


def with_absences(rng: Random, script: Script, percent: int = 60, *, inner: bool = True) -> Script:
    """The script, where `percent` of the joins are absences, unless something needs their right input. Without `inner`
    only whole queries are absences."""
    return replace(script, statements=tuple(_query(rng, query, percent, inner) for query in script.queries))


def told_apart(script: Script) -> Script:
    """The script, in which no two queries have an absence in common: the windows of each are microseconds longer."""
    return replace(
        script,
        statements=tuple(
            replace(query, source=_longer(query.source, number)) for number, query in enumerate(script.queries)
        ),
    )


def _longer(source: Input, by: int) -> Input:
    match source:
        case Join():
            us = source.window.us
            window = source.window if us is None or source.op not in NEGATED else Window(us + by)
            return replace(source, left=_longer(source.left, by), right=_longer(source.right, by), window=window)
        case SubQuery():
            return replace(source, source=_longer(source.source, by))
    return source


def _query(rng: Random, query: Query, percent: int, inner: bool) -> Query:
    query = replace(query, source=_source(rng, query.source, percent, frozenset(), inner))
    names = visible_names(query.source).keys()
    if isinstance(query.select, SelectItems):
        items = tuple(item for item in query.select.items if set(mentioned(item)) <= names)
        query = replace(query, select=SelectItems(items) if items else None)
    elif isinstance(query.select, ElementConstructor) and not set(mentioned(query.select)) <= names:
        query = replace(query, select=None)
    if query.once is not None and not set(mentioned(query.once)) <= names:
        query = replace(query, once=None)
    return query


def _source(rng: Random, source: Input, percent: int, needed: frozenset[str], inner: bool) -> Input:
    """An input, of which these names are needed outside."""
    match source:
        case Join():
            used = needed | set(mentioned(source.pred))
            if inner:
                left, right = (_source(rng, one, percent, used, inner) for one in (source.left, source.right))
                source = replace(source, left=left, right=right)
            if chance(rng, percent) and needed.isdisjoint(visible_names(source.right)):
                op = rng.choice(ABSENCES)
                window = source.window
                if window.us is None and op != "NOT PRECEDED BY":
                    window = Window(rng.randrange(9) * SECOND)
                return replace(source, op=op, window=window)
            return source
        case SubQuery():
            if not inner or isinstance(source.select, SelectStar):
                return source
            return replace(
                source, source=_source(rng, source.source, percent, frozenset(mentioned(source.select)), inner)
            )
    return source
