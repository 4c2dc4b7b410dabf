"""Forms: groups of queries that differ only in name, window, registration time and pauses, so a match is answered once
per form. Targets of a row of R_T are grouped by form, or by literal test: a residual predicate that looks for a literal
in a text, indexed so that one pass tests all literals. Variables that a joined node lies below by child and attribute
steps are derived as its ancestors. Selections are templates that each answer fills in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from json.encoder import encode_basestring as json_text
from operator import attrgetter
from typing import NamedTuple
from weakref import WeakValueDictionary
from xml.sax.saxutils import escape

from common.tools import Few, each, with_item, without_item
from mmqjp.queries import model
from templates.witness import plain_node
from xpath_stage.binder import Node, PatternPath, SideBinder, SideBinders
from xpath_stage.documents import ParsedDocument
from xpath_stage.keywords import INDEXES
from xscl.algebra import joins
from xscl.algebra.values import Call, ElementConstructor, Expr, String


@dataclass(frozen=True, slots=True)
class DerivedVariable:
    """A variable bound `levels` above the node at the template's `slot`."""

    var: str
    slot: int
    levels: int

    def node(self, tree: ParsedDocument, nodes: Sequence[int]) -> Node:
        """Returns the node, given a match's nodes in the template's numbering."""
        element, place = plain_node(nodes[self.slot])
        if not self.levels:
            return element, place
        parent, above = tree.parent, self.levels
        if place:
            above -= 1  # the element that has the attribute
        for _ in range(above):
            up = parent[element]
            assert up is not None, "a match has all nodes above a joined node that the pattern requires"
            element = up
        return element, 0


def derived_variables(pattern: joins.PatternNode, slots: Mapping[PatternPath, int]) -> list[DerivedVariable] | None:
    """Returns how the variables derive from joined nodes, given by path with their slots, if all do."""
    found: dict[str, tuple[int, int] | None] = {}

    def nearest(node: joins.PatternNode, path: PatternPath) -> tuple[int, int] | None:
        """The slot of a joined node at or below a pattern node, and the number of child or attribute steps to it."""
        if node.var:
            found[node.var] = None  # in pre-order
        below = (slots[path], 0) if path in slots else None
        for i, child in enumerate(node.children):
            of_child = nearest(child, (*path, i))
            if below is None and of_child is not None and child.axis == "/":
                below = of_child[0], of_child[1] + 1
        if node.var:
            found[node.var] = below
        return below

    nearest(pattern, ())
    derived = [DerivedVariable(var, *below) for var, below in found.items() if below is not None]
    return derived if len(derived) == len(found) else None


class LiteralTest(NamedTuple):
    """A conjunctive query's test for `literal` in the text of `operand`; `rest` are its other residual predicates.
    Queries that differ only in the literal share `id`."""

    id: str
    name: str
    operand: Expr
    literal: str
    rest: tuple[Expr, ...]


def literal_test(op: joins.JoinOp | None, conjunct: joins.Conjunct) -> LiteralTest | None:
    """Returns a conjunctive query's last literal test, or None."""
    residual = conjunct.residual
    for i in reversed(range(len(residual))):
        match residual[i]:
            case Call(name=name, args=(operand, second)) if name in INDEXES:
                if (literal := joins.constant_operand_text(second)) is not None:
                    rest = residual[:i] + residual[i + 1 :]
                    blank = replace(conjunct, residual=(*rest, Call(name, (operand, String("")))))
                    return LiteralTest(_id(op, blank), name, operand, literal, rest)
    return None


@lru_cache(1_000)
def _id(op: joins.JoinOp | None, blank: joins.Conjunct) -> str:
    return PREFIX + model.text_digest(repr((op, blank)))


PREFIX = "literals "  # prefix of test ids, which no form or query id has


class OutputChild(NamedTuple):
    """A child of a default output: element name, markup around an element's value, or a constant whole."""

    name: str
    before: str
    after: str
    constant: str | None


class Selection:
    """What normal forms SELECT.

    `terms` are the non-constant values. `nodes` and `node_list` are the texts around and between their nodes in a JSON
    object (for output lines) and a JSON list. `items` are the children of a default output. A `constructor` has
    `holes`, in order.
    """

    __slots__ = ("constructor", "holes", "is_once", "items", "namespaces", "node_list", "nodes", "star", "terms")

    def __init__(
        self,
        entries: tuple[joins.SelectEntry, ...],
        star: bool,
        constructor: ElementConstructor | None,
        holes: tuple[joins.Term | str, ...],
        namespaces: tuple[tuple[str, str], ...],
        is_once: bool,
    ) -> None:
        self.star, self.constructor, self.holes, self.namespaces = star, constructor, holes, namespaces
        self.is_once = is_once  # whether ONCE PER decides who gets it
        chosen = [(entry.key, entry.value) for entry in entries if isinstance(entry.value, joins.Term)]
        self.terms = tuple(term for _, term in chosen)
        self.nodes = _around("{", [f"{json_text(key)}: " for key, _ in chosen], "}")
        self.node_list = _around("[", [""] * len(chosen), "]")
        items = []
        for entry in entries:
            name = entry.key.replace("'", "_")
            before, after = ("", "") if star else (f"<{name}>", f"</{name}>")
            constant = element(name, entry.value) if isinstance(entry.value, str) else None
            items.append(OutputChild(name, before, after, constant))
        self.items = tuple(items)


def _around(opening: str, names: Sequence[str], closing: str) -> tuple[str, ...]:
    items = [f"{', ' if place else opening}{name}" for place, name in enumerate(names)]
    return (*items, closing) if items else (opening + closing,)


_selection = lru_cache(10_000)(Selection)
"""Interned: forms that SELECT the same share it, so that they are answered together."""


def selection_of(normal: joins.NormalQuery) -> Selection:
    known = normal.entries, normal.star, normal.constructor, normal.holes, normal.namespaces
    return _selection(*known, normal.once is not None)


RETURN = {"\r": "&#13;"}
"""XML parsers would normalize it to a line break."""


def element(name: str, text: str) -> str:
    return f"<{name}>{escape(text, RETURN)}</{name}>"


class Form(model.QuerySet):
    """The registered queries of a form. `id` is a digest of their normal form without the window."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._beside: Few[model.QuerySet] = None

    @property
    def beside(self) -> Collection[model.QuerySet]:
        """Larger sets that also contain its queries."""
        return each(self._beside)

    def join(self, queries: model.QuerySet) -> None:
        self._beside = with_item(self._beside, queries)

    def leave(self, queries: model.QuerySet) -> None:
        self._beside = without_item(self._beside, queries)

    @cached_property
    def normal(self) -> joins.NormalQuery:
        return next(iter(self._queries)).normal

    @cached_property
    def once(self) -> joins.OncePer | None:
        return self.normal.once

    @cached_property
    def selection(self) -> Selection:
        return selection_of(self.normal)

    @cached_property
    def mirror(self) -> joins.Mirror | None:
        """Decides whether matches have mirrors; None if none has or the operator is not JOIN UNORDERED."""
        return joins.mirror_of(self.normal.conjuncts) if self.normal.op == joins.UNORDERED else None

    @cached_property
    def tie_mirror(self) -> joins.Mirror | None:
        """Decides whether equal-time pairs would match in both orders, but for the times."""
        return joins.mirror_of(self.normal.conjuncts) if self.normal.op == "FOLLOWED BY" else None

    @cached_property
    def literal_tests(self) -> tuple[LiteralTest | None, ...]:
        return tuple(literal_test(self.normal.op, conjunct) for conjunct in self.normal.conjuncts)

    @cached_property
    def shared(self) -> Mapping[str, int]:
        """Number of conjunctive queries by literal test id."""
        return Counter(test.id for test in self.literal_tests if test is not None)


@dataclass(frozen=True, eq=False)
class FixedSide:
    """A side of a conjunctive query. `fixed` has joined nodes: path in the pattern, slot in the template."""

    side: joins.Side
    fixed: tuple[tuple[tuple[int, ...], int], ...]

    @cached_property
    def derived(self) -> list[DerivedVariable] | None:
        """How all variables derive from joined nodes; None if the pattern must be matched."""
        return None if self.side.hidden is not None else derived_variables(self.side.pattern, dict(self.fixed))

    @cached_property
    def binder(self) -> SideBinder:
        return _BINDERS.of(self.side.pattern, tuple(path for path, _ in self.fixed))

    def __reduce__(self) -> tuple[object, ...]:
        return FixedSide, (self.side, self.fixed)


_BINDERS = SideBinders()


class Forms(dict[str, Form]):
    """Forms by id, created on demand, and the sides that they share."""

    def __init__(self) -> None:
        super().__init__()
        self._sides: WeakValueDictionary[object, FixedSide] = WeakValueDictionary()
        self._unsettled: set[model.QuerySet] = set()

    def __missing__(self, id: str) -> Form:
        return self.setdefault(id, Form(id))

    def of(self, owner: model.Owner) -> Form | None:
        return self[owner.form_id] if isinstance(owner, model.Registered) else None

    def add(self, query: model.Subscription) -> None:
        form = self[query.form_id]
        form.add(query)
        self._unsettle(form)

    def forget(self, query: model.Subscription) -> None:
        """Drops a query's form if no query is left."""
        if not len(self[query.form_id]):
            del self[query.form_id]

    def note(self, owner: model.Owner) -> None:
        """Called when a plan node becomes active or inactive."""
        if (form := self.of(owner)) is not None and isinstance(owner, model.Registered):
            for queries in (form, *form.beside):
                queries.note(owner)
                self._unsettle(queries)

    def _unsettle(self, queries: model.QuerySet) -> None:
        if len(queries) >= model.MANY:
            self._unsettled.add(queries)

    def settle(self) -> None:
        """Rebuilds the audiences of large sets in advance, so that documents need not wait for it."""
        for queries in self._unsettled:
            _ = queries.audience
        self._unsettled.clear()

    def sides(self, target: model.Target) -> tuple[FixedSide, ...]:
        """Returns a target's sides, interned across forms."""
        placement, found = target.placement, []
        for side, minor, slots in zip(target.conjunct.sides(), placement.minors, placement.slots, strict=True):
            fixed = tuple((node.path, slot) for node, slot in zip(minor.nodes, slots, strict=True))
            found.append(self._sides.setdefault((side, fixed), FixedSide(side, fixed)))
        return tuple(found)


class HiddenSide(NamedTuple):
    """A side over a hidden stream: its variables are the children of its tuples, by number."""

    variables: tuple[tuple[str, int], ...]


class DerivedSide(NamedTuple):
    """A side whose variables derive from joined nodes."""

    variables: tuple[DerivedVariable, ...]


class SearchedSide(NamedTuple):
    """A side whose pattern is matched, given the nodes at some slots of the template."""

    variables: tuple[str, ...]
    slots: tuple[int, ...]


SidePlan = HiddenSide | DerivedSide | SearchedSide


@dataclass(frozen=True, eq=False)
class JointPlan:
    """What parts share whose matches are bound together: the operator, how each side's variables are found, and the
    residual predicates. `operand` is the text that a group of literals tests."""

    op: joins.JoinOp | None
    sides: tuple[SidePlan, ...]
    residual: tuple[Expr, ...]
    operand: Expr | None = None


_joint_plan = lru_cache(10_000)(JointPlan)


def _plan(
    op: joins.JoinOp | None, sides: Iterable[FixedSide], residual: tuple[Expr, ...], operand: Expr | None = None
) -> JointPlan:
    return _joint_plan(op, tuple(map(_side_plan, sides)), residual, operand)


def _side_plan(fixed: FixedSide) -> SidePlan:
    if fixed.side.hidden is not None:
        children = enumerate(fixed.side.pattern.children, 1)
        return HiddenSide(tuple((child.var, place) for place, child in children if child.var))
    if (derived := fixed.derived) is not None:
        return DerivedSide(tuple(derived))
    return SearchedSide(fixed.side.variables(), tuple(slot for _, slot in fixed.fixed))


@dataclass(eq=False)
class TargetGroup:
    """Targets of a row answered together: the same conjunctive query in queries of one `form`, or another plan node's
    target, without form. `number` is its position in the row."""

    form: Form | None
    forms: Forms
    number: int
    first: model.Target
    op: joins.JoinOp | None
    size: int = 0
    placed: LiteralGroup | None = None  # the literal group that contains it

    @property
    def key(self) -> object:
        return _key(self.first, self.form)

    @property
    def targets(self) -> Iterator[model.Target]:
        """One of each query of the form: the row of a conjunctive query follows from the form."""
        if self.form is None:
            return iter((self.first,))
        disjunct = self.first.disjunct
        return (query.targets[disjunct] for query in self.form if query.targets)

    def add(self, target: model.Target) -> None:
        self.size += 1
        if self.placed is not None:
            self.placed.add_target(self, target)

    def remove(self, target: model.Target) -> None:
        """Called when the form has lost the query."""
        self.size -= 1
        if self.placed is not None:
            self.placed.queries.remove(_query(target))
        if target is self.first and self.size:
            self.first = next(self.targets)

    @property
    def form_of_queries(self) -> Form:
        assert self.form is not None, "queries have forms"
        return self.form

    @property
    def hidden_stream(self) -> model.HiddenStream:
        owner = self.first.owner
        assert isinstance(owner, model.HiddenStream), "what has no form is a hidden stream"
        return owner

    @cached_property
    def residual(self) -> tuple[Expr, ...]:
        return self.first.conjunct.residual

    @cached_property
    def sides(self) -> tuple[FixedSide, ...]:
        return self.forms.sides(self.first)

    @cached_property
    def plan(self) -> tuple[JointPlan, Selection | None]:
        """What it shares with parts that are answered together; without a form there is no selection."""
        return _plan(self.op, self.sides, self.residual), None if self.form is None else self.form.selection

    @property
    def literal_test(self) -> LiteralTest | None:
        return None if self.form is None else self.form.literal_tests[self.first.disjunct]


class LiteralGroup:
    """Groups of a row that differ only in the literal of a literal test.

    They share joint bindings, so one pass over a text finds those that a binding satisfies. `residual` are the other
    residual predicates, `operand` the tested text, `queries` those of all groups.
    """

    def __init__(self, test: LiteralTest, group: TargetGroup) -> None:
        self.op, self.sides, self.residual, self.operand = group.op, group.sides, test.rest, test.operand
        self.plan = _plan(self.op, self.sides, test.rest, test.operand), None
        self.queries = model.QuerySet(test.id)
        self._index = INDEXES[test.name]()
        self._by_literal: dict[str, dict[TargetGroup, None]] = {}
        self.most_times = 1
        """Maximum number of conjunctive queries of one form with literal tests, of any group."""

    def __bool__(self) -> bool:
        return bool(self._by_literal)

    @property
    def first(self) -> model.Target:
        return next(iter(next(iter(self._by_literal.values())))).first

    def groups(self) -> Iterator[TargetGroup]:
        return (group for groups in self._by_literal.values() for group in groups)

    def forms(self) -> Iterator[Form]:
        return (group.form_of_queries for group in self.groups())

    def groups_for(self, text: str) -> list[TargetGroup]:
        """Returns the groups whose literals a text has, in order of addition."""
        found = [group for literal in self._index.found_in(text) for group in self._by_literal[literal]]
        return sorted(found, key=attrgetter("number"))

    def add(self, group: TargetGroup, test: LiteralTest) -> None:
        if test.literal not in self._by_literal:
            self._index.add(test.literal)
        self._by_literal.setdefault(test.literal, {})[group] = None
        group.placed = self
        self.most_times = max(self.most_times, sum(group.form_of_queries.shared.values()))
        for target in group.targets:
            self.add_target(group, target)

    def add_target(self, group: TargetGroup, target: model.Target) -> None:
        group.form_of_queries.join(self.queries)
        self.queries.add(_query(target))

    def remove(self, group: TargetGroup, literal: str) -> None:
        group.form_of_queries.leave(self.queries)
        del self._by_literal[literal][group]
        if not self._by_literal[literal]:
            del self._by_literal[literal]
            self._index.remove(literal)


RowPart = TargetGroup | LiteralGroup


class RowTargets:
    __slots__ = ("_groups", "_next", "_parts", "_waiting", "active")
    _waiting: dict[object, TargetGroup]  # groups added since `parts` was built

    def __init__(self) -> None:
        self._groups: dict[object, TargetGroup] | TargetGroup | None = None  # mostly one
        # Made when they are asked for: for that, queries of an earlier run must be parsed.
        self._parts: dict[object, RowPart] | None = None
        self._next = 0
        self.active = 0  # number of targets of active owners

    def __iter__(self) -> Iterator[model.Target]:
        return (target for group in self._all().values() for target in group.targets)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def _all(self) -> dict[object, TargetGroup]:
        return {self._groups.key: self._groups} if isinstance(self._groups, TargetGroup) else self._groups or {}

    def group(self, target: model.Target, forms: Forms) -> TargetGroup:
        return self._all()[_key(target, forms.of(target.owner))]

    def placed(self, form: Form | None, disjunct: int, window: int) -> model.Placed | None:
        """Returns what the targets of a form's queries share, if there is one with this window to share it with."""
        group = self._all().get((form, disjunct))
        return group.first.placed if group is not None and group.first.window == window else None

    @property
    def template(self) -> int:
        return next(iter(self._all().values())).first.template

    def template_and_count(self) -> tuple[int, int]:
        """Returns the template's number and the number of targets, at least 1."""
        return self.template, sum([group.size for group in self._all().values()])

    def add(self, target: model.Target, forms: Forms) -> None:
        form = forms.of(target.owner)
        key, groups = _key(target, form), self._all()
        if (group := groups.get(key)) is None:
            group = groups[key] = TargetGroup(form, forms, self._next, target, target.op)
            self._groups = groups if len(groups) > 1 else group
            if self._parts is not None:
                self._waiting[key] = group
            self._next += 1
        group.add(target)

    def remove(self, target: model.Target, forms: Forms) -> None:
        key, groups = _key(target, forms.of(target.owner)), self._all()
        group = groups[key]
        test = None if group.placed is None else group.literal_test
        group.remove(target)
        if group.size:
            return
        del groups[key]
        self._groups = groups or None
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
        """Groups answered alone, and literal groups."""
        if self._parts is None:
            self._parts, self._waiting = {}, dict(self._all())
        for key, group in self._waiting.items():
            if (test := group.literal_test) is None:
                self._parts[key] = group
                continue
            if test.id not in self._parts:
                self._parts[test.id] = LiteralGroup(test, group)
            part = self._parts[test.id]
            assert isinstance(part, LiteralGroup), "a test's id is not a key of a group"
            part.add(group, test)
        self._waiting = {}
        return self._parts.values()


def _query(target: model.Target) -> model.Subscription:
    assert isinstance(target.owner, model.Registered), "only queries have literal tests"
    return target.owner


def _key(target: model.Target, form: Form | None) -> object:
    return (target.owner if form is None else form), target.disjunct
