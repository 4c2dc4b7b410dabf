"""Joins what two inputs bound, stage by stage, and says of the first that nothing passes what there is instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from itertools import islice, product

from mmqjp.answers.pair_tests import Mirrors
from mmqjp.answers.quota import OutOfSteps, Steps
from mmqjp.answers.residual import holds, text_of_operand
from mmqjp.documents.record import Inputs
from mmqjp.explain.block_rows import CHARACTERS_PER_STEP, Row
from mmqjp.explain.funnel_stage import Kind, Stage
from mmqjp.explain.join_trial import Values, mended, note, shared
from mmqjp.explain.nearness import clipped, near_instead, nearness
from mmqjp.explain.readable import ReadableQuery
from mmqjp.explain.sample import MOST_STEPS, applied
from mmqjp.explain.terms import duration_text, leaf_sides, window_text
from xpath_stage.binder import Take
from xscl.algebra.expressions import Expr
from xscl.algebra.mirror import UNORDERED, Mirror
from xscl.algebra.normal import Conjunct, JoinOp, Term, variables_of

MOST_PAIRS = 200_000
"""Of a join, at most so many pairs of bindings are looked at."""

Pair = tuple[Row, Row]

MOST_NEAR, MOST_COMPARED, LONGEST_COMPARED = 3, 1_000, 200
"""So many values that are nearly equal are looked for, among so many values of so many characters."""

_DIFFER = {"lower-case": "case", "normalize-space": "spaces", "canonical-url": "the form of the address"}
"""What texts differ in that a function makes equal."""

_DONE = 9, 0
"""How far those come that pass all stages."""


@dataclass(frozen=True, slots=True)
class _Test:
    """A stage after the equalities: the pairs that pass, and what is said of pairs none of which does."""

    kind: Kind
    reached: tuple[int, int]
    part: str
    passes: Callable[[Pair], bool]
    told: Callable[[list[Pair]], tuple[str, str]]


@dataclass(eq=False)
class JoinTrial:
    """What a conjunctive query found in the rows of its two inputs: its `stages` up to the first that nothing passes,
    the pairs that pass all, and, if none does, those `before` that stage. `ties` are the pairs that only equal times
    keep from being in order. `reached` tells how far it came: the number of the stage and a part of it."""

    stages: list[Stage] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    before: list[Pair] = field(default_factory=list)
    ties: int = 0
    reached: tuple[int, int] = (0, 0)


class JoinTester:
    """Tries one conjunctive query, whose operator and window are given, on rows of its inputs. `mirror` is that of
    JOIN UNORDERED. `take` is told of the steps that it takes."""

    def __init__(
        self,
        query: ReadableQuery,
        conjunct: Conjunct,
        op: JoinOp,
        window: int | None,
        mirror: Mirror | None,
        take: Take,
    ) -> None:
        self._query, self._conjunct, self._op, self._window = query, conjunct, op, window
        self._mirror, self._mirrors, self._take = mirror, Mirrors(), take
        assert conjunct.right is not None, "a join has two inputs"
        self._are_single = False
        nodes = (node for side in leaf_sides(conjunct) for node in side.pattern.walk())
        self._names = {node.var: node.test.local for node in nodes if node.var is not None}
        self._are_blocks = conjunct.left.hidden is None and conjunct.right.hidden is None

    def tried(self, lefts: Sequence[Row], rights: Sequence[Row]) -> JoinTrial:
        """Returns what it finds in rows, of which there are some on either side."""
        trial = JoinTrial()
        self._are_single = len({row.docids for row in lefts}) == len({row.docids for row in rights}) == 1
        if not self._equalities(trial, lefts, rights):
            return trial
        pairs, at_least = self._joined(lefts, rights)
        if len(self._conjunct.equalities()) > 1 or not pairs:
            trial.reached = 1, 0
            part = " and ".join(map(self._equality, self._conjunct.equalities())) or "two documents"
            stage = Stage("together", part, _documents(pairs), "pairs", at_least=at_least)
            if not pairs:
                stage = stage.told("each equality holds for some nodes, but not all of them for the same nodes")
            trial.stages.append(stage)
        for test in self._tests() if pairs else ():
            passed = [pair for pair in pairs if test.passes(pair)]
            stage = Stage(test.kind, test.part, _documents(passed), "pairs", at_least=at_least)
            trial.reached = test.reached
            if test.kind == "order":
                trial.ties = self._ties(pair for pair in pairs if _is_tie(*pair))
            if not passed:
                trial.before = pairs
                trial.stages.append(stage.told(*test.told(pairs)))
                return trial
            trial.stages.append(stage)
            pairs = passed
        if pairs:
            trial.reached = _DONE
        trial.pairs = pairs
        return trial

    # ------------------------------------------------------------ equalities

    def _equalities(self, trial: JoinTrial, lefts: Sequence[Row], rights: Sequence[Row]) -> bool:
        """Adds a stage for each equality, up to the first that no value satisfies. Returns whether there is none."""
        for number, pair in enumerate(self._conjunct.equalities()):
            left, right = (self._values(rows, term) for rows, term in zip((lefts, rights), pair, strict=True))
            common = len(left.keys() & right.keys()) if self._are_single else shared(left, right)
            trial.reached = 0, number
            stage = Stage("equality", self._equality(pair), common, "values", 0, len(left), len(right))
            if common:
                trial.stages.append(stage)
                continue
            functions, _ = mended(left, right)
            near = list(islice(_near(left, right, functions), MOST_NEAR))
            trial.stages.append(stage.told(*self._unequal(pair, left, right, functions, near)))
            for one, other in near:
                pairs = product(self._rows(lefts, pair[0], one), self._rows(rights, pair[1], other))
                trial.before += islice((two for two in pairs if two[0].docids != two[1].docids), MOST_NEAR)
            return False
        return True

    def _rows(self, rows: Iterable[Row], term: Term, value: str) -> list[Row]:
        """Some rows with a value."""
        return list(islice((row for row in rows if self._value(row, term) == value), MOST_NEAR))

    def _unequal(
        self,
        pair: tuple[Term, Term],
        left: Values,
        right: Values,
        functions: tuple[str, ...],
        near: Sequence[tuple[str, str]],
    ) -> tuple[str, str]:
        one, other = (self._names.get(term.var, "value") for term in pair)
        if functions and near:
            differ = " and ".join(_DIFFER[name] for name in functions)
            what = f'{one} "{clipped(near[0][0])}" and {other} "{clipped(near[0][1])}" differ only in {differ}'
            return what, f"use {', '.join(functions)} on both sides"
        if self._are_single:
            names = (self._query.term(term) for term in pair)
            if told := near_instead(left, right, *names):
                return told
            return f"{one} {_shown(left)} on the left, {other} {_shown(right)} on the right", ""
        for name, values, others in ((one, left, right), (other, right, left)):
            if len(values) <= MOST_NEAR < len(others):
                return f"no other document has {name} {_shown(values)} among {len(others):,} values", ""
        counts = f"{len(left):,} values of {one} on the left and {len(right):,} of {other} on the right"
        return f"no two documents share one of {counts}", ""

    def _values(self, rows: Iterable[Row], term: Term) -> Values:
        values: Values = {}
        for row in rows:
            note(values, self._value(row, term), [(str(row.docids), 0)])
        return values

    def _value(self, row: Row, term: Term) -> str:
        text = row.bound[term.var].text
        self._take(1 + len(text) // CHARACTERS_PER_STEP)
        return applied(text, term.functions)

    def _equality(self, pair: tuple[Term, Term]) -> str:
        return f"{self._query.term(pair[0])} = {self._query.term(pair[1])}"

    def _joined(self, lefts: Sequence[Row], rights: Sequence[Row]) -> tuple[list[Pair], bool]:
        """The pairs of rows that satisfy all equalities, and whether there may be more."""
        equal = self._conjunct.equalities()
        by_values: dict[tuple[str, ...], list[Row]] = {}
        for row in rights:
            by_values.setdefault(tuple(self._value(row, right) for _, right in equal), []).append(row)
        found: list[Pair] = []
        for row in lefts:
            for other in by_values.get(tuple(self._value(row, left) for left, _ in equal), ()):
                if len(found) == MOST_PAIRS:
                    return found, True
                self._take(1)
                if self._are_single or not self._are_blocks or row.docids != other.docids:
                    found.append((row, other))
        return found, False

    # ------------------------------------------------------------ what else there is

    def _tests(self) -> Iterator[_Test]:
        """Yields the other stages."""
        if self._op == "FOLLOWED BY":
            yield _Test("order", (2, 0), self._op, _in_order, self._out_of_order)
        elif self._are_blocks and self._are_single:
            yield _Test("different", (2, 0), self._op, _are_different, _same_document)
        if self._window is not None:
            yield _Test("window", (3, 0), window_text(self._window), self._within, self._too_far)
        for number, expr in enumerate(self._conjunct.residual):
            part = self._query.expression(expr)
            yield _Test("residual", (4, number), part, partial(self._holds, expr), partial(self._is_false, expr))
        if self._op == UNORDERED and self._mirror is not None:
            yield _Test("mirror", (5, 0), self._op, self._is_told_so, _is_told_otherwise)

    def _within(self, pair: Pair) -> bool:
        return self._window is None or _distance(pair) <= self._window

    def _too_far(self, pairs: list[Pair]) -> tuple[str, str]:
        nearest = min(map(_distance, pairs))
        whose = "they are" if len(pairs) == 1 else "the nearest are"
        return f"{whose} {duration_text(nearest)} apart, and the window is {window_text(self._window)}", ""

    def _out_of_order(self, pairs: list[Pair]) -> tuple[str, str]:
        if any(_is_tie(*pair) and self._within(pair) for pair in pairs):
            what = "the right one begins just when the left one ends, and FOLLOWED BY takes only what is later"
            return what, "JOIN takes equal times, too"
        gap = min(left.t1 - right.t0 for left, right in pairs)
        if gap <= 0:
            return "the left one has not ended when the right one begins", "JOIN takes either order"
        return f"the right one begins {duration_text(gap)} before the left one ends", "JOIN takes either order"

    def _holds(self, expr: Expr, pair: Pair) -> bool:
        def text_of(var: str) -> str:
            bound = pair[0].bound.get(var) or pair[1].bound[var]
            self._take(1 + len(bound.text) // CHARACTERS_PER_STEP)
            return bound.text

        return holds(expr, text_of)

    def _text_of_operand(self, pair: Pair, operand: Expr) -> str:
        both = {**pair[0].bound, **pair[1].bound}
        return text_of_operand(operand, lambda var: both[var].text)

    def _is_false(self, expr: Expr, pairs: list[Pair]) -> tuple[str, str]:
        if told := nearness(expr, [partial(self._text_of_operand, pair) for pair in pairs]):
            return told, ""
        both = {**pairs[0][0].bound, **pairs[0][1].bound}
        found = (
            f'{self._query.variable(var)} is "{clipped(both[var].text)}"' for var in dict.fromkeys(variables_of(expr))
        )
        hint = "" if len(self._conjunct.residual) == 1 else "for other nodes, another condition is false"
        return f"{self._query.expression(expr)} is false: {', '.join(found)}", hint if len(pairs) > 1 else ""

    def _is_told_so(self, pair: Pair) -> bool:
        left, right = pair
        try:
            inputs = Inputs((left.documents[0], right.documents[0]))
            return not self._mirrors.tell(self._mirror, inputs, Steps(MOST_STEPS))
        except OutOfSteps:
            return True

    def _ties(self, pairs: Iterable[Pair]) -> int:
        """How many pairs of documents would match but for their equal times, in whichever order."""
        residual = self._conjunct.residual
        passed = (p for p in pairs if self._within(p) and all(self._holds(expr, p) for expr in residual))
        return len({tuple(sorted((left.docids, right.docids))) for left, right in passed})


def _shown(values: Values) -> str:
    listed = [f'"{clipped(value)}"' for value in list(values)[:3]]
    more = f" and {len(values) - 3:,} more" if len(values) > 3 else ""
    return ", ".join(listed) + more


def _documents(pairs: Iterable[Pair]) -> int:
    return len({(left.docids, right.docids) for left, right in pairs})


def _distance(pair: Pair) -> int:
    left, right = pair
    return max(left.t1, right.t1) - min(left.t0, right.t0)


def _in_order(pair: Pair) -> bool:
    return pair[0].t1 < pair[1].t0


def _are_different(pair: Pair) -> bool:
    return pair[0].docids != pair[1].docids


def _same_document(pairs: list[Pair]) -> tuple[str, str]:
    return "both sides are the same document, and a join is of two different ones", ""


def _is_told_otherwise(pairs: list[Pair]) -> tuple[str, str]:
    return "it holds both ways, and is told once: the other way round", ""


def _near(left: Values, right: Values, functions: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yields values of both sides that are nearly equal: equal by functions, or else by their letters."""
    if functions:
        by_value: dict[str, list[str]] = {}
        for text in right:
            by_value.setdefault(applied(text, functions), []).append(text)
        for text in left:
            yield from ((text, other) for other in by_value.get(applied(text, functions), ()) if other != text)
        return
    few, many = sorted((left, right), key=len)
    among = [text for text in islice(many, MOST_COMPARED) if len(text) <= LONGEST_COMPARED]
    for text in islice(few, MOST_NEAR):
        if len(text) <= LONGEST_COMPARED:
            for close in get_close_matches(text, among, MOST_NEAR + 1):
                if close != text:  # a text of the same document
                    yield (text, close) if few is left else (close, text)


def _is_tie(left: Row, right: Row) -> bool:
    """Whether an input ends just when the other begins, and they are made of different documents."""
    sources = [{source for record in row.documents for source in record.sources} for row in (left, right)]
    return left.t1 == right.t0 and not sources[0] & sources[1]
