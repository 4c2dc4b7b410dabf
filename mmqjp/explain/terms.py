"""Terms of explanations: queries with their spans and the stages of their blocks, operands and conditions of reasons,
step budgets, and normal forms (terms, definitions, templates, absences) as text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, groupby
from typing import TypeVar

from common.dates import iso_utc
from mmqjp.explain.shown import Operand, ShownCondition, duration_text, format_window
from mmqjp.process import printable_line, printable_text
from mmqjp.queries.model import Owner, Target
from templates.graph import Shape
from xpath_stage.binder import Node
from xpath_stage.documents import ParsedDocument
from xscl.algebra.joins import Absent, Conjunct, JoinOp, NormalQuery, Side, Term, over_at, variables_of
from xscl.algebra.trees import PatternNode
from xscl.algebra.values import Compare, Expr, Rel, Span, Step, VarPath, many_valued, map_operands, number_text
from xscl.check_expressions import blocks
from xscl.lower import PatternBuilder, and_arms, expression, normalize_readably
from xscl.parser import located_queries, parse_script
from xscl.printer import to_xscl
from xscl.syntax import Block, Query

T = TypeVar("T")

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Delimiters of a variable's number in a text: noncharacters, which no query contains."""

_NUMBERED = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


def operand_of(
    tree: ParsedDocument, node: Node, functions: tuple[str, ...], place: int, text: str | None = None
) -> Operand:
    """Returns a node of a document as an operand. `place` is the document's index in the output (-1: none), `text` the
    node's text if known."""
    element, attribute = node
    name, id = _local(str(tree.elements[element].tag)), f"{element}"
    if attribute:
        full = tree.attribute(element, attribute)[0]
        name, id = f"{name}/@{_local(full)}", f"{element}/@{full}"
    value = tree.string_value(*node) if text is None else text
    return Operand(name, value, functions, None if place < 0 else place, id if attribute else element)


def in_parts(expr: Expr, operands: Mapping[str, Operand | str]) -> tuple[str | Operand, ...]:
    variables = list(dict.fromkeys(variables_of(expr)))

    def numbered(expr: Expr) -> Expr:
        if isinstance(expr, VarPath):
            return VarPath(placeholder(variables.index(expr.var)))
        return map_operands(expr, numbered)

    return with_placeholders(to_xscl(numbered(expr)), [operands[var] for var in variables])


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


def term_text(term: Term) -> str:
    return wrap_in_functions(term.functions, term.var)


def wrap_in_functions(functions: tuple[str, ...], text: str) -> str:
    for function in functions:
        name, _, literal = function.partition(" ")
        text = f"{name}({text}, {literal})" if literal else f"{name}({text})"
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


def leaf_sides(conjunct: Conjunct) -> Iterator[Side]:
    for side in conjunct.sides():
        if side.hidden is None:
            yield side
        else:
            yield from leaf_sides(side.hidden.conjuncts[0])


def blocks_of(side: Side) -> int:
    """Returns the number of a side's blocks, with those of what must be absent."""
    if side.hidden is None:
        return 1
    sides = *side.hidden.conjuncts[0].sides(), *(absent.right for absent in side.hidden.absent[:1])
    return sum(map(blocks_of, sides))


def definition_path(definition: tuple[PatternNode, ...]) -> str:
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
    children: dict[int | None, list[int]] = {}
    for node, parent in enumerate(shape.parents):
        children.setdefault(parent, []).append(node)

    def text(node: int) -> str:
        below = ", ".join(map(text, children.get(node, [])))
        return f"var{node + 1}({below})" if below else f"var{node + 1}"

    joins = ", ".join(f"var{left + 1} = var{right + 1}" for left, right in shape.joins)
    return "; ".join([*map(text, children[None]), *([joins] if joins else [])])


def lacking(
    op: JoinOp, window: int | None, absent: Sequence[Absent], operands: Mapping[str, Operand], times: tuple[int, int]
) -> ShownCondition:
    """Describes an absence that held: `operands` of its left input, and in `times` the interval of its documents."""
    parts: list[str | Operand] = ["nothing"]
    for number, one in enumerate(absent):
        names: dict[str, str | Operand] = {**_names(one), **operands}
        pairs = [pair for pair in one.joins if many_valued(pair[0].functions) is None]
        equal = [Compare("=", expression(right), expression(left)) for left, right in pairs]
        for place, expr in enumerate((*equal, *one.residual)):
            parts.append(" and " if place else " or" if number else "")
            parts.append("" if place else " with ")
            parts += in_parts(expr, {var: names.get(var, var) for var in variables_of(expr)})
    words = {"NOT FOLLOWED BY": " followed", "NOT PRECEDED BY": " preceded it"}
    parts.append(words.get(op, " came") + ("" if window is None else f" within {format_window(window)}"))
    with suppress(OverflowError):  # a time after the year 9999
        until = iso_utc(over_at(op, window or 0, *times))
        parts.append("" if op == "NOT PRECEDED BY" else f", until {until}")
    runs = groupby(parts, lambda part: isinstance(part, str))
    merged: Iterator[Iterable[str | Operand]] = (["".join(map(str, run))] if is_text else run for is_text, run in runs)
    return ShownCondition(tuple(chain.from_iterable(merged)))


def _names(absent: Absent) -> dict[str, str]:
    found: dict[str, str] = {}
    for branch in absent.branches:
        path = branch.var
        for node in branch.path.walk():
            path += f"/{node.test.local}"
            found |= {} if node.var is None else {node.var: path}
    if absent.right.hidden is None:
        found |= {node.var: node.test.local for node in absent.right.pattern.walk() if node.var is not None}
    return found


VALUE_WIDTH = PART_WIDTH = 60
"""Characters shown of a value, and of a part of a query."""

_LINE_BREAK = re.compile(r"[ \t\r]*\n\s*")


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def truncate_value(text: str) -> str:
    return cut(printable_line(text), VALUE_WIDTH)


@dataclass(frozen=True, slots=True)
class BlockStage:
    """A prefix of a block, as a path whose `steps` bind nothing; it implies those before it. `span` is that of its last
    requirement: the name of the last step of the path `above`, or a `condition` on the node at its end."""

    steps: tuple[Step, ...]
    span: Span
    above: tuple[Step, ...]
    condition: Expr | None = None


def _stages(steps: tuple[Step, ...]) -> Iterator[BlockStage]:
    done: tuple[Step, ...] = ()
    for step in steps:
        bare = replace(step, filters=(), var=None)
        yield BlockStage((*done, bare), Span(step.span.start, step.test.span.end), (*done, bare))
        kept: tuple[Expr, ...] = ()
        for arm in (arm for condition in step.filters for arm in and_arms(condition)):
            here, found = (*done, replace(bare, filters=kept)), kept
            for path in _needed(arm):
                unbound: tuple[Step, ...] = ()
                for stage in _stages(path.steps):
                    unbound = stage.steps
                    filters = (*found, Rel(unbound))
                    yield replace(stage, steps=(*done, replace(bare, filters=filters)), above=(*here, *stage.above))
                found = (*found, Rel(unbound))
            if isinstance(arm, Rel):
                kept = found
            else:
                kept = (*kept, arm)
                yield BlockStage((*done, replace(bare, filters=kept)), arm.span, here, arm)
        done = (*done, replace(bare, filters=kept))


def _needed(arm: Expr) -> Iterator[Rel]:
    """The paths that must match for an arm to hold: comparing with a path without matches is false."""
    match arm:
        case Rel():
            yield arm
        case Compare():
            yield from (side for side in (arm.left, arm.right) if isinstance(side, Rel))


@dataclass(frozen=True)
class ReadableQuery:
    """A query as explanations evaluate it. `query` has its spans in `text`, which may have others. `paths` maps
    variables that stand for ends of paths to the paths."""

    text: str
    query: Query
    normal: NormalQuery
    paths: Mapping[str, VarPath]
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
        sides = self.normal.conjuncts[0].sides()
        return sum(map(blocks_of, sides))

    @cached_property
    def stages(self) -> list[list[BlockStage]]:
        return [list(_stages(block.steps)) for block in self.blocks]

    @cached_property
    def conditions(self) -> dict[str, Expr]:
        """The conditions of its blocks by their XPath text."""
        found = (stage.condition for stages in self.stages for stage in stages)
        return {str(self.builder.condition(one).xpath): one for one in found if one is not None}

    def part(self, span: Span) -> str:
        """Returns a part of the text in one line, cut short."""
        start = span.start
        if self.text[start : start + 1] == "/" and self.text[max(start - 1, 0) : start] == ".":
            start -= 1  # a step says no more than its axis and name
        return cut(printable_text(_LINE_BREAK.sub(" ", self.text[start : span.end])), PART_WIDTH)

    def variable(self, var: str) -> str:
        return to_xscl(self.paths[var]) if var in self.paths else var

    def term(self, term: Term) -> str:
        return wrap_in_functions(term.functions, self.variable(term.var))

    def expression(self, expr: Expr) -> str:
        return to_xscl(self._spelled(expr))

    def _spelled(self, expr: Expr) -> Expr:
        return self.paths.get(expr.var, expr) if isinstance(expr, VarPath) else map_operands(expr, self._spelled)


CHARACTERS_PER_STEP = 256
"""Reading this many characters of a node's text costs one step."""


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


Plain = str | float | None
"""An attribute's value: a text, a number, or None for NULL."""


SECOND = 1_000_000


def as_text(value: Plain) -> str | None:
    return number_text(value) if isinstance(value, float) else value


def display_value(value: Plain, *, is_time: bool = False) -> str:
    if isinstance(value, str):
        return f'"{truncate_value(value)}"'
    if is_time and value is not None:
        return duration_text(round(value * SECOND))
    return as_text(value) or "NULL"
