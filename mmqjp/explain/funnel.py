"""Explains why documents give no output of a query, or which outputs they give. The funnel evaluates the blocks and
joins stage by stage, counts what passes each stage, and keeps the disjunct that gets furthest; with one document per
block, the first stage that nothing passes is the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from itertools import combinations, islice, permutations, product
from typing import Literal

from mmqjp.answers.matches import Mirrors, residual_holds, text_of_operand
from mmqjp.answers.operators import OnceKey, once_key
from mmqjp.answers.output import BoundValue
from mmqjp.answers.quota import OutOfSteps, Steps
from mmqjp.documents.record import Inputs, Record
from mmqjp.explain.blocks import BindingRow, BlockRows
from mmqjp.explain.join_trial import (
    DocumentsByText,
    mended,
    note,
    shared,
)
from mmqjp.explain.terms import (
    CHARACTERS_PER_STEP,
    MAX_SAMPLE_STEPS,
    FunnelStage,
    ReadableQuery,
    StageKind,
    TooLong,
    apply_functions,
    blocks_of,
    duration_text,
    format_window,
    leaf_sides,
    near_instead,
    nearness,
    truncate_value,
)
from mmqjp.queries.model import Subscription, choice_of
from xpath_stage.binder import Take
from xscl.algebra.joins import UNORDERED, Conjunct, JoinOp, Mirror, Side, Term, mirror_of, needed, variables_of
from xscl.algebra.trees import PatternNode, naming
from xscl.algebra.values import Expr

MOST_PAIRS = 200_000
"""Maximum number of binding pairs examined per join."""

RowPair = tuple[BindingRow, BindingRow]

MOST_NEAR, MOST_COMPARED, LONGEST_COMPARED = 3, 1_000, 200
"""Limits for near misses: values reported, values compared, and characters per value."""

_DIFFER = {"lower-case": "case", "normalize-space": "spaces", "canonical-url": "the form of the address"}
"""How texts differ that a function makes equal."""

_DONE = 9, 0
"""The rank of documents that pass all stages."""


@dataclass(frozen=True, slots=True)
class _Test:
    """A stage after the equalities: the pairs that pass, and the message if none does."""

    kind: StageKind
    reached: tuple[int, int]
    part: str
    passes: Callable[[RowPair], bool]
    told: Callable[[list[RowPair]], tuple[str, str]]


@dataclass(eq=False)
class JoinPairs:
    """The result of a conjunctive query over the rows of its two inputs. `stages` end with the first that nothing
    passes; if none is left, `before` has the pairs before that stage. `ties` counts pairs out of order only because of
    equal times. `reached` is the number of the last stage and a part of it."""

    stages: list[FunnelStage] = field(default_factory=list)
    pairs: list[RowPair] = field(default_factory=list)
    before: list[RowPair] = field(default_factory=list)
    ties: int = 0
    reached: tuple[int, int] = (0, 0)


class JoinTester:
    """Tries one conjunctive query with a given operator and window. `mirror` is that of JOIN UNORDERED. `take` is
    called with the steps done."""

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

    def tried(self, lefts: Sequence[BindingRow], rights: Sequence[BindingRow]) -> JoinPairs:
        """Joins rows; neither side may be empty."""
        trial = JoinPairs()
        self._are_single = len({row.docids for row in lefts}) == len({row.docids for row in rights}) == 1
        if not self._equalities(trial, lefts, rights):
            return trial
        pairs, at_least = self._joined(lefts, rights)
        if len(self._conjunct.equalities()) > 1 or not pairs:
            trial.reached = 1, 0
            part = " and ".join(map(self._equality, self._conjunct.equalities())) or "two documents"
            stage = FunnelStage("together", part, _documents(pairs), "pairs", at_least=at_least)
            if not pairs:
                stage = stage.told("each equality holds for some nodes, but not all of them for the same nodes")
            trial.stages.append(stage)
        for test in self._tests() if pairs else ():
            passed = [pair for pair in pairs if test.passes(pair)]
            stage = FunnelStage(test.kind, test.part, _documents(passed), "pairs", at_least=at_least)
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

    def _equalities(self, trial: JoinPairs, lefts: Sequence[BindingRow], rights: Sequence[BindingRow]) -> bool:
        """Adds a stage per equality, up to the first that no value satisfies. Returns whether all are satisfied."""
        for number, pair in enumerate(self._conjunct.equalities()):
            left, right = (self._values(rows, term) for rows, term in zip((lefts, rights), pair, strict=True))
            common = len(left.keys() & right.keys()) if self._are_single else shared(left, right)
            trial.reached = 0, number
            stage = FunnelStage("equality", self._equality(pair), common, "values", 0, len(left), len(right))
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

    def _rows(self, rows: Iterable[BindingRow], term: Term, value: str) -> list[BindingRow]:
        return list(islice((row for row in rows if self._value(row, term) == value), MOST_NEAR))

    def _unequal(
        self,
        pair: tuple[Term, Term],
        left: DocumentsByText,
        right: DocumentsByText,
        functions: tuple[str, ...],
        near: Sequence[tuple[str, str]],
    ) -> tuple[str, str]:
        one, other = (self._names.get(term.var, "value") for term in pair)
        if functions and near:
            differ = " and ".join(_DIFFER[name] for name in functions)
            shown, against = map(truncate_value, near[0])
            what = f'{one} "{shown}" and {other} "{against}" differ only in {differ}'
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

    def _values(self, rows: Iterable[BindingRow], term: Term) -> DocumentsByText:
        values: DocumentsByText = {}
        for row in rows:
            note(values, self._value(row, term), [(str(row.docids), 0)])
        return values

    def _value(self, row: BindingRow, term: Term) -> str:
        text = row.bound[term.var].text
        self._take(1 + len(text) // CHARACTERS_PER_STEP)
        return apply_functions(text, term.functions)

    def _equality(self, pair: tuple[Term, Term]) -> str:
        return f"{self._query.term(pair[0])} = {self._query.term(pair[1])}"

    def _joined(self, lefts: Sequence[BindingRow], rights: Sequence[BindingRow]) -> tuple[list[RowPair], bool]:
        """The pairs of rows that satisfy all equalities, and whether there may be more."""
        equal = self._conjunct.equalities()
        by_values: dict[tuple[str, ...], list[BindingRow]] = {}
        for row in rights:
            by_values.setdefault(tuple(self._value(row, right) for _, right in equal), []).append(row)
        found: list[RowPair] = []
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
        if self._op == "FOLLOWED BY":
            yield _Test("order", (2, 0), self._op, _in_order, self._out_of_order)
        elif self._are_blocks and self._are_single:
            yield _Test("different", (2, 0), self._op, _are_different, _same_document)
        if self._window is not None:
            yield _Test("window", (3, 0), format_window(self._window), self._within, self._too_far)
        for number, expr in enumerate(self._conjunct.residual):
            part = self._query.expression(expr)
            yield _Test("residual", (4, number), part, partial(self._holds, expr), partial(self._is_false, expr))
        if self._op == UNORDERED and self._mirror is not None:
            yield _Test("mirror", (5, 0), self._op, self._is_told_so, _is_told_otherwise)

    def _within(self, pair: RowPair) -> bool:
        return self._window is None or _distance(pair) <= self._window

    def _too_far(self, pairs: list[RowPair]) -> tuple[str, str]:
        nearest = min(map(_distance, pairs))
        whose = "they are" if len(pairs) == 1 else "the nearest are"
        return f"{whose} {duration_text(nearest)} apart, and the window is {format_window(self._window)}", ""

    def _out_of_order(self, pairs: list[RowPair]) -> tuple[str, str]:
        if any(_is_tie(*pair) and self._within(pair) for pair in pairs):
            what = "the right one begins just when the left one ends, and FOLLOWED BY takes only what is later"
            return what, "JOIN takes equal times, too"
        gap = min(left.t1 - right.t0 for left, right in pairs)
        if gap <= 0:
            return "the left one has not ended when the right one begins", "JOIN takes either order"
        return f"the right one begins {duration_text(gap)} before the left one ends", "JOIN takes either order"

    def _holds(self, expr: Expr, pair: RowPair) -> bool:
        def text_of(var: str) -> str:
            bound = pair[0].bound.get(var) or pair[1].bound[var]
            self._take(1 + len(bound.text) // CHARACTERS_PER_STEP)
            return bound.text

        return residual_holds(expr, text_of)

    def _text_of_operand(self, pair: RowPair, operand: Expr) -> str:
        both = {**pair[0].bound, **pair[1].bound}
        return text_of_operand(operand, lambda var: both[var].text)

    def _is_false(self, expr: Expr, pairs: list[RowPair]) -> tuple[str, str]:
        if told := nearness(expr, [partial(self._text_of_operand, pair) for pair in pairs]):
            return told, ""
        both = {**pairs[0][0].bound, **pairs[0][1].bound}
        found = (
            f'{self._query.variable(var)} is "{truncate_value(both[var].text)}"'
            for var in dict.fromkeys(variables_of(expr))
        )
        hint = "" if len(self._conjunct.residual) == 1 else "for other nodes, another condition is false"
        return f"{self._query.expression(expr)} is false: {', '.join(found)}", hint if len(pairs) > 1 else ""

    def _is_told_so(self, pair: RowPair) -> bool:
        left, right = pair
        try:
            inputs = Inputs((left.documents[0], right.documents[0]))
            return not self._mirrors.tell(self._mirror, inputs, Steps(MAX_SAMPLE_STEPS))
        except OutOfSteps:
            return True

    def _ties(self, pairs: Iterable[RowPair]) -> int:
        """Counts pairs of documents, in either order, that fail only because of equal times."""
        residual = self._conjunct.residual
        passed = (p for p in pairs if self._within(p) and all(self._holds(expr, p) for expr in residual))
        return len({tuple(sorted((left.docids, right.docids))) for left, right in passed})


def _shown(values: DocumentsByText) -> str:
    listed = [f'"{truncate_value(value)}"' for value in list(values)[:3]]
    more = f" and {len(values) - 3:,} more" if len(values) > 3 else ""
    return ", ".join(listed) + more


def _documents(pairs: Iterable[RowPair]) -> int:
    return len({(left.docids, right.docids) for left, right in pairs})


def _distance(pair: RowPair) -> int:
    left, right = pair
    return max(left.t1, right.t1) - min(left.t0, right.t0)


def _in_order(pair: RowPair) -> bool:
    return pair[0].t1 < pair[1].t0


def _are_different(pair: RowPair) -> bool:
    return pair[0].docids != pair[1].docids


def _same_document(pairs: list[RowPair]) -> tuple[str, str]:
    return "both sides are the same document, and a join is of two different ones", ""


def _is_told_otherwise(pairs: list[RowPair]) -> tuple[str, str]:
    return "it holds both ways, and is told once: the other way round", ""


def _near(left: DocumentsByText, right: DocumentsByText, functions: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yields nearly equal values of both sides: equal after a function, or else by their letters."""
    if functions:
        by_value: dict[str, list[str]] = {}
        for text in right:
            by_value.setdefault(apply_functions(text, functions), []).append(text)
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


def _is_tie(left: BindingRow, right: BindingRow) -> bool:
    """Whether one input ends as the other begins, and they share no documents."""
    sources = [{source for record in row.documents for source in record.sources} for row in (left, right)]
    return left.t1 == right.t0 and not sources[0] & sources[1]


STEPS, LEAST_STEPS, STEPS_FOR_A_DOCUMENT = 6_000_000, 300_000, 300_000
"""Step limits, about a microsecond each: for all funnels of a request, at least for each funnel, and for each
document."""

_Rank = tuple[int, ...]
"""How far documents get: the input of a join or the join itself, and the stage there."""


def steps_for(funnels: int) -> int:
    return max(STEPS // max(funnels, 1), LEAST_STEPS)


class FunnelExhausted(Exception):
    """The funnel has used up its steps."""


@dataclass(frozen=True, slots=True)
class FunnelResult:
    """The result of a query. `stages` are in evaluation order, inner joins first; `rows` are bindings that pass all. If
    there are none, `before` has the pairs that pass all but the last stage of a join. `ties` counts pairs of the last
    join out of order only because of equal times. `left_out` documents are too large to search; `incomplete`: the step
    limit was reached."""

    stages: tuple[FunnelStage, ...]
    rows: tuple[BindingRow, ...] = ()
    before: tuple[RowPair, ...] = ()
    ties: int = 0
    left_out: int = 0
    incomplete: bool = False
    rank: _Rank = ()

    @property
    def failed(self) -> FunnelStage | None:
        return next((stage for stage in self.stages if not stage.found), None)

    @property
    def found(self) -> int:
        return len({row.docids for row in self.rows})


@dataclass(eq=False)
class _Join:
    conjunct: Conjunct
    op: JoinOp | None
    window: int | None
    mirror: Mirror | None
    left: _Input
    right: _Input | None
    kept: Collection[str]


_Input = BlockRows | list[_Join]
"""A block, or the conjunctive queries of an inner join."""


@dataclass(eq=False)
class _Work:
    left: int
    here: int = 0

    def take(self, steps: int) -> None:
        self.left -= steps
        self.here -= steps
        if self.left < 0:
            raise FunnelExhausted
        if self.here < 0:
            raise TooLong


class Funnel:
    """Evaluates a query over single documents. With `selects`, it also binds SELECT and ONCE variables; it always binds
    those in `keep`."""

    def __init__(
        self, query: ReadableQuery, *, selects: bool = False, keep: Collection[str] = (), steps: int = STEPS
    ) -> None:
        self._query, self._steps, self._work = query, steps, _Work(steps)
        self._trials: dict[tuple[int, PatternNode], BlockRows] = {}
        self._incomplete = False
        normal = query.normal
        kept = set(keep)
        if selects:
            kept |= {entry.value.var for entry in normal.entries if isinstance(entry.value, Term)}
            kept |= {var for key in (normal.once.keys if normal.once else ()) for var in variables_of(key)}
        mirror = mirror_of(normal.conjuncts)
        self._top = self._joins(normal.conjuncts, normal.op, normal.window, mirror, kept, 0)

    def look(self, record: Record, blocks: Collection[int]) -> None:
        """Evaluates blocks, numbered from 0, over one more document. Frees its tree."""
        try:
            for (number, _), trial in self._trials.items():
                if number in blocks:
                    self._work.here = STEPS_FOR_A_DOCUMENT
                    trial.look(record, self._work.take)
        except FunnelExhausted:
            self._incomplete = True
        record.__dict__.pop("tree", None)

    def result(self) -> FunnelResult:
        """Joins what was found. The step count starts again for the joins."""
        self._work.left, self._work.here = self._steps, self._steps
        try:
            found = self._best(self._top)
        except (FunnelExhausted, TooLong):
            found = FunnelResult((), incomplete=True)
        left_out = sum(trial.left_out for trial in self._trials.values())
        return replace(found, left_out=left_out, incomplete=self._incomplete or found.incomplete)

    # ------------------------------------------------------------ the query as joins

    def _joins(
        self,
        conjuncts: Iterable[Conjunct],
        op: JoinOp | None,
        window: int | None,
        mirror: Mirror | None,
        kept: Collection[str],
        first: int,
    ) -> list[_Join]:
        found = []
        for conjunct in conjuncts:
            wanted = needed(conjunct) | set(kept)
            left = self._input(conjunct.left, wanted, first)
            right = None
            if conjunct.right is not None:
                right = self._input(conjunct.right, wanted, first + blocks_of(conjunct.left))
            found.append(_Join(conjunct, op, window, mirror, left, right, kept))
        return found

    def _input(self, side: Side, wanted: Collection[str], first: int) -> _Input:
        if side.hidden is None:
            key = first, naming(side.pattern, wanted)
            if key not in self._trials:
                self._trials[key] = BlockRows(self._query, first, side, wanted)
            return self._trials[key]
        hidden = side.hidden
        mirror = mirror_of(hidden.alone) if hidden.alone else None
        kept = set(hidden.variables) & set(wanted)
        return self._joins(hidden.conjuncts, hidden.op, hidden.window, mirror, kept, first)

    # ------------------------------------------------------------ evaluation

    def _best(self, joins: Sequence[_Join]) -> FunnelResult:
        results = [self._result(join) for join in joins]
        best = max(results, key=lambda result: (result.rank, result.found))
        rows = tuple(row for result in results for row in result.rows)
        return FunnelResult(best.stages, rows, best.before, best.ties, 0, best.incomplete, best.rank)

    def _result(self, join: _Join) -> FunnelResult:
        left = self._of(join.left)
        if join.right is None:
            return left
        right = self._of(join.right)
        stages = left.stages + right.stages
        if not left.rows:
            return FunnelResult(stages, before=left.before, ties=left.ties, rank=(0, *left.rank))
        if not right.rows:
            return FunnelResult(stages, before=right.before, ties=right.ties, rank=(1, *right.rank))
        assert join.op is not None, "what has two inputs is a join"
        tester = JoinTester(self._query, join.conjunct, join.op, join.window, join.mirror, self._work.take)
        trial = tester.tried(left.rows, right.rows)
        rows = tuple(_row(pair, join.kept) for pair in trial.pairs)
        return FunnelResult((*stages, *trial.stages), rows, tuple(trial.before), trial.ties, rank=(2, *trial.reached))

    def _of(self, input: _Input) -> FunnelResult:
        if not isinstance(input, BlockRows):
            return self._best(input)
        stages = tuple(input.stages())
        return FunnelResult(stages, tuple(input.rows), rank=(len(stages),) if input.rows else (len(stages) - 1,))


def _row(pair: RowPair, kept: Collection[str]) -> BindingRow:
    left, right = pair
    bound = {var: bound for row in pair for var, bound in row.bound.items() if var in kept}
    return BindingRow((*left.documents, *right.documents), min(left.t0, right.t0), max(left.t1, right.t1), bound)


MOST_ORDERS = 3
"""Queries with at most this number of blocks try documents in every order, others only in the given one."""

VerdictKind = StageKind | Literal["output", "paused", "newer", "too large"]

MOST_LISTED = 20
"""Maximum number of outputs listed."""


@dataclass(frozen=True, slots=True)
class GivenOutput:
    """An output: its id, the interval of its documents, and its ONCE value."""

    id: str
    t0: int
    t1: int
    keys: frozenset[OnceKey] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a query for documents, each in the block of its place in `documents` (None: no document).

    `kind` is that of the first stage that nothing passes, with its `part` of the query, `message` and `hint`; or
    "newer" (the query was registered after a document came), "paused" (it was paused then), "too large" (undecided), or
    "output" with the outputs `given`. `stages` are those evaluated, up to that one.
    """

    query: Subscription
    documents: tuple[Record | None, ...]
    kind: VerdictKind
    part: str = ""
    message: str = ""
    hint: str = ""
    stages: tuple[FunnelStage, ...] = ()
    given: tuple[GivenOutput, ...] = ()
    rank: tuple[int, ...] = ()
    found: FunnelResult = FunnelResult(())


def orders(documents: Sequence[Record], blocks: int) -> Iterator[tuple[Record | None, ...]]:
    """Yields the assignments of documents to blocks, the given order first."""
    every = permutations(documents) if blocks <= MOST_ORDERS else iter((tuple(documents),))
    met = set[tuple[int | None, ...]]()
    for ordered in every:
        for places in combinations(range(blocks), len(documents)):
            at = dict(zip(places, ordered, strict=True))
            found = tuple(at.get(block) for block in range(blocks))
            key = tuple(None if record is None else record.docid for record in found)
            if key not in met:
                met.add(key)
                yield found


def verdict(query: Subscription, readable: ReadableQuery, documents: Sequence[Record], steps: int = STEPS) -> Verdict:
    """Returns the verdict for documents, one for each block. `steps` bounds the work."""
    placed = tuple(documents)
    if (unseen := _unseen(query, documents)) is not None:
        return Verdict(query, placed, *unseen, rank=(-1,))
    funnel = Funnel(readable, selects=True, steps=steps)
    for block, record in enumerate(documents):
        funnel.look(record, (block,))
    result = funnel.result()
    if result.rows:
        given = tuple(_given(query, readable, result.rows, {record.docid: record for record in documents}))
        return Verdict(query, placed, "output", given=given, rank=(9,), found=result)
    return of_result(query, placed, result)


def of_result(query: Subscription, documents: tuple[Record | None, ...], result: FunnelResult) -> Verdict:
    """Returns the verdict of a funnel result without rows."""
    failed, is_alone = result.failed, None not in documents
    if result.incomplete or failed is None or (is_alone and result.left_out):
        what = "a document is too large to search, or has too many bindings"
        if not is_alone:
            what = "there is too much to look at in the kept documents: name the other one, too"
        return Verdict(query, documents, "too large", "", what, "", result.stages, (), result.rank, result)
    stages = result.stages[: result.stages.index(failed) + 1]
    return Verdict(
        query, documents, failed.kind, failed.part, failed.message, failed.hint, stages, (), result.rank, result
    )


def furthest_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=lambda one: one.rank)


def _unseen(query: Subscription, documents: Sequence[Record]) -> tuple[VerdictKind, str, str] | None:
    appeared = [at for record in documents for at in record.appeared]
    if query.sees(appeared):
        return None
    if min(appeared) <= query.since:
        return "newer", "", "the query was registered after the document came"
    return "paused", "", "the query was paused when the document came"


def _given(
    query: Subscription, readable: ReadableQuery, rows: Iterable[BindingRow], records: Mapping[int, Record]
) -> Iterator[GivenOutput]:
    """Yields the outputs of rows that bind all SELECT variables, each once."""
    normal = readable.normal
    terms = [entry.value for entry in normal.entries if isinstance(entry.value, Term)]
    found: dict[str, tuple[BindingRow, set[OnceKey]]] = {}
    for row in rows:
        bound = [row.bound[term.var] for term in terms]
        nodes = ", ".join(
            BoundValue(records[one.docid], one.node, term.functions).json()
            for one, term in zip(bound, terms, strict=True)
        )
        ids = json.dumps([id for record in row.documents for id in record.part_ids], ensure_ascii=False)
        id = query.identity.id(choice_of(ids, f"[{nodes}]").encode())
        keys = found.setdefault(id, (row, set()))[1]
        if normal.once is not None:
            texts = {var: one.text for var, one in row.bound.items()}
            keys.add(once_key([text_of_operand(key, texts.__getitem__) for key in normal.once.keys]))
    for id, (row, keys) in found.items():
        yield GivenOutput(id, row.t0, row.t1, frozenset(keys))


MOST_QUERIES = 100
"""Maximum number of same-named queries tried for an answer of an earlier store."""
