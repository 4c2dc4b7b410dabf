"""Tries a query block on documents: how many it matches, and which part of it matches nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from mmqjp.explain.block_stages import Stage, stages
from mmqjp.explain.sample import TooLong, applied, elements, matches, texts
from mmqjp.text import printable_line, printable_text
from xpath_stage.binder import Part, Take
from xpath_stage.names import split_name
from xpath_stage.parse import ParsedDocument
from xscl.algebra.expressions import And, Call, Compare, Expr, Not, Or, Rel, Step
from xscl.algebra.functions import derivation
from xscl.algebra.pattern import naming
from xscl.lower_paths import PatternBuilder
from xscl.syntax import Block

VALUE_WIDTH = 40
"""How many characters of a value are shown."""

_HERE = "here"


@dataclass(frozen=True, slots=True)
class BlockTrial:
    """What a block matched in the documents of its stream.

    `counts` has, for each of `stages`, how many documents match it. `left_out` counts documents that took too long.
    `hint` says what may be meant by the first stage that matches nothing; it is empty if all do.
    """

    block: Block
    documents: int
    stages: list[Stage]
    counts: list[int]
    left_out: int
    hint: str

    @property
    def matched(self) -> int:
        """How many documents the whole block matches."""
        return self.counts[-1]

    @property
    def failed(self) -> int | None:
        """The number of the first stage that matches nothing, if one does."""
        return self.counts.index(0) if 0 in self.counts else None


def try_block(block: Block, trees: Sequence[ParsedDocument], namespaces: Mapping[str, str]) -> BlockTrial:
    """Tries a block, which has spans, on the documents of its stream."""
    found = stages(block.steps)
    builder = PatternBuilder(namespaces)
    parts = [Part(builder.path(stage.steps)) for stage in found]
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
    """How many documents match each of some stages, given how many match just the first n of them."""
    return [sum(count for last, count in reached.items() if last > number) for number in range(stages)]


def hint_of(stage: Stage, builder: PatternBuilder, trees: Sequence[ParsedDocument]) -> str:
    """What may be meant by a stage that matches none of some documents."""
    return _Hints(builder, trees).of(stage)


def reached_of(parts: Sequence[Part], tree: ParsedDocument, take: Take | None = None) -> int:
    """How many of the stages a document matches: they get stricter. `take` is that of `matches`."""
    if matches(parts[-1], tree, take):
        return len(parts)
    low, high = 0, len(parts) - 1
    while low < high:
        middle = (low + high) // 2
        if matches(parts[middle], tree, take):
            low = middle + 1
        else:
            high = middle
    return low


class _Hints:
    """Looks up in documents what a stage may mean that matches none of them."""

    def __init__(self, builder: PatternBuilder, trees: Sequence[ParsedDocument]) -> None:
        self._builder, self._trees = builder, trees

    def of(self, stage: Stage) -> str:
        """What to do about a stage."""
        if stage.condition is None:
            return self._name(stage.above)
        for path, _ in _operands(stage.condition):
            for number in range(len(path.steps)):
                above = (*stage.above, *path.steps[: number + 1])
                if not self._occurs(above):
                    return self._name(above)
        return self._values(stage)

    def _occurs(self, path: tuple[Step, ...]) -> bool:
        part = Part(naming(self._builder.path(path), ()))
        try:
            return any(matches(part, tree) for tree in self._trees)
        except TooLong:
            return True

    def _name(self, path: tuple[Step, ...]) -> str:
        """What there is in place of the last step of a path."""
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
        """The elements at the end of a path; None if it is empty, and so leads to the document itself."""
        if not above:
            return None
        last = replace(above[-1], var=_HERE)
        return list(elements(naming(self._builder.path((*above[:-1], last)), (_HERE,)), tree))

    def _values(self, stage: Stage) -> str:
        """The most frequent values of what a condition compares, with its functions applied."""
        found = [] if stage.condition is None else _operands(stage.condition)
        path, functions = found[0] if found else (Rel(), ())
        steps = (*stage.above, *path.steps)
        steps = (*steps[:-1], replace(steps[-1], var=_HERE))
        pattern = naming(self._builder.path(steps), (_HERE,))
        values: Counter[str] = Counter()
        for tree in self._trees:
            try:
                values.update({applied(text, functions) for text in texts(pattern, tree)})
            except TooLong:
                continue
        if not values:
            return ""
        shown = ", ".join(f'"{_short(value)}" ({_in(count)})' for value, count in values.most_common(3))
        return f"the values are {shown}{' and others' if len(values) > 3 else ''}"


class _Names:
    """The names below some elements of a document, or below the document itself (None)."""

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
    """The paths in a condition, in the order of the text, and the functions around each, the innermost first."""
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
