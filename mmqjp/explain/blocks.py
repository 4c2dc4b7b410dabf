"""Cuts a query block into stages, each with one more step or condition, and counts the documents that match each. The
first stage without a match shows which part of the block fails; a hint says what the documents have instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from mmqjp.explain.terms import TooLong, apply_functions, elements, has_match, variable_texts
from mmqjp.process import printable_line, printable_text
from xpath_stage.binder import PreparedNode, Take
from xpath_stage.documents import ParsedDocument, split_name
from xscl.algebra.trees import naming
from xscl.algebra.values import And, Call, Compare, Expr, Not, Or, Rel, Span, Step, derivation
from xscl.lower import PatternBuilder
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
        for arm in (arm for condition in step.filters for arm in _arms(condition)):
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


def _arms(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, And):
        for arg in expr.args:
            yield from _arms(arg)
    else:
        yield expr


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
        case Compare():
            return [*_operands(expr.left), *_operands(expr.right)]
        case Call(args=(arg, *_)) if name := derivation(expr):
            return _operands(arg, (name, *functions))
        case Call() | And() | Or():
            return [found for arg in expr.args for found in _operands(arg)]
        case Not():
            return _operands(expr.arg)
    return []


def _in(count: int) -> str:
    return f"in {count:,}"


def _short(value: str) -> str:
    line = printable_text(value)
    return line if len(line) <= VALUE_WIDTH else line[: VALUE_WIDTH - 1] + "…"
