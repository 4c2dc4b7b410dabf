"""Estimates the cost of a template: how many pairs of nodes with equal values a new document brings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from join_stage.state_tables import DOCUMENTS, EQUAL_VALUES
from mmqjp.session import Session
from templates.template import Shape


@dataclass(frozen=True)
class Estimates:
    """How often nodes of two variables have the same value, based on `documents` stored documents.

    `pairs` maps two variables to the expected number of pairs per new document.
    """

    documents: int
    pairs: dict[tuple[int, int], float]

    def of_row(self, shape: Shape, variables: tuple[int, ...]) -> tuple[float, tuple[int, int]] | None:
        """Returns the expected pairs per new document for a row's rarest join, and the variables of that join.

        Returns None for a template without joins.
        """
        joins = [(variables[left], variables[right]) for left, right in shape.joins]
        return min(((self.pairs.get(join, 0.0), join) for join in joins), default=None)

    def of_rows(self, shape: Shape, rows: Iterable[tuple[int, ...]]) -> float:
        """Returns the sum over several rows of a template. A join that rows share counts once."""
        rarest = (self.of_row(shape, variables) for variables in rows)
        return sum({join: pairs for pairs, join in filter(None, rarest)}.values())


def estimates(engine: Session) -> Estimates | None:
    """Returns estimates based on the stored documents, or None if there are none."""
    (kept,) = engine.sql(DOCUMENTS, trusted=True).to_pylist()
    if not kept["n"]:
        return None
    rows = engine.sql(EQUAL_VALUES, trusted=True).to_pylist()
    # A new document is tried on the left and on the right.
    return Estimates(kept["n"], {(r["var1"], r["var2"]): 2 * float(r["pairs"]) / kept["n"] for r in rows})
