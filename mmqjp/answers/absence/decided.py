"""What was decided: how far the watermark of a stream had come when absences were decided last.

An absence is decided once for each query, for all documents that were there, when the watermark passes its time. So
what was decided is not noted document by document: a document number, a watermark and a query number say it for all
absences over a stream.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mmqjp.answers.absence.times import decided_before
from mmqjp.answers.absence.waiting import Entry
from mmqjp.documents.watermarks import EARLIEST
from xscl.algebra.normal import JoinOp

ABSENCES = "absences"
"""The setting with what was decided."""


class Mark(NamedTuple):
    """At some time, all absences were decided that a `watermark` decides, of documents before number `docid`, for the
    queries before number `qid`."""

    docid: int
    watermark: int
    qid: int


Marks = tuple[Mark, ...]
"""Later marks come last, and have earlier watermarks: each one replaces those that it covers. Watermarks fall if a
stream gets another publisher, or a store is opened again with more lateness. So there is mostly one."""


@dataclass(slots=True)
class Decided:
    """The marks of each stream that is a right input."""

    by_stream: dict[str, Marks] = field(default_factory=dict)

    def note(self, stream: str, mark: Mark) -> None:
        """Adds a mark that is later than all others, and drops those that it covers. One that decides nothing is added
        if others did: it says how far the watermark has fallen."""
        if mark.watermark > EARLIEST or self.least(stream) > EARLIEST:
            known = self.by_stream.get(stream, ())
            self.by_stream[stream] = (*(old for old in known if old.watermark > mark.watermark), mark)

    def only(self, streams: Container[str]) -> Decided:
        """Returns what was decided over some streams."""
        return Decided({stream: marks for stream, marks in self.by_stream.items() if stream in streams})

    def told_before(self, stream: str, op: JoinOp, window: int, entry: Entry) -> int:
        """Returns the number of the query before which all were told whether an entry has a partner; 0 if none was."""
        for mark in reversed(self.by_stream.get(stream, ())):
            if entry.t0 < decided_before(op, window, mark.watermark):
                return mark.qid if entry.docid < mark.docid else 0
        return 0

    def least(self, stream: str) -> int:
        """Returns a watermark up to which everything was decided that had come, for all queries that there were;
        EARLIEST if there is none."""
        marks = self.by_stream.get(stream, ())
        return marks[-1].watermark if marks else EARLIEST

    def to_setting(self) -> str:
        """Returns the JSON text to store as a setting."""
        return json.dumps(self.by_stream, ensure_ascii=False)

    @staticmethod
    def from_setting(text: str | None) -> Decided:
        """Parses the text of a setting. None means that nothing was decided."""
        kept: Mapping[str, list[list[int]]] = json.loads(text or "{}")
        return Decided({stream: tuple(Mark(*mark) for mark in marks) for stream, marks in kept.items()})
