"""The oracle's stages: which of them is the first that some documents do not pass, one document for each block.

It goes by docs/why.md: blocks from left to right, each join after its inputs, and of the alternatives of a
predicate the one that comes furthest. Sources with SELECT in parentheses are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from tests.oracle.bindings import Match, Stored
from tests.oracle.evaluation import Evaluation, hole_key, holes_of, mentioned
from tests.oracle.times import moment
from tests.oracle.values import number, text_of
from xscl.algebra.values import And, Call, Compare, ElementConstructor, Expr, Or, String, VarPath
from xscl.check_expressions import blocks, visible_names
from xscl.syntax import Block, Input, Join, Query, SelectItems


@dataclass(frozen=True)
class Outcome:
    """The stage that is not passed, or "" with the matches; and how far the documents came."""

    kind: str
    rank: tuple[int, ...]
    matches: tuple[Match, ...] = ()


class Stages:
    """Finds the stages of a query. `evaluation` is that of its script."""

    def __init__(self, evaluation: Evaluation, query: Query) -> None:
        self._evaluation, self._query = evaluation, query
        self._wanted = frozenset(mentioned(query))
        self._joined: list[tuple[Expr, str]] = []

    def first_failure(self, documents: Sequence[Stored]) -> str:
        """The kind of the first stage that the documents do not pass, "" if they pass all."""
        asked: list[Expr] = []
        if isinstance(self._query.select, SelectItems):
            asked += [item.operand for item in self._query.select.items]
        elif isinstance(self._query.select, ElementConstructor):
            asked += [hole.operand for hole in holes_of(self._query.select) if hole_key(hole)]
        if self._query.once is not None:
            asked += self._query.once.keys
        return self._of(self._query.source, documents, asked, is_whole=True).kind

    def _of(self, source: Input, documents: Sequence[Stored], asked: Sequence[Expr], *, is_whole: bool) -> Outcome:
        if isinstance(source, Block):
            return self._block(source, documents[0], asked)
        assert isinstance(source, Join)
        outcomes = [self._join(source, literals, documents, asked) for literals in _disjuncts(source.pred)]
        matches = tuple(match for outcome in outcomes for match in outcome.matches)
        if matches:
            if source.op == "JOIN UNORDERED" and self._is_told_otherwise(source, documents, asked, is_whole):
                return Outcome("mirror", (2, 6, 0))
            return Outcome("", (9,), matches)
        return max(outcomes, key=lambda outcome: outcome.rank)

    def _block(self, block: Block, document: Stored, asked: Sequence[Expr]) -> Outcome:
        if document.stream != block.stream:
            return Outcome("stream", (0,))
        found = list(self._evaluation._in_document(block, self._wanted, document))
        if not found:
            return Outcome("pattern", (1,))
        passing: Sequence[Match] = found
        for place, one in enumerate(asked):
            passing = [match for match in passing if self._has(one, match)]
            if not passing:
                return Outcome("asked", (2, place))
        return Outcome("", (9,), tuple(passing))

    def _has(self, one: Expr, match: Match) -> bool:
        """Whether a path or condition on variables of a block is there; one on others does not count."""
        if isinstance(one, Compare):
            path, literal = (one.left, one.right) if isinstance(one.right, String) else (one.right, one.left)
            assert isinstance(path, VarPath) and isinstance(literal, String)
            if path.var not in match.visible:
                return True
            return any(value.text == literal.value for value in self._evaluation._values(path, match.visible))
        operand, _ = _root(one)
        if operand is None or operand.var not in match.visible:
            return True
        values = self._evaluation._values(one, match.visible)
        kind = next((kind for joined, kind in self._joined if joined is one), "")
        if kind == "number":  # what is none equals none
            return any(number(text_of(value.typed)) == number(text_of(value.typed)) for value in values)
        if kind == "time":
            return any(moment(text_of(value.typed)).at is not None for value in values)
        return bool(values)

    def _join(
        self, join: Join, literals: Sequence[Expr], documents: Sequence[Stored], asked: Sequence[Expr]
    ) -> Outcome:
        count = len(blocks(join.left))
        names = set(visible_names(join.left)), set(visible_names(join.right))
        equalities = [one for one in literals if isinstance(one, Compare) and _is_equality(one, *names)]
        pushed = [one for one in literals if one not in equalities and _is_pushed(one)]
        rest = [one for one in literals if one not in equalities and one not in pushed]
        words = [one for one in rest if _is_by_words(one, *names)]
        residual = [one for one in rest if one not in words]
        more: list[Expr] = [*asked]
        for literal in literals:
            if literal in pushed:
                more.append(literal)
            else:
                more += _operands(literal)
        self._joined += [(side, _kind(one)) for one in equalities for side in (one.left, one.right)]
        left = self._of(join.left, documents[:count], more, is_whole=False)
        right = self._of(join.right, documents[count:], more, is_whole=False)
        if left.kind:
            return Outcome(left.kind, (0, *left.rank))
        if right.kind:
            return Outcome(right.kind, (1, *right.rank))
        for place, one in enumerate(equalities):
            if not any(self._holds(one, pair) for pair in product(left.matches, right.matches)):
                return Outcome("equality", (2, 0, place))
        pairs = [
            pair for pair in product(left.matches, right.matches) if all(self._holds(one, pair) for one in equalities)
        ]
        if not pairs:
            return Outcome("together", (2, 1, 0))
        for place, literal in enumerate(words):
            pairs = [pair for pair in pairs if self._holds(literal, pair)]
            if not pairs:
                return Outcome("words", (2, 2, place))
        left_match, right_match = pairs[0]
        if join.op == "FOLLOWED BY":
            if not left_match.t1 < right_match.t0:
                return Outcome("order", (2, 3, 0))
        elif left_match.inputs == right_match.inputs and len(left_match.inputs) == 1:
            return Outcome("different", (2, 3, 0))
        if (
            join.window.us is not None
            and max(left_match.t1, right_match.t1) - min(left_match.t0, right_match.t0) > join.window.us
        ):
            return Outcome("window", (2, 4, 0))
        for place, literal in enumerate(residual):
            pairs = [pair for pair in pairs if self._holds(literal, pair)]
            if not pairs:
                return Outcome("residual", (2, 5, place))
        found = (Match(a.inputs + b.inputs, {**a.visible, **b.visible}, ()) for a, b in pairs)
        return Outcome("", (9,), tuple(found))

    def _holds(self, literal: Expr, pair: tuple[Match, Match]) -> bool:
        return self._evaluation._holds(literal, {**pair[0].visible, **pair[1].visible})

    def _is_told_otherwise(
        self, join: Join, documents: Sequence[Stored], asked: Sequence[Expr], is_whole: bool
    ) -> bool:
        """Whether the two documents match the other way round, too, which is told; in an inner join by itself."""
        if len(documents) != 2 or not isinstance(join.left, Block) or not isinstance(join.right, Block):
            return False
        if documents[0].stream != documents[1].stream:
            return False
        places = [(one.t1, one.stream, one.id) for one in documents]
        if not places[1] < places[0]:
            return False
        of_both = asked if is_whole else ()
        return any(self._join(join, one, documents[::-1], of_both).matches for one in _disjuncts(join.pred))


def _disjuncts(pred: Expr) -> list[list[Expr]]:
    match pred:
        case Or():
            return [one for arg in pred.args for one in _disjuncts(arg)]
        case And():
            return [[literal for part in parts for literal in part] for parts in product(*map(_disjuncts, pred.args))]
    return [[pred]]


def _root(operand: Expr) -> tuple[VarPath | None, list[str]]:
    """The variable of an operand, and the functions around it, the outermost first."""
    functions: list[str] = []
    while isinstance(operand, Call):
        functions.append(operand.name)
        operand = operand.args[0]
    return (operand if isinstance(operand, VarPath) else None), functions


def _kind(equality: Compare) -> str:
    """What an equality compares: "number" or "time" if it is not texts."""
    outermost = {functions[0] for side in (equality.left, equality.right) if (functions := _root(side)[1])}
    if "date" in outermost:
        return "time"
    return "number" if outermost & {"number", "string-length"} else ""


def _operands(literal: Expr) -> list[Expr]:
    if isinstance(literal, Compare):
        return [literal.left, literal.right]
    return list(literal.args) if isinstance(literal, Call) else []


def _is_equality(literal: Expr, left: Iterable[str], right: Iterable[str]) -> bool:
    if not isinstance(literal, Compare) or literal.op != "=":
        return False
    one, other = _root(literal.left)[0], _root(literal.right)[0]
    if one is None or other is None:
        return False
    return (one.var in left and other.var in right) or (one.var in right and other.var in left)


def _is_by_words(literal: Expr, left: Iterable[str], right: Iterable[str]) -> bool:
    """Whether a literal compares the words of a text of one side with those of one of the other."""
    if not isinstance(literal, Call) or literal.name not in ("near", "similar"):
        return False
    variables = [root.var for arg in literal.args[:2] if (root := _root(arg)[0]) is not None]
    return any(var in left for var in variables) and any(var in right for var in variables)


def _is_pushed(literal: Expr) -> bool:
    """Whether a literal says what the text of a node is."""
    if not isinstance(literal, Compare) or literal.op != "=":
        return False
    sides = (literal.left, literal.right)
    return any(isinstance(one, VarPath) and isinstance(other, String) for one, other in (sides, sides[::-1]))
