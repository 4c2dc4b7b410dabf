"""The targets of a row of R_T, in groups that are answered together: of one form, or with one literal test."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from mmqjp.queries.audience import QuerySet
from mmqjp.queries.derived_variables import DerivedVariable
from mmqjp.queries.few import Few
from mmqjp.queries.forms import FixedSide, Form, Forms
from mmqjp.queries.literals import INDEXES, LiteralTest
from mmqjp.queries.model import Subscription, Target
from xscl.algebra.expressions import Expr
from xscl.algebra.normal import JoinOp

Derived = Sequence[tuple[int, DerivedVariable]]
"""How the variables of a joint binding follow from the joined nodes of a match, each with the number of its side."""


DirectTerm = tuple[int, DerivedVariable, tuple[str, ...]]
"""A term whose variable follows from the joined nodes: its side, how it follows, and the functions to apply."""


@dataclass(frozen=True, slots=True)
class DirectSelection:
    """The terms that queries SELECT, and what stands in the holes of their constructor. `steps` are what a match takes
    beside its output."""

    terms: Sequence[DirectTerm]
    holes: Sequence[DirectTerm | str]
    steps: int


@dataclass(eq=False)
class TargetGroup:
    """Targets of one row that are answered together: the same conjunctive query of queries of one `form`, or a target
    of another plan node, which has none. `number` counts the groups of the row."""

    form: Form | None
    forms: Forms
    number: int
    targets: Few[Target] = field(default_factory=Few)
    placed: LiteralGroup | None = None
    """The group of literals that it belongs to."""

    @property
    def first(self) -> Target:
        """One of the targets, to read from it what they share."""
        return next(iter(self.targets))

    @property
    def form_of_queries(self) -> Form:
        """The form of the queries, if they are queries."""
        assert self.form is not None, "queries have forms"
        return self.form

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

    @cached_property
    def derived(self) -> Derived | None:
        """How the only joint binding follows from the joined nodes; None if patterns must be matched for it."""
        return _derived(self.sides)

    @cached_property
    def direct(self) -> DirectSelection | None:
        """What the queries SELECT, if it follows from the joined nodes, and nothing else has to hold or is needed; None
        otherwise."""
        if self.form is None or self.derived is None or self.residual or self.form.once is not None:
            return None
        selection, derived = self.form.selection, {one.var: (side, one) for side, one in self.derived}
        holes = selection.normal.holes
        return DirectSelection(
            [(*derived[term.var], term.functions) for term in selection.terms],
            [hole if isinstance(hole, str) else (*derived[hole.var], hole.functions) for hole in holes],
            2 + len(self.derived),
        )

    @property
    def literal_test(self) -> LiteralTest | None:
        """The literal test of the conjunctive query, if it has one."""
        return None if self.form is None else self.form.literal_tests[self.first.disjunct]


class LiteralGroup:
    """Groups of one row whose conjunctive queries differ only in the literal of a literal test.

    They have the same joint bindings, so that one pass over a text says which of them a binding satisfies. `residual`
    has the other residual predicates, `operand` is the text that is tested, and `queries` are those of all groups.
    """

    def __init__(self, test: LiteralTest, group: TargetGroup) -> None:
        """`group` is the first one. It still has to be added."""
        self.op, self.sides, self.residual, self.operand = group.op, group.sides, test.rest, test.operand
        self.derived = _derived(self.sides)
        self.queries = QuerySet(test.id)
        self._index = INDEXES[test.name]()
        self._by_literal: dict[str, dict[TargetGroup, None]] = {}
        self.most_times = 1
        """No form of it has literal tests, of any group, in more conjunctive queries."""

    def __bool__(self) -> bool:
        return bool(self._by_literal)

    @property
    def first(self) -> Target:
        """One of the targets."""
        return next(iter(next(iter(self._by_literal.values())))).first

    def groups(self) -> Iterator[TargetGroup]:
        """Yields its groups."""
        return (group for groups in self._by_literal.values() for group in groups)

    def forms(self) -> Iterator[Form]:
        """Yields the forms of its groups, some of them more than once."""
        return (group.form_of_queries for group in self.groups())

    def groups_for(self, text: str) -> list[TargetGroup]:
        """Returns the groups whose literals a text has, in the order in which they came."""
        found = [group for literal in self._index.found_in(text) for group in self._by_literal[literal]]
        return sorted(found, key=attrgetter("number"))

    def add(self, group: TargetGroup, test: LiteralTest) -> None:
        """Adds a group, with its literal test."""
        if test.literal not in self._by_literal:
            self._by_literal[test.literal] = {}
            self._index.add(test.literal)
        self._by_literal[test.literal][group] = None
        group.placed = self
        self.most_times = max(self.most_times, sum(group.form_of_queries.shared.values()))
        for target in group.targets:
            self.add_target(group, target)

    def add_target(self, group: TargetGroup, target: Target) -> None:
        """Notes that one of its groups has a target."""
        group.form_of_queries.join(self.queries)
        self.queries.add(_query(target))

    def remove_target(self, target: Target) -> None:
        """Notes that one of its groups no longer has a target."""
        self.queries.remove(_query(target))

    def remove(self, group: TargetGroup, literal: str) -> None:
        """Removes a group."""
        group.form_of_queries.leave(self.queries)
        del self._by_literal[literal][group]
        if not self._by_literal[literal]:
            del self._by_literal[literal]
            self._index.remove(literal)


RowPart = TargetGroup | LiteralGroup
"""What is answered together."""


class RowTargets:
    """The targets of a row of R_T, in groups."""

    __slots__ = ("_groups", "_next", "_parts", "_waiting")

    def __init__(self) -> None:
        self._groups: dict[object, TargetGroup] = {}
        # Made when they are asked for: for that, queries of an earlier run must be parsed.
        self._parts: dict[object, RowPart] | None = None
        self._waiting: dict[object, TargetGroup] = {}
        """Groups that came since the parts were made."""
        self._next = 0

    def __iter__(self) -> Iterator[Target]:
        """Iterates over the targets."""
        return (target for group in self._groups.values() for target in group.targets)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def group(self, target: Target, forms: Forms) -> TargetGroup:
        """Returns the targets that are answered together with one of them."""
        return self._groups[_key(target, forms.of(target.owner))]

    @property
    def template(self) -> int:
        """The number of the row's template."""
        return next(iter(self._groups.values())).first.template

    def template_and_count(self) -> tuple[int, int]:
        """Returns the number of the row's template, and that of the targets, of which there is one at least."""
        count = 0
        for group in self._groups.values():
            count += len(group.targets)
        return group.first.template, count

    def add(self, target: Target, forms: Forms) -> None:
        """Adds a target."""
        form = forms.of(target.owner)
        key = _key(target, form)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = TargetGroup(form, forms, self._next)
            if self._parts is not None:
                self._waiting[key] = group
            self._next += 1
        group.targets.add(target)
        if group.placed is not None:
            group.placed.add_target(group, target)

    def remove(self, target: Target, forms: Forms) -> None:
        """Removes a target."""
        key = _key(target, forms.of(target.owner))
        group = self._groups[key]
        test = None if group.placed is None else group.literal_test
        group.targets.discard(target)
        if group.placed is not None:
            group.placed.remove_target(target)
        if group.targets:
            return
        del self._groups[key]
        if self._parts is None:
            return
        self._waiting.pop(key, None)
        self._parts.pop(key, None)
        if group.placed is not None and test is not None:
            group.placed.remove(group, test.literal)
            if not group.placed:
                del self._parts[test.id]

    @property
    def parts(self) -> Collection[RowPart]:
        """The groups that are answered by themselves, and those of groups with a literal test."""
        if self._parts is None:
            self._parts, self._waiting = {}, dict(self._groups)
        for key, group in self._waiting.items():
            test = group.literal_test
            if test is None:
                self._parts[key] = group
            else:
                part = self._parts.get(test.id)
                if part is None:
                    part = self._parts[test.id] = LiteralGroup(test, group)
                assert isinstance(part, LiteralGroup), "a test's id is no key of a group"
                part.add(group, test)
        self._waiting = {}
        return self._parts.values()


def _derived(sides: Sequence[FixedSide]) -> Derived | None:
    of_sides = [side.derived for side in sides]
    if None in of_sides:
        return None
    return [(number, one) for number, derived in enumerate(of_sides) for one in derived or ()]


def _query(target: Target) -> Subscription:
    assert isinstance(target.owner, Subscription), "only queries have literal tests"
    return target.owner


def _key(target: Target, form: Form | None) -> object:
    return (target.owner if form is None else form), target.disjunct
