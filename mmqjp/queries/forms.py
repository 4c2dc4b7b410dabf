"""Forms: what queries share that differ only in name, window, time of registration and pauses.

A match is answered once a form and not once a query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakValueDictionary

from mmqjp.queries.audience import MANY, QuerySet
from mmqjp.queries.derived_variables import DerivedVariable, derived_variables
from mmqjp.queries.literals import LiteralTest, literal_test
from mmqjp.queries.model import Owner, Subscription, Target
from mmqjp.queries.selection import Selection
from xscl.algebra.mirror import UNORDERED, Mirror, mirror_of
from xscl.algebra.normal import NormalQuery, OncePer, Side


class Form(QuerySet):
    """The registered queries of a form. `id` is a digest of their normal form without the window."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._beside: dict[str, QuerySet] | None = None  # most have none

    @property
    def beside(self) -> Iterable[QuerySet]:
        """The larger sets that its queries are in, too."""
        return () if self._beside is None else self._beside.values()

    def join(self, queries: QuerySet) -> None:
        """Notes that its queries are in a larger set, too."""
        if self._beside is None:
            self._beside = {}
        self._beside[queries.id] = queries

    def leave(self, queries: QuerySet) -> None:
        """Notes that its queries are not in a larger set any more."""
        if self._beside is not None:
            self._beside.pop(queries.id, None)

    @cached_property
    def normal(self) -> NormalQuery:
        """The normal form that the queries share but for the window."""
        return next(iter(self._queries)).normal

    @cached_property
    def once(self) -> OncePer | None:
        """What the queries tell once, if they do not tell all."""
        return self.normal.once

    @cached_property
    def selection(self) -> Selection:
        """What the queries SELECT."""
        return Selection(self.normal)

    @cached_property
    def mirror(self) -> Mirror | None:
        """What decides whether matches have mirrors; None if none has, or if the operator does not ask."""
        return mirror_of(self.normal.conjuncts) if self.normal.op == UNORDERED else None

    @cached_property
    def tie_mirror(self) -> Mirror | None:
        """What decides whether pairs of documents with equal times would match both ways, but for the times."""
        return mirror_of(self.normal.conjuncts) if self.normal.op == "FOLLOWED BY" else None

    @cached_property
    def literal_tests(self) -> tuple[LiteralTest | None, ...]:
        """The literal test of each conjunctive query, if it has one."""
        normal = self.normal
        return tuple(literal_test(normal.op, conjunct) for conjunct in normal.conjuncts)

    @cached_property
    def shared(self) -> Mapping[str, int]:
        """The ids of its literal tests, and how many of its conjunctive queries have them."""
        return Counter(test.id for test in self.literal_tests if test is not None)


@dataclass(frozen=True, eq=False)
class FixedSide:
    """A side of a conjunctive query. `fixed` has its joined nodes: the path of each in the pattern, and its slot in the
    template."""

    side: Side
    fixed: tuple[tuple[tuple[int, ...], int], ...]

    @cached_property
    def derived(self) -> list[DerivedVariable] | None:
        """How all variables follow from the joined nodes; None if the pattern must be matched for them."""
        return None if self.side.hidden is not None else derived_variables(self.side.pattern, dict(self.fixed))


class Forms:
    """Finds the forms of queries, and the sides that forms share. Equal ones are the same object as long as it is
    used."""

    def __init__(self) -> None:
        self._known: dict[str, Form] = {}
        self._sides: WeakValueDictionary[object, FixedSide] = WeakValueDictionary()
        self._unsettled: set[QuerySet] = set()

    def of(self, owner: Owner) -> Form | None:
        """Returns the form of a plan node; None if it has none."""
        return self._form(owner.form_id) if isinstance(owner, Subscription) else None

    def get(self, id: str) -> Form | None:
        """Returns the form of an id, if a registered query has it."""
        return self._known.get(id)

    def add(self, query: Subscription) -> None:
        """Adds a registered query to its form."""
        form = self._form(query.form_id)
        form.add(query)
        self._unsettle(form)

    def remove(self, query: Subscription) -> None:
        """Removes a query from its form."""
        self._form(query.form_id).remove(query)

    def forget(self, query: Subscription) -> None:
        """Forgets the form of a query without targets, if no other query has it."""
        form = self._known.get(query.form_id)
        if form is not None and not len(form):
            del self._known[form.id]

    def note(self, owner: Owner) -> None:
        """Notes that a plan node begins or ends to be answered."""
        if isinstance(owner, Subscription):
            form = self._form(owner.form_id)
            for queries in (form, *form.beside):
                queries.note(owner)
                self._unsettle(queries)

    def _unsettle(self, queries: QuerySet) -> None:
        if len(queries) >= MANY:
            self._unsettled.add(queries)

    def settle(self) -> None:
        """Makes the audiences of sets of many queries, so that no document has to wait for them."""
        for queries in self._unsettled:
            _ = queries.audience
        self._unsettled.clear()

    def _form(self, id: str) -> Form:
        form = self._known.get(id)
        if form is None:
            form = self._known[id] = Form(id)
        return form

    def sides(self, target: Target) -> tuple[FixedSide, ...]:
        """Returns the sides of a target. Equal ones are the same object, whatever form they belong to."""
        placement, found = target.placement, []
        for side, minor, slots in zip(target.conjunct.sides(), placement.minors, placement.slots, strict=True):
            fixed = tuple((node.path, slot) for node, slot in zip(minor.nodes, slots, strict=True))
            found.append(self._sides.setdefault((side, fixed), FixedSide(side, fixed)))
        return tuple(found)
