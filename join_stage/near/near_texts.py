"""The texts of a join that are joined by their words: their keys, and their words for the check of what these find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from join_stage.near.keys import keys_of, parted
from join_stage.near.numbered_texts import numbered_texts
from join_stage.near.word_order import LONGEST_FIRST, WordOrder, learnt
from join_stage.near.word_sets import Find, WordSets
from templates.witness import Witnesses
from xscl.algebra.word_numbers import THRESHOLD

ENOUGH = 2_000
"""The order of words is learnt from at least so many different texts."""

AGAIN = 200
"""If many texts are the same, so that these are not enough, it is tried again after at least so many."""

MOST_READ = 50_000
"""The order is learnt from at most so many texts, the latest ones."""


class NearTexts:
    """Gives texts their keys in an `order` of words, and holds their words. `find` is that of `WordSets`.

    The order is that of their lengths until there are ENOUGH texts. Then it is learnt from these, once and for all.
    """

    def __init__(self, find: Find | None = None) -> None:
        self.order = LONGEST_FIRST
        self.sets = WordSets(find)
        self._seen = 0

    def begin(self, frequent: Sequence[int] | None) -> None:
        """Takes the order that was learnt, None if none was, before all texts that are kept get their keys."""
        self.order = LONGEST_FIRST if frequent is None else WordOrder(np.array(frequent, np.int64))
        self._seen = 0

    def learnt(self, latest: Callable[[int], Sequence[str]]) -> list[int] | None:
        """The words that come last in the order, if it is to be learnt now. `latest` returns at most so many texts."""
        if self.order is not LONGEST_FIRST or self._seen < ENOUGH:
            return None
        different = {text[THRESHOLD:]: text for text in latest(MOST_READ)}
        if len(different) < ENOUGH:
            self._seen = min(len(different), ENOUGH - AGAIN)
            return None
        return list(map(int, learnt(different.values()).frequent))

    def keyed(self, witnesses: Witnesses) -> Witnesses:
        """Witnesses in which texts that are joined by their words have a row of R_doc for each key."""
        others, rows = parted(witnesses.r_doc)
        if not len(rows):
            return replace(witnesses, r_doc=others)
        texts = numbered_texts(rows["strval"].to_pylist())
        self.sets.add(rows, texts)
        self._seen += len(rows)
        return replace(witnesses, r_doc=pa.concat_tables([others, keys_of(rows, texts, self.order)]))
