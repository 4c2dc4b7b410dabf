"""Random input for stage 2: templates with rows of R_T, and batches of witnesses that some of them match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

import pyarrow as pa

from common.bounds import INFINITE
from join_stage.plans import JoinEngine
from join_stage.protocol import RESULT, JoinScope, Matches, TemplateTable
from templates.catalog import TemplateRow
from templates.graph import Shape
from templates.witness import R_BIN, R_DOC, R_DOCTS, R_GROUP, Witnesses

Result = list[tuple[int, int, int | None, list[int]]]
VARIABLES, GROUPS, NODES = 3, 5, 5
VALUES = ["", "a", "ä😀", "a\nb"]
SECOND = 1_000_000
INT32_TOP = 2**31 - 1


@dataclass(frozen=True)
class JoinCase:
    """Templates with their rows, and batches with the id of their first document; `window` is the largest."""

    templates: list[tuple[TemplateTable, list[TemplateRow]]]
    batches: list[tuple[int, Witnesses]]
    window: int

    @property
    def scope(self) -> JoinScope:
        """Documents of T stand on the right only."""
        return JoinScope(self.window, frozenset({("S", "S"), ("S", "T")}))


def random_join_case(
    seed: int, templates: int = 5, batches: int = 3, documents: int = 4, *, in_order: bool = False
) -> JoinCase:
    """Templates of all kinds, filters included; documents that arrive out of order, and some at one time.

    With `in_order` a document begins a second after the one before it, and the window is finite.
    """
    rng = Random(seed)
    ids = count()
    window = 6 * SECOND if in_order else rng.choice([INFINITE, 20 * SECOND])
    tables = []
    for number in range(templates):
        shape = random_shape(rng, 0 if number == 0 else rng.randint(1, 4))
        tables.append((TemplateTable(number, shape), [_row(rng, next(ids), number, shape, window) for _ in range(3)]))
    # A group is new in one batch and has rows in the later ones too.
    edges = {(g, rng.randrange(VARIABLES), rng.randrange(VARIABLES)) for g in range(GROUPS) for _ in range(4)}
    edges |= {(0, INT32_TOP, 0)}
    witnesses = []
    for n in range(batches):
        known = [g for g in range(GROUPS) if g % batches <= n]
        docids = range(n * documents, (n + 1) * documents)
        starts = [docid if in_order else rng.randrange(30) for docid in docids]
        rows = [_document(rng, docid, start, known, edges) for docid, start in zip(docids, starts, strict=True)]
        fresh = sorted(edge for edge in edges if edge[0] % batches == n)
        witnesses.append((n * documents, _witnesses(rows, fresh)))
    return JoinCase(tables, witnesses, window)


def random_shape(rng: Random, joins: int) -> Shape:
    """A template with at most `joins` value joins, each of its leaves in one of them; 0: a filter."""
    left = _side(rng, joins)
    if not joins:
        return Shape(len(left), tuple(left), ())
    right = _side(rng, joins)
    offset = len(left)
    leaves = [sorted(set(range(len(side))) - set(side)) for side in (left, right)]
    width = max(len(leaves[0]), len(leaves[1]))
    pairs = {(leaves[0][i % len(leaves[0])], leaves[1][i % len(leaves[1])] + offset) for i in range(width)}
    parents = (*left, *(None if parent is None else parent + offset for parent in right))
    return Shape(offset, parents, tuple(sorted(pairs)))


def run_case(engine: JoinEngine, case: JoinCase) -> list[Result]:
    """The sorted results of a case's batches, each committed."""
    for template, rows in case.templates:
        engine.plan.put_rows(template, rows)
    results = []
    for first, witnesses in case.batches:
        engine.begin()
        results.append(sorted_rows(engine.join(witnesses, first, case.scope)))
        engine.commit()
    return results


def sorted_rows(matches: Matches) -> Result:
    """A join's result as a sorted list, so that equal multisets are equal."""
    batches = list(matches.to_batches(max_chunksize=7))
    assert all(batch.num_rows <= 7 for batch in batches)
    result = pa.Table.from_batches(batches, schema=RESULT)
    assert result.num_rows == matches.num_rows
    columns = (result[name].to_pylist() for name in ("qid", "docid1", "docid2", "nodes"))
    return sorted(zip(*columns, strict=True), key=lambda row: (row[0], row[1], row[2] or -1, row[3]))


def _side(rng: Random, joins: int) -> list[int | None]:
    """The parents of a tree in pre-order, with no more leaves than joins."""
    parents: list[int | None] = [None]
    path = [0]
    for _ in range(rng.randint(0, joins)):
        del path[rng.randint(1, len(path)) :]
        for _ in range(rng.randint(1, 2)):
            parents.append(path[-1])
            path.append(len(parents) - 1)
    return parents


def _row(rng: Random, number: int, template: int, shape: Shape, window: int) -> TemplateRow:
    variables = tuple(rng.randrange(VARIABLES) for _ in shape.parents)
    return TemplateRow(number, template, variables, rng.choice([window, 5 * SECOND]), rng.random() < 0.5)


def _document(
    rng: Random, docid: int, start: int, groups: list[int], known: set[tuple[int, int, int]]
) -> tuple[tuple[int, int, int], list[tuple[int, ...]], list[tuple[int, int, str, str]]]:
    # Two nodes are in one row at the most: its group has all the edges between them.
    pairs = {tuple(sorted(rng.choices(range(NODES), k=2))) for _ in range(2 * NODES)}
    pairs |= {(node, node) for node in range(NODES) if rng.random() < 0.9}
    edges = {(rng.choice(groups), *pair) for pair in pairs}
    stream = rng.choice("SSST")
    values = [(docid, node, rng.choice(VALUES), stream) for node in range(NODES)]
    return (
        (docid, start * SECOND, (start + rng.randrange(2)) * SECOND),
        [(docid, *row) for row in _distinct(sorted(edges), known)],
        values,
    )


def _distinct(rows: list[tuple[int, ...]], known: set[tuple[int, int, int]]) -> list[tuple[int, ...]]:
    """Rows (group, node1, node2) without those that say again what an earlier one does: R_bin is a set."""
    said: set[tuple[int, ...]] = set()
    kept = []
    for group, *nodes in rows:
        flat = {(*edge[1:], *nodes) for edge in known if edge[0] == group}
        if not flat & said:
            kept.append((group, *nodes))
            said |= flat
    return kept


def _witnesses(
    documents: list[tuple[tuple[int, int, int], list[tuple[int, ...]], list[tuple[int, int, str, str]]]],
    groups: list[tuple[int, int, int]],
) -> Witnesses:
    return Witnesses(
        _table([row for _, edges, _ in documents for row in edges], R_BIN),
        _table(groups, R_GROUP),
        _table([row for _, _, values in documents for row in values], R_DOC),
        _table([times for times, _, _ in documents], R_DOCTS),
    )


def _table(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
