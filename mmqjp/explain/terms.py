"""Formats pieces of normal forms for people: terms, windows, streams, definitions of variables.

A stage of a query: one thing that it asks of documents, and how much of what was looked at gets past it.

What an absence says of its left input: what no document had, and until when.

Says how near texts are: which part of the words of both is in common.

Operands and conditions as reasons have them: the nodes that took part, with their texts, and where they stand.

A query as explanations evaluate it: its syntax with places, its normal form with its own names, and both as text.

Some documents of each stream, to try patterns on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, islice
from typing import Any, Literal, TypeVar

from feeds.documents import Document, Reject, iso_utc
from mmqjp.answers.absence_partners import over_at
from mmqjp.process import printable_line
from mmqjp.queries.model import Owner, Target
from templates.catalog import INFINITE
from templates.graph import Shape
from xpath_stage.binder import Node, PreparedNode, Take, each_binding
from xpath_stage.documents import DocumentError, ParsedDocument, parse_document
from xscl.algebra.joins import Absent, Conjunct, JoinOp, NormalQuery, Side, Term, variables_of
from xscl.algebra.trees import PatternNode
from xscl.algebra.values import And, Call, Compare, Expr, Not, Or, Span, VarPath, derive, many_valued
from xscl.algebra.words import LEAST, encode_words, first_keys, join_threshold, overlap
from xscl.check_expressions import blocks
from xscl.lower import PatternBuilder, expression, normalize_readably
from xscl.parser import located_queries, parse_script
from xscl.printer import to_xscl
from xscl.syntax import Block, Query, Window

StageKind = Literal[
    "stream", "pattern", "asked", "equality", "together", "different", "order", "window", "residual", "mirror",
    "event", "late", "unseen", "filtered", "condition", "consumed", "ended", "group",
    "equal", "strategy", "absent", "letters", "maximal", "run", "alone", "decided",
]  # fmt: skip
"""What is asked: documents of a stream; a name or condition of a block, and what predicates and SELECT ask of it; an
equality, all of a join in one binding, another document on the other side, their order, how far apart they may be,
other conditions of a join; and that it is not told the other way round (JOIN UNORDERED).

Of event queries: that there is an event, that it was not too late, and came while the query was there; the conditions
of FILTER, and of NEXT and FOLD; that no earlier right event was taken by NEXT, that a run of FOLD goes on, and that
events are in one group of AGGREGATE. Of PATTERN: that events are equal in what stands in brackets, that none comes
that its strategy does not pass over, that none comes that must not, that not too many letters are missing, and that no
match is better (EARLIEST MAXIMAL); "run" counts the events at which a match begins that gets so far.

Of absences, that there is no partner, and that the watermark says that none comes."""

_Unit = Literal["documents", "values", "pairs", "events"]


@dataclass(frozen=True, slots=True)
class FunnelStage:
    """A stage. `part` is the part of the query that asks. `found` counts what gets past it: documents, values that both
    sides of an equality have, or pairs of inputs; with `at_least`, there may be more. Of an equality, `left` and
    `right` are the distinct values of the sides. `block` numbers blocks from 1; it is 0 for stages of joins.

    If nothing gets past it, `message` says what there is instead, and `hint` what might be meant.
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
        """Returns the stage with what there is instead."""
        return replace(self, message=message, hint=hint)

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> FunnelStage:
        """Returns the stage of such an object."""
        return FunnelStage(**found)


_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Around the number of a variable in a text. They are no characters, so no query has them."""

_NUMBERED = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


@dataclass(frozen=True, slots=True)
class Operand:
    """A node that took part: the name of its element, or of an attribute like "link/@href", its text, and the functions
    applied to the text, the innermost first. `document` is the place of its document in the output's `documents`; None
    for a node of another query's output. `node` is its id, as output lines have it."""

    name: str
    text: str
    functions: tuple[str, ...] = ()
    document: int | None = None
    node: int | str | None = field(default=None, compare=False)

    @property
    def value(self) -> str:
        """The text with the functions applied."""
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
    """Another condition on the documents that held: its text in parts, with the nodes where the query has variables."""

    parts: tuple[str | Operand, ...]

    @property
    def text(self) -> str:
        """The condition, in which nodes stand by their names."""
        return "".join(part if isinstance(part, str) else part.name for part in self.parts)


def operand_of(
    tree: ParsedDocument, node: Node, functions: tuple[str, ...], place: int, text: str | None = None
) -> Operand:
    """Returns a node of a document as an operand. `place` is that of the document in the output's; -1 if it has none.
    `text` is its text, if that is known."""
    element, attribute = node
    name, id = _local(str(tree.elements[element].tag)), f"{element}"
    if attribute:
        full = tree.attribute(element, attribute)[0]
        name, id = f"{name}/@{_local(full)}", f"{element}/@{full}"
    value = tree.string_value(*node) if text is None else text
    return Operand(name, value, functions, None if place < 0 else place, id if attribute else element)


def in_parts(expr: Expr, operands: Mapping[str, Operand | str]) -> tuple[str | Operand, ...]:
    """Returns a condition as text in parts, with operands, or the names of nodes, where it has variables."""
    variables = list(dict.fromkeys(variables_of(expr)))
    text = to_xscl(_with_numbers(expr, variables))
    parts: list[str | Operand] = []
    for place, part in enumerate(_NUMBERED.split(text)):
        if place % 2:
            parts.append(operands[variables[int(part)]])
        elif part:
            parts.append(part)
    return tuple(parts)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _with_numbers(expr: Expr, variables: list[str]) -> Expr:
    """A condition in which the numbers of variables stand for them."""
    match expr:
        case VarPath(var=var):
            return VarPath(f"{_OPEN}{variables.index(var)}{_CLOSE}")
        case Call(name=name, args=args):
            return Call(name, tuple(_with_numbers(arg, variables) for arg in args))
        case Compare(op=op, left=left, right=right):
            return Compare(op, _with_numbers(left, variables), _with_numbers(right, variables))
        case And(args=args):
            return And(tuple(_with_numbers(arg, variables) for arg in args))
        case Or(args=args):
            return Or(tuple(_with_numbers(arg, variables) for arg in args))
        case Not(arg=arg):
            return Not(_with_numbers(arg, variables))
    return expr


MAX_NAMES = 10
"""The maximum length of a list of names."""


def term_text(term: Term) -> str:
    """Formats a term as in a query: `lower-case(t1)`."""
    return wrap_in_functions(term.functions, term.var)


def wrap_in_functions(functions: tuple[str, ...], text: str) -> str:
    """Wraps functions around an operand, the innermost first."""
    for function in functions:
        name, _, literal = function.partition(" ")
        text = f"{name}({text}, {literal})" if literal else f"{name}({text})"
    return text


def format_window(microseconds: int | None) -> str:
    """Formats a window with the largest unit that divides it. None and INFINITE are INF."""
    return to_xscl(Window(None if microseconds == INFINITE else microseconds))


_DURATIONS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000))


def duration_text(microseconds: int) -> str:
    """Formats a time span with its two largest units; less than a second with its microseconds.

    >>> duration_text(250_200_000_000), duration_text(60_000_000), duration_text(1_000_002), duration_text(-7)
    ('2 d 21 h', '1 min', '1 s 2 µs', '-7 µs')
    """
    if microseconds < 0:
        return f"-{duration_text(-microseconds)}"
    for place, (unit, size) in enumerate(_DURATIONS):
        if microseconds >= size:
            rest, below = microseconds % size, _DURATIONS[place + 1] if place + 1 < len(_DURATIONS) else ("µs", 1)
            more = f" {rest // below[1]:,} {below[0]}" if rest >= below[1] else ""
            return f"{microseconds // size:,} {unit}{more}"
    return f"{microseconds:,} µs"


def names_of_others(targets: Iterable[Target], own: Collection[Owner]) -> str:
    """Returns the names of the owners of targets, except those in `own`. Long lists are cut short; nobody is ""."""
    names: dict[str, None] = {}
    for target in targets:
        if target.owner in own:
            continue
        names[target.owner.label] = None
        if len(names) > MAX_NAMES:
            return ", ".join([*list(names)[:MAX_NAMES], "and more"])
    return ", ".join(names)


def leaf_sides(conjunct: Conjunct) -> Iterator[Side]:
    """Yields the query blocks of a conjunctive query, left to right, including those of inner joins."""
    for side in conjunct.sides():
        if side.hidden is None:
            yield side
        else:
            yield from leaf_sides(side.hidden.conjuncts[0])


def definition_path(definition: tuple[PatternNode, ...]) -> str:
    """Formats the definition of a variable as a path. A derived value has its functions around it."""
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
    """Returns the template's trees, with children in parentheses, and its value joins."""
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
    """Returns that an absence held. `operands` are the variables of its left input, whose documents begin and end at
    `times`."""
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
    """What a partner has: equalities with its side first, and other conditions."""
    pairs = [pair for pair in absent.joins if many_valued(pair[0].functions) is None]
    return [*(Compare("=", expression(right), expression(left)) for left, right in pairs), *absent.residual]


def _names(absent: Absent) -> dict[str, str]:
    """The names of the nodes at the ends of paths, and of those of the right input, if that is a document."""
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
    """The parts, in which no two texts stand one after the other."""
    found: list[str | Operand] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return tuple(found)


FEWEST = 3
"""Texts of fewer words, separated by blanks, are not said to be near."""

VALUE_WIDTH = 60
"""How many characters of a value are shown."""

MOST_COMPARED, MOST_TEXTS = 2_000, 1_000
"""How many pairs of texts are compared at most, and how many texts of each side are looked at."""


def nearest_texts(texts: Iterable[tuple[str, str]]) -> tuple[Fraction, tuple[str, str]]:
    """The largest part of the words of two texts that is in common, and these texts. There is one pair at least."""
    found = ((Fraction(*overlap(*pair)) if any(overlap(*pair)) else Fraction(0), pair) for pair in texts)
    return max(islice(found, MOST_COMPARED), key=lambda one: one[0])


def nearness(expr: Expr, texts: Sequence[Callable[[Expr], str]]) -> str | None:
    """What is told of near() that holds for none of some bindings; None for another condition. Each of `texts` returns
    the text of an operand for one of them."""
    match expr:
        case Call(name="near", args=(one, other, _)):
            part, pair = nearest_texts((text_of(one), text_of(other)) for text_of in texts)
            common, union = overlap(*pair)
            shown = " and ".join(f'"{truncate_value(text)}"' for text in pair)
            return f"{shown} have {common} of {union} words in common, which is {float(part):.2f}"
    return None


def near_instead(left: Iterable[str], right: Iterable[str], one: str, other: str) -> tuple[str, str] | None:
    """What is told of texts of two sides, none of which are equal, if some are near: that, and what to write. `one` and
    `other` are the operands."""
    found = nearest_of(left, right)
    if found is None:
        return None
    pair, threshold = found
    shown = " and ".join(f'"{truncate_value(text)}"' for text in pair)
    hint = f"use near({one}, {other}, {threshold}) to find texts that differ in a word"
    common, union = overlap(*pair)
    return f"{shown} have {common} of {union} words in common", hint


def nearest_of(left: Iterable[str], right: Iterable[str]) -> tuple[tuple[str, str], str] | None:
    """The nearest texts of two sides, and the threshold in tenths by which near() finds them; None if it finds none. At
    most MOST_TEXTS of each side are looked at."""
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
    """Returns a value on one line, cut short."""
    line = printable_line(text)
    return line if len(line) <= VALUE_WIDTH else line[: VALUE_WIDTH - 1] + "…"


@dataclass(frozen=True)
class ReadableQuery:
    """A query of a store. `paths` are the paths on variables, by the variables that stand for their ends."""

    text: str
    query: Query
    normal: NormalQuery
    paths: Mapping[str, VarPath]
    builder: PatternBuilder

    @staticmethod
    def of(text: str) -> ReadableQuery:
        """Returns the query of a text that was checked when it was registered."""
        script = parse_script(text, stored=True)
        namespaces = dict(script.namespaces)
        normal, paths = normalize_readably(script.queries[0], namespaces)
        (query,) = located_queries(text, (0,), stored=True)
        return ReadableQuery(text, query, normal, paths, PatternBuilder(namespaces))

    @cached_property
    def blocks(self) -> list[Block]:
        """Its blocks, left to right."""
        return blocks(self.query.source)

    def part(self, span: Span) -> str:
        return self.text[span.start : span.end]

    def variable(self, var: str) -> str:
        return to_xscl(self.paths[var]) if var in self.paths else var

    def term(self, term: Term) -> str:
        return wrap_in_functions(term.functions, self.variable(term.var))

    def expression(self, expr: Expr) -> str:
        """Returns a predicate as the query has it."""
        return to_xscl(self._spelled(expr))

    def _spelled(self, expr: Expr) -> Expr:
        match expr:
            case VarPath(var=var):
                return self.paths.get(var, expr)
            case Call(name=name, args=args):
                return Call(name, tuple(map(self._spelled, args)))
            case Compare(op=op, left=left, right=right):
                return Compare(op, self._spelled(left), self._spelled(right))
        return expr


T = TypeVar("T")

MOST_BYTES = 32 << 20
"""The size of all documents of a sample, in bytes. Their trees take many times as much memory."""

MAX_SAMPLE_STEPS = 1_000_000
"""How many steps a pattern may take in a document."""


class TooLong(Exception):
    """A pattern takes too long in a document."""


@dataclass
class Sample:
    """Documents from outside, each once, with their trees by stream. `refused` counts what could not be read."""

    documents: list[Document] = field(default_factory=list)
    trees: dict[str, list[ParsedDocument]] = field(default_factory=dict)
    refused: int = 0

    def of(self, stream: str) -> list[ParsedDocument]:
        return self.trees.get(stream, [])

    def with_published(self, published: Mapping[str, Iterable[str]]) -> Sample:
        """The sample with the documents that queries PUBLISHed on streams, too."""
        trees = {stream: list(found) for stream, found in self.trees.items()}
        for stream, texts in published.items():
            made = [parse_document(text.encode(), trusted=True) for text in texts]
            trees.setdefault(stream, []).extend(made)
        return Sample(self.documents, trees, self.refused)


def sample_of(items: Iterable[Document | Reject], most: int) -> Sample:
    """The first `most` documents that can be read."""
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
    """Yields one item of each source after another, until all are empty: a sample then has some of each."""
    left = [iter(source) for source in sources]
    while left:
        going = []
        for source in left:
            for item in islice(source, 1):
                yield item
                going.append(source)
        left = going


def has_match(part: PreparedNode, tree: ParsedDocument, take: Take | None = None) -> bool:
    """Whether a pattern that binds nothing matches a document. Raises TooLong, unless it is `take` that counts."""
    return any(True for _ in each_binding(part, tree, {}, take or _counter()))


def variable_texts(pattern: PatternNode, tree: ParsedDocument) -> Iterator[str]:
    """The string values of a pattern's one variable, over all its matches in a document. Raises TooLong."""
    for ((_, node),) in each_binding(PreparedNode(pattern), tree, {}, _counter()):
        yield tree.string_value(*node)


def apply_functions(text: str, functions: Sequence[str]) -> str:
    """A text with functions applied, the innermost first."""
    for name in functions:
        text = derive(name, text)
    return text


def elements(pattern: PatternNode, tree: ParsedDocument) -> Iterator[int]:
    """The numbers of the elements to which a pattern's one variable is bound. Raises TooLong."""
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
