"""What executors need of the queries: those parts of rows of R_T whose matches they can answer by themselves."""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from copyreg import __newobj__  # type: ignore[attr-defined]  # what pickles of plain objects begin with
from functools import cache
from typing import Any

import numpy as np

from mmqjp.queries.audience import QuerySet
from mmqjp.queries.few import Few
from mmqjp.queries.forms import Form
from mmqjp.queries.members import Ints
from mmqjp.queries.model import HiddenStream, Subscription, Target
from mmqjp.queries.registry import Registry
from mmqjp.queries.row_targets import LiteralGroup, RowPart, TargetGroup
from xscl.algebra.normal import NEGATED


class ShippedQueries:
    """The queries of those rows whose matches concern nothing but queries over external streams that nobody reads, and
    that tell all they find: nothing in the step depends on their answers. Implements
    `mmqjp.queries.known_queries.KnownQueries`."""

    def __init__(self, registry: Registry, rows: Collection[int]) -> None:
        """Takes those of some rows of R_T that can be answered apart."""
        is_external = cache(lambda stream: not registry.made_of(stream))
        parts = {row: tuple(registry.parts_of_row(row)) for row in rows}
        groups = {row: [group for part in of for group in _groups(part)] for row, of in parts.items()}
        apart = {
            row
            for row, of in groups.items()
            if all(
                group.form is not None
                and group.form.once is None
                and group.op not in NEGATED
                and not registry.read_of(group.form.id)
                and all(is_external(stream) for target in group.targets for stream in target.streams)
                for group in of
            )
        }
        apart = _closed(apart, {row: {group.form for group in of} for row, of in groups.items()})
        self._parts: dict[int, Sequence[RowPart]] = {row: parts[row] for row in parts if row in apart}
        self._templates = {row: registry.template_of(row) for row in self._parts}
        self._forms = {
            group.form_of_queries.id: group.form_of_queries
            for parts in self._parts.values()
            for part in parts
            for group in _groups(part)
        }
        self.rows: Ints = np.array(sorted(self._parts), np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        pickled = io.BytesIO()
        _Pickler(pickled, pickle.HIGHEST_PROTOCOL).dump((self._parts, self._templates, self._forms, self.rows))
        return _unpickled, (pickled.getvalue(),)

    @property
    def subscriptions(self) -> dict[int, Subscription]:
        return {query.qid: query for form in self._forms.values() for query in form.audience.queries}

    def form(self, id: str) -> Form | None:
        return self._forms.get(id)

    def parts_of_row(self, row: int) -> Collection[RowPart]:
        return self._parts.get(row, ())

    def template_of(self, row: int) -> int:
        return self._templates[row]

    def literal_groups(self) -> Iterator[tuple[int, LiteralGroup]]:
        """Yields the groups of literals, each with its row."""
        return ((row, part) for row, parts in self._parts.items() for part in parts if isinstance(part, LiteralGroup))

    # Of what concerns streams of queries there is nothing.

    def read_of(self, form_id: str) -> list[Subscription]:
        return []

    def readers(self, stream: str) -> list[Subscription]:
        return []

    def named(self, name: str) -> list[Subscription]:
        return []

    def inner(self, target: Target) -> Iterator[HiddenStream]:
        return iter(())


def _closed(rows: set[int], forms: Mapping[int, Set[Form | None]]) -> set[int]:
    """Returns those rows all of whose forms have no other row: several rows may give a form one answer, which must not
    be found in two places. `forms` has those of each row that there is."""
    of_form: dict[Form | None, list[int]] = {}
    for row, of in forms.items():
        for form in of:
            of_form.setdefault(form, []).append(row)
    kept, waiting = set(rows), [row for row in forms if row not in rows]
    while waiting:
        for form in forms[waiting.pop()]:
            gone = kept.intersection(of_form[form])
            kept -= gone
            waiting += gone
    return kept


def _groups(part: RowPart) -> Sequence[TargetGroup]:
    return tuple(part.groups()) if isinstance(part, LiteralGroup) else (part,)


class _NoNormalForm:
    """Stands for the normal form of a query, which is that of its form."""

    form_id = ""

    @property
    def normal(self) -> Any:
        raise AssertionError("executors ask forms for normal forms")


class _Pickler(pickle.Pickler):
    """Leaves out what executors do not need: normal forms, the catalog, and whatever is made of it."""

    def reducer_override(self, one: Any) -> Any:
        if isinstance(one, Subscription):
            return _query, (one.qid, one.name, one.since, one.window, one.form_id, one.begun, one.gaps)
        if isinstance(one, QuerySet):
            return __newobj__, (type(one),), _state_of(one)
        if isinstance(one, TargetGroup):
            made = {name: getattr(one, name) for name in ("op", "residual", "sides", "derived", "direct")}
            known = {"number": one.number, "form": one.form}
            return __newobj__, (TargetGroup,), {**known, **made, "forms": None, "targets": Few(), "placed": None}
        return NotImplemented


def _state_of(queries: QuerySet) -> dict[str, Any]:
    state = {"id": queries.id, "_queries": Few(), "_audience": queries.audience, "_members": set(), "_changed": set()}
    if isinstance(queries, Form):
        kept = ("selection", "mirror", "tie_mirror", "literal_tests", "shared", "once")
        made = {name: getattr(queries, name) for name in kept}
        return state | {"_beside": None} | made
    return state


def _query(
    qid: int, name: str, since: int, window: int | None, form_id: str, begun: int, gaps: list[tuple[int, int | None]]
) -> Subscription:
    return Subscription(qid, name, "", 0, since, window, form_id, begun, _NoNormalForm(), gaps=gaps)


def _unpickled(pickled: bytes) -> ShippedQueries:
    made: ShippedQueries = object.__new__(ShippedQueries)
    made._parts, made._templates, made._forms, made.rows = pickle.loads(pickled)
    return made
