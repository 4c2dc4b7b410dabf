"""Metadata that is committed with a batch, so that both are stored or neither."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from feeds.offsets import Offset
from mmqjp.tables.deliveries import GapRow, UndeliveredRow


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """Offsets up to which sources are read with the batch, settings by key, answers by id of the command, and what
    sinks did not get."""

    offsets: Sequence[Offset] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    gaps: Sequence[GapRow] = ()
    undelivered: Sequence[UndeliveredRow] = ()


NO_METADATA = CommitMetadata()
"""Empty metadata."""

MetadataOf = Callable[[Collection[tuple[str, str]]], CommitMetadata]
"""Returns the metadata of a batch, given the documents and rejects of it that become dead letters, as (stream, id)."""
