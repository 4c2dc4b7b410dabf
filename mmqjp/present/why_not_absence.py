"""Why documents have no output of a query that tells what did not come: something came, or it is not decided yet."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from feeds.dates import iso_utc
from mmqjp.answers.absence.decided import ABSENCES, Decided
from mmqjp.answers.absence.times import decided_at
from mmqjp.answers.absence.waiting import Entry
from mmqjp.documents.record import Record
from mmqjp.documents.watermarks import EARLIEST
from mmqjp.explain.block_rows import Row
from mmqjp.explain.funnel import Funnel, FunnelResult, steps_for
from mmqjp.explain.verdict import MOST_LISTED, Verdict, furthest, of_result, orders, verdict
from mmqjp.present.kept_documents import Kept
from mmqjp.present.known_queries import KnownAbsence
from mmqjp.present.named_documents import named_records
from mmqjp.present.why_not_result import WhyNot, items_of
from mmqjp.tables.feed_sql import settings
from mmqjp.tables.lookup import Select, ids_with
from xscl.syntax import Join

MOST_KEPT, MOST_QUERIES_TRIED = 10_000, 10
"""Among so many of the newest kept documents partners are looked for, of so many of the queries of a name."""


def why_not_absence(select: Select, name: str, known: Sequence[KnownAbsence], asked: Sequence[str]) -> WhyNot:
    """Returns why documents give no output of absences of one name: those of the left input, or these and others that
    may be their partners. `select` answers questions over the store. Raises what it does."""
    known = known[:MOST_QUERIES_TRIED]
    read = {block.stream for one in known for block in one.partners.blocks}
    text = known[0].query.text
    records = named_records(select, name, asked, read, text)
    if isinstance(records, WhyNot):
        return records
    stored = ids_with(select, name, {id for record in records for id, _ in record.sources}, MOST_LISTED)
    if stored:
        what = f"{len(stored)} outputs" if len(stored) > 1 else "an output"
        return WhyNot(name, "output", f"they give {what}", text=text, items=items_of(records), outputs=tuple(stored))
    left = [one for one in known if len(one.places) == len(records)]
    if left:
        return _without_partner(select, name, left, records)
    both = [one for one in known if len(one.partners.blocks) == len(records)]
    if both:
        return _with_partner(name, both, records)
    wanted = sorted({len(one.places) for one in known})
    what = f"{len(records)} documents are named, and what the query tells has {' or '.join(map(str, wanted))}"
    return WhyNot(name, "blocks", what, text=text, items=items_of(records))


def _with_partner(name: str, known: Sequence[KnownAbsence], records: Sequence[Record]) -> WhyNot:
    """Whether the last of some documents are partners of the others."""
    found = []
    for one in known:
        left, right = records[: len(one.places)], records[len(one.places) :]
        ordered = [*right, *left] if one.places.start else [*left, *right]
        found.append(verdict(one.query, one.partners, ordered, steps_for(len(known))))
    best = furthest(found)
    items, of = items_of(best.documents), best.query.text
    if best.kind == "output":
        return WhyNot(name, "partner", "these documents are partners", "", _predicate(known[0]), of, items)
    return WhyNot(name, best.kind, best.message, best.hint, best.part, of, items, (), best.stages)


@dataclass(frozen=True, eq=False)
class _Try:
    """An order in which documents stand in the left input of an absence: what that finds in them, and the funnel of
    their partners, which looks at kept documents."""

    known: KnownAbsence
    ordered: tuple[Record, ...]
    found: FunnelResult
    partners: Funnel
    variables: Collection[str]

    @staticmethod
    def begun(known: KnownAbsence, ordered: tuple[Record, ...], steps: int) -> _Try:
        variables = known.common_variables
        left = Funnel(known.left, keep=variables, steps=steps)
        partners = Funnel(known.partners, keep=variables, steps=steps)
        for number, (place, record) in enumerate(zip(known.places, ordered, strict=True)):
            left.look(record, (number,))
            partners.look(record, (place,))
        return _Try(known, ordered, left.result(), partners, variables)

    def look(self, record: Record) -> None:
        """Looks at a kept document."""
        blocks, places = self.known.partners.blocks, self.known.places
        if self.found.rows and self.known.query.sees(record.appeared):
            free = [place for place in range(len(blocks)) if place not in places]
            self.partners.look(record, [place for place in free if blocks[place].stream == record.stream])

    def bound(self, row: Row) -> frozenset[tuple[str, object]]:
        """What tells a match of the left input from others."""
        return frozenset((var, one.node) for var, one in row.bound.items() if var in self.variables)


def _without_partner(select: Select, name: str, known: Sequence[KnownAbsence], records: Sequence[Record]) -> WhyNot:
    """Why there is no output of the documents of a left input: of the queries of a name, that which came furthest."""
    tries, unseen = list[_Try](), list[Verdict]()
    for one in known:
        if not one.query.sees([at for record in records for at in record.appeared]):
            unseen.append(verdict(one.query, one.partners, records))
            continue
        for order in orders(records, len(records)):
            ordered = tuple(record for record in order if record is not None)
            tries.append(_Try.begun(one, ordered, steps_for(2 * len(known))))
    if not tries:
        best = furthest(unseen)
        return WhyNot(name, best.kind, best.message, text=best.query.text, items=items_of(records))
    kept = Kept(select, {block.stream for one in tries for block in one.known.partners.blocks}, MOST_KEPT)
    for record in kept.records():
        for one_try in tries:
            one_try.look(record)
    told = [_told(select, name, one) for one in tries]
    rank = max(rank for rank, _ in told)
    return replace(next(said for at, said in told if at == rank), tried=kept.read)


def _told(select: Select, name: str, one: _Try) -> tuple[int, WhyNot]:
    """What is said of an order of documents, with a rank: how far it came."""
    known, text, items = one.known, one.known.query.text, items_of(one.ordered)
    result = one.partners.result()
    if not one.found.rows or result.incomplete:
        said = of_result(known.query, one.ordered, result if one.found.rows else one.found)
        return 0, WhyNot(name, said.kind, said.message, said.hint, said.part, text, items, (), said.stages)
    if not set(map(one.bound, one.found.rows)) <= set(map(one.bound, result.rows)):
        return 1, _undecided(select, name, known, one.ordered)
    nearest = min(result.rows, key=lambda row: _distance(row, known))
    partner = [record for place, record in enumerate(nearest.documents) if place not in known.places]
    count = len({_others(row, known) for row in result.rows})
    many = f"{count:,} partners are kept, of which this one is the nearest" if count > 1 else "this is a partner"
    return 2, WhyNot(name, "partner", many, "", _predicate(known), text, items_of([*one.ordered, *partner]))


def _undecided(select: Select, name: str, known: KnownAbsence, ordered: tuple[Record, ...]) -> WhyNot:
    """What is said if no kept document is a partner: when it is decided, or that it was."""
    normal, t0 = known.query.normal, min(record.t0 for record in ordered)
    assert normal.op is not None, "an absence is a join"
    stream, window = normal.conjuncts[1].left.stream, normal.window or 0
    rows = select(settings(ABSENCES)).to_pylist()
    decided = Decided.from_setting(next((row["value"] for row in rows if row["key"] == ABSENCES), None))
    entry = Entry(t0, max(record.docid for record in ordered), ())
    if decided.told_before(stream, normal.op, window, entry) > known.query.qid:
        once = "" if normal.once is None else "another output told it before (ONCE PER), or "
        what = (
            f"no kept document is a partner: {once}one was dropped, or the query was paused, or the output was dropped"
        )
        return WhyNot(name, "dropped", what, text=known.query.text, items=items_of(ordered))
    least, now = decided_at(normal.op, window, t0), decided.least(stream)
    at = f"; it is at {iso_utc(now)}" if now > EARLIEST else ""
    what = "nothing came so far, and something still may"
    with suppress(OverflowError):
        what = f"nothing came so far: decided when the watermark has come to {iso_utc(least)}{at}"
    return WhyNot(name, "waiting", what, text=known.query.text, items=items_of(ordered))


def _predicate(known: KnownAbsence) -> str:
    source = known.partners.query.source
    assert isinstance(source, Join), "partners are joined"
    return known.partners.part(source.pred.span)


def _others(row: Row, known: KnownAbsence) -> tuple[int, ...]:
    """The docids of the partner in a row."""
    return tuple(record.docid for place, record in enumerate(row.documents) if place not in known.places)


def _distance(row: Row, known: KnownAbsence) -> tuple[int, tuple[int, ...]]:
    """How much time the documents of a row cover: the nearest come first, and of those the first to come."""
    return row.t1 - row.t0, _others(row, known)
