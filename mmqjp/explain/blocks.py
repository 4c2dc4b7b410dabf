"""Cuts a query block into stages, each with one more step or condition, and counts the documents that match each. The
first stage without a match shows which part of the block fails; a hint says what the documents have instead. BlockRows
also has the bindings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from mmqjp.documents.record import Record
from mmqjp.explain.terms import (
    CHARACTERS_PER_STEP,
    FunnelStage,
    ReadableQuery,
    TooLong,
    apply_functions,
    elements,
    has_match,
    variable_texts,
)
from mmqjp.process import printable_line, printable_text
from xpath_stage.binder import Node, PreparedNode, Take, each_binding
from xpath_stage.documents import ParsedDocument, split_name
from xscl.algebra.joins import Side
from xscl.algebra.trees import Condition, PatternNode, block_root, naming
from xscl.algebra.values import Call, Compare, Expr, Rel, Span, Step, String, derivation, operands_of
from xscl.lower import PatternBuilder, and_arms
from xscl.printer import to_xscl
from xscl.syntax import Block


@dataclass(frozen=True, slots=True)
class BlockStage:
    """A prefix of a block, as a path whose `steps` bind nothing. `span` is that of its last requirement: the name of
    the last step of the path `above`, or a `condition` on the node at its end."""

    steps: tuple[Step, ...]
    span: Span
    above: tuple[Step, ...]
    condition: Expr | None = None


def stages(steps: tuple[Step, ...]) -> list[BlockStage]:
    """Returns the stages of a path in text order: each implies those before it, and the last is the whole path."""
    return list(_stages(steps))


def _stages(steps: tuple[Step, ...]) -> Iterator[BlockStage]:
    done: tuple[Step, ...] = ()
    for step in steps:
        bare = replace(step, filters=(), var=None)
        yield BlockStage((*done, bare), Span(step.span.start, step.test.span.end), (*done, bare))
        kept: tuple[Expr, ...] = ()
        for arm in (arm for condition in step.filters for arm in and_arms(condition)):
            here, found = (*done, replace(bare, filters=kept)), kept
            for path in _needed(arm):
                for stage in _stages(path.steps):
                    filters = (*found, Rel(stage.steps))
                    yield replace(stage, steps=(*done, replace(bare, filters=filters)), above=(*here, *stage.above))
                found = (*found, Rel(_unbound(path.steps)))
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


def _unbound(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return stages(steps)[-1].steps if steps else ()


VALUE_WIDTH = 40
"""Characters shown of a value."""

_HERE = "here"


@dataclass(frozen=True, slots=True)
class BlockTrial:
    """How many of the stream's documents match a block.

    `counts` has the number for each of `stages`. `left_out` counts documents that took too long. `hint` suggests a fix
    for the first stage without matches, or is empty.
    """

    block: Block
    documents: int
    stages: list[BlockStage]
    counts: list[int]
    left_out: int
    hint: str

    @property
    def matched(self) -> int:
        return self.counts[-1]

    @property
    def failed(self) -> int | None:
        """Index of the first stage without matches; None if all match."""
        return self.counts.index(0) if 0 in self.counts else None


def try_block(block: Block, trees: Sequence[ParsedDocument], namespaces: Mapping[str, str]) -> BlockTrial:
    """Tries a block, which has spans, on documents of its stream."""
    found = stages(block.steps)
    builder = PatternBuilder(namespaces)
    parts = [PreparedNode(builder.path(stage.steps)) for stage in found]
    reached: Counter[int] = Counter()
    left_out = 0
    for tree in trees:
        try:
            reached[reached_of(parts, tree)] += 1
        except TooLong:
            left_out += 1
    counts = counts_of(reached, len(found))
    hint = hint_of(found[counts.index(0)], builder, trees) if trees and 0 in counts else ""
    return BlockTrial(block, len(trees), found, counts, left_out, hint)


def counts_of(reached: Mapping[int, int], stages: int) -> list[int]:
    """Turns the number of documents that match just the first n stages into documents that match each stage."""
    return [sum(count for last, count in reached.items() if last > number) for number in range(stages)]


def hint_of(stage: BlockStage, builder: PatternBuilder, trees: Sequence[ParsedDocument]) -> str:
    return _Hints(builder, trees).of(stage)


def reached_of(parts: Sequence[PreparedNode], tree: ParsedDocument, take: Take | None = None) -> int:
    """Returns how many of the ever stricter stages a document matches. `take` is that of `has_match`."""
    if has_match(parts[-1], tree, take):
        return len(parts)
    low, high = 0, len(parts) - 1
    while low < high:
        middle = (low + high) // 2
        if has_match(parts[middle], tree, take):
            low = middle + 1
        else:
            high = middle
    return low


class _Hints:
    def __init__(self, builder: PatternBuilder, trees: Sequence[ParsedDocument]) -> None:
        self._builder, self._trees = builder, trees

    def of(self, stage: BlockStage) -> str:
        if stage.condition is None:
            return self._name(stage.above)
        for path, _ in _operands(stage.condition):
            for number in range(len(path.steps)):
                above = (*stage.above, *path.steps[: number + 1])
                if not self._occurs(above):
                    return self._name(above)
        return self._values(stage)

    def _occurs(self, path: tuple[Step, ...]) -> bool:
        part = PreparedNode(naming(self._builder.path(path), ()))
        try:
            return any(has_match(part, tree) for tree in self._trees)
        except TooLong:
            return True

    def _name(self, path: tuple[Step, ...]) -> str:
        *above, last = path
        wanted, sign = last.test.local, "@" if last.test.kind == "attribute" else ""
        own: Counter[str] = Counter()
        other: Counter[str] = Counter()
        deeper: Counter[str] = Counter()
        for tree in self._trees:
            try:
                names = _Names(tree, self._numbers(tuple(above), tree), deep=last.axis == "//")
            except TooLong:
                continue
            own.update(names.attributes if sign else names.elements)
            other.update(names.elements if sign else names.attributes)
            deeper.update(names.deeper_attributes if sign else names.deeper)
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

    def _numbers(self, above: tuple[Step, ...], tree: ParsedDocument) -> list[int] | None:
        """The elements at the end of a path; None if it is empty: the document itself."""
        if not above:
            return None
        last = replace(above[-1], var=_HERE)
        return list(elements(naming(self._builder.path((*above[:-1], last)), (_HERE,)), tree))

    def _values(self, stage: BlockStage) -> str:
        found = [] if stage.condition is None else _operands(stage.condition)
        path, functions = found[0] if found else (Rel(), ())
        steps = (*stage.above, *path.steps)
        steps = (*steps[:-1], replace(steps[-1], var=_HERE))
        pattern = naming(self._builder.path(steps), (_HERE,))
        values: Counter[str] = Counter()
        for tree in self._trees:
            try:
                values.update({apply_functions(text, functions) for text in variable_texts(pattern, tree)})
            except TooLong:
                continue
        if not values:
            return ""
        shown = ", ".join(f'"{_short(value)}" ({_in(count)})' for value, count in values.most_common(3))
        return f"the values are {shown}{' and others' if len(values) > 3 else ''}"


class _Names:
    def __init__(self, tree: ParsedDocument, numbers: list[int] | None, *, deep: bool) -> None:
        everything: Sequence[int] = range(len(tree.elements))
        below: Sequence[int]
        children: Sequence[int]
        owners: Sequence[int]
        if numbers is None:
            children = everything if deep else range(1)
            below, owners = everything, everything if deep else range(0)
        else:
            below = sorted({n for number in numbers for n in range(number + 1, tree.end[number])})
            parents = set(numbers)
            children = below if deep else [n for n in below if tree.parent[n] in parents]
            owners = sorted({*numbers, *below}) if deep else numbers
        self.elements = {str(tree.elements[n].tag) for n in children}
        self.deeper = {str(tree.elements[n].tag) for n in below}
        self.attributes = {str(name) for n in owners for name in tree.elements[n].attrib}
        self.deeper_attributes = {str(name) for n in below for name in tree.elements[n].attrib}


def _operands(expr: Expr, functions: tuple[str, ...] = ()) -> list[tuple[Rel, tuple[str, ...]]]:
    """The paths in a condition, in text order, each with the functions around it, the innermost first."""
    match expr:
        case Rel():
            return [(expr, functions)]
        case Call(args=(arg, *_)) if name := derivation(expr):
            return _operands(arg, (name, *functions))
    return [found for operand in operands_of(expr) for found in _operands(operand)]


def _in(count: int) -> str:
    return f"in {count:,}"


def _short(value: str) -> str:
    line = printable_text(value)
    return line if len(line) <= VALUE_WIDTH else line[: VALUE_WIDTH - 1] + "…"


PART_WIDTH = 60
"""Characters shown of a part of a query."""

_LINE_BREAK = re.compile(r"[ \t\r]*\n\s*")


def part_text(span: Span, text: str) -> str:
    start = span.start
    if text[start : start + 1] == "/" and text[max(start - 1, 0) : start] == ".":
        start -= 1  # a step says no more than its axis and name
    part = printable_text(_LINE_BREAK.sub(" ", text[start : span.end]))
    return part if len(part) <= PART_WIDTH else part[: PART_WIDTH - 1] + "…"


MOST_ROWS, STEPS_FOR_A_ROW = 5_000, 50
"""Maximum number of bindings of a document in a join (a document with more is left out), and the steps that each counts
for, because it takes memory."""

FOR_HINTS, MOST_BYTES_FOR_HINTS = 100, 256 << 10
"""Maximum number of furthest documents searched for hints, and their size in bytes; a larger document is searched
alone."""


@dataclass(frozen=True, slots=True)
class BoundNode:
    """A node of a document, by its docid, with its text."""

    docid: int
    node: Node
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class BindingRow:
    """The bindings in the documents of an input, of one or more blocks, for the variables that matter. `t0` and `t1`
    are the interval of the documents."""

    documents: tuple[Record, ...]
    t0: int
    t1: int
    bound: Mapping[str, BoundNode]

    @property
    def docids(self) -> tuple[int, ...]:
        return tuple(record.docid for record in self.documents)


@dataclass(eq=False)
class BlockRows:
    """The results of one block so far. `streams` counts offered documents by stream, `left_out` those too large to
    search. Variables that are `needed` are bound in `rows`."""

    query: ReadableQuery
    number: int
    side: Side
    needed: Collection[str]
    rows: list[BindingRow] = field(default_factory=list)
    left_out: int = 0
    streams: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        block = self.query.blocks[self.number]
        self._stages = stages(block.steps)
        own = self.query.builder.path(block.steps, last_var=block_root(self.number))
        self._asked = list(_asked(self.query, self.side.pattern, own))
        parts = [self.query.builder.path(stage.steps) for stage in self._stages]
        for last in range(len(self._asked)):
            parts.append(_without(self.side.pattern, self._asked[last + 1 :]))
        self._parts = [PreparedNode(naming(part, ())) for part in parts]
        self._whole = PreparedNode(naming(self.side.pattern, self.needed))
        self._reached: Counter[int] = Counter()
        self._sample: list[ParsedDocument] = []

    def look(self, record: Record, take: Take) -> None:
        """Evaluates one more document. Raises whatever `take` does, except TooLong, which leaves the document out."""
        self.streams[record.stream] += 1
        if record.stream != self.side.stream:
            return
        try:
            found = list(self._found(record, take))
            reached = len(self._parts) if found else reached_of(self._parts, record.tree, take)
        except TooLong:
            self.left_out += 1
            return
        self.rows += found
        if reached > max(self._reached, default=0):
            self._sample.clear()
        is_fit = not self._sample or (record.tree.size <= MOST_BYTES_FOR_HINTS and len(self._sample) < FOR_HINTS)
        if not found and reached >= max(self._reached, default=0) and is_fit:
            self._sample.append(record.tree)
        self._reached[reached] += 1

    def _found(self, record: Record, take: Take) -> Iterator[BindingRow]:
        texts: dict[Node, str] = {}
        for number, binding in enumerate(each_binding(self._whole, record.tree, {}, take)):
            if number == MOST_ROWS:
                raise TooLong
            take(STEPS_FOR_A_ROW)
            for _, node in binding:
                if node not in texts:
                    texts[node] = record.tree.string_value(*node)
                    take(1 + len(texts[node]) // CHARACTERS_PER_STEP)
            bound = {var: BoundNode(record.docid, node, texts[node]) for var, node in binding}
            yield BindingRow((record,), record.t0, record.t1, bound)

    @property
    def documents(self) -> int:
        return self.streams[self.side.stream]

    def stages(self) -> Iterator[FunnelStage]:
        stream, block = self.side.stream, self.number + 1
        stage = FunnelStage("stream", stream, self.documents, block=block)
        if not self.documents:
            yield stage.told(*self._no_document())
            return
        yield stage
        counts = counts_of(self._reached, len(self._parts))
        for number, found in enumerate(self._stages):
            stage = FunnelStage("pattern", part_text(found.span, self.query.text), counts[number], block=block)
            if not counts[number]:
                hint = hint_of(found, self.query.builder, self._sample) if self._sample else ""
                yield stage.told(self._none_matches(stage.part, number), hint)
                return
            yield stage
        for number, asked in enumerate(self._asked, len(self._stages)):
            stage = FunnelStage("asked", asked.text, counts[number], block=block)
            if not counts[number]:
                yield stage.told(f"{asked.missing} in {self._where()}", asked.hint)
                return
            yield stage

    def _no_document(self) -> tuple[str, str]:
        others = ", ".join(f"{stream} ({count:,})" for stream, count in self.streams.most_common(5))
        if sum(self.streams.values()) == 1:
            return f"the document is of stream {next(iter(self.streams))}, not of {self.side.stream}", ""
        what = f"there is no document of stream {self.side.stream}"
        return what, f"there are documents of {others}" if others else ""

    def _none_matches(self, part: str, number: int) -> str:
        before = ""
        if number:
            last = self._stages[min(number, len(self._stages)) - 1]
            before = f"; {part_text(last.span, self.query.text)}, before it, does"
        return f"{part} does not match {self._where()}{before}"

    def _where(self) -> str:
        stream = self.side.stream
        if self.documents == 1:
            return f"the document of stream {stream}"
        too_large = f" ({self.left_out:,} are too large to search)" if self.left_out else ""
        return f"any of {self.documents:,} documents of stream {stream}{too_large}"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A path or condition that predicates or SELECT need of a block. `missing` is the message if it is absent."""

    text: str
    missing: str
    var: str
    condition: Condition | None = None
    hint: str = ""


def _asked(query: ReadableQuery, pattern: PatternNode, own: PatternNode) -> Iterator[_Asked]:
    known = {(node.var, condition) for node in own.walk() for condition in node.conditions}
    for node in pattern.walk():
        if node.var is None:
            continue
        text = query.variable(node.var)
        if node.var in query.paths:
            hint = f"{text} is in the predicate or SELECT, so each match must have it"
            yield _Asked(text, f"there is no {text}", node.var, hint=hint)
        for condition in node.conditions:
            if (node.var, condition) not in known:
                if condition.literal is not None:
                    value = to_xscl(String(condition.literal))
                    yield _Asked(f"{text} = {value}", f"{text} is not {value}", node.var, condition)
                else:
                    kind = "time" if "time" in str(condition.xpath) else "number"
                    yield _Asked(text, f"{text} is no {kind}, and equals nothing", node.var, condition)


def _without(pattern: PatternNode, left_out: Collection[_Asked]) -> PatternNode:
    ends = {asked.var for asked in left_out if asked.condition is None}
    conditions = {(asked.var, asked.condition) for asked in left_out if asked.condition is not None}

    def cut(node: PatternNode) -> PatternNode:
        children = tuple(cut(child) for child in node.children if not _ends_in(child, ends))
        kept = tuple(one for one in node.conditions if (node.var, one) not in conditions)
        return replace(node, conditions=kept, children=children)

    return cut(pattern)


def _ends_in(node: PatternNode, ends: Collection[str]) -> bool:
    while len(node.children) and node.var is None:
        node = node.children[-1]
    return node.var in ends
