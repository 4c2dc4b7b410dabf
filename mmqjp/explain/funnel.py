"""The funnel of a query: what its blocks and joins find in documents, of the disjunct that comes furthest.

Documents are looked at one by one. With one document for each block, the first stage that nothing passes says why these
documents give no output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from mmqjp.documents.record import Record
from mmqjp.explain.block_rows import BlockTrial, Row
from mmqjp.explain.funnel_stage import Stage
from mmqjp.explain.join_stages import JoinTester, Pair
from mmqjp.explain.readable import ReadableQuery
from mmqjp.explain.sample import TooLong
from xscl.algebra.mirror import Mirror, mirror_of, needed
from xscl.algebra.normal import Conjunct, JoinOp, Side, Term, variables_of
from xscl.algebra.pattern import PatternNode, naming

STEPS, LEAST_STEPS, STEPS_FOR_A_DOCUMENT = 6_000_000, 300_000, 300_000
"""How many steps all funnels of a question take, about as many microseconds; how many one takes at least; and how many
are taken in one document."""

Rank = tuple[int, ...]
"""How far documents come: into which input of a join or the join itself, and there to which stage."""


def steps_for(funnels: int) -> int:
    """Returns how many steps each of so many funnels takes."""
    return max(STEPS // max(funnels, 1), LEAST_STEPS)


class Exhausted(Exception):
    """The funnel has taken all its steps."""


@dataclass(frozen=True, slots=True)
class FunnelResult:
    """What a query found: its `stages` in the order of their evaluation, inner joins first. `rows` are bindings that
    pass all of them. If there are none, `before` are the pairs that pass all of a join but its last stage. `ties`
    counts the pairs of the last join that only equal times keep from being in order. `left_out` documents are too
    large to search; if it is `incomplete`, there was too much to look at all."""

    stages: tuple[Stage, ...]
    rows: tuple[Row, ...] = ()
    before: tuple[Pair, ...] = ()
    ties: int = 0
    left_out: int = 0
    incomplete: bool = False
    rank: Rank = ()

    @property
    def failed(self) -> Stage | None:
        """The first stage that nothing passes."""
        return next((stage for stage in self.stages if not stage.found), None)

    @property
    def found(self) -> int:
        """How many choices of documents pass all stages."""
        return len({row.docids for row in self.rows})


@dataclass(eq=False)
class _Join:
    """A join of two inputs, or the one block of a filter."""

    conjunct: Conjunct
    op: JoinOp | None
    window: int | None
    mirror: Mirror | None
    left: _Input
    right: _Input | None
    kept: Collection[str]


_Input = BlockTrial | list[_Join]
"""A block, or the conjunctive queries of an inner join."""


@dataclass(eq=False)
class _Work:
    """The steps that remain: in all, and in the document that is looked at."""

    left: int
    here: int = 0

    def take(self, steps: int) -> None:
        self.left -= steps
        self.here -= steps
        if self.left < 0:
            raise Exhausted
        if self.here < 0:
            raise TooLong


class Funnel:
    """Looks at documents for a query. With `selects`, what it SELECTs and tells once is bound, too, and so are the
    variables to `keep`."""

    def __init__(
        self, query: ReadableQuery, *, selects: bool = False, keep: Collection[str] = (), steps: int = STEPS
    ) -> None:
        self._query, self._steps, self._work = query, steps, _Work(steps)
        self._trials: dict[tuple[int, PatternNode], BlockTrial] = {}
        self._incomplete = False
        normal = query.normal
        kept = set(keep)
        if selects:
            kept |= {entry.value.var for entry in normal.entries if isinstance(entry.value, Term)}
            kept |= {var for key in (normal.once.keys if normal.once else ()) for var in variables_of(key)}
        mirror = mirror_of(normal.conjuncts)
        self._top = self._joins(normal.conjuncts, normal.op, normal.window, mirror, kept, 0)

    def look(self, record: Record, blocks: Collection[int]) -> None:
        """Looks at one more document for some blocks, by their numbers from 0. Frees its tree."""
        try:
            for (number, _), trial in self._trials.items():
                if number in blocks:
                    self._work.here = STEPS_FOR_A_DOCUMENT
                    trial.look(record, self._work.take)
        except Exhausted:
            self._incomplete = True
        record.__dict__.pop("tree", None)

    @property
    def is_exhausted(self) -> bool:
        """Whether it looks at no more documents."""
        return self._incomplete

    def result(self) -> FunnelResult:
        """Returns what it found. The steps for the joins are counted anew."""
        self._work.left, self._work.here = self._steps, self._steps
        try:
            found = self._best(self._top)
        except (Exhausted, TooLong):
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
                right = self._input(conjunct.right, wanted, first + _blocks(conjunct.left))
            found.append(_Join(conjunct, op, window, mirror, left, right, kept))
        return found

    def _input(self, side: Side, wanted: Collection[str], first: int) -> _Input:
        if side.hidden is None:
            key = first, naming(side.pattern, wanted)
            if key not in self._trials:
                self._trials[key] = BlockTrial(self._query, first, side, wanted)
            return self._trials[key]
        hidden = side.hidden
        mirror = mirror_of(hidden.alone) if hidden.alone else None
        kept = set(hidden.variables) & set(wanted)
        return self._joins(hidden.conjuncts, hidden.op, hidden.window, mirror, kept, first)

    # ------------------------------------------------------------ evaluation

    def _best(self, joins: Sequence[_Join]) -> FunnelResult:
        """What the conjunctive query found that came furthest, with the rows of all."""
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
        if not isinstance(input, BlockTrial):
            return self._best(input)
        stages = tuple(input.stages())
        return FunnelResult(stages, tuple(input.rows), rank=(len(stages),) if input.rows else (len(stages) - 1,))


def _row(pair: Pair, kept: Collection[str]) -> Row:
    left, right = pair
    bound = {var: bound for row in pair for var, bound in row.bound.items() if var in kept}
    return Row((*left.documents, *right.documents), min(left.t0, right.t0), max(left.t1, right.t1), bound)


def _blocks(side: Side) -> int:
    if side.hidden is None:
        return 1
    return sum(_blocks(inner) for inner in side.hidden.conjuncts[0].sides())
