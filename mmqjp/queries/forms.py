"""Forms: what queries share that differ only in name, window, time of registration and pauses.

The targets of a row of R_T are grouped by form, so that a match is answered once a form and not once a query.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakValueDictionary

from mmqjp.queries.model import Form, Owner, Target
from xscl.algebra.normal import Side


class Forms:
    """Finds the forms of queries. Queries of one form get the same object as long as any of them has it."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[object, Form] = WeakValueDictionary()
        self._sides: WeakValueDictionary[object, FixedSide] = WeakValueDictionary()

    def of(self, owner: Owner) -> Form | None:
        """Returns the form of a plan node; None if it shares none."""
        if owner.form is None and owner.shared is not None:
            owner.form = self._known.setdefault(owner.shared, Form(owner.shared))
        return owner.form

    def sides(self, target: Target) -> tuple[FixedSide, ...]:
        """Returns the sides of a target. Equal ones are the same object, whatever form they belong to."""
        placement, found = target.placement, []
        for side, minor, slots in zip(target.conjunct.sides(), placement.minors, placement.slots, strict=True):
            fixed = tuple((node.path, slot) for node, slot in zip(minor.nodes, slots, strict=True))
            found.append(self._sides.setdefault((side, fixed), FixedSide(side, fixed)))
        return tuple(found)


@dataclass(frozen=True, eq=False)
class FixedSide:
    """A side of a conjunctive query. `fixed` has its joined nodes: the path of each in the pattern, and its slot in the
    template."""

    side: Side
    fixed: tuple[tuple[tuple[int, ...], int], ...]


@dataclass(eq=False, slots=True)
class TargetGroup:
    """Targets of one row that are answered together: the same conjunctive query of queries of one `form`, or a target
    of another plan node, which has none. The widest windows come first."""

    form: Form | None
    sides: tuple[FixedSide, ...]
    targets: list[Target]

    @property
    def first(self) -> Target:
        """One of the targets, to read from it what they share."""
        return self.targets[0]


class RowTargets:
    """The targets of a row of R_T."""

    __slots__ = ("_groups", "_targets")

    def __init__(self) -> None:
        self._targets: dict[Target, None] = {}
        self._groups: list[TargetGroup] | None = None

    def __iter__(self) -> Iterator[Target]:
        """Iterates over the targets in the order of their registration."""
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)

    def add(self, target: Target) -> None:
        """Adds a target."""
        self._targets[target] = None
        self._groups = None

    def remove(self, target: Target) -> None:
        """Removes a target."""
        del self._targets[target]
        self._groups = None

    def groups(self, forms: Forms) -> list[TargetGroup]:
        """Returns the targets in groups. Cached until a target comes or goes."""
        if self._groups is None:
            groups: dict[object, TargetGroup] = {}
            for target in sorted(self._targets, key=_width, reverse=True):
                form = forms.of(target.owner)
                key = (target.owner if form is None else form), target.disjunct
                group = groups.get(key)
                if group is None:
                    group = groups[key] = TargetGroup(form, forms.sides(target), [])
                group.targets.append(target)
            self._groups = list(groups.values())
        return self._groups


def _width(target: Target) -> int:
    return target.window
