"""The order of all words by which the keys of a text are chosen: any will do, and with the rarest words first the
fewest documents are found in vain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from common.distinct import distinct
from join_stage.arrays import Ints
from join_stage.near.numbered_texts import numbered_texts

MOST_LEARNT = 100_000
"""An order knows at most so many words, the most frequent ones."""

_FREQUENT = np.uint64(1 << 63)
"""Added to the ranks of frequent words: numbers of words are less."""


@dataclass(frozen=True)
class WordOrder:
    """An order of words by their numbers. `frequent` are those that come last, the most frequent one at the very end.
    All others come first, in the order of their numbers."""

    frequent: Ints

    def ranks(self, numbers: Ints) -> NDArray[np.uint64]:
        """The place of each word in the order."""
        ranks = numbers.astype(np.uint64)
        known, place = self._known
        if len(known):
            at = np.minimum(known.searchsorted(numbers), len(known) - 1)
            met = known[at] == numbers
            ranks[met] = _FREQUENT + place[at[met]].astype(np.uint64)
        return ranks

    @cached_property
    def _known(self) -> tuple[Ints, Ints]:
        """The frequent words, ascending, and their places."""
        order = np.argsort(self.frequent, kind="stable")
        return self.frequent[order], order


LONGEST_FIRST = WordOrder(np.zeros(0, np.int64))
"""The order of numbers: the longest words first."""


def learnt(texts: Iterable[str]) -> WordOrder:
    """The order in which words are rarer than the next ones in some texts, given as `numbered` writes them. Words of
    one text only come first, as those of none do."""
    words = np.sort(numbered_texts(list(texts)).numbers)
    numbers = distinct(words)
    counts = np.diff(np.append(words.searchsorted(numbers), len(words)))
    some = np.flatnonzero(counts > 1)
    return WordOrder(numbers[some[np.lexsort((numbers[some], counts[some]))]][-MOST_LEARNT:])
