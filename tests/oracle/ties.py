"""The pairs that FOLLOWED BY excludes by equal times alone, by brute force (docs/semantics.md, section 18)."""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.bindings import Match
from tests.oracle.evaluation import Doc, Evaluation
from xscl.syntax import Join, Script, SubQuery


class _Ties(Evaluation):
    """Answers of a query as if its outermost FOLLOWED BY asked for the right document to begin just when the left one
    ends."""

    def __init__(self, script: Script, documents: Sequence[Doc], index: int) -> None:
        super().__init__(script, documents)
        source = script.queries[index].source
        while isinstance(source, SubQuery):
            source = source.source
        self.join = source if isinstance(source, Join) and source.op == "FOLLOWED BY" else None

    def _in_time(self, join: Join, left: Match, right: Match) -> bool:
        if join is not self.join:
            return super()._in_time(join, left, right)
        externals = [{external for one in match.inputs for external in one.externals} for match in (left, right)]
        near = join.window.us is None or right.t1 - left.t0 <= join.window.us
        return left.t1 == right.t0 and near and not externals[0] & externals[1]


def ties(script: Script, documents: Sequence[Doc]) -> dict[str, int]:
    """How many pairs each query has; those of one name together. Only names that have some."""
    found: dict[str, int] = {}
    for index, name in enumerate(script.names()):
        evaluation = _Ties(script, documents, index)
        if evaluation.join is not None:
            pairs = [answer.inputs for answer in evaluation.outputs(index)]
            distinct = {frozenset(pair) if len(pair) == 2 else pair for pair in pairs}
            found[name] = found.get(name, 0) + len(distinct)
    return {name: count for name, count in found.items() if count}
