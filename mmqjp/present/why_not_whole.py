"""What is said of one document for each block of a query: whether the outputs that they give are stored."""

from __future__ import annotations

from collections.abc import Sequence

from feeds.dates import iso_utc
from mmqjp.explain.funnel import steps_for
from mmqjp.explain.readable import ReadableQuery
from mmqjp.explain.verdict import MOST_LISTED, Given, Verdict, furthest, verdict
from mmqjp.present.output_why import stored_parts
from mmqjp.present.why_not_result import WhyNot, items_of
from mmqjp.tables.lookup import Select, ids_among, joinable, matches_of, outputs_at, times_told


def shown_verdict(select: Select, name: str, verdicts: Sequence[Verdict]) -> WhyNot:
    """Returns the verdict that came furthest, once it is known whether the outputs that it gives are stored."""
    withheld = list[WhyNot]()
    for one in sorted((one for one in verdicts if one.kind == "output"), key=lambda one: one.rank, reverse=True):
        stored = stored_ids(select, name, one.given)
        if stored:
            items, text = items_of(one.documents), one.query.text
            what = f"{len(stored)} outputs" if len(stored) > 1 else "an output"
            return WhyNot(name, "output", f"they give {what}", "", "", text, items, stored[:MOST_LISTED])
        withheld.append(_missing(select, name, one))
    if withheld:
        return withheld[0]
    best = furthest(verdicts)
    items = items_of(best.documents)
    return WhyNot(name, best.kind, best.message, best.hint, best.part, best.query.text, items, (), best.stages)


def stored_ids(select: Select, name: str, given: Sequence[Given]) -> tuple[str, ...]:
    """Returns the ids of the outputs among some that are stored."""
    ids = {one.id for one in given}
    found = {id for t0, t1 in {(one.t0, one.t1) for one in given} for id in ids_among(select, name, t0, t1, ids)}
    return tuple(one.id for one in given if one.id in found)


def _missing(select: Select, name: str, one: Verdict) -> WhyNot:
    """Why documents have no outputs that they would give: told before, or dropped."""
    items, once = items_of(one.documents), one.query.normal.once
    if once is not None:
        for given in one.given:
            times = {time for key in given.keys for time in times_told(select, one.query.qid, key)}
            near = [time for time in times if once.window is None or abs(time - given.t1) <= once.window]
            for time in sorted(near, key=lambda time: abs(time - given.t1))[:1]:
                ids = _told_by(select, name, one, given, time)
                which = f"the output {ids[0]}" if ids else "an output"
                what = f"ONCE PER: {which}, which ends at {iso_utc(time)}, told it before"
                return WhyNot(name, "told", what, "", "ONCE PER", one.query.text, items, ids, one.stages)
    records = [record for record in one.documents if record is not None]
    gone = {record.docid for record in records} - joinable(select, [record.docid for record in records])
    if gone and len(records) > 1:
        what = "a document was no longer joinable when the other one came"
    else:
        what = "they match, but the output was dropped, or the query passed a bound and was paused before it"
    hint = "its documents are kept: mmqjp subscribe --backfill answers them"
    return WhyNot(name, "dropped", what, hint, "", one.query.text, items, (), one.stages)


def _told_by(select: Select, name: str, one: Verdict, given: Given, time: int) -> tuple[str, ...]:
    """The id of the output that ends at a time and says one of the things that another one would tell again; none if
    there are too many of that time, or its documents are no longer stored."""
    outputs = outputs_at(select, name, time, MOST_LISTED)
    if len(outputs) == 1:
        return (outputs[0]["id"],)
    readable = ReadableQuery.of(one.query.text)
    for output in outputs:
        for parts in stored_parts(select, matches_of(select, output)):
            said = verdict(one.query, readable, parts, steps_for(MOST_LISTED)).given if parts else ()
            if any(other.id == output["id"] and other.keys & given.keys for other in said):
                return (output["id"],)
    return ()
