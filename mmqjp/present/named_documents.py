"""A document that somebody names: by its id as output lines show it, or by an address or title that only it has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from mmqjp.documents.record import Record
from mmqjp.documents.record_rows import record_of
from mmqjp.present.item import clipped, item_of, line
from mmqjp.present.why_not_result import WhyNot
from mmqjp.tables.lookup import Row, Select, dead_letter_of, documents_by_id, documents_with, is_dropped

MOST_WITH, LISTED, SHORTEST = 200, 3, 4
"""Among so many documents in which a text stands, one of that address or title is looked for; so many are listed; and
shorter texts are not looked for."""


@dataclass(frozen=True, slots=True)
class NamedDocument:
    """The document of a name; or, if `record` is None, why there is none: the `kind` is "document", "dead letter" or
    "pruned", and `message` and `hint` say it in words."""

    record: Record | None
    kind: str = ""
    message: str = ""
    hint: str = ""


def named_document(select: Select, asked: str, streams: Collection[str]) -> NamedDocument:
    """Returns the document that a text names. If several streams have its id, it is that of the one in `streams`."""
    rows = documents_by_id(select, [asked]) or documents_by_id(select, [asked := asked.strip()])
    if len(rows) > 1:
        rows = [row for row in rows if row["stream"] in streams] or rows
    if not rows:
        rows = _by_item(select, asked)
    if len(rows) == 1:
        return NamedDocument(record_of(rows[0]))
    shown = f"{clipped(line(asked), 80)!r}"
    if rows:
        listed = ", ".join(f"{row['id']} of {row['stream']}" for row in rows[:LISTED])
        return NamedDocument(None, "document", f"{len(rows)} documents are {shown}: {listed}", "name one by its id")
    if (letter := dead_letter_of(select, asked)) is not None:
        return NamedDocument(None, "dead letter", f"the document {shown} was refused: {letter['reason']}")
    if is_dropped(select, asked):
        return NamedDocument(None, "pruned", f"the document {shown} was dropped: nothing needed it any more")
    hint = "ids are those of output lines; mmqjp show --state DIR shows documents with theirs"
    return NamedDocument(None, "document", f"no kept document has the id, address or title {shown}", hint)


def named_records(
    select: Select, name: str, asked: Sequence[str], streams: Collection[str], text: str
) -> list[Record] | WhyNot:
    """Returns the documents that texts name; if there is none for one of them, what is said of that to somebody who
    asks about the query of a name, with this `text`."""
    found = []
    for one in asked:
        document = named_document(select, one, streams)
        if document.record is None:
            return WhyNot(name, document.kind, document.message, document.hint, text=text)
        found.append(document.record)
    return found


def _by_item(select: Select, asked: str) -> list[Row]:
    """The documents that have an address or title."""
    wanted = line(asked)
    if len(wanted) < SHORTEST:
        return []
    # Spaces may be others in the document: it is looked for by the longest word.
    word = max(asked.split(), key=len)
    found = documents_with(select, escape(word), MOST_WITH)
    return [row for row in found if _is(row, wanted)]


def _is(row: Row, wanted: str) -> bool:
    item = item_of(row["id"], row["stream"], row["t0"], row["xml"])
    return wanted in (item.link, item.title)
