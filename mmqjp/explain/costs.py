"""What a template is expected to cost: how many pairs of nodes with one value a new document brings to look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from join_stage.state_tables import DOCUMENTS, EQUAL_VALUES
from mmqjp.session import Session
from templates.template import Shape


@dataclass(frozen=True)
class Estimates:
    """How often the nodes of two variables have one value, in `documents` that are kept."""

    documents: int
    pairs: dict[tuple[int, int], float]

    def of_row(self, shape: Shape, variables: tuple[int, ...]) -> tuple[float, tuple[int, int]] | None:
        """Pairs that a new document like the kept ones brings for a row's rarest join, and the join's variables.

        None for a template without a join.
        """
        joins = [(variables[left], variables[right]) for left, right in shape.joins]
        return min(((self.pairs.get(join, 0.0), join) for join in joins), default=None)

    def of_rows(self, shape: Shape, rows: Iterable[tuple[int, ...]]) -> float:
        """The same for several rows of a template: what they share is looked at once."""
        rarest = (self.of_row(shape, variables) for variables in rows)
        return sum({join: pairs for pairs, join in filter(None, rarest)}.values())


def estimates(engine: Session) -> Estimates | None:
    """Estimates from the documents that are kept; None if there are none."""
    (kept,) = engine.sql(DOCUMENTS, trusted=True).to_pylist()
    if not kept["n"]:
        return None
    rows = engine.sql(EQUAL_VALUES, trusted=True).to_pylist()
    # A new document stands on the left and on the right.
    return Estimates(kept["n"], {(r["var1"], r["var2"]): 2 * float(r["pairs"]) / kept["n"] for r in rows})
