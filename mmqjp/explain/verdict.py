"""Verdicts: why some documents give no output of a query, or which outputs they give. Pure functions of both."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Literal

from mmqjp.answers.construct import Value
from mmqjp.answers.residual import text_of_operand
from mmqjp.answers.telling import Key, key_of
from mmqjp.documents.record import Record
from mmqjp.explain.block_rows import Row
from mmqjp.explain.funnel import STEPS, Funnel, FunnelResult
from mmqjp.explain.funnel_stage import Kind, Stage
from mmqjp.explain.readable import ReadableQuery
from mmqjp.queries.identity import choice_of
from mmqjp.queries.model import Subscription
from xscl.algebra.normal import Term

MOST_ORDERS = 3
"""Of a query with at most so many blocks, its documents are tried in every order, else in the one that is given."""

VerdictKind = Kind | Literal["output", "paused", "newer", "too large"]

MOST_LISTED = 20
"""At most so many outputs are listed."""


@dataclass(frozen=True, slots=True)
class Given:
    """An output that documents give: its id, the interval of the documents, and what it says of that which its query
    tells once."""

    id: str
    t0: int
    t1: int
    keys: frozenset[Key] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a query makes of documents, each in the block of its place in `documents`; blocks without one have None.

    The `kind` is that of the first stage that nothing passes, with its `part` of the query, `message` and `hint`. It is
    "newer" if the query does not see a document because it was registered later, "paused" if it was paused when the
    document came, "too large" if that cannot be found out, and "output" if there are outputs, which are `given`.
    `stages` are those that were evaluated, up to that one.
    """

    query: Subscription
    documents: tuple[Record | None, ...]
    kind: VerdictKind
    part: str = ""
    message: str = ""
    hint: str = ""
    stages: tuple[Stage, ...] = ()
    given: tuple[Given, ...] = ()
    rank: tuple[int, ...] = ()
    found: FunnelResult = FunnelResult(())


def orders(documents: Sequence[Record], blocks: int) -> Iterator[tuple[Record | None, ...]]:
    """Yields the ways in which documents may stand in the blocks of a query, that of the order given first."""
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
    """Returns what a query makes of documents, one for each block. To find that takes about so many steps at most."""
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
    """Returns the verdict of what a funnel found that has no rows."""
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


def furthest(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns the verdict that came furthest, the first of several."""
    return max(verdicts, key=lambda one: one.rank)


def _unseen(query: Subscription, documents: Sequence[Record]) -> tuple[VerdictKind, str, str] | None:
    """Why a query does not see documents; None if it does."""
    appeared = [at for record in documents for at in record.appeared]
    if query.sees(appeared):
        return None
    if min(appeared) <= query.since:
        return "newer", "", "the query was registered after the document came"
    return "paused", "", "the query was paused when the document came"


def _given(
    query: Subscription, readable: ReadableQuery, rows: Iterable[Row], records: Mapping[int, Record]
) -> Iterator[Given]:
    """Yields the outputs of rows in which all variables of SELECT are bound, each once."""
    normal = readable.normal
    terms = [entry.value for entry in normal.entries if isinstance(entry.value, Term)]
    found: dict[str, tuple[Row, set[Key]]] = {}
    for row in rows:
        bound = [row.bound[term.var] for term in terms]
        nodes = ", ".join(
            Value(records[one.docid], one.node, term.functions).json() for one, term in zip(bound, terms, strict=True)
        )
        ids = json.dumps([id for record in row.documents for id in record.part_ids], ensure_ascii=False)
        id = query.identity.id(choice_of(ids, f"[{nodes}]").encode())
        keys = found.setdefault(id, (row, set()))[1]
        if normal.once is not None:
            texts = {var: one.text for var, one in row.bound.items()}
            keys.add(key_of([text_of_operand(key, texts.__getitem__) for key in normal.once.keys]))
    for id, (row, keys) in found.items():
        yield Given(id, row.t0, row.t1, frozenset(keys))
