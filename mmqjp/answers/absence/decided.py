"""What was decided: how far the watermark of a stream had come when absences were decided last.

An absence is decided once, for all documents that were there, when the watermark passes its time. So what was decided
is not noted document by document: a document number and a watermark say it for all absences over a stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mmqjp.answers.absence.times import decided_before
from mmqjp.answers.absence.waiting import Entry
from xscl.algebra.normal import JoinOp

ABSENCES = "absences"
"""The setting with what was decided."""


class Mark(NamedTuple):
    """At some time, all absences were decided that a `watermark` decides, of documents before number `docid`."""

    docid: int
    watermark: int


Marks = tuple[Mark, ...]
"""Later marks come last. The watermark falls only if a stream gets another publisher: so there is mostly one."""


@dataclass(slots=True)
class Decided:
    """The marks of each stream that is a right input."""

    by_stream: dict[str, Marks] = field(default_factory=dict)

    def note(self, stream: str, mark: Mark) -> None:
        """Adds a mark, which replaces those that it covers."""
        known = self.by_stream.get(stream, ())
        if not any(old.docid >= mark.docid and old.watermark >= mark.watermark for old in known):
            self.by_stream[stream] = (*(old for old in known if old.watermark > mark.watermark), mark)

    def has(self, stream: str, op: JoinOp, window: int, entry: Entry) -> bool:
        """Returns whether the absence of an entry was decided."""
        marks = self.by_stream.get(stream, ())
        return any(entry.docid < mark.docid and entry.t0 < decided_before(op, window, mark.watermark) for mark in marks)

    def least(self, stream: str) -> int | None:
        """Returns a watermark up to which everything was decided; None if there is none."""
        return min((mark.watermark for mark in self.by_stream.get(stream, ())), default=None)

    def to_setting(self) -> str:
        """Returns the JSON text to store as a setting."""
        return json.dumps(self.by_stream, ensure_ascii=False)

    @staticmethod
    def from_setting(text: str | None) -> Decided:
        """Parses the text of a setting. None means that nothing was decided."""
        kept: Mapping[str, list[list[int]]] = json.loads(text or "{}")
        return Decided({stream: tuple(Mark(*mark) for mark in marks) for stream, marks in kept.items()})
