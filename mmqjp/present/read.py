"""Reads the matches of a store, some at a time: looks up their documents and reasons together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from common.batches import in_batches
from mmqjp.answers.output import Output
from mmqjp.explain.why import Evidence
from mmqjp.present.item import Item, item_of, missing_item
from mmqjp.present.match import Match
from mmqjp.present.selected import selected
from mmqjp.session import Session

PAGE, PAGE_CHARACTERS = 200, 4 << 20
"""Matches are looked up together until there are this many, or until they have this many characters of XML."""


class MatchReader:
    """Shows the outputs of a session. Without `reasons` it does not look for those, which takes longest."""

    def __init__(self, engine: Session, *, reasons: bool = True) -> None:
        self._engine, self._evidence, self._reasons = engine, Evidence(engine), reasons

    def matches(self, outputs: Iterable[Output]) -> Iterator[Match]:
        """Yields stored outputs as matches, in their order. Raises StoreError."""
        for page in in_batches(outputs, PAGE, PAGE_CHARACTERS, lambda output: len(output.xml)):
            items = self._items({key for output in page for key in _keys(output)})
            reasons = self._evidence.of(page) if self._reasons else [None] * len(page)
            for output, reason in zip(page, reasons, strict=True):
                shown = selected(output.xml) if self._evidence.has_select(output.query) else ()
                yield Match(output, tuple(items[key] for key in _keys(output)), reason, shown)

    def _items(self, keys: set[tuple[str, str]]) -> dict[tuple[str, str], Item]:
        stored = self._engine.documents(keys)
        return {
            (stream, id): item_of(id, stream, *stored[stream, id])
            if (stream, id) in stored
            else missing_item(id, stream)
            for stream, id in keys
        }


def _keys(output: Output) -> Sequence[tuple[str, str]]:
    return list(zip(output.streams, output.documents, strict=True))
