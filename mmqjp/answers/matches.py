"""Matches of stage 2 and their joint bindings. A match fixes the joined nodes; bindings extend it to all variables of a
conjunctive query (K+; docs/semantics.md, section 15), subject to residual predicates, comparisons that are not value
joins. Also decides whether a match has a mirror."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from join_stage.protocol import RESULT
from mmqjp.answers.output import BoundValue
from mmqjp.answers.quota import Steps
from mmqjp.documents.record import Inputs, Record
from mmqjp.queries.forms import FixedSide, RowPart
from mmqjp.tables.schema import ANSWER_TABLES
from templates.witness import PLAIN, plain_node
from xpath_stage.binder import HELD, Node, PreparedNode, each_binding
from xscl.algebra.joins import Conjunct, Mirror, Side, Term, needed
from xscl.algebra.regex import PatternError, PatternLimit
from xscl.algebra.trees import naming
from xscl.algebra.values import (
    NUMERIC,
    TESTS,
    Call,
    Compare,
    Expr,
    Number,
    String,
    VarPath,
    compare,
    compare_times,
    derivation,
    derive,
    is_of_times,
    number_string,
)


def residual_holds(expr: Expr, text_of: Callable[[str], str]) -> bool:
    """Evaluates a residual predicate. A regular expression that times out does not match."""
    match expr:
        case Compare(op=op, left=left, right=right) if is_of_times(expr):
            return compare_times(op, text_of_operand(left, text_of), text_of_operand(right, text_of))
        case Compare(op=op, left=left, right=right):
            return compare(op, _value(left, text_of), _value(right, text_of))
        case Call(name=name, args=args) if name in TESTS:
            try:
                return TESTS[name](*[text_of_operand(arg, text_of) for arg in args])
            except (PatternError, PatternLimit):
                return False
    raise AssertionError(f"not a residual predicate: {expr!r}")


def _value(expr: Expr, text_of: Callable[[str], str]) -> str | float:
    match expr:
        case Number(text=text):
            return float(text)
        case Call(name=name, args=(arg,)) if name in NUMERIC:
            return NUMERIC[name](text_of_operand(arg, text_of))
    return text_of_operand(expr, text_of)


def text_of_operand(expr: Expr, text_of: Callable[[str], str]) -> str:
    match expr:
        case VarPath(var=var):
            return text_of(var)
        case String(value=value):
            return value
        case Number(text=text):
            return number_string(text)
        case Call(args=(arg, *_)) if name := derivation(expr):
            return derive(name, text_of_operand(arg, text_of))
    raise AssertionError(f"not an operand: {expr!r}")


SideBinding = Mapping[str, Node]

JointBinding = Mapping[str, tuple[Record, Node]]

MAX_CACHED_PER_DOCUMENT, MAX_CACHED_BINDINGS = 1_000, 100_000
"""Maximum number of cached bindings per document; the cache is cleared above MAX_CACHED_BINDINGS in all."""

MAX_CACHED_TEXT, MAX_CACHED_TEXTS = 10_000, 1_000
"""Longest text, in characters, that is cached; the cache is cleared at MAX_CACHED_TEXTS."""


class JointBindings:
    """Finds the joint bindings of matches, caching each document's bindings for the step."""

    def __init__(self) -> None:
        self._bound: dict[tuple[object, ...], tuple[int, list[SideBinding]]] = {}
        self._held = 0
        self._parts: dict[FixedSide, PreparedNode] = {}
        self._texts: dict[tuple[int, Node], str] = {}

    def of(self, part: RowPart, inputs: Sequence[Record], nodes: Sequence[int], steps: Steps) -> Iterator[JointBinding]:
        """Yields a part's joint bindings with the match's nodes that satisfy its residual predicates. `inputs` has one
        document per side. Each binding tried takes a step."""
        for joint in self._joint(part, inputs, nodes, steps):
            if part.residual:
                text_of = partial(self._text, joint, steps)
                if not all(residual_holds(expr, text_of) for expr in part.residual):
                    continue
            yield joint

    def _joint(
        self, part: RowPart, inputs: Sequence[Record], nodes: Sequence[int], steps: Steps
    ) -> Iterator[JointBinding]:
        if part.derived is not None:
            steps.take(len(part.derived) + 1)
            yield {one.var: (record := inputs[side], one.node(record.tree, nodes)) for side, one in part.derived}
            return
        sides = [
            self._side(fixed, record, nodes, steps, is_right=bool(i))
            for i, (fixed, record) in enumerate(zip(part.sides, inputs, strict=True))
        ]
        for choice in _choices(sides):
            steps.take()
            joint: dict[str, tuple[Record, Node]] = {}
            for record, bound in zip(inputs, choice, strict=True):
                for var, node in bound.items():
                    joint[var] = record, node
            yield joint

    def text(self, operand: Expr, joint: JointBinding, steps: Steps) -> str:
        return text_of_operand(operand, partial(self._text, joint, steps))

    def _side(
        self, fixed_side: FixedSide, record: Record, nodes: Sequence[int], steps: Steps, *, is_right: bool
    ) -> Iterable[SideBinding]:
        """Returns the bindings of a side's variables, given the joined nodes. A right side returns a list: it is
        iterated once per left binding."""
        side = fixed_side.side
        if side.hidden is not None:
            return [_tuple_binding(side)]
        derived = fixed_side.derived
        key = (fixed_side, record.docid, *(nodes[slot] for _, slot in fixed_side.fixed))
        if (known := self._bound.get(key)) is not None:
            steps.take(known[0])
            found: Iterable[SideBinding] = known[1]
        elif derived is not None:
            steps.take(len(derived))
            found = [{one.var: one.node(record.tree, nodes) for one in derived}]
            self._keep(key, len(derived), found)
        else:
            found = self._search(key, fixed_side, record, nodes, steps)
        if derived is not None or not is_right:
            return found
        held = []
        for bound in found:
            steps.take(HELD)
            held.append(bound)
        return held

    def _search(
        self, key: tuple[object, ...], fixed_side: FixedSide, record: Record, nodes: Sequence[int], steps: Steps
    ) -> Iterator[SideBinding]:
        if fixed_side not in self._parts:
            self._parts[fixed_side] = PreparedNode(fixed_side.side.pattern)
        part = self._parts[fixed_side]
        fixed = {path: plain_node(nodes[slot]) for path, slot in fixed_side.fixed}
        few: list[SideBinding] | None = []
        before = steps.left
        took = 0
        for binding in each_binding(part, record.tree, fixed, steps.take):
            took += before - steps.left
            bound = dict(binding)
            if few is not None:
                few.append(bound)
                if len(few) > MAX_CACHED_PER_DOCUMENT:
                    few = None
            yield bound
            before = steps.left  # the consumer takes steps, too
        if few is not None:
            self._keep(key, took + before - steps.left, few)

    def _keep(self, key: tuple[object, ...], took: int, found: list[SideBinding]) -> None:
        if self._held > MAX_CACHED_BINDINGS:
            self._bound.clear()
            self._held = 0
        self._bound[key] = took, found
        self._held += 1 + len(found)

    def _text(self, joint: JointBinding, steps: Steps, var: str) -> str:
        record, node = joint[var]
        key = record.docid, node
        if (text := self._texts.get(key)) is None:
            text = BoundValue(record, node).text()
            if len(text) <= MAX_CACHED_TEXT:
                if len(self._texts) >= MAX_CACHED_TEXTS:
                    self._texts.clear()
                self._texts[key] = text
        steps.take(len(text) // CHARACTERS_READ_PER_STEP)
        return text


def _choices(sides: Sequence[Iterable[SideBinding]]) -> Iterator[tuple[SideBinding, ...]]:
    if len(sides) == 1:
        return ((one,) for one in sides[0])
    left, right = sides
    return ((one, other) for one in left for other in right)


class Match(NamedTuple):
    """A row of R_outT: the shared row of R_T, one or two documents, and nodes in the template's numbering."""

    row: int
    docid1: int
    docid2: int | None
    nodes: Sequence[int]

    @property
    def docids(self) -> tuple[int, ...]:
        return (self.docid1,) if self.docid2 is None else (self.docid1, self.docid2)


def matches_in(found: pa.RecordBatch) -> list[Match]:
    values = found["nodes"].flatten().to_pylist()
    offsets = found["nodes"].value_lengths().to_numpy().cumsum()
    nodes = [values[start:end] for start, end in pairwise([0, *offsets.tolist()])]
    rows, *docids = (found[name].to_pylist() for name in ("qid", "docid1", "docid2"))
    return list(map(Match, rows, *docids, nodes))


def as_batch(matches: Sequence[Match]) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*matches, strict=True)]
    return pa.table(columns, schema=RESULT).combine_chunks().to_batches()[0]


def match_rows(
    found: pa.RecordBatch, times: Sequence[tuple[int, int]], first: int, template_of: Callable[[int], int]
) -> pa.Table:
    """Converts rows of `join_stage.protocol.RESULT` to rows of `match_rows`, numbered from `first`. `times` has t0 and
    t1 of each; `template_of` maps rows of R_T to templates."""
    qids, place = np.unique(found["qid"].to_numpy(), return_inverse=True)
    templates = np.array([template_of(qid) for qid in qids.tolist()], np.int64)[place]
    t0, t1 = zip(*times, strict=True)
    offsets = np.append(0, found["nodes"].value_lengths().to_numpy().cumsum())
    plain = found["nodes"].flatten().to_numpy() & PLAIN
    columns = [
        np.arange(first, first + len(times)), templates, found["docid1"], found["docid2"], t0, t1,
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(plain)),
    ]  # fmt: skip
    return pa.table([pa.array(column) for column in columns], schema=ANSWER_TABLES["match_rows"])


CHARACTERS_READ_PER_STEP = 256
"""Comparing a value costs one step per this many characters."""

MAX_CACHED_PAIRS = 100_000
"""The cache is cleared at this many document pairs."""


class Mirrors:
    """Detects JOIN UNORDERED matches that their mirrors already cover. Caches results by document pair for the step."""

    def __init__(self) -> None:
        self._tests: dict[Mirror, list[_Join]] = {}
        self._found: dict[tuple[Mirror, int, int], tuple[int, bool]] = {}

    def tell(self, mirror: Mirror | None, inputs: Inputs, steps: Steps) -> bool:
        """Returns whether a match has a mirror whose first document is less by (t1, stream, id). Raises OutOfSteps."""
        if mirror is None or not _place(inputs[1]) < _place(inputs[0]):
            return False
        if mirror.always:
            return True
        key = mirror, inputs[0].docid, inputs[1].docid
        if (known := self._found.get(key)) is not None:
            steps.take(known[0])
            return known[1]
        if mirror not in self._tests:
            self._tests[mirror] = list(map(_Join, mirror.conjuncts))
        before = steps.left
        found = any(join.holds(inputs[1], inputs[0], steps) for join in self._tests[mirror])
        if len(self._found) >= MAX_CACHED_PAIRS:
            self._found.clear()
        self._found[key] = before - steps.left, found
        return found


def _place(record: Record) -> tuple[int, str, str]:
    return record.t1, record.stream, record.id


class _Join:
    """Tests pairs of documents against a conjunctive query of a join."""

    def __init__(self, conjunct: Conjunct) -> None:
        assert conjunct.right is not None, "a join has two inputs"
        self._left, self._right = _Bound(conjunct, conjunct.left), _Bound(conjunct, conjunct.right)
        equal = conjunct.equalities()
        self._ours, self._theirs = [one for one, _ in equal], [other for _, other in equal]
        self._residual = conjunct.residual

    def holds(self, left: Record, right: Record, steps: Steps) -> bool:
        """Raises OutOfSteps."""
        by_values: dict[tuple[str, ...], list[SideBinding]] = {}
        for bound in self._right.bindings(right, steps):
            steps.take(HELD)
            by_values.setdefault(_values(self._theirs, right, bound, steps), []).append(bound)
        if not by_values:
            return False
        for bound in self._left.bindings(left, steps):
            for other in by_values.get(_values(self._ours, left, bound, steps), ()):
                steps.take()
                text_of = partial(_text, ((right, other), (left, bound)), steps)
                if all(residual_holds(expr, text_of) for expr in self._residual):
                    return True
        return False


def _tuple_binding(side: Side) -> SideBinding:
    """The variables of a hidden stream are the children of its tuples."""
    return {child.var: (number, 0) for number, child in enumerate(side.pattern.children, 1) if child.var}


class _Bound:
    def __init__(self, conjunct: Conjunct, side: Side) -> None:
        self._part = PreparedNode(naming(side.pattern, needed(conjunct)))
        self._tuple = None if side.hidden is None else _tuple_binding(side)

    def bindings(self, record: Record, steps: Steps) -> Iterable[SideBinding]:
        if self._tuple is not None:
            return (self._tuple,)
        return map(dict, each_binding(self._part, record.tree, {}, steps.take))


def _values(terms: Sequence[Term], record: Record, bound: SideBinding, steps: Steps) -> tuple[str, ...]:
    return tuple([read_value(BoundValue(record, bound[term.var], term.functions), steps) for term in terms])


def _text(sides: Sequence[tuple[Record, SideBinding]], steps: Steps, var: str) -> str:
    record, bound = next(side for side in sides if var in side[1])
    return read_value(BoundValue(record, bound[var]), steps)


def read_value(value: BoundValue, steps: Steps) -> str:
    text = value.text()
    steps.take(len(text) // CHARACTERS_READ_PER_STEP)
    return text
