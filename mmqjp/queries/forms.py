"""Forms: what queries share that differ only in name, window, time of registration and pauses.

The targets of a row of R_T are grouped by form, so that a match is answered once a form and not once a query.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from weakref import WeakValueDictionary

import numpy as np

from mmqjp.queries.members import ALWAYS, Ints, Members
from mmqjp.queries.model import Owner, Subscription, Target
from xscl.algebra.normal import NormalQuery, Side


@dataclass(frozen=True, eq=False)
class Audience:
    """The active queries of a form at one time: `members`, and `queries` in the same order.

    `latest_gap` is the last document of any pause that ended.
    """

    queries: tuple[Subscription, ...]
    members: Members
    latest_gap: int

    @classmethod
    def of(cls, queries: Collection[Subscription]) -> Audience:
        """Returns the audience of active queries."""
        ordered = tuple(sorted(queries, key=attrgetter("name", "qid")))

        def column(values: Iterator[int]) -> Ints:
            return np.fromiter(values, np.int64, len(ordered))

        ended = np.full(len(ordered), ALWAYS)
        members = Members(
            [query.name for query in ordered],
            [query.identity for query in ordered],
            column(query.qid for query in ordered),
            column(query.width for query in ordered),
            column(query.since for query in ordered),
            column(query.begun for query in ordered),
            ended,
            ended,
        )
        gaps = (high for query in ordered for _, high in query.gaps if high is not None)
        return cls(ordered, members, max(gaps, default=-1))

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

    @cached_property
    def _places(self) -> dict[Subscription, int]:
        return {query: place for place, query in enumerate(self.queries)}

    def place_of(self, query: Subscription) -> int:
        """Returns the place of a member."""
        return self._places[query]

    def since_qid(self, first_qid: int) -> Audience | None:
        """Returns the audience of those with at least a qid; None if there is none."""
        found = [query for query in self.queries if query.qid >= first_qid]
        return Audience.of(found) if found else None


class Form:
    """A form, and the registered queries of it. `id` is a digest of their normal form without the window."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._queries: dict[Subscription, None] = {}
        self._audience: Audience | None = None

    def add(self, query: Subscription) -> None:
        """Adds a query."""
        self._queries[query] = None
        self.forget()

    def remove(self, query: Subscription) -> None:
        """Removes a query."""
        self._queries.pop(query, None)
        self.forget()

    def forget(self) -> None:
        """Notes that queries of the form changed."""
        self._audience = None

    @property
    def audience(self) -> Audience:
        """The active queries. Cached until queries change."""
        if self._audience is None:
            self._audience = Audience.of([query for query in self._queries if query.active])
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

    def of(self, owner: Owner) -> Form | None:
        """Returns the form of a plan node; None if it has none."""
        return self._form(owner.form_id) if isinstance(owner, Subscription) else None

    def get(self, id: str) -> Form | None:
        """Returns the form of an id, if a registered query has it."""
        return self._known.get(id)

    def add(self, query: Subscription) -> None:
        """Adds a registered query to its form."""
        self._form(query.form_id).add(query)

    def remove(self, query: Subscription) -> None:
        """Removes a query from its form."""
        self._form(query.form_id).remove(query)

    def forget(self, owner: Owner) -> None:
        """Notes that a plan node begins or ends to be answered."""
        if isinstance(owner, Subscription):
            self._form(owner.form_id).forget()

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
