"""What a service has committed along with a batch, so that neither stands without the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from feeds.offsets import Offset


@dataclass(frozen=True, slots=True)
class Notes:
    """How far sources are read with the batch, settings by their keys, and answers by the ids of the commands that the
    batch does."""

    offsets: Sequence[Offset] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)


NOTHING = Notes()
"""No notes."""
