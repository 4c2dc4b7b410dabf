"""What sinks show of outputs: their documents as items. Sinks that want the same outputs share what was looked up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from mmqjp.answers.output import Output
from mmqjp.present.match import Match
from mmqjp.present.read import MatchReader
from mmqjp.session import Session
from mmqjp.sinks.group import Group
from mmqjp.sinks.message import Message

MOST_KNOWN, MOST_CHARACTERS = 2_000, 8 << 20
"""So many outputs, or so many characters of XML, are remembered."""


class Showing:
    """Looks up the documents of outputs, some together, and remembers the last ones."""

    def __init__(self, engine: Session, *, reasons: bool = False) -> None:
        """With `reasons`, also finds out why."""
        self._reader = MatchReader(engine, reasons=reasons)
        self._known: dict[int, Match] = {}
        self._size = 0

    def matches(self, outputs: Sequence[Output]) -> list[Match]:
        """Returns outputs with their items."""
        unknown = [output for output in outputs if output.seq not in self._known]
        for match in self._reader.matches(unknown) if unknown else ():
            self._known[match.output.seq] = match
            self._size += len(match.output.xml)
        found = [self._known[output.seq] for output in outputs]
        while self._known and (len(self._known) > MOST_KNOWN or self._size > MOST_CHARACTERS):
            self._size -= len(self._known.pop(next(iter(self._known))).output.xml)
        return found

    def messages(self, name: str, groups: Sequence[Group]) -> Iterator[Message]:
        """Yields the messages of a sink for some groups."""
        shown: Iterable[Match] = iter(self.matches([output for group in groups for output in group.outputs]))
        for group in groups:
            matches = tuple(islice(shown, len(group.outputs)))
            yield Message(group.id, name, group.first, group.last, matches, group.more, group.opened)
