"""Shared terms of explanations. Evaluates a query's paths and functions over a sample of documents, has the stages of a
funnel and the operands and conditions of reasons, and renders normal forms (terms, windows, definitions, templates,
absences) as text. Also finds the nearest texts of two sides by the share of common words."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from itertools import chain, islice, pairwise
from typing import Literal, TypeVar

from common.bounds import INFINITE
from feeds.documents import Document, Reject, iso_utc
from mmqjp.answers.absence_partners import over_at
from mmqjp.process import printable_line
from mmqjp.queries.model import Owner, Target
from templates.graph import Shape
from xpath_stage.binder import Node, PreparedNode, Take, each_binding
from xpath_stage.documents import DocumentError, ParsedDocument, parse_document
from xscl.algebra.joins import Absent, Conjunct, JoinOp, NormalQuery, Side, Term, variables_of
from xscl.algebra.trees import PatternNode
from xscl.algebra.values import Call, Compare, Expr, Span, VarPath, derive, many_valued, map_operands
from xscl.algebra.words import LEAST, encode_words, first_keys, join_threshold, overlap
from xscl.check_expressions import blocks
from xscl.lower import PatternBuilder, expression, normalize_readably
from xscl.parser import located_queries, parse_script
from xscl.printer import to_xscl
from xscl.syntax import Block, Query, Window

T = TypeVar("T")

StageKind = Literal[
    "stream", "pattern", "asked", "equality", "together", "different", "order", "window", "residual", "mirror",
    "event", "late", "unseen", "filtered", "condition", "consumed", "ended", "group",
    "equal", "strategy", "absent", "letters", "maximal", "run", "alone", "decided",
]  # fmt: skip
"""The requirement of a stage. Queries: documents of a stream; a name or condition of a block; what predicates and
SELECT need of it; an equality; all equalities of a join in one binding; another document on the other side; order;
window; other join conditions; and that an output is not mirrored (JOIN UNORDERED).

Event queries: an event exists, was not late, and came after registration; conditions of FILTER, NEXT and FOLD; no
earlier right event was taken by NEXT; a run of FOLD continues; events are in one group of AGGREGATE. PATTERN: bracketed
values are equal; no event blocks the strategy; no negated event occurs; the letters missing are within the limit; no
match is better (EARLIEST MAXIMAL); "run" counts the first events of matches that get this far.

Absences: there is no partner, and the watermark rules out later ones.
"""

_Unit = Literal["documents", "values", "pairs", "events"]


@dataclass(frozen=True, slots=True)
class FunnelStage:
    """A stage. `part` is its part of the query. `found` counts what passes: documents, values shared by both sides of
    an equality, or pairs of inputs; with `at_least`, it is a lower bound. `left` and `right` are an equality's distinct
    values. `block` numbers blocks from 1; 0 is a join.

    If nothing passes, `message` says what there is instead, and `hint` what may be meant.
    """

    kind: StageKind
    part: str
    found: int
    unit: _Unit = "documents"
    block: int = 0
    left: int = 0
    right: int = 0
    at_least: bool = False
    message: str = ""
    hint: str = ""

    def told(self, message: str, hint: str = "") -> FunnelStage:
        return replace(self, message=message, hint=hint)


_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Delimiters of a variable's number in a text: noncharacters, which no query contains."""

_NUMBERED = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


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
        value = self.text
        for name in self.functions:
            value = derive(name, value)
        return value


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


MAX_NAMES = 10
"""Maximum length of a list of names."""


def term_text(term: Term) -> str:
    return wrap_in_functions(term.functions, term.var)


def wrap_in_functions(functions: tuple[str, ...], text: str) -> str:
    for function in functions:
        name, _, literal = function.partition(" ")
        text = f"{name}({text}, {literal})" if literal else f"{name}({text})"
    return text


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


def names_of_others(targets: Iterable[Target], own: Collection[Owner]) -> str:
    """Returns the names of the owners of targets, except those in `own`, cut short; "" for none."""
    names: dict[str, None] = {}
    for target in targets:
        if target.owner in own:
            continue
        names[target.owner.label] = None
        if len(names) > MAX_NAMES:
            return ", ".join([*list(names)[:MAX_NAMES], "and more"])
    return ", ".join(names)


def leaf_sides(conjunct: Conjunct) -> Iterator[Side]:
    for side in conjunct.sides():
        if side.hidden is None:
            yield side
        else:
            yield from leaf_sides(side.hidden.conjuncts[0])


def blocks_of(side: Side) -> int:
    """Returns the number of a side's blocks."""
    return 1 if side.hidden is None else sum(1 for _ in leaf_sides(side.hidden.conjuncts[0]))


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
    """Describes an absence that held. `operands` are the variables of its left input, `times` the interval of its
    documents."""
    parts: list[str | Operand] = ["nothing"]
    for number, one in enumerate(absent):
        names: dict[str, str | Operand] = {**_names(one), **operands}
        for place, expr in enumerate(_conditions(one)):
            parts.append(" and " if place else " or" if number else "")
            parts.append("" if place else " with ")
            parts += in_parts(expr, {var: names.get(var, var) for var in variables_of(expr)})
    t0, t1 = times
    within = "" if window is None else f" within {format_window(window)}"
    match op:
        case "NOT FOLLOWED BY":
            parts.append(f" followed{within}{_until(over_at(op, window or 0, t0, t1))}")
        case "NOT PRECEDED BY":
            parts.append(f" preceded it{within}")
        case _:
            parts.append(f" came{within}{_until(over_at(op, window or 0, t0, t1))}")
    return ShownCondition(_merged(parts))


def _until(time: int) -> str:
    """In words, unless the time is after the year 9999."""
    with suppress(OverflowError):
        return f", until {iso_utc(time)}"
    return ""


def _conditions(absent: Absent) -> list[Expr]:
    pairs = [pair for pair in absent.joins if many_valued(pair[0].functions) is None]
    return [*(Compare("=", expression(right), expression(left)) for left, right in pairs), *absent.residual]


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


def _merged(parts: Sequence[str | Operand]) -> tuple[str | Operand, ...]:
    found: list[str | Operand] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return tuple(found)


FEWEST = 3
"""Texts with fewer words, separated by blanks, are never near."""

VALUE_WIDTH = 60
"""Characters shown of a value."""

MOST_COMPARED, MOST_TEXTS = 2_000, 1_000
"""Maximum number of text pairs compared, and of texts read per side."""


def nearest_texts(texts: Iterable[tuple[str, str]]) -> tuple[Fraction, tuple[str, str]]:
    """Returns the largest share of common words of two texts, and these texts. `texts` may not be empty."""
    found = ((Fraction(*overlap(*pair)) if any(overlap(*pair)) else Fraction(0), pair) for pair in texts)
    return max(islice(found, MOST_COMPARED), key=lambda one: one[0])


def nearness(expr: Expr, texts: Sequence[Callable[[Expr], str]]) -> str | None:
    """Describes a near() that holds for no binding; None for another condition. Each of `texts` maps an operand to its
    text in one binding."""
    match expr:
        case Call(name="near", args=(one, other, _)):
            part, pair = nearest_texts((text_of(one), text_of(other)) for text_of in texts)
            common, union = overlap(*pair)
            shown = " and ".join(f'"{truncate_value(text)}"' for text in pair)
            return f"{shown} have {common} of {union} words in common, which is {float(part):.2f}"
    return None


def near_instead(left: Iterable[str], right: Iterable[str], one: str, other: str) -> tuple[str, str] | None:
    """Returns message and hint if no texts of two sides are equal but some are near. `one` and `other` are the
    operands."""
    found = nearest_of(left, right)
    if found is None:
        return None
    pair, threshold = found
    shown = " and ".join(f'"{truncate_value(text)}"' for text in pair)
    hint = f"use near({one}, {other}, {threshold}) to find texts that differ in a word"
    common, union = overlap(*pair)
    return f"{shown} have {common} of {union} words in common", hint


def nearest_of(left: Iterable[str], right: Iterable[str]) -> tuple[tuple[str, str], str] | None:
    """Returns the nearest texts of two sides, and the near() threshold in tenths that finds them; None if none does.
    Reads at most MOST_TEXTS per side."""
    least = join_threshold(str(float(LEAST)))
    having: dict[str, list[str]] = {}
    for text in islice(right, MOST_TEXTS):
        for key in _keys(text, least):
            having.setdefault(key, []).append(text)
    pairs = (
        (text, other)
        for text in islice(left, MOST_TEXTS)
        for other in dict.fromkeys(other for key in _keys(text, least) for other in having.get(key, ()))
        if text != other
    )
    part, pair = nearest_texts(chain([("", "")], pairs))
    tenths = part * 10 // 1
    return None if part < LEAST else (pair, f"{tenths // 10}.{tenths % 10}")


def _keys(text: str, threshold: str) -> list[str]:
    words = encode_words(text, threshold) if len(text.split(maxsplit=FEWEST)) >= FEWEST else ""  # no address, no name
    return first_keys(words) if words else []


def truncate_value(text: str) -> str:
    line = printable_line(text)
    return line if len(line) <= VALUE_WIDTH else line[: VALUE_WIDTH - 1] + "…"


@dataclass(frozen=True)
class ReadableQuery:
    """A query as explanations evaluate it. `paths` maps variables that stand for ends of paths to the paths."""

    text: str
    query: Query
    normal: NormalQuery
    paths: Mapping[str, VarPath]
    builder: PatternBuilder

    @staticmethod
    def of(text: str) -> ReadableQuery:
        """Parses a text that was checked at registration."""
        script = parse_script(text, stored=True)
        namespaces = dict(script.namespaces)
        normal, paths = normalize_readably(script.queries[0], namespaces)
        (query,) = located_queries(text, (0,), stored=True)
        return ReadableQuery(text, query, normal, paths, PatternBuilder(namespaces))

    @cached_property
    def blocks(self) -> list[Block]:
        return blocks(self.query.source)

    def part(self, span: Span) -> str:
        return self.text[span.start : span.end]

    def variable(self, var: str) -> str:
        return to_xscl(self.paths[var]) if var in self.paths else var

    def term(self, term: Term) -> str:
        return wrap_in_functions(term.functions, self.variable(term.var))

    def expression(self, expr: Expr) -> str:
        return to_xscl(self._spelled(expr))

    def _spelled(self, expr: Expr) -> Expr:
        return self.paths.get(expr.var, expr) if isinstance(expr, VarPath) else map_operands(expr, self._spelled)


MOST_BYTES = 32 << 20
"""Size of all documents of a sample, in bytes. Their trees take many times as much memory."""

CHARACTERS_PER_STEP = 256
"""Reading this many characters of a node's text costs one step."""

MAX_SAMPLE_STEPS = 1_000_000
"""Step limit of a pattern in a document."""


class TooLong(Exception):
    """A pattern takes too long in a document."""


@dataclass
class Sample:
    """External documents, deduplicated, with their trees, by stream. `refused` counts unreadable ones."""

    documents: list[Document] = field(default_factory=list)
    trees: dict[str, list[ParsedDocument]] = field(default_factory=dict)
    refused: int = 0

    def of(self, stream: str) -> list[ParsedDocument]:
        return self.trees.get(stream, [])

    def with_published(self, published: Mapping[str, Iterable[str]]) -> Sample:
        """Adds the documents that queries PUBLISHed on streams."""
        trees = {stream: list(found) for stream, found in self.trees.items()}
        for stream, texts in published.items():
            made = [parse_document(text.encode(), trusted=True) for text in texts]
            trees.setdefault(stream, []).extend(made)
        return Sample(self.documents, trees, self.refused)


def sample_of(items: Iterable[Document | Reject], most: int) -> Sample:
    """Returns the first `most` readable documents."""
    sample, met, size = Sample(), set[tuple[str, str]](), 0
    for item in items:
        if isinstance(item, Reject):
            sample.refused += 1
            continue
        if (item.stream, item.id) in met:
            continue
        met.add((item.stream, item.id))
        xml = item.xml_bytes()
        try:
            tree = parse_document(xml)
        except DocumentError:
            sample.refused += 1
            continue
        sample.documents.append(item)
        sample.trees.setdefault(item.stream, []).append(tree)
        size += len(xml)
        if len(sample.documents) == most or size > MOST_BYTES:
            break
    return sample


def in_turns(sources: Iterable[Iterable[T]]) -> Iterator[T]:
    """Yields items of the sources round-robin, until all are empty: a sample then has some of each."""
    left = [iter(source) for source in sources]
    while left:
        going = []
        for source in left:
            for item in islice(source, 1):
                yield item
                going.append(source)
        left = going


def has_match(part: PreparedNode, tree: ParsedDocument, take: Take | None = None) -> bool:
    """Whether a pattern that binds nothing matches. Raises TooLong unless `take` counts the steps."""
    return any(True for _ in each_binding(part, tree, {}, take or _counter()))


def variable_texts(pattern: PatternNode, tree: ParsedDocument) -> Iterator[str]:
    """Yields the string values of a pattern's only variable over all its matches. Raises TooLong."""
    for ((_, node),) in each_binding(PreparedNode(pattern), tree, {}, _counter()):
        yield tree.string_value(*node)


def apply_functions(text: str, functions: Sequence[str]) -> str:
    for name in functions:
        text = derive(name, text)
    return text


def elements(pattern: PatternNode, tree: ParsedDocument) -> Iterator[int]:
    """Yields the numbers of the elements that a pattern's only variable is bound to. Raises TooLong."""
    for ((_, (number, attribute)),) in each_binding(PreparedNode(pattern), tree, {}, _counter()):
        if not attribute:
            yield number


def _counter() -> Callable[[int], None]:
    left = MAX_SAMPLE_STEPS

    def take(steps: int) -> None:
        nonlocal left
        left -= steps
        if left < 0:
            raise TooLong

    return take
