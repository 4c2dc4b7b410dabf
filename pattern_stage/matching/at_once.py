"""The matches that become known in one epoch, counted by row, so that no row has more of them than its limit says."""

from __future__ import annotations

from pattern_stage.matching.bundles import Bundle
from pattern_stage.matching.row_windows import RowWindows
from pattern_stage.matching.tally import Tally


class AtOnce:
    """The matches of an epoch, as they are found."""

    def __init__(self, most: int, windows: RowWindows) -> None:
        self._most = self._room = most
        self._windows = windows
        self._bundles: list[Bundle] = []
        self._counted = 0
        self._tally = Tally(most)

    def add(self, bundle: Bundle) -> int:
        """Takes the matches of a bundle. Returns the rows that now have too many."""
        self._bundles.append(bundle)
        self._room -= bundle.stop - bundle.first
        if self._room >= 0:
            return 0
        # There were as many roots as a row may have matches: only now one may have too many.
        for one in self._bundles[self._counted :]:
            for root in one.roots():
                self._tally.add(root.rows & self._windows.fitting(one.ending.t1 - root.start))
        self._counted = len(self._bundles)
        over = self._tally.over()
        self._room = self._tally.room
        return over

    def end(self, rows: int) -> list[Bundle]:
        """Ends the epoch. Returns the bundles that any of these rows has."""
        found = self._bundles
        if not found:
            return []
        self._bundles, self._counted, self._room = [], 0, self._most
        self._tally.clear()
        return [one._replace(rows=held) for one in found if (held := one.rows & rows)]
