"""The plans of absences: which part of which row finds the left input, and which find the right ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from mmqjp.answers.absence.partners import Watched, kept_variables
from mmqjp.answers.absence.sightings import Sightings
from mmqjp.queries.forms import FixedSide
from mmqjp.queries.lineage import behind
from mmqjp.queries.model import HiddenStream, Owner, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.queries.row_targets import TargetGroup
from xscl.algebra.normal import NEGATED, Absent, JoinOp, Term


@dataclass(frozen=True, eq=False)
class RightPlan:
    """What finds the right input of some disjuncts: a part of a row, the terms that make the key of a sighting, and the
    variables that are kept with it. Disjuncts that look for the same share the `sightings`."""

    row: int
    part: TargetGroup
    terms: Sequence[Term]
    kept: Sequence[str]
    sightings: Sightings


@dataclass(frozen=True, eq=False)
class LeftPlan:
    """An absence of the queries of a form, or of a hidden stream. `right_stream` is the stream of what must not come,
    and `left_stream` that of the left input."""

    row: int
    part: TargetGroup
    op: JoinOp
    window: int
    left_stream: str
    right_stream: str
    watched: Sequence[Watched]
    rights: Sequence[RightPlan]

    @property
    def owner(self) -> Owner:
        """One of the plan nodes."""
        return self.part.first.owner

    def is_one_of(self, owners: Collection[Owner]) -> bool:
        """Returns whether any of the plan nodes is one of these."""
        return self.owner in owners if self.part.form is None else any(query in owners for query in self.part.form)


Group = tuple[int, JoinOp, int, str]
"""What decides when the absences of an entry are decided: the row of the left input, the operator, the window, and the
stream of the right input."""


class Plans:
    """The plans of all absences, made when queries change."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._version = -1
        self._sightings: dict[object, Sightings] = {}
        self._groups: dict[Group, list[LeftPlan]] = {}
        self._rights: dict[TargetGroup, RightPlan] = {}
        self._behind: dict[TargetGroup, tuple[frozenset[str], frozenset[HiddenStream]]] = {}

    @property
    def groups(self) -> dict[Group, list[LeftPlan]]:
        """The absences by what decides when they are decided."""
        self._follow()
        return self._groups

    def right(self, part: TargetGroup) -> RightPlan:
        """Returns the plan of a part that finds a right input."""
        self._follow()
        return self._rights[part]

    def sightings(self) -> Iterator[tuple[Sightings, list[LeftPlan]]]:
        """Yields the sightings, with the absences that need them."""
        users: dict[int, tuple[Sightings, list[LeftPlan]]] = {}
        for plans in self.groups.values():
            for plan in plans:
                for right in plan.rights:
                    users.setdefault(id(right.sightings), (right.sightings, []))[1].append(plan)
        yield from users.values()

    def behind(self, plan: LeftPlan) -> tuple[frozenset[str], frozenset[HiddenStream]]:
        """Returns the forms of queries, and the hidden streams, that the inputs of an absence are made of."""
        self._follow()
        found = self._behind.get(plan.part)
        if found is None:
            queries, streams = behind(self._registry, plan.owner)
            found = self._behind[plan.part] = frozenset(query.form_id for query in queries), frozenset(streams)
        return found

    def _follow(self) -> None:
        """Makes the plans anew if queries have changed."""
        if self._version == self._registry.version:
            return
        self._version = self._registry.version
        known, self._sightings = self._sightings, {}
        self._groups, self._rights, self._behind = {}, {}, {}
        for row in self._registry.absent:
            for part in self._registry.parts_of_row(row):
                assert isinstance(part, TargetGroup), "absences have no literal tests"
                if part.first.disjunct == 0 and part.first.op in NEGATED:
                    plan = self._left(row, part, known)
                    self._groups.setdefault((row, plan.op, plan.window, plan.right_stream), []).append(plan)

    def _left(self, row: int, part: TargetGroup, known: dict[object, Sightings]) -> LeftPlan:
        first = part.first
        op = first.op
        assert op is not None, "it is an absence"
        absent = _absent(first.owner)
        targets = sorted(first.owner.targets, key=lambda target: target.disjunct)
        rights = [
            self._right(target.row, self._registry.rows[target.row].group(target, part.forms), one, known)
            for target, one in zip(targets[1:], absent, strict=True)
        ]
        watched = [Watched(one, right.sightings) for one, right in zip(absent, rights, strict=True)]
        return LeftPlan(row, part, op, first.window, first.streams[0], targets[1].streams[0], watched, rights)

    def _right(self, row: int, part: TargetGroup, absent: Absent, known: dict[object, Sightings]) -> RightPlan:
        terms, kept = tuple(right for _, right in absent.joins), kept_variables(absent)
        (side,) = part.sides
        key: tuple[int, FixedSide, tuple[Term, ...], tuple[str, ...]] = row, side, terms, kept
        sightings = self._sightings.get(key)
        if sightings is None:
            sightings = self._sightings[key] = known[key] if key in known else Sightings()
        found = self._rights[part] = RightPlan(row, part, terms, kept, sightings)
        return found


def terms_of(part: TargetGroup) -> Sequence[Term]:
    """Returns what distinguishes the outputs of an absence."""
    if part.form is not None:
        return part.form.selection.terms
    stream = part.first.owner
    assert isinstance(stream, HiddenStream), "what has no form is a hidden stream"
    return [Term(var) for var in stream.hidden.variables]


def _absent(owner: Owner) -> Sequence[Absent]:
    if isinstance(owner, Subscription):
        return owner.normal.absent
    assert isinstance(owner, HiddenStream), "there are two kinds of plan nodes with absences"
    return owner.hidden.absent
