"""Reasons of outputs, and trials of join predicates. ReasonSearch searches the documents of an output for the bindings
that caused it and reports the conditions that held, with their values; `try_joins` counts the distinct values on each
side of every equality and how many are shared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice

from mmqjp.answers.absence_partners import over_at
from mmqjp.answers.matches import residual_holds
from mmqjp.answers.output import BoundValue, node_order
from mmqjp.documents.record import Record
from mmqjp.explain.terms import (
    CHARACTERS_PER_STEP,
    JoinedValue,
    Operand,
    Sample,
    ShownCondition,
    TooLong,
    apply_functions,
    blocks_of,
    in_parts,
    lacking,
    leaf_sides,
    nearest_of,
    operand_of,
    variable_texts,
)
from xpath_stage.binder import Node, PatternPath, PreparedNode, Take, each_below, each_binding
from xpath_stage.documents import ParsedDocument
from xscl.algebra.joins import Absent, Conjunct, Hidden, JoinOp, NormalQuery, Side, Term, variables_of
from xscl.algebra.trees import PatternNode, attach_branch, naming
from xscl.algebra.values import (
    TESTS,
    And,
    Call,
    Compare,
    Expr,
    Not,
    Number,
    Or,
    Rel,
    Span,
    Step,
    String,
    VarPath,
    derivation,
    derive,
    map_operands,
)
from xscl.check_expressions import blocks
from xscl.lower import PatternBuilder, and_arms
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Block, Input, Join, SelectItems, SubQuery

TRIED = (("lower-case",), ("normalize-space",), ("normalize-space", "lower-case"), ("canonical-url",))
"""Functions that might equate values with the same meaning, the innermost first."""

_END = "end"

DocumentsByText = dict[str, list[tuple[str, int]]]
"""Maps a text to at most two documents that have it, as stream and number."""


@dataclass(frozen=True, slots=True)
class JoinTrial:
    """The result of an equality. `left` and `right` count distinct values, `shared` those in two different documents.
    If `shared` is 0, `functions` around both sides would give `shared_then`; failing that, `near` has the nearest
    texts."""

    span: Span
    left: int
    right: int
    shared: int
    functions: tuple[str, ...] = ()
    shared_then: int = 0
    near: tuple[str, str] = ("", "")
    instead: str = ""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A node of a block or a path from it, with functions applied to its text, the innermost first."""

    block: int
    var: str
    steps: tuple[Step, ...] = ()
    functions: tuple[str, ...] = ()


_Scope = Mapping[str, _Operand]


def try_joins(source: Input, sample: Sample, namespaces: Mapping[str, str]) -> list[JoinTrial]:
    """Tries each equality between two blocks of a source, which has spans. Ignores windows, other conditions, and names
    that a `SELECT *` in parentheses defines."""
    trial = _Trial(sample, namespaces)
    trial.scope(source)
    return trial.found


class _Trial:
    def __init__(self, sample: Sample, namespaces: Mapping[str, str]) -> None:
        self._sample, self._build = sample, PatternBuilder(namespaces)
        self._blocks: list[tuple[Block, PatternNode]] = []
        self.found: list[JoinTrial] = []

    def scope(self, source: Input) -> _Scope:
        match source:
            case Block():
                pattern = self._build.path(source.steps)
                self._blocks.append((source, pattern))
                number = len(self._blocks) - 1
                return {var: _Operand(number, var) for var in pattern.variables()}
            case Join():
                left = self.scope(source.left)
                names = {**left, **self.scope(source.right)}
                for equality in _equalities(source.pred):
                    one, other = _operand(equality.left, names), _operand(equality.right, names)
                    if one and other and one.block != other.block:
                        self.found.append(self._try(equality, one, other))
                return names
            case SubQuery():
                names = dict(self.scope(source.source))
                if isinstance(source.select, SelectItems):
                    items = ((item.name, _operand(item.operand, names)) for item in source.select.items)
                    return {name: operand for name, operand in items if operand}
                return names

    def _try(self, equality: Compare, one: _Operand, other: _Operand) -> JoinTrial:
        left, right = self._values(one), self._values(other)
        both = shared(left, right)
        if not both:
            functions, then = mended(left, right)
            found = None if functions else nearest_of(left, right)
            if found is not None:
                instead = f"near({to_xscl(equality.left)}, {to_xscl(equality.right)}, {found[1]})"
                return JoinTrial(equality.span, len(left), len(right), 0, near=found[0], instead=instead)
            return JoinTrial(equality.span, len(left), len(right), 0, functions, then)
        return JoinTrial(equality.span, len(left), len(right), both)

    def _values(self, operand: _Operand) -> DocumentsByText:
        block, pattern = self._blocks[operand.block]
        name = operand.var
        if operand.steps:
            pattern = attach_branch(pattern, name, self._build.path(operand.steps, last_var=_END))
            name = _END
        pattern = naming(pattern, (name,))
        values: DocumentsByText = {}
        for number, tree in enumerate(self._sample.of(block.stream)):
            try:
                for text in set(variable_texts(pattern, tree)):
                    note(values, apply_functions(text, operand.functions), [(block.stream, number)])
            except TooLong:
                continue
        return values


def note(values: DocumentsByText, text: str, documents: Sequence[tuple[str, int]]) -> None:
    """Adds documents to a value; two at most."""
    known = values.setdefault(text, [])
    known += [one for one in documents if one not in known][: 2 - len(known)]


def shared(left: DocumentsByText, right: DocumentsByText) -> int:
    return sum(1 for text, ones in left.items() if any(one != other for one in ones for other in right.get(text, ())))


def mended(left: DocumentsByText, right: DocumentsByText) -> tuple[tuple[str, ...], int]:
    """Returns the functions, the innermost first, that would equate values of both sides, and how many values; () and 0
    if none."""
    for functions in TRIED:
        if then := shared(_derived(left, functions), _derived(right, functions)):
            return functions, then
    return (), 0


def _derived(values: DocumentsByText, functions: tuple[str, ...]) -> DocumentsByText:
    found: DocumentsByText = {}
    for text, documents in values.items():
        if derived := apply_functions(text, functions):
            note(found, derived, documents)
    return found


def _equalities(expr: Expr) -> Iterator[Compare]:
    match expr:
        case Compare(op="="):
            yield expr
        case And() | Or():
            for arg in expr.args:
                yield from _equalities(arg)


def _operand(expr: Expr, names: _Scope) -> _Operand | None:
    match expr:
        case VarPath(var=var, steps=steps) if var in names:
            known = names[var]
            return None if known.functions and steps else replace(known, steps=(*known.steps, *steps))
        case Call(args=(arg, *_)) if name := derivation(expr):
            inner = _operand(arg, names)
            return inner and replace(inner, functions=(*inner.functions, name))
    return None


@dataclass(frozen=True, slots=True)
class Filters:
    """The filter conditions of a query by their XPath text, and the builder of paths."""

    conditions: Mapping[str, Expr]
    builder: PatternBuilder


@lru_cache(maxsize=256)
def filters_of(text: str) -> Filters:
    """Returns the filter conditions of a query, given its stored text."""
    script = parse_script(text, stored=True)
    builder = PatternBuilder(dict(script.namespaces))
    found = {
        str(builder.condition(arm).xpath): arm
        for query in script.queries
        for block in blocks(query.source)
        for arm in _conditions(block.steps)
    }
    return Filters(found, builder)


def findings(
    pattern: PatternNode, tree: ParsedDocument, nodes: Mapping[str, Node], filters: Filters, place: int, take: Take
) -> Iterator[ShownCondition]:
    """Yields the conditions of a pattern with their values in a document, at the given nodes. `place` is the document's
    index in the output."""
    if not any(node.conditions for node in pattern.walk()):
        return
    named = _numbered(pattern)
    fixed = {path: nodes[node.var] for path, node in _paths(pattern) if node.var is not None and node.var in nodes}
    for found in each_binding(PreparedNode(named), tree, fixed, take):
        image = dict(found)
        break
    else:
        return
    for path, node in _paths(pattern):
        at = image[_name(path)]
        for condition in node.conditions:
            if condition.literal is not None:
                yield ShownCondition((operand_of(tree, at, (), place), f" = {to_xscl(String(condition.literal))}"))
            elif (expr := filters.conditions.get(str(condition.xpath))) is not None:
                yield _found(expr, named, path, at, tree, filters, place, take)


def _found(
    expr: Expr,
    named: PatternNode,
    path: PatternPath,
    at: Node,
    tree: ParsedDocument,
    filters: Filters,
    place: int,
    take: Take,
) -> ShownCondition:
    operands: dict[str, Operand] = {}
    paths: list[Rel] = []

    def name_of(rel: Rel) -> Expr:
        name = f"v{len(paths)}"
        nodes = [at]
        if rel.steps:
            branch = attach_branch(named, _name(path), filters.builder.path(rel.steps, last_var=_END))
            part = PreparedNode(_only(branch, _END))
            nodes = [node for ((_, node),) in each_binding(part, tree, {path: at}, take)]
        if not nodes:
            return rel
        paths.append(rel)
        found = [operand_of(tree, node, (), place) for node in nodes]
        operands[name] = next((one for one in found if _holds(expr, rel, one.text)), found[0])
        return VarPath(name)

    return ShownCondition(in_parts(_with_values(expr, name_of), operands))


def _holds(expr: Expr, rel: Rel, text: str) -> bool:
    mine = _with_values(expr, lambda one: VarPath("v") if one is rel else one)
    match mine:
        case Compare(left=left, right=right) if _is_value(left) and _is_value(right):
            return residual_holds(mine, {"v": text}.__getitem__)
        case Call(name=name, args=args) if name in TESTS and all(map(_is_value, args)):
            return residual_holds(mine, {"v": text}.__getitem__)
    return False


def _is_value(operand: Expr) -> bool:
    """Whether an operand has a value without the document: it has no other path."""
    while isinstance(operand, Call) and derivation(operand):
        operand = operand.args[0]
    return isinstance(operand, VarPath | String | Number)


def _with_values(expr: Expr, name_of: Callable[[Rel], Expr]) -> Expr:
    """Replaces each path in a condition whose value is compared."""

    def value(operand: Expr) -> Expr:
        match operand:
            case Rel():
                return name_of(operand)
            case Call() if derivation(operand):
                return map_operands(operand, value)
        return operand

    if isinstance(expr, Compare) or (isinstance(expr, Call) and expr.name in TESTS):
        return map_operands(expr, value)
    match expr:
        case And() | Or() | Not():
            return map_operands(expr, lambda arg: _with_values(arg, name_of))
    return expr


def _conditions(steps: tuple[Step, ...]) -> Iterator[Expr]:
    for step in steps:
        for arm in (arm for condition in step.filters for arm in and_arms(condition)):
            if isinstance(arm, Rel):
                yield from _conditions(arm.steps)
            else:
                yield arm
                if isinstance(arm, Compare):
                    for side in (arm.left, arm.right):
                        yield from _conditions(side.steps) if isinstance(side, Rel) else ()


def _name(path: PatternPath) -> str:
    return "n" + ".".join(map(str, path))


def _numbered(node: PatternNode, path: PatternPath = ()) -> PatternNode:
    children = tuple(_numbered(child, (*path, place)) for place, child in enumerate(node.children))
    return replace(node, var=_name(path), children=children)


def _only(node: PatternNode, name: str) -> PatternNode:
    children = tuple(_only(child, name) for child in node.children)
    return replace(node, var=name if node.var == name else None, children=children)


def _paths(node: PatternNode, path: PatternPath = ()) -> Iterator[tuple[PatternPath, PatternNode]]:
    yield path, node
    for place, child in enumerate(node.children):
        yield from _paths(child, (*path, place))


class TooMuchWork(Exception):
    """The search used up its steps."""


@dataclass(frozen=True, slots=True)
class JoinTiming:
    """The intervals of a join's inputs, in microseconds, left start to right end. `op` and `window` (None: INF) allow
    them. A chain has one for each join."""

    op: JoinOp
    window: int | None
    left: tuple[int, int]
    right: tuple[int, int]

    @property
    def distance(self) -> int:
        """From the earlier start to the later end; bounded by the window."""
        return max(self.left[1], self.right[1]) - min(self.left[0], self.right[0])

    @property
    def gap(self) -> int:
        """From the end of the left input to the start of the right one; may be negative."""
        return self.right[0] - self.left[1]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an output exists: value joins, inner joins first, and other join conditions; for absences, the conditions
    without a partner. On request also the joins' timings and the conditions in the `filters` of blocks."""

    joined: tuple[JoinedValue, ...] = ()
    conditions: tuple[ShownCondition, ...] = ()
    timings: tuple[JoinTiming, ...] = ()
    filters: tuple[ShownCondition, ...] = ()


_Bound = tuple[Record, int, Node]
"""A record, its index among the output's documents (-1: a published one), and a node of it."""

_Binding = Mapping[str, _Bound]


@dataclass(frozen=True, slots=True)
class _Leaf:
    side: Side
    record: Record
    place: int
    nodes: Mapping[str, Node]


@dataclass(frozen=True, slots=True)
class _Held:
    conjunct: Conjunct
    binding: _Binding
    timing: JoinTiming | None


@dataclass(frozen=True, slots=True)
class _Lacked:
    op: JoinOp
    window: int | None
    absent: Sequence[Absent]
    binding: _Binding
    times: tuple[int, int]


_Trail = tuple[_Leaf | _Held | _Lacked, ...]
"""The bindings that led to a joint binding, those of inner joins first."""

_Joint = tuple[_Binding, _Trail, tuple[int, int]]
"""A joint binding, its trail, and its interval."""


class ReasonSearch:
    """Searches the documents of one output. `parts` pairs the documents of the blocks with their indexes in the output.
    Raises TooMuchWork after `steps` steps."""

    def __init__(
        self, normal: NormalQuery, nodes: Mapping[str, int | str], parts: Sequence[tuple[Record, int]], steps: int
    ) -> None:
        self._normal, self._nodes, self._parts, self._steps = normal, nodes, parts, steps
        self._texts: dict[tuple[int, Node], str] = {}
        self._selected = {
            entry.value.var: nodes[entry.key]
            for entry in normal.entries
            if isinstance(entry.value, Term) and entry.key in nodes
        }

    def reason(self, filters: Filters | None = None) -> Reason | None:
        """Returns the reason of a joint binding with the output's nodes; None if there is none. `filters` add timings
        and filter conditions."""
        for conjunct in _that_are_there(self._normal):
            if sum(1 for _ in leaf_sides(conjunct)) == len(self._parts):
                for binding, trail, _ in self._joint(conjunct, self._parts, self._selected, self._normal):
                    if self._has_the_nodes(binding):
                        return self._told(trail, filters)
        return None

    def _take(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise TooMuchWork

    def _has_the_nodes(self, binding: _Binding) -> bool:
        found = {
            entry.key: BoundValue(binding[entry.value.var][0], binding[entry.value.var][2]).json_id()
            for entry in self._normal.entries
            if isinstance(entry.value, Term)
        }
        return found == self._nodes

    def _joint(
        self,
        conjunct: Conjunct,
        parts: Sequence[tuple[Record, int]],
        selected: Mapping[str, int | str],
        of: NormalQuery | Hidden,
    ) -> Iterator[_Joint]:
        left_count = blocks_of(conjunct.left)
        lefts = self._side(conjunct.left, parts[:left_count], selected)
        if conjunct.right is None:
            for binding, trail, times in lefts:
                if of.absent and of.op is not None:
                    lacked = _Lacked(of.op, of.window, of.absent, binding, times)
                    yield binding, (*trail, lacked), (times[0], over_at(of.op, of.window or 0, *times))
                else:
                    yield binding, (*trail, _Held(conjunct, binding, None)), times
            return
        equal = conjunct.equalities()
        rights = defaultdict(list)
        for found in self._side(conjunct.right, parts[left_count:], selected):
            rights[self._values(found[0], [right for _, right in equal])].append(found)
        for binding, trail, left in lefts:
            for other, inner, right in rights.get(self._values(binding, [left for left, _ in equal]), ()):
                self._take(1)
                both = {**binding, **other}
                text_of = partial(self._text_of, both)
                if all(residual_holds(expr, text_of) for expr in conjunct.residual):
                    timing = None if of.op is None else JoinTiming(of.op, of.window, left, right)
                    times = min(left[0], right[0]), max(left[1], right[1])
                    yield both, (*trail, *inner, _Held(conjunct, both, timing)), times

    def _side(
        self, side: Side, parts: Sequence[tuple[Record, int]], selected: Mapping[str, int | str]
    ) -> Iterator[_Joint]:
        if side.hidden is None:
            ((record, place),) = parts
            fixed = dict(_fixed(side.pattern, record, selected))
            for found in each_binding(PreparedNode(side.pattern), record.tree, fixed, self._take):
                nodes = dict(found)
                binding: _Binding = {var: (record, place, node) for var, node in found}
                yield binding, (_Leaf(side, record, place, nodes),), (record.t0, record.t1)
            return
        # Maps the inner join's names of variables to the outer ones. Variables without one are not visible outside.
        hidden, carried = side.hidden, [child.var for child in side.pattern.children]
        names = {inner: outer for inner, outer in zip(hidden.variables, carried, strict=True) if outer}
        within = {inner: selected[outer] for inner, outer in names.items() if outer in selected}
        for conjunct in _that_are_there(hidden):
            for binding, trail, times in self._joint(conjunct, parts, within, hidden):
                yield {names[var]: bound for var, bound in binding.items() if var in names}, trail, times

    def _told(self, trail: _Trail, filters: Filters | None) -> Reason:
        joined: list[JoinedValue] = []
        conditions: list[ShownCondition] = []
        timings: list[JoinTiming] = []
        for step in trail:
            if isinstance(step, _Held):
                pairs = step.conjunct.equalities()
                joined += (JoinedValue(*(self._operand(step.binding, term) for term in pair)) for pair in pairs)
                conditions += (self._condition(expr, step.binding) for expr in step.conjunct.residual)
                timings += () if step.timing is None or filters is None else (step.timing,)
            elif isinstance(step, _Lacked):
                conditions.append(lacking(step.op, step.window, step.absent, self._lacked(step), step.times))
        found = () if filters is None else tuple(self._findings(trail, filters))
        return Reason(tuple(joined), tuple(conditions), tuple(timings), found)

    def _lacked(self, step: _Lacked) -> dict[str, Operand]:
        """Returns the values that nothing was joined to. A path with several nodes stays a path."""
        binding = dict(step.binding)
        with suppress(TooMuchWork):
            for branch in (branch for one in step.absent for branch in one.branches):
                record, place, node = binding[branch.var]
                found = list(islice(each_below(PreparedNode(branch.path), record.tree, node, self._take), 2))
                if len(found) == 1:
                    binding.update((var, (record, place, below)) for var, below in found[0])
        wanted = set[str]().union(*(one.variables() for one in step.absent), binding.keys() - step.binding.keys())
        return {var: self._operand(binding, Term(var)) for var in wanted if var in binding}

    def _findings(self, trail: _Trail, filters: Filters) -> Iterator[ShownCondition]:
        """Yields the conditions on single documents while steps remain: the reason is valid without them."""
        with suppress(TooMuchWork):
            for step in trail:
                if isinstance(step, _Leaf):
                    tree = step.record.tree
                    yield from findings(step.side.pattern, tree, step.nodes, filters, step.place, self._take)

    def _condition(self, expr: Expr, binding: _Binding) -> ShownCondition:
        return ShownCondition(in_parts(expr, {var: self._operand(binding, Term(var)) for var in variables_of(expr)}))

    def _operand(self, binding: _Binding, term: Term) -> Operand:
        record, place, node = binding[term.var]
        return operand_of(record.tree, node, term.functions, place, self._text(binding[term.var]))

    def _values(self, binding: _Binding, terms: Sequence[Term]) -> tuple[str, ...]:
        values = []
        for term in terms:
            value = self._text(binding[term.var])
            for name in term.functions:
                value = derive(name, value)
            values.append(value)
        return tuple(values)

    def _text_of(self, binding: _Binding, var: str) -> str:
        return self._text(binding[var])

    def _text(self, bound: _Bound) -> str:
        record, _, node = bound
        key = record.docid, node
        found = self._texts.get(key)
        if found is None:
            found = self._texts[key] = record.tree.string_value(*node)
        self._take(1 + len(found) // CHARACTERS_PER_STEP)
        return found


def _that_are_there(of: NormalQuery | Hidden) -> Sequence[Conjunct]:
    """The conjunctive queries whose documents an output has; for an absence, those of its left input."""
    return of.conjuncts[:1] if of.absent else of.conjuncts


def _fixed(
    pattern: PatternNode, record: Record, selected: Mapping[str, int | str], path: PatternPath = ()
) -> Iterator[tuple[PatternPath, Node]]:
    node = selected.get(pattern.var) if pattern.var else None
    if node is not None:
        element, attribute = node_order(node)
        if not attribute:
            yield path, (element, 0)
        elif element < len(record.tree.elements):
            names = [str(name) for name in record.tree.elements[element].attrib]
            if attribute[1:] in names:
                yield path, (element, names.index(attribute[1:]) + 1)
    for number, child in enumerate(pattern.children):
        yield from _fixed(child, record, selected, (*path, number))
