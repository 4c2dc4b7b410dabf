"""What explanations consist of, however they are found: stages, operands, conditions, timings, the events that filled
the parts of a query, step budgets, normal forms, and time spans as texts; and hints at what may be meant where nothing
passes a stage: other names and values that the documents have in the place of a part of a block, and values of both
sides of an equality that are nearly equal: but for a function, a few words, or letters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import chain, groupby, islice, pairwise
from sys import maxsize
from typing import Any, Literal, TypeVar

from common.bounds import INFINITE
from common.dates import SECOND, iso_utc
from common.tools import gathered
from mmqjp.process import printable_line, printable_text
from mmqjp.queries.model import Owner, Target
from templates.graph import Shape
from xpath_stage.binder import Node, PreparedNode, each_binding
from xpath_stage.documents import ParsedDocument, split_name
from xpath_stage.filters import tree_value
from xscl.algebra import joins as algebra
from xscl.algebra import values as exp
from xscl.algebra.near import LEAST, encode_words, first_keys, overlap, word_level, words_again
from xscl.algebra.weights import chosen_weights
from xscl.check_expressions import blocks
from xscl.lower import PatternBuilder, and_arms, expression, normalize_readably
from xscl.parser import located_queries, parse_script
from xscl.printer import to_xscl
from xscl.syntax import Block, Query, Window

StageKind = Literal[
    "stream", "pattern", "asked", "equality", "together", "words", "different", "order", "window", "residual", "mirror",
    "event", "late", "unseen", "filtered", "condition", "consumed", "later", "ended", "group",
    "equal", "strategy", "absent", "letters", "maximal", "run", "alone", "decided",
]  # fmt: skip
"""The requirement of a stage. Queries: documents of a stream; a name or condition of a block; what predicates and
SELECT need of it; an equality; all equalities of a join in one binding; a near() or similar() of texts of both sides;
another document on the other side; order; window; other join conditions; and that an output is not mirrored (JOIN
UNORDERED).

Event queries: an event exists, was not late, and came after registration; conditions of FILTER, NEXT and FOLD; no
earlier right event was taken by NEXT; no left event is later (LATEST BEFORE); a run of FOLD continues; events are in
one group of AGGREGATE. PATTERN: bracketed values are equal; no event blocks the strategy; no negated event occurs; the
letters missing are within the limit; no match is better (EARLIEST MAXIMAL); "run" counts the first events of matches
that get this far.

Absences: there is no partner, and the watermark rules out later ones."""


StageUnit = Literal["documents", "values", "pairs", "events"]


@dataclass(frozen=True, slots=True)
class FunnelStage:
    """A stage. `part` is its part of the query. `found` counts what passes: documents, values shared by both sides of
    an equality, or pairs of inputs; with `at_least`, it is a lower bound. `left` and `right` are an equality's distinct
    values. `block` numbers blocks from 1; 0 is a join. If nothing passes, `message` says what there is instead, and
    `hint` what may be meant."""

    kind: StageKind
    part: str
    found: int
    unit: StageUnit = "documents"
    block: int = 0
    left: int = 0
    right: int = 0
    at_least: bool = False
    message: str = ""
    hint: str = ""

    def told(self, message: str, hint: str = "") -> FunnelStage:
        return replace(self, message=message, hint=hint)

    @property
    def count_text(self) -> str:
        if self.unit == "values":
            return f"{self.left:,} and {self.right:,} values, {self.found:,} common"
        more = " or more" if self.at_least else ""
        return f"{self.found:,}{more} {self.unit if self.found != 1 else self.unit[:-1]}"


@dataclass(frozen=True, slots=True)
class Operand:
    """A node that took part: the name of its element or of an attribute like "link/@href", its text, and the functions
    applied, the innermost first. `document` is the index of its document in the output's `documents`; None for a node
    of another query's output. `node` is its id in output lines."""

    name: str
    text: str
    functions: tuple[str, ...] = ()
    document: int | None = None
    node: int | str | None = field(default=None, compare=False)

    @property
    def value(self) -> str:
        return apply_functions(self.text, self.functions)


def apply_functions(text: str, functions: Sequence[str]) -> str:
    return exp.derive_all(tuple(functions), text)


@dataclass(frozen=True, slots=True)
class JoinedValue:
    """A value join that held: its operands, whose values are equal."""

    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class ShownCondition:
    """Another condition that held: its text in parts, with nodes in place of variables."""

    parts: tuple[str | Operand, ...]

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.name for part in self.parts)


@dataclass(frozen=True, slots=True)
class JoinTiming:
    """The intervals, in microseconds, of one join's inputs; `op` and `window` (None: INF) allow them."""

    op: algebra.JoinOp
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


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """An event: attributes, interval in microseconds, and the indexes of its documents in the output. If another query
    published it, `output` is the id of that output, and `query` the query."""

    attributes: tuple[tuple[str, str | float | None], ...]
    t0: int
    t1: int
    documents: tuple[int, ...] = ()
    output: str = ""
    query: str = ""


@dataclass(frozen=True, slots=True)
class FilledPart:
    """A part of a query, and the events that filled it: `count`, the first one and the last ones."""

    name: str
    count: int
    events: tuple[ShownEvent, ...]


@dataclass(frozen=True, slots=True)
class PartDuration:
    """How long a part took: DUR, GAP if any, and the limit (None: any time), in microseconds."""

    part: str
    duration: int
    gap: int | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class Filling:
    """The events that filled the parts of an event query for an output, and the durations."""

    parts: tuple[FilledPart, ...]
    spans: tuple[PartDuration, ...]

    def to_dict(self) -> dict[str, Any]:
        found = asdict(self)
        for part in found["parts"]:
            for event in part["events"]:
                event["attributes"] = dict(event["attributes"])
        return found


def format_window(microseconds: int | None) -> str:
    """Formats a window with the largest unit that divides it. None and INFINITE are INF."""
    return to_xscl(Window(None if microseconds == INFINITE else microseconds))


_DURATIONS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000))


def duration_text(microseconds: int) -> str:
    """Formats a time span with its two largest units; less than a minute as exact seconds.

    >>> duration_text(250_200_000_000), duration_text(60_000_000), duration_text(57_448_571), duration_text(-7)
    ('2 d 21 h', '1 min', '57.448571 s', '-7 µs')
    """
    if microseconds < 0:
        return f"-{duration_text(-microseconds)}"
    for (unit, size), (below, part) in pairwise(_DURATIONS):
        if microseconds >= size:
            rest = microseconds % size // part
            return f"{microseconds // size:,} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{microseconds} µs" if microseconds < 1_000 else f"{Decimal(microseconds) / 1_000_000:f} s"


T = TypeVar("T")

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Delimiters of a variable's number in a text: noncharacters, which no query contains."""

_NUMBERED = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


def operand_of(
    tree: ParsedDocument, node: Node, functions: tuple[str, ...], place: int, text: str | None = None
) -> Operand:
    """Returns a node as an operand. `place` is its document's in the output (-1: none), `text` its text, if known."""
    element, attribute = node
    name, id = _local(str(tree.elements[element].tag)), f"{element}"
    if attribute:
        full = tree.attribute(element, attribute)[0]
        name, id = f"{name}/@{_local(full)}", f"{element}/@{full}"
    if exp.reads_tree(functions):
        name, text, functions = exp.written(functions[0], name), tree_value(tree, node, functions[:1]), functions[1:]
    value = tree.string_value(*node) if text is None else text
    return Operand(name, value, functions, None if place < 0 else place, id if attribute else element)


def operand_leaves(expr: exp.Expr) -> list[algebra.Term]:
    """The different values that a residual predicate reads of nodes, without the functions of texts."""
    match expr:
        case exp.VarPath() | exp.Call(name=exp.PARTS):
            term = algebra.as_term(expr)
            assert term is not None, "it is a value of a node"
            return [term]
    return list(dict.fromkeys(leaf for operand in exp.operands_of(expr) for leaf in operand_leaves(operand)))


def in_parts(expr: exp.Expr, operand_of: Callable[[algebra.Term], Operand | str]) -> tuple[str | Operand, ...]:
    """Returns a residual predicate's text, with operands in place of `operand_leaves`."""
    known = operand_leaves(expr)

    def numbered(expr: exp.Expr) -> exp.Expr:
        if isinstance(expr, exp.VarPath) or (isinstance(expr, exp.Call) and expr.name == exp.PARTS):
            return exp.VarPath(placeholder(known.index(operand_leaves(expr)[0])))
        return exp.map_operands(expr, numbered)

    return with_placeholders(to_xscl(numbered(expr)), list(map(operand_of, known)))


def placeholder(number: int) -> str:
    return f"{_OPEN}{number}{_CLOSE}"


def with_placeholders(text: str, values: Sequence[T]) -> tuple[str | T, ...]:
    """Returns the parts of a text, with values in place of the placeholders of their numbers."""
    parts = enumerate(_NUMBERED.split(text))
    return tuple(values[int(part)] if place % 2 else part for place, part in parts if place % 2 or part)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


MOST_QUERIES, MAX_NAMES = 100, 10
"""Maximum number of same-named queries tried for an answer of an earlier store, and length of a list of names."""


def term_text(term: algebra.Term) -> str:
    return wrap_in_functions(term.functions, term.var)


def wrap_in_functions(functions: tuple[str, ...], text: str) -> str:
    for function in functions:
        text = exp.written(function, text)
    return text


def list_with_and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def few(names: Iterable[str], none: str = "") -> str:
    """Returns different names, cut short; `none` if there are none."""
    found: dict[str, None] = {}
    for name in names:
        if name not in found and len(found) == MAX_NAMES:
            return ", ".join([*found, "and more"])
        found[name] = None
    return ", ".join(found) or none


def names_of_others(targets: Iterable[Target], own: Collection[Owner], none: str) -> str:
    """Returns the names of the owners of targets, except those in `own`, cut short."""
    return few((target.owner.label for target in targets if target.owner not in own), none)


def leaf_sides(conjunct: algebra.Conjunct) -> Iterator[algebra.Side]:
    for side in conjunct.sides():
        if side.hidden is None:
            yield side
        else:
            yield from leaf_sides(side.hidden.conjuncts[0])


def blocks_of(side: algebra.Side) -> int:
    """Returns the number of a side's blocks, with those of what must be absent."""
    if side.hidden is None:
        return 1
    sides = *side.hidden.conjuncts[0].sides(), *(absent.right for absent in side.hidden.absent[:1])
    return sum(map(blocks_of, sides))


def definition_path(definition: tuple[algebra.PatternNode, ...]) -> str:
    """Formats the definition of a variable as a path, inside the functions of a derived value."""
    text = ""
    for node in definition:
        if node.axis != ".":
            text += str(node)
        elif node.functions:
            text = wrap_in_functions(node.functions, text)
        else:
            text += "/."
    return text


def structure_text(shape: Shape) -> str:
    children = gathered((parent, node) for node, parent in enumerate(shape.parents))

    def text(node: int) -> str:
        below = ", ".join(map(text, children.get(node, [])))
        return f"var{node + 1}({below})" if below else f"var{node + 1}"

    joins = ", ".join(f"var{left + 1} = var{right + 1}" for left, right in shape.joins)
    return "; ".join([*map(text, children[None]), *([joins] if joins else [])])


def lacking(
    op: algebra.JoinOp,
    window: int | None,
    absent: Sequence[algebra.Absent],
    operands: Mapping[algebra.Term, Operand],
    times: tuple[int, int],
) -> ShownCondition:
    """Describes an absence that held: `operands` of its left input, and in `times` the interval of its documents."""
    parts: list[str | Operand] = ["nothing"]
    for number, one in enumerate(absent):
        names = _names(one)

        def shown(term: algebra.Term, names: Mapping[str, str] = names) -> str | Operand:
            name = names.get(term.var, term.var)
            return operands.get(term) or wrap_in_functions(term.functions, name)

        for place, expr in enumerate(compared(one)):
            parts.append(" and " if place else " or" if number else "")
            parts.append("" if place else " with ")
            parts += in_parts(expr, shown)
    words = {"NOT FOLLOWED BY": " followed", "NOT PRECEDED BY": " preceded it"}
    parts.append(words.get(op, " came") + ("" if window is None else f" within {format_window(window)}"))
    with suppress(OverflowError):  # a time after the year 9999
        until = iso_utc(algebra.over_at(op, window or 0, *times))
        parts.append("" if op == "NOT PRECEDED BY" else f", until {until}")
    runs = groupby(parts, lambda part: isinstance(part, str))
    merged: Iterator[Iterable[str | Operand]] = (["".join(map(str, run))] if is_text else run for is_text, run in runs)
    return ShownCondition(tuple(chain.from_iterable(merged)))


def compared(absent: algebra.Absent) -> tuple[exp.Expr, ...]:
    """The equalities and the residual predicates of what must be absent."""
    pairs = [pair for pair in absent.joins if exp.many_valued(pair[0].functions) is None]
    equal = [exp.Compare("=", expression(right), expression(left)) for left, right in pairs]
    return (*equal, *absent.residual)


def _names(absent: algebra.Absent) -> dict[str, str]:
    found: dict[str, str] = {}
    for branch in absent.branches:
        path = branch.var
        for node in branch.path.walk():
            path += f"/{node.test.local}"
            found |= {} if node.var is None else {node.var: path}
    if absent.right.hidden is None:
        found |= {node.var: node.test.local for node in absent.right.pattern.walk() if node.var is not None}
    return found


VALUE_WIDTH = PART_WIDTH = 60  # characters shown of a value, and of a part of a query

_LINE_BREAK = re.compile(r"[ \t\r]*\n\s*")


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def truncate_value(text: str) -> str:
    return cut(printable_line(text), VALUE_WIDTH)


@dataclass(frozen=True, slots=True)
class BlockStage:
    """A prefix of a block, as a path whose `steps` bind nothing; it implies those before it. `span` is that of its last
    requirement: the name of the last step of the path `above`, or a `condition` on the node at its end."""

    steps: tuple[exp.Step, ...]
    span: exp.Span
    above: tuple[exp.Step, ...]
    condition: exp.Expr | None = None


def _stages(steps: tuple[exp.Step, ...]) -> Iterator[BlockStage]:
    done: tuple[exp.Step, ...] = ()
    for step in steps:
        bare = replace(step, filters=(), var=None)
        yield BlockStage((*done, bare), exp.Span(step.span.start, step.test.span.end), (*done, bare))
        kept: tuple[exp.Expr, ...] = ()
        for arm in (arm for condition in step.filters for arm in and_arms(condition)):
            here, found = (*done, replace(bare, filters=kept)), kept
            for path in _needed(arm):
                unbound: tuple[exp.Step, ...] = ()
                for stage in _stages(path.steps):
                    unbound = stage.steps
                    filters = (*found, exp.Rel(unbound))
                    yield replace(stage, steps=(*done, replace(bare, filters=filters)), above=(*here, *stage.above))
                found = (*found, exp.Rel(unbound))
            if isinstance(arm, exp.Rel):
                kept = found
            else:
                kept = (*kept, arm)
                yield BlockStage((*done, replace(bare, filters=kept)), arm.span, here, arm)
        done = (*done, replace(bare, filters=kept))


def _needed(arm: exp.Expr) -> Iterator[exp.Rel]:
    """The paths that must match for an arm to hold: comparing with a path without matches is false."""
    match arm:
        case exp.Rel():
            yield arm
        case exp.Compare():
            yield from (side for side in (arm.left, arm.right) if isinstance(side, exp.Rel))


@dataclass(frozen=True)
class ReadableQuery:
    """A query as explanations evaluate it. `query` has its spans in `text`, which may have others. `paths` maps
    variables that stand for ends of paths to the paths."""

    text: str
    query: Query
    normal: algebra.NormalQuery
    paths: Mapping[str, exp.VarPath]
    builder: PatternBuilder

    @staticmethod
    @lru_cache(maxsize=2_000)
    def of(text: str) -> ReadableQuery:
        """Parses a text that was checked at registration. Raises XsclErrors if this version cannot."""
        script = parse_script(text, stored=True)
        (query,) = located_queries(text, (0,), stored=True)
        return ReadableQuery.in_place(text, query, dict(script.namespaces))

    @staticmethod
    def in_place(text: str, query: Query, namespaces: Mapping[str, str]) -> ReadableQuery:
        normal, paths = normalize_readably(query, namespaces)
        return ReadableQuery(text, query, normal, paths, PatternBuilder(namespaces))

    @cached_property
    def blocks(self) -> list[Block]:
        return blocks(self.query.source)

    @property
    def told(self) -> int:
        """How many blocks, the first ones, outputs have documents of: an absence tells those of its left input."""
        return sum(map(blocks_of, self.normal.conjuncts[0].sides()))

    @cached_property
    def stages(self) -> list[list[BlockStage]]:
        return [list(_stages(block.steps)) for block in self.blocks]

    @cached_property
    def conditions(self) -> dict[str, exp.Expr]:
        """The conditions of its blocks by their XPath text."""
        found = (stage.condition for stages in self.stages for stage in stages)
        return {str(self.builder.condition(one).xpath): one for one in found if one is not None}

    def part(self, span: exp.Span) -> str:
        """Returns a part of the text in one line, cut short."""
        start = span.start
        if self.text[start : start + 1] == "/" and self.text[max(start - 1, 0) : start] == ".":
            start -= 1  # a step says no more than its axis and name
        return cut(printable_text(_LINE_BREAK.sub(" ", self.text[start : span.end])), PART_WIDTH)

    def variable(self, var: str) -> str:
        return to_xscl(self.paths[var]) if var in self.paths else var

    def term(self, term: algebra.Term) -> str:
        return wrap_in_functions(term.functions, self.variable(term.var))

    def expression(self, expr: exp.Expr) -> str:
        return to_xscl(self._spelled(expr))

    def _spelled(self, expr: exp.Expr) -> exp.Expr:
        if isinstance(expr, exp.VarPath):
            return self.paths.get(expr.var, expr)
        return exp.map_operands(expr, self._spelled)


CHARACTERS_PER_STEP = 256  # reading this many characters of a node's text costs one step


class Exhausted(Exception):
    """The step budget is used up."""


class TooLong(Exception):
    """A pattern takes too long in a document."""


@dataclass
class StepBudget:
    """The remaining steps, about a microsecond each: in all, and in the current document."""

    left: int
    here: int = 0

    def take(self, steps: int) -> None:
        """Raises Exhausted."""
        self.left -= steps
        if self.left < 0:
            raise Exhausted

    def take_here(self, steps: int) -> None:
        """Takes steps in the current document. Raises Exhausted, TooLong."""
        self.take(steps)
        self.here -= steps
        if self.here < 0:
            raise TooLong


Plain = str | float | None  # an attribute's value: a text, a number, or None for NULL


def as_text(value: Plain) -> str | None:
    return exp.number_text(value) if isinstance(value, float) else value


def display_value(value: Plain, *, is_time: bool = False) -> str:
    if isinstance(value, str):
        return f'"{truncate_value(value)}"'
    if is_time and value is not None:
        return duration_text(round(value * SECOND))
    return as_text(value) or "NULL"


MAX_SAMPLE_STEPS, SAMPLE_WIDTH = 1_000_000, 40
"""Step limit of a path in a document, and characters shown of a value of a condition."""


class PathHints:
    """Says what documents have instead of a path, or of values for which a condition holds."""

    def __init__(self, builder: PatternBuilder, trees: Sequence[ParsedDocument]) -> None:
        self._builder, self._trees = builder, trees

    def of(self, above: tuple[exp.Step, ...], condition: exp.Expr | None) -> str:
        """A hint for a condition on the node at the end of a path; for None, for the last step of the path."""
        if condition is None:
            return self._name(above)
        found = _operands(condition)
        for part in ((*above, *path.steps[:end]) for path, _ in found for end in range(1, len(path.steps) + 1)):
            with suppress(TooLong):
                if not any(True for tree in self._trees for _ in self._nodes(part, tree)):
                    return self._name(part)
        path, functions = found[0] if found else (exp.Rel(), ())
        return self._values((*above, *path.steps), functions)

    def _nodes(self, path: tuple[exp.Step, ...], tree: ParsedDocument) -> Iterator[Node]:
        """The nodes at the end of a path. Raises TooLong."""
        *steps, last = path
        pattern = self._builder.path((*steps, exp.Step(last.axis, last.test, last.filters)), last_var="end")
        take = StepBudget(maxsize, MAX_SAMPLE_STEPS).take_here
        for ((_, node),) in each_binding(PreparedNode(algebra.naming(pattern, ("end",))), tree, {}, take):
            yield node

    def _name(self, path: tuple[exp.Step, ...]) -> str:
        *above, last = path
        wanted, sign = last.test.local, "@" if last.test.kind == "attribute" else ""
        own, other, deeper = Counter[str](), Counter[str](), Counter[str]()
        for tree in self._trees:
            with suppress(TooLong):
                numbers = [number for number, place in self._nodes(tuple(above), tree) if not place] if above else None
                elements, attributes = _names_below(tree, numbers, deep=last.axis == "//")
                wanted_kind, other_kind = (attributes, elements) if sign else (elements, attributes)
                own.update(wanted_kind[0])
                deeper.update(wanted_kind[1])
                other.update(other_kind[0])
        for name in own:
            uri, local = split_name(name)
            if local == wanted and uri and last.test.prefix is None:
                return f"it is in the namespace {printable_line(uri)}: write {sign}*:{wanted} ({_in(own[name])})"
        local_names = Counter[str]()
        for name, count in own.items():
            local_names[split_name(name)[1]] += count
        if other[wanted]:
            mark = "" if sign else "@"
            return f"it is {'an element' if sign else 'an attribute'}: write {mark}{wanted} ({_in(other[wanted])})"
        if wanted not in own and deeper[wanted]:
            return f"it is deeper: write //{sign}{wanted} ({_in(deeper[wanted])})"
        folded = [name for name in local_names if name.lower() == wanted.lower()]
        for close in folded or get_close_matches(wanted, local_names, n=1):
            return f"did you mean {sign}{close} ({_in(local_names[close])})?"
        if not local_names:
            return f"there are no {'attributes' if sign else 'elements'} in it"
        listed = ", ".join(f"{sign}{name}" for name, _ in local_names.most_common(8))
        return f"there are {listed}{' and others' if len(local_names) > 8 else ''}"

    def _values(self, path: tuple[exp.Step, ...], functions: tuple[str, ...]) -> str:
        values = Counter[str]()
        for tree in self._trees:
            with suppress(TooLong):
                texts = dict.fromkeys(tree.string_value(*node) for node in self._nodes(path, tree))
                values.update(list(dict.fromkeys(apply_functions(text, functions) for text in texts)))
        if not values:
            return ""
        most = [(cut(printable_text(value), SAMPLE_WIDTH), count) for value, count in values.most_common(3)]
        shown = ", ".join(f'"{value}" ({_in(count)})' for value, count in most)
        return f"the values are {shown}{' and others' if len(values) > 3 else ''}"


def _names_below(tree: ParsedDocument, numbers: Sequence[int] | None, *, deep: bool) -> tuple[list[list[str]], ...]:
    """Returns names of elements and attributes: in some elements (None: the document), and all below, in order."""
    below: Sequence[int] = range(len(tree.elements))
    children, owners = below[:1], below[:0]
    if numbers is not None:
        below = sorted({n for number in numbers for n in range(number + 1, tree.end[number])})
        parents = set(numbers)
        children, owners = [n for n in below if tree.parent[n] in parents], numbers
    if deep:
        children, owners = below, sorted({*(numbers or ()), *below})
    elements = [[str(tree.elements[n].tag) for n in some] for some in (children, below)]
    attributes = [[str(name) for n in some for name in tree.elements[n].attrib] for some in (owners, below)]
    return tuple([list(dict.fromkeys(names)) for names in found] for found in (elements, attributes))


def _operands(expr: exp.Expr, functions: tuple[str, ...] = ()) -> list[tuple[exp.Rel, tuple[str, ...]]]:
    """The paths in a condition, in text order, each with the functions around it, the innermost first."""
    match expr:
        case exp.Rel():
            return [(expr, functions)]
        case exp.Call(args=(arg, *_)) if name := exp.derivation(expr):
            return _operands(arg, (name, *functions))
    return [found for operand in exp.operands_of(expr) for found in _operands(operand)]


def _in(count: int) -> str:
    return f"in {count:,}"


# ---------------------------------------------------------------- values of two sides

DocumentsByText = dict[str, list[Sequence[int]]]
"""Maps a text to at most two rows of documents that have it, by their docids."""

TRIED = (("lower-case",), ("normalize-space",), ("normalize-space", "lower-case"), ("canonical-url",))
"""Functions that might equate values with the same meaning, the innermost first."""

MOST_NEAR, MOST_COMPARED, LONGEST_COMPARED = 3, 1_000, 200
"""Limits for near misses: values reported, values compared, and characters per value."""


def note(values: DocumentsByText, text: str, documents: Sequence[Sequence[int]]) -> None:
    """Adds documents to a value; two at most."""
    known = values.setdefault(text, [])
    known += [one for one in documents if one not in known][: 2 - len(known)]


def shared(left: DocumentsByText, right: DocumentsByText) -> int:
    """How many values two different documents share."""
    return sum(1 for text, ones in left.items() if any(one != other for one in ones for other in right.get(text, ())))


def mended(left: DocumentsByText, right: DocumentsByText) -> tuple[str, ...]:
    """Returns the functions, the innermost first, that would equate values of both sides; () if none."""
    return next((one for one in TRIED if shared(_derived(left, one), _derived(right, one))), ())


def _derived(values: DocumentsByText, functions: tuple[str, ...]) -> DocumentsByText:
    found: DocumentsByText = {}
    for text, documents in values.items():
        if derived := apply_functions(text, functions):
            note(found, derived, documents)
    return found


def near_values(left: DocumentsByText, right: DocumentsByText, functions: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yields nearly equal values of both sides: equal after `functions`, or without these by their letters."""
    if functions:
        by_value = gathered((apply_functions(text, functions), text) for text in right)
        for text in left:
            yield from ((text, other) for other in by_value.get(apply_functions(text, functions), ()) if other != text)
        return
    few, many = sorted((left, right), key=len)
    among = [text for text in islice(many, MOST_COMPARED) if len(text) <= LONGEST_COMPARED]
    for text in islice(few, MOST_NEAR):
        if len(text) <= LONGEST_COMPARED:
            for close in get_close_matches(text, among, MOST_NEAR + 1):
                if close != text:  # a text of the same document
                    yield (text, close) if few is left else (close, text)


# ---------------------------------------------------------------- words of two texts

FEWEST, MOST_TEXT_PAIRS, MOST_TEXTS = 3, 2_000, 1_000
"""Texts with fewer words are never near. Maximum number of text pairs compared, and of texts read per side."""

MOST_WORDS_SHOWN = 5  # maximum number of words shown that two texts share, the heaviest ones


def _nearest(texts: Iterable[Sequence[str]], name: str = "near") -> tuple[Fraction, Sequence[str]]:
    """The largest share of common words of two texts, for similar() by weight, and these texts. `texts` may not be
    empty."""
    part = part_in_common(name)
    return max(((part(*pair), pair) for pair in texts), key=lambda one: one[0])


def part_in_common(name: str) -> Callable[[str, str], Fraction]:
    """Returns a function that gives J of two texts, for similar() by weight, and keeps what it found of each text."""
    weight = chosen_weights().weight if name == "similar" else lambda word: 1
    known = lru_cache(maxsize=None)(lambda text: (found := words_again(text), sum(map(weight, found))))

    def part(text: str, other: str) -> Fraction:
        (ours, mine), (theirs, its) = known(text), known(other)
        common = sum(map(weight, ours & theirs))
        return Fraction(common, mine + its - common) if common else Fraction(0)

    return part


def _in_common(pair: Sequence[str]) -> str:
    common, union = overlap(*pair)
    one, other = map(truncate_value, pair)
    return f'"{one}" and "{other}" have {common} of {union} words in common'


def _weight_in_common(pair: Sequence[str]) -> str:
    weight = chosen_weights().weight
    ours, theirs = map(words_again, pair)
    heaviest = sorted(ours & theirs, key=lambda word: (-weight(word), word))[:MOST_WORDS_SHOWN]
    one, other = map(truncate_value, pair)
    return f'"{one}" and "{other}" share {", ".join(heaviest) or "no words"}'


def nearness(name: str, texts: Iterable[tuple[str, str]]) -> str:
    """Describes how near texts are of which no two are near, or similar: those that are nearest."""
    part, pair = _nearest(texts, name)
    if name == "near":
        return f"{_in_common(pair)}, which is {float(part):.2f}"
    return f"{_weight_in_common(pair)}: {float(part):.2f} of the weight of their words"


def keys_of(text: str, level: str) -> list[str]:
    return first_keys(words) if (words := encode_words(text, level)) else []


def near_instead(left: Iterable[str], right: Iterable[str], one: str, other: str) -> tuple[str, str] | None:
    """Returns message and hint if no texts of two sides are equal, but some near. `one` and `other` are operands."""
    least = word_level("near", str(float(LEAST)))
    having = gathered((key, text) for text in islice(right, MOST_TEXTS) for key in _keys(text, least))
    pairs = (
        (text, close)
        for text in islice(left, MOST_TEXTS)
        for close in dict.fromkeys(close for key in _keys(text, least) for close in having.get(key, ()))
        if text != close
    )
    part, pair = _nearest(islice(chain([("", "")], pairs), MOST_TEXT_PAIRS))
    if part < LEAST:
        return None
    tenths = part * 10 // 1
    threshold = f"{tenths // 10}.{tenths % 10}"
    return _in_common(pair), f"use near({one}, {other}, {threshold}) to find texts that differ in a word"


def _keys(text: str, threshold: str) -> list[str]:
    return keys_of(text, threshold) if len(text.split(maxsplit=FEWEST)) >= FEWEST else []  # no address, no name
