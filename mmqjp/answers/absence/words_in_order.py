"""The order of words by which absences find texts that are near: learnt from texts that were seen, and then frozen."""

from __future__ import annotations

import json

from join_stage.near import near_texts
from join_stage.near.word_order import learnt
from mmqjp.answers.telling import Key
from xscl.algebra.word_numbers import THRESHOLD, as_digits, first_keys

WORDS = "absence_words"
"""The setting with the numbers of the words that come last in the order."""


class WordsInOrder:
    """Gives texts their keys in an order of words. Until enough different texts were seen, the longest words come
    first; from then on the rarest ones. What is found does not depend on the order, only how soon."""

    def __init__(self, setting: str | None) -> None:
        """`setting` is the one that `new_setting` returned, None if it did not."""
        self._places = None if setting is None else _places(setting)
        self._texts: dict[str, str] = {}
        self._next: dict[str, int] | None = None

    def keys_of(self, words: str) -> list[Key]:
        """Returns the keys of a text, given its words as `xscl.algebra.word_numbers` tells them."""
        keys = first_keys(words, self._places or {}) if words else []
        return [(int(key[0] + key[2]), int(key[THRESHOLD:], 16)) for key in keys]

    def see(self, words: str) -> None:
        """Notes a text from which the order may be learnt."""
        if self._places is None and len(self._texts) < near_texts.ENOUGH:
            self._texts[words[THRESHOLD:]] = words

    def new_setting(self) -> str | None:
        """Learns the order if that is due, and returns the setting to store with the running batch."""
        if self._places is not None or len(self._texts) < near_texts.ENOUGH:
            return None
        setting = json.dumps(learnt(self._texts.values()).frequent.tolist())
        self._next = _places(setting)
        return setting

    def finish_batch(self, *, committed: bool) -> bool:
        """Ends the batch. Returns whether the order has changed, and with it the keys of all texts."""
        new, self._next = self._next, None
        if new is None or not committed:
            return False
        self._places = new
        self._texts.clear()
        return True


def _places(setting: str) -> dict[str, int]:
    return {as_digits(number): place for place, number in enumerate(json.loads(setting))}
