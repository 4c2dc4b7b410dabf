"""Random queries as in section 6.6.1 of the thesis, and their rows of R_T from the catalog, reproducible by seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from join_stage.protocol import TemplateTable
from templates.catalog import INFINITE, Catalog, Placement, StepEdge, TemplateRow
from templates.graph import Shape, canonical_shape
from xscl.algebra.joins import Conjunct, Side, Term
from xscl.algebra.trees import PatternNode, Test

ROOT = "item"


@dataclass(frozen=True)
class Schema:
    """Documents of one root: `paths[i]` are the tags that lead from it to leaf i, each tag in one place only."""

    paths: tuple[tuple[str, ...], ...]

    @cached_property
    def node_of(self) -> dict[str, int]:
        """The number of each tag's node in document order."""
        tags = dict.fromkeys((ROOT, *(tag for path in self.paths for tag in path)))
        return {tag: number for number, tag in enumerate(tags)}

    def leaf(self, number: int) -> str:
        return self.paths[number][-1]

    def above(self, number: int) -> str:
        """The tag of a leaf's parent."""
        path = self.paths[number]
        return path[-2] if len(path) > 1 else ROOT


def two_level(leaves: int) -> Schema:
    """All leaves are children of the root, as in a feed's item."""
    return Schema(tuple((f"leaf{i}",) for i in range(leaves)))


def three_level(branching: int = 4) -> Schema:
    """The root and the nodes below it have `branching` children each."""
    return Schema(tuple((f"part{i}", f"leaf{i}x{j}") for i in range(branching) for j in range(branching)))


Pairs = tuple[tuple[int, int], ...]
"""A query: pairs of leaves, left and right, whose values must be equal. No leaf occurs twice on a side."""


def draw(schema: Schema, number: int, most: int, zipf: float, seed: int = 1) -> list[Pairs]:
    """`number` queries with 1 to `most` value joins, few of them more likely with a larger `zipf`; the leaves are drawn
    uniformly. Equal queries are the same object."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, most + 1) ** zipf
    joins = rng.choice(np.arange(1, most + 1), number, p=weights / weights.sum()).tolist()
    leaves = np.tile(np.arange(len(schema.paths)), (number, 1))
    lefts, rights = (rng.permuted(leaves, axis=1).tolist() for _ in range(2))
    drawn = (
        tuple(sorted(zip(left[:k], right[:k], strict=True)))
        for k, left, right in zip(joins, lefts, rights, strict=True)
    )
    known: dict[Pairs, Pairs] = {}
    return [known.setdefault(pairs, pairs) for pairs in drawn]


def conjunct(schema: Schema, pairs: Pairs, streams: tuple[str, str]) -> Conjunct:
    """The query as XSCL's normal form has it: v0, v1, ... on the left, w0, w1, ... on the right."""
    left, right = (
        Side(stream, _pattern(schema, [pair[side] for pair in pairs], name))
        for side, (stream, name) in enumerate(zip(streams, "vw", strict=True))
    )
    return Conjunct(left, right, tuple((Term(f"v{i}"), Term(f"w{i}")) for i in range(1, len(pairs) + 1)))


def _pattern(schema: Schema, leaves: Sequence[int], name: str) -> PatternNode:
    """The root with what leads to the leaves: leaf i of them is bound to NAMEi, the root to NAME0."""
    parts: dict[str, list[PatternNode]] = {}
    top: list[PatternNode] = []
    for i, leaf in enumerate(leaves, 1):
        node = PatternNode("/", _test(schema.leaf(leaf)), var=f"{name}{i}")
        if schema.above(leaf) == ROOT:
            top.append(node)
        else:
            parts.setdefault(schema.above(leaf), []).append(node)
    top += [PatternNode("/", _test(part), children=tuple(below)) for part, below in parts.items()]
    return PatternNode("//", _test(ROOT), children=tuple(top), var=f"{name}0")


def _test(tag: str) -> Test:
    return Test("element", "", tag)


@dataclass(frozen=True)
class Registered:
    """Queries registered in a catalog: the placement of each distinct one, the patterns for stage 1, and the rows of
    R_T."""

    schema: Schema
    streams: tuple[str, str]
    queries: list[Pairs]
    catalog: Catalog
    placements: dict[Pairs, Placement]
    edges: frozenset[StepEdge]
    values: frozenset[int]
    tables: list[tuple[TemplateTable, list[TemplateRow]]]

    @property
    def subscribers(self) -> Counter[int]:
        """How many queries share each row of R_T."""
        return Counter(self.placements[pairs].row for pairs in self.queries)

    @property
    def rows(self) -> int:
        return sum(len(rows) for _, rows in self.tables)

    def variable(self, stream: str, tag: str) -> int:
        """The variable that stands for a tag in documents of a stream."""
        return self._variables[stream, tag]

    @cached_property
    def _variables(self) -> dict[tuple[str, str], int]:
        return {(step.stream, step.node.test.local): number for number, step in self.catalog.steps.items()}


def register(schema: Schema, queries: list[Pairs], streams: tuple[str, str]) -> Registered:
    """Registers queries, all FOLLOWED BY without a window."""
    catalog = Catalog()
    conjuncts = {pairs: conjunct(schema, pairs, streams) for pairs in dict.fromkeys(queries)}
    placements: dict[Pairs, Placement] = {}
    edges: set[StepEdge] = set()
    values: set[int] = set()
    rows: dict[int, TemplateRow] = {}
    for pairs in queries:
        placements[pairs], change = catalog.add(conjuncts[pairs], INFINITE, True)
        edges.update(change.edges)
        values.update(change.values)
        rows.update((row.id, row) for row in change.rows)
    by_template: dict[int, list[TemplateRow]] = {}
    for row in rows.values():
        by_template.setdefault(row.template, []).append(row)
    tables = [(TemplateTable(number, catalog.templates[number]), of) for number, of in sorted(by_template.items())]
    return Registered(schema, streams, queries, catalog, placements, frozenset(edges), frozenset(values), tables)


def without_mirrors(shapes: Iterable[Shape]) -> int:
    """How many templates there are if a template and its mirror image count as one, as the thesis seems to count."""
    return len({frozenset((canonical_shape(s).key, canonical_shape(mirrored(s)).key)) for s in shapes})


def mirrored(shape: Shape) -> Shape:
    """The template with its sides exchanged."""
    right = len(shape.parents) - shape.left

    def moved(node: int) -> int:
        return node + right if node < shape.left else node - shape.left

    parents = tuple(None if parent is None else moved(parent) for parent in shape.parents)
    return Shape(
        right,
        (*parents[shape.left :], *parents[: shape.left]),
        tuple(sorted((moved(b), moved(a)) for a, b in shape.joins)),
    )
