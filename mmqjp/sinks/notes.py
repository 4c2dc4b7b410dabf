"""What is stored about sinks with a batch: their positions, and what they did not get."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from mmqjp.answers.outbox import SINK_PREFIX, Position
from mmqjp.sinks.course import Course
from mmqjp.tables.commit_metadata import CommitMetadata
from mmqjp.tables.deliveries import GapRow, UndeliveredRow

DEFINITION_PREFIX = "sink-definition:"
"""The prefix of the settings with the definitions of sinks that were added live. The name of the sink follows."""

REMOVED = ""
"""The value of a setting of a sink that was removed."""


@dataclass(slots=True)
class Notes:
    """What is to be stored about sinks. `positions` are those of courses, `settings` has others."""

    positions: dict[str, Position] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    gaps: list[GapRow] = field(default_factory=list)
    undelivered: list[UndeliveredRow] = field(default_factory=list)
    _rows: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, courses: Mapping[str, Course], stored: Mapping[str, str]) -> Notes:
        """Returns what has changed since `stored`, the settings of positions by name."""
        notes = cls()
        for name, course in courses.items():
            position = course.position()
            is_new = stored.get(name) != position.to_setting()
            if is_new or course.is_urgent or course.gaps or course.undelivered:
                notes.positions[name] = position
                notes.gaps += course.gaps
                notes.undelivered += course.undelivered
                notes._rows[name] = len(course.gaps), len(course.undelivered)
        return notes

    def __bool__(self) -> bool:
        return bool(self.positions or self.settings)

    def values(self) -> dict[str, str]:
        """Returns all settings, by their keys."""
        positions = {SINK_PREFIX + name: position.to_setting() for name, position in self.positions.items()}
        return {**positions, **self.settings}

    def metadata(self) -> CommitMetadata:
        """Returns what to commit."""
        return CommitMetadata(settings=self.values(), gaps=self.gaps, undelivered=self.undelivered)

    def were_stored(self, courses: Mapping[str, Course], stored: dict[str, str]) -> None:
        """Tells the courses that these notes are committed."""
        for name, position in self.positions.items():
            stored[name] = position.to_setting()
            if name in courses:
                courses[name].was_noted(position, *self._rows[name])


def definition_setting(table: Mapping[str, object]) -> str:
    """Returns the setting of the definition of a live sink."""
    return json.dumps(dict(table), ensure_ascii=False)
