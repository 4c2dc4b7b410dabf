"""The external streams behind others, which are known until queries change."""

from __future__ import annotations

from collections.abc import Callable, Collection


class Sources:
    """Finds the external streams behind streams. `made_of` returns what a stream is made of: nothing, if it is
    external."""

    def __init__(self, made_of: Callable[[str], Collection[str]]) -> None:
        self._made_of = made_of
        self._known: dict[frozenset[str], frozenset[str]] = {}

    def of(self, streams: frozenset[str]) -> frozenset[str]:
        """Returns the external streams behind any of these streams."""
        if (found := self._known.get(streams)) is None:
            made_of: dict[str, Collection[str]] = {}
            waiting = list(streams)
            while waiting:
                stream = waiting.pop()
                if stream not in made_of:
                    made_of[stream] = self._made_of(stream)
                    waiting += made_of[stream]
            found = self._known[streams] = frozenset(stream for stream, made in made_of.items() if not made)
        return found

    def knows(self, stream: str) -> bool:
        """Returns whether it has been asked for a stream alone."""
        return frozenset((stream,)) in self._known

    def forget(self) -> None:
        """Forgets what it knows: queries have changed."""
        self._known.clear()
