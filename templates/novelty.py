"""What conjunctive queries would add to a catalog, which stays as it is. Another thread may use it meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from templates.catalog import Catalog
from templates.minor import minor
from templates.template import canonical_row, canonical_shape, shape_of
from xscl.algebra.normal import Conjunct
from xscl.algebra.pattern import PatternNode, texts_of


@dataclass(slots=True)
class Needs:
    """What conjunctive queries need: each pattern, template and row by its key, with whether the catalog lacks it.

    A pattern is what stage 1 looks for on one side: a stream and the definitions of its variables.
    """

    patterns: dict[object, bool] = field(default_factory=dict)
    templates: dict[object, bool] = field(default_factory=dict)
    rows: dict[object, bool] = field(default_factory=dict)


def needs_of(catalog: Catalog, conjuncts: Iterable[Conjunct]) -> Needs:
    """Returns what conjunctive queries need."""
    needs = Needs()
    # Variables that the catalog lacks get negative numbers.
    fresh: dict[object, int] = {}

    def variable(stream: str, definition: tuple[PatternNode, ...]) -> int:
        found = catalog.find_step(stream, definition)
        return fresh.setdefault((stream, *texts_of(definition)), -1 - len(fresh)) if found is None else found

    for conjunct in conjuncts:
        terms = [[join[side] for join in conjunct.joins] for side in (0, 1)]
        sides = conjunct.sides()
        minors = [minor(side.pattern, terms[number]) for number, side in enumerate(sides)]
        shape = shape_of(minors[0], minors[1] if len(minors) > 1 else None, conjunct.joins)
        variables: list[int] = []
        for side, reduced in zip(sides, minors, strict=True):
            own = [variable(side.stream, node.definition) for node in reduced.nodes]
            needs.patterns[frozenset(own)] = min(own) < 0
            variables += own
        needs.templates[canonical_shape(shape).key] = catalog.find_template(shape) is None
        needs.rows[canonical_row(shape, variables).key] = not catalog.has_row(shape, variables)
    return needs
