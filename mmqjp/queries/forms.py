"""Forms: what queries share that differ only in name, window, time of registration and pauses.

The targets of a row of R_T are grouped by form, so that a match is answered once a form and not once a query.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from mmqjp.queries.members import Ints, Members
from mmqjp.queries.model import Owner, Subscription, Target
from xscl.algebra.expressions import Expr
from xscl.algebra.normal import JoinOp, NormalQuery, Side

FEW = 32
"""So many changes, or an eighth of the members, are applied to an audience; more make it anew."""

MANY = 1_000
"""Audiences of so many queries are made before a document needs them."""


@dataclass(frozen=True, eq=False)
class Audience:
    """The active queries of a form at one time: `members`, and `queries` in the same order.

    `latest_gap` is the last document of any pause that ended.
    """

    queries: Sequence[Subscription]
    members: Members
    latest_gap: int

    @classmethod
    def of(cls, queries: Collection[Subscription]) -> Audience:
        """Returns the audience of active queries."""
        ordered = sorted(queries, key=_order)
        columns = [np.array([getattr(query, name) for query in ordered], np.int64) for name in _COLUMNS]
        names, identities = [query.name for query in ordered], [query.identity for query in ordered]
        return cls(ordered, Members.active(names, identities, columns), _latest_gap(ordered))

    def changed(self, gone: Collection[Subscription], new: Collection[Subscription]) -> Audience:
        """Returns the audience without some queries and with others: many times faster than making it anew."""
        members, ordered = self.members, sorted(new, key=_order)
        without = sorted(self.place_of(query) for query in gone)
        columns = [np.delete(getattr(members, column), without) for column in _MEMBER_COLUMNS]
        lists: list[list[Any]] = [list(self.queries), list(members.names), list(members.identities)]
        for place in reversed(without):
            for one in lists:
                del one[place]
        places = [bisect_left(lists[0], _order(query), key=_order) for query in ordered]
        for attribute, i in zip(_COLUMNS, range(len(columns)), strict=True):
            columns[i] = np.insert(columns[i], places, [getattr(query, attribute) for query in ordered])
        for shift, (place, query) in enumerate(zip(places, ordered, strict=True)):
            for one, value in zip(lists, (query, query.name, query.identity), strict=True):
                one.insert(place + shift, value)
        queries, names, identities = lists
        latest_gap = max(self.latest_gap, _latest_gap(ordered))
        return Audience(queries, Members.active(names, identities, columns), latest_gap)

    @cached_property
    def windows(self) -> Ints:
        """The windows of the members, in ascending order."""
        return np.sort(self.members.windows)

    @cached_property
    def sinces(self) -> Ints:
        """The last documents that members do not see, in ascending order."""
        return np.sort(self.members.sinces)

    @cached_property
    def narrowest(self) -> int:
        """The narrowest window."""
        return int(self.windows[0])

    @cached_property
    def latest_since(self) -> int:
        """The document after which all members see everything."""
        return int(self.sinces[-1])

    @cached_property
    def latest_begun(self) -> int:
        """The batch at which the last member began."""
        return int(self.members.begun.max())

    @cached_property
    def gapped(self) -> tuple[Subscription, ...]:
        """The members that were paused before."""
        return tuple(query for query in self.queries if query.gaps)

    def place_of(self, query: Subscription) -> int:
        """Returns the place of a member."""
        return bisect_left(self.queries, _order(query), key=_order)

    def since_qid(self, first_qid: int) -> Audience | None:
        """Returns the audience of those with at least a qid; None if there is none."""
        found = [query for query in self.queries if query.qid >= first_qid]
        return Audience.of(found) if found else None


def _latest_gap(queries: Iterable[Subscription]) -> int:
    return max((high for query in queries for _, high in query.gaps if high is not None), default=-1)


def _order(query: Subscription) -> tuple[str, int]:
    return query.name, query.qid


_COLUMNS, _MEMBER_COLUMNS = ("qid", "width", "since", "begun"), ("qids", "windows", "sinces", "begun")
"""Attributes of queries, and the columns of members that have them."""


class Form:
    """A form, and the registered queries of it. `id` is a digest of their normal form without the window."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._queries: dict[Subscription, None] = {}
        self._audience: Audience | None = None
        self._members: set[Subscription] = set()
        """The queries in the audience, once it was asked for."""
        self._changed: set[Subscription] = set()

    def __len__(self) -> int:
        """Returns the number of registered queries."""
        return len(self._queries)

    def add(self, query: Subscription) -> None:
        """Adds a query."""
        self._queries[query] = None
        self.note(query)

    def remove(self, query: Subscription) -> None:
        """Removes a query."""
        self._queries.pop(query, None)
        self.note(query)

    def note(self, query: Subscription) -> None:
        """Notes that a query was added, removed, paused or resumed."""
        if self._audience is not None:
            self._changed.add(query)

    @property
    def audience(self) -> Audience:
        """The active queries. Cached until queries change."""
        if self._audience is None or len(self._changed) > FEW + len(self._members) // 8:
            self._members = {query for query in self._queries if query.active}
            self._audience = Audience.of(self._members)
        elif self._changed:
            gone = self._changed & self._members
            new = {query for query in self._changed if query in self._queries and query.active}
            self._audience = self._audience.changed(gone, new)
            self._members -= gone
            self._members |= new
        self._changed.clear()
        return self._audience

    @cached_property
    def normal(self) -> NormalQuery:
        """The normal form that the queries share but for the window."""
        return next(iter(self._queries)).normal


@dataclass(frozen=True, eq=False)
class FixedSide:
    """A side of a conjunctive query. `fixed` has its joined nodes: the path of each in the pattern, and its slot in the
    template."""

    side: Side
    fixed: tuple[tuple[tuple[int, ...], int], ...]


class Forms:
    """Finds the forms of queries, and the sides that forms share. Equal ones are the same object as long as it is
    used."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[str, Form] = WeakValueDictionary()
        self._sides: WeakValueDictionary[object, FixedSide] = WeakValueDictionary()
        self._unsettled: set[Form] = set()

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

    def note(self, owner: Owner) -> None:
        """Notes that a plan node begins or ends to be answered."""
        if isinstance(owner, Subscription):
            form = self._form(owner.form_id)
            form.note(owner)
            self._unsettle(form)

    def _unsettle(self, form: Form) -> None:
        if len(form) >= MANY:
            self._unsettled.add(form)

    def settle(self) -> None:
        """Makes the audiences of forms with many queries, so that no document has to wait for them."""
        for form in self._unsettled:
            _ = form.audience
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


@dataclass(eq=False)
class TargetGroup:
    """Targets of one row that are answered together: the same conjunctive query of queries of one `form`, or a target
    of another plan node, which has none."""

    form: Form | None
    forms: Forms
    targets: dict[Target, None] = field(default_factory=dict)

    @property
    def first(self) -> Target:
        """One of the targets, to read from it what they share."""
        return next(iter(self.targets))

    @cached_property
    def op(self) -> JoinOp | None:
        """The operator of the conjunctive query; None for a filter."""
        return self.first.op

    @cached_property
    def residual(self) -> tuple[Expr, ...]:
        """The residual predicates of the conjunctive query."""
        return self.first.conjunct.residual

    @cached_property
    def sides(self) -> tuple[FixedSide, ...]:
        """The sides of the conjunctive query."""
        return self.forms.sides(self.first)


class RowTargets:
    """The targets of a row of R_T, in groups."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[object, TargetGroup] = {}

    def __iter__(self) -> Iterator[Target]:
        """Iterates over the targets."""
        return (target for group in self._groups.values() for target in group.targets)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, target: Target, forms: Forms) -> None:
        """Adds a target."""
        form = forms.of(target.owner)
        key = _key(target, form)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = TargetGroup(form, forms)
        group.targets[target] = None

    def remove(self, target: Target, forms: Forms) -> None:
        """Removes a target."""
        key = _key(target, forms.of(target.owner))
        del self._groups[key].targets[target]
        if not self._groups[key].targets:
            del self._groups[key]

    @property
    def groups(self) -> list[TargetGroup]:
        """The groups."""
        return list(self._groups.values())


def _key(target: Target, form: Form | None) -> object:
    return (target.owner if form is None else form), target.disjunct
