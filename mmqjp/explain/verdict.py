"""The verdict on documents, one for each block of a query: the outputs that they give, or the first stage that nothing
passes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice, permutations
from typing import Literal

from mmqjp.answers.matches import text_of_operand
from mmqjp.answers.operators import OnceKey, once_key
from mmqjp.answers.output import BoundValue
from mmqjp.documents.record import Record
from mmqjp.explain.evidence import STEPS, Evidence, EvidenceRow, Passing
from mmqjp.explain.shown import FunnelStage, StageKind
from mmqjp.explain.terms import ReadableQuery
from mmqjp.queries.model import Subscription, choice_of
from xscl.algebra.joins import Term
from xscl.syntax import Join

MOST_ORDERS = 3
"""Queries with at most this number of blocks try documents in every order, others only in the given one."""

VerdictKind = StageKind | Literal["output", "partner", "paused", "newer", "too large"]

MOST_LISTED = MOST_CHOICES = 20
"""Maximum number of outputs listed, and of choices of documents that match examined one by one."""


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
    "newer" (the query was registered after a document came), "paused" (it was paused then), "partner" (of an absence;
    one is among the documents), "too large" (undecided), or "output" with the outputs `given`. `stages` are those
    evaluated, up to that one.
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
    found: Passing = field(default_factory=Passing)


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


def placements(query: ReadableQuery, documents: Sequence[Record]) -> Iterator[tuple[Record | None, ...]]:
    """Yields the assignments of documents to the blocks of a query: in any order to the blocks that have a document in
    an output. As many documents as there are blocks with a partner of an absence stay in the given order."""
    blocks = len(query.blocks)
    if query.told < len(documents) == blocks:
        yield tuple(documents)
    elif len(documents) <= query.told:
        yield from ((*order, *[None] * (blocks - query.told)) for order in orders(documents, query.told))


def verdict(query: Subscription, readable: ReadableQuery, documents: Sequence[Record], steps: int = STEPS) -> Verdict:
    """Returns the verdict for documents of an output's blocks, in their order. `steps` bounds the work."""
    if (unseen := unseen_verdict(query, documents)) is not None:
        return unseen
    evidence = Evidence(readable, selects=True, steps=steps)
    for block, record in enumerate(documents):
        evidence.look(record, (block,))
    (said,) = verdicts_of(query, readable, documents, evidence.result())
    return said


def verdicts_of(
    query: Subscription, readable: ReadableQuery, documents: Sequence[Record | None], found: Passing
) -> list[Verdict]:
    """Returns the verdict of a result for documents, one for each block (None: stored ones), or those of the first
    choices of documents that pass all."""
    placed, partners = tuple(documents), found.partners
    if partners is not None and found.incomplete:
        return [_of_failed(query, placed, found)]
    if partners is not None and None not in placed[readable.told :] and len(placed) > readable.told:
        if not partners.rows:
            return [_of_failed(query, placed, partners)]
        return [_of_partners(query, readable, placed, partners, "these documents are partners")]
    if partners is not None and found.failed is not None and found.failed.kind == "alone":
        count = len({row.docids for row in partners.rows})
        many = f"this is the nearest of {count:,} partners" if count > 1 else "this is a partner"
        return [_of_partners(query, readable, placed, partners, many)]
    by_documents: dict[tuple[int, ...], list[EvidenceRow]] = {}
    for row in found.rows:
        by_documents.setdefault(row.docids, []).append(row)
    return [
        Verdict(query, rows[0].documents, "output", given=tuple(_given(query, readable, rows)), rank=(9,), found=found)
        for rows in islice(by_documents.values(), MOST_CHOICES)
    ] or [_of_failed(query, placed, found)]


def _of_partners(
    query: Subscription, readable: ReadableQuery, placed: Sequence[Record | None], partners: Passing, message: str
) -> Verdict:
    """The verdict that partners came, with the nearest: of these the earliest."""
    nearest, source = min(partners.rows, key=lambda row: (row.t1 - row.t0, row.docids)), readable.query.source
    assert isinstance(source, Join), "partners are joined"
    given = {record.docid: record for record in placed if record is not None}
    documents = given | {record.docid: record for record in nearest.documents}
    part = readable.part(source.pred.span)
    return Verdict(query, tuple(documents.values()), "partner", part, message, rank=(9,), found=partners)


def _of_failed(query: Subscription, documents: tuple[Record | None, ...], found: Passing) -> Verdict:
    failed, is_alone = found.failed, None not in documents
    if found.incomplete or failed is None or (is_alone and found.left_out):
        what = "a document is too large to search, or has too many bindings"
        if not is_alone:
            what = "there is too much to look at in the kept documents: name the other one, too"
        return Verdict(query, documents, "too large", "", what, "", found.shown(), (), found.rank, found)
    stages = found.shown(failed)
    last = stages[-1]
    return Verdict(query, documents, last.kind, last.part, last.message, last.hint, stages, (), found.rank, found)


def furthest_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=lambda one: one.rank)


def unseen_verdict(query: Subscription, documents: Sequence[Record]) -> Verdict | None:
    """Returns the verdict that a query did not see one of the documents; None if it saw all."""
    appeared = [at for record in documents for at in record.appeared]
    if query.sees(appeared):
        return None
    if min(appeared) <= query.since:
        message = "the query was registered after the document came"
        return Verdict(query, tuple(documents), "newer", "", message, rank=(-1,))
    return Verdict(query, tuple(documents), "paused", "", "the query was paused when the document came", rank=(-1,))


def _given(query: Subscription, readable: ReadableQuery, rows: Iterable[EvidenceRow]) -> Iterator[GivenOutput]:
    """Yields the outputs of rows that bind all SELECT variables, each once."""
    normal = readable.normal
    terms = [entry.value for entry in normal.entries if isinstance(entry.value, Term)]
    found: dict[str, tuple[EvidenceRow, set[OnceKey]]] = {}
    for row in rows:
        bound = [(row.bound[term.var], term.functions) for term in terms]
        nodes = ", ".join(BoundValue(one.record, one.node, functions).json() for one, functions in bound)
        ids = json.dumps([id for record in row.documents for id in record.part_ids], ensure_ascii=False)
        id = query.identity.id(choice_of(ids, f"[{nodes}]").encode())
        keys = found.setdefault(id, (row, set()))[1]
        if normal.once is not None:
            texts = {var: one.text for var, one in row.bound.items()}
            keys.add(once_key([text_of_operand(key, texts.__getitem__) for key in normal.once.keys]))
    for id, (row, keys) in found.items():
        yield GivenOutput(id, row.t0, row.t1, frozenset(keys))
