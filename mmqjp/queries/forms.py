"""Forms: what queries share that differ only in name, window, time of registration and pauses.

A match is answered once a form and not once a query.

Variables that follow from the joined nodes of a match without matching the pattern again.

A joined node satisfies all that the pattern says about it and the nodes above it. So where only steps to children and
attributes lead from a variable down to it, the variable is bound to its ancestor at that distance.

Literal tests: residual predicates that look for a literal in a text, and indexes that look for many at once.

The targets of a row of R_T, in groups that are answered together: of one form, or with one literal test.

Selections: what a normal form SELECTs, as templates to fill in for each answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from json.encoder import encode_basestring as json_text
from operator import attrgetter
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

import ahocorasick
from lxml import etree

from mmqjp.queries.model import MANY, CompactSet, Owner, QuerySet, Subscription, Target, text_digest
from templates.witness import plain_node
from xpath_stage.binder import Node, PatternPath
from xpath_stage.documents import ParsedDocument
from xscl.algebra.joins import (
    UNORDERED,
    Conjunct,
    JoinOp,
    Mirror,
    NormalQuery,
    OncePer,
    SelectEntry,
    Side,
    Term,
    constant_operand_text,
    mirror_of,
)
from xscl.algebra.trees import PatternNode
from xscl.algebra.values import Call, Expr, String


@dataclass(frozen=True, slots=True)
class DerivedVariable:
    """A variable that is bound `levels` above the node at `slot` of the template."""

    var: str
    slot: int
    levels: int

    def node(self, tree: ParsedDocument, nodes: Sequence[int]) -> Node:
        """Returns the node in a document, given the nodes of a match in the template's numbering."""
        element, place = plain_node(nodes[self.slot])
        if not self.levels:
            return element, place
        parent, above = tree.parent, self.levels
        if place:
            above -= 1  # the element that has the attribute
        for _ in range(above):
            up = parent[element]
            assert up is not None, "a match has all nodes above a joined node that the pattern asks for"
            element = up
        return element, 0


def derived_variables(pattern: PatternNode, slots: Mapping[PatternPath, int]) -> list[DerivedVariable] | None:
    """Returns how each variable of a pattern follows from joined nodes; None if one of them does not.

    `slots` maps the paths of joined nodes in the pattern to their slots in the template.
    """
    found = []
    for var, path in _variables(pattern, ()):
        below = _nearest(_at(pattern, path), path, slots)
        if below is None:
            return None
        found.append(DerivedVariable(var, *below))
    return found


def _nearest(node: PatternNode, path: PatternPath, slots: Mapping[PatternPath, int]) -> tuple[int, int] | None:
    """Returns the slot of a joined node below a node of the pattern, or at it, and the number of steps to it, all to
    children or attributes; None if there is none."""
    if path in slots:
        return slots[path], 0
    for i, child in enumerate(node.children):
        if child.axis == "/":
            below = _nearest(child, (*path, i), slots)
            if below is not None:
                return below[0], below[1] + 1
    return None


def _at(pattern: PatternNode, path: PatternPath) -> PatternNode:
    for i in path:
        pattern = pattern.children[i]
    return pattern


def _variables(pattern: PatternNode, path: PatternPath) -> list[tuple[str, PatternPath]]:
    own = [(pattern.var, path)] if pattern.var else []
    return own + [found for i, child in enumerate(pattern.children) for found in _variables(child, (*path, i))]


class LiteralTest(NamedTuple):
    """The test of a conjunctive query that looks for `literal` in the text of `operand`. `rest` are its other residual
    predicates. Conjunctive queries that differ only in the literal have the same `id`."""

    id: str
    name: str
    operand: Expr
    literal: str
    rest: tuple[Expr, ...]


def literal_test(op: JoinOp | None, conjunct: Conjunct) -> LiteralTest | None:
    """Returns the last literal test of a conjunctive query; None if there is none."""
    residual = conjunct.residual
    for i in reversed(range(len(residual))):
        match residual[i]:
            case Call(name=name, args=(operand, second)) if name in INDEXES:
                literal = constant_operand_text(second)
                if literal is not None:
                    rest = residual[:i] + residual[i + 1 :]
                    blank = replace(conjunct, residual=(*rest, Call(name, (operand, String("")))))
                    return LiteralTest(_id(op, blank), name, operand, literal, rest)
    return None


@lru_cache(1_000)
def _id(op: JoinOp | None, blank: Conjunct) -> str:
    """Returns an id that stores keep. It is made of `repr`, like that of a form."""
    return PREFIX + text_digest(repr((op, blank)))


PREFIX = "literals "
"""What the ids of tests begin with. Those of forms and queries do not."""


class LiteralIndex(Protocol):
    """Literals, and which of them a text has."""

    def add(self, literal: str) -> None:
        """Adds a literal that the index does not have."""

    def remove(self, literal: str) -> None:
        """Removes a literal."""

    def found_in(self, text: str) -> set[str]:
        """Returns the literals that a text has."""


FEW = 32
"""So many new literals, and one for each FEW of the others, are looked for one by one until the index is made anew."""


class Substrings:
    """Finds the literals that a text contains, all in one pass (by the automaton of Aho and Corasick)."""

    def __init__(self) -> None:
        self._literals: set[str] = set()
        self._new: dict[str, None] = {}
        self._automaton: ahocorasick.Automaton | None = None
        self._indexed = 0

    def add(self, literal: str) -> None:
        """Adds a literal that the index does not have."""
        self._literals.add(literal)
        self._new[literal] = None

    def remove(self, literal: str) -> None:
        """Removes a literal. The automaton may have it until it is made anew."""
        self._literals.remove(literal)
        self._new.pop(literal, None)

    def found_in(self, text: str) -> set[str]:
        """Returns the literals that a text contains."""
        gone = self._indexed - (len(self._literals) - len(self._new))
        if len(self._new) + gone > FEW + len(self._literals) // FEW:
            self._make()
        found = set()
        if self._automaton is not None:
            found = {literal for _, literal in self._automaton.iter(text)} & self._literals
        found.update(literal for literal in self._new if literal in text)
        return found

    def _make(self) -> None:
        """Makes the automaton anew. The empty literal, which it cannot have, stays among the new ones."""
        self._automaton, self._new, self._indexed = None, dict.fromkeys(self._literals & {""}), 0
        if len(self._literals) > len(self._new):
            self._automaton = ahocorasick.Automaton()
            for literal in self._literals:
                if literal:
                    self._automaton.add_word(literal, literal)
            self._automaton.make_automaton()
            self._indexed = len(self._literals) - len(self._new)


class Affixes:
    """Finds the literals that a text begins with, or ends with: looks up one part of it for each length."""

    def __init__(self, part: Callable[[str, int], str]) -> None:
        """`part` returns the first or last characters of a text, which has at least that many."""
        self._part = part
        self._literals: set[str] = set()
        self._lengths: Counter[int] = Counter()

    def add(self, literal: str) -> None:
        """Adds a literal that the index does not have."""
        self._literals.add(literal)
        self._lengths[len(literal)] += 1

    def remove(self, literal: str) -> None:
        """Removes a literal."""
        self._literals.remove(literal)
        self._lengths[len(literal)] -= 1
        self._lengths += Counter()  # drops those that are 0

    def found_in(self, text: str) -> set[str]:
        """Returns the literals that a text begins or ends with."""
        return {self._part(text, length) for length in self._lengths if length <= len(text)} & self._literals


def _first(text: str, length: int) -> str:
    return text[:length]


def _last(text: str, length: int) -> str:
    return text[len(text) - length :]


INDEXES: Mapping[str, Callable[[], LiteralIndex]] = {
    "contains": Substrings,
    "starts-with": lambda: Affixes(_first),
    "ends-with": lambda: Affixes(_last),
}
"""The index for each function that looks for a literal."""


class OutputChild(NamedTuple):
    """A child of a default output: the name of its element, and what stands around its value if that is an element.
    `constant` is all of it, unless its value is that of a term."""

    name: str
    before: str
    after: str
    constant: str | None


class Selection:
    """What a normal form SELECTs.

    `terms` are the values of SELECT entries that are no constants. `nodes` and `node_list` are formats for their nodes
    as JSON: the object that output lines have, and a list. `items` are the children of a default output, and `children`
    is the format of all of them if all values are elements.
    """

    __slots__ = ("children", "items", "node_list", "nodes", "normal", "terms")

    def __init__(self, normal: NormalQuery) -> None:
        self.normal = normal
        chosen = [(entry.key, entry.value) for entry in normal.entries if isinstance(entry.value, Term)]
        self.terms = tuple(term for _, term in chosen)
        self.nodes = f"{{{', '.join(f'{_literally(json_text(key))}: %s' for key, _ in chosen)}}}"
        self.node_list = f"[{', '.join(['%s'] * len(chosen))}]"
        self.items = tuple(_item(entry, star=normal.star) for entry in normal.entries)
        self.children = "".join(map(_format_of, self.items))


def element_of(name: str, text: str) -> str:
    """Returns an element with a text as XML."""
    element = etree.Element(name)
    element.text = text
    return etree.tostring(element, encoding="unicode")


def _item(entry: SelectEntry, *, star: bool) -> OutputChild:
    name = entry.key.replace("'", "_")
    before, after = ("", "") if star else (f"<{name}>", f"</{name}>")
    return OutputChild(name, before, after, element_of(name, entry.value) if isinstance(entry.value, str) else None)


def _format_of(item: OutputChild) -> str:
    if item.constant is not None:
        return _literally(item.constant)
    return f"{_literally(item.before)}%s{_literally(item.after)}"


def _literally(text: str) -> str:
    """Returns what gives a text as part of a format."""
    return text.replace("%", "%%")


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


_Derived = Sequence[tuple[int, DerivedVariable]]
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
    targets: CompactSet[Target] = field(default_factory=CompactSet)
    placed: LiteralGroup | None = None
    """The group of literals that it belongs to."""

    @property
    def first(self) -> Target:
        """One of the targets, to read from it what they share."""
        return next(iter(self.targets))

    @property
    def form_of_queries(self) -> Form:
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
    def derived(self) -> _Derived | None:
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
        return next(iter(next(iter(self._by_literal.values())))).first

    def groups(self) -> Iterator[TargetGroup]:
        return (group for groups in self._by_literal.values() for group in groups)

    def forms(self) -> Iterator[Form]:
        """Yields the forms of its groups, some of them more than once."""
        return (group.form_of_queries for group in self.groups())

    def groups_for(self, text: str) -> list[TargetGroup]:
        """Returns the groups whose literals a text has, in the order in which they came."""
        found = [group for literal in self._index.found_in(text) for group in self._by_literal[literal]]
        return sorted(found, key=attrgetter("number"))

    def add(self, group: TargetGroup, test: LiteralTest) -> None:
        if test.literal not in self._by_literal:
            self._by_literal[test.literal] = {}
            self._index.add(test.literal)
        self._by_literal[test.literal][group] = None
        group.placed = self
        self.most_times = max(self.most_times, sum(group.form_of_queries.shared.values()))
        for target in group.targets:
            self.add_target(group, target)

    def add_target(self, group: TargetGroup, target: Target) -> None:
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


def _derived(sides: Sequence[FixedSide]) -> _Derived | None:
    of_sides = [side.derived for side in sides]
    if None in of_sides:
        return None
    return [(number, one) for number, derived in enumerate(of_sides) for one in derived or ()]


def _query(target: Target) -> Subscription:
    assert isinstance(target.owner, Subscription), "only queries have literal tests"
    return target.owner


def _key(target: Target, form: Form | None) -> object:
    return (target.owner if form is None else form), target.disjunct
