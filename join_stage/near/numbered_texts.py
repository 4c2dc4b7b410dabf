"""The words of texts as arrays of numbers, read from what stage 1 writes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from join_stage.arrays import Ints
from xscl.algebra.word_numbers import DIGITS, THRESHOLD


class NumberedTexts(NamedTuple):
    """Texts, each of some words. `tenths` has the threshold of each in tenths, `numbers` those of all words, text by
    text and ascending, and `start` where the words of each text start, and their number."""

    tenths: Ints
    numbers: Ints
    start: Ints

    @property
    def sizes(self) -> Ints:
        """The number of words of each text."""
        return np.diff(self.start)


def numbered_texts(values: Sequence[str]) -> NumberedTexts:
    """Reads what `xscl.algebra.word_numbers.numbered` has written, for texts that have words."""
    digits = bytes.fromhex("".join([value[THRESHOLD:] for value in values]))
    sizes = [(len(value) - THRESHOLD) // DIGITS for value in values]
    return NumberedTexts(
        np.array([int(value[0] + value[2]) for value in values], np.int64),
        np.frombuffer(digits, ">i8").astype(np.int64),
        np.append(0, np.cumsum(sizes, dtype=np.int64)),
    )
