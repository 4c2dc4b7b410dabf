"""Texts as codes: what is derived from a text, or tested on several, is computed once for each that is distinct.

The values themselves are those of `xscl.algebra.functions`. NULL has the code NULL_TEXT, and whatever is derived from
it is NULL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import numpy as np

from common.distinct import distinct
from pattern_stage.columns import NULL_TEXT, Column, Floats, Ints
from xscl.algebra.functions import MOST_TEXT, NUMERIC, TESTS, chained, number_text
from xscl.algebra.regex.search import PatternLimit
from xscl.algebra.regex.syntax import PatternError

C = TypeVar("C", bound=Column)
T = TypeVar("T")

FALSE, TRUE, UNDECIDED = 0, 1, -1
"""The outcomes of a test: UNDECIDED is that of NULL, and of a regular expression that is none or takes too long."""


class Texts:
    """The texts that events and parameters have, by code. One process has one, and never stores codes.

    The code of a text stays what it is until `keep` forgets it.
    """

    def __init__(self) -> None:
        self._code_of = _Codes()
        self._kept = self._kept_size = 0
        self._forget_derived()

    def __len__(self) -> int:
        """How many texts there are, with those that are derived from others."""
        return len(self._code_of) - 1

    def codes(self, texts: Iterable[str | None]) -> Ints:
        """Returns the codes of texts; new ones get one."""
        return np.fromiter(map(self._code_of.__getitem__, texts), np.int64)

    def code(self, text: str | None) -> int:
        """Returns the code of a text; a new one gets one."""
        return self._code_of[text]

    def text(self, code: int) -> str | None:
        """Returns the text of a code; None for NULL."""
        return None if code == NULL_TEXT else self._code_of.texts[code]

    def texts(self, codes: Ints) -> list[str | None]:
        """Returns the texts of codes; None for NULL."""
        return list(map(self.text, codes.tolist()))

    # ------------------------------------------------------------ derived values

    def numbers(self, codes: Ints) -> Floats:
        """Returns the XPath numbers of texts; NaN for those that are none, or not finite."""
        return self.derived_numbers("number", codes)

    def derived_numbers(self, name: str, codes: Ints) -> Floats:
        """Returns `name(text)` of each text. `name` is one of NUMERIC."""
        cache = self._numbers.get(name)
        if cache is None:
            cache = self._numbers[name] = _Cache(np.float64, unknown=math.inf, null=math.nan)
        function = NUMERIC[name]
        return cache.of(codes, len(self._code_of.texts), lambda new: list(map(_finite, map(function, self._of(new)))))

    def derived(self, name: str, codes: Ints) -> Ints:
        """Returns the codes of `name(text)` of each text. `name` is one that chains of functions have."""
        cache = self._derived.get(name)
        if cache is None:
            cache = self._derived[name] = _Cache(np.int64, unknown=NULL_TEXT - 1, null=NULL_TEXT)
        function = chained(name)
        return cache.of(codes, len(self._code_of.texts), lambda new: self.codes(map(function, self._of(new))))

    def written(self, numbers: Floats) -> Ints:
        """Returns the codes of numbers written as texts; that of NULL for NaN."""
        found, at = np.unique(numbers, return_inverse=True)
        return self.codes(None if math.isnan(number) else number_text(number) for number in found.tolist())[at]

    def concatenated(self, parts: Sequence[Ints]) -> Ints:
        """Returns the codes of texts that are concatenated, row by row; that of NULL if one is NULL, or if the
        result is longer than MOST_TEXT."""
        rows, at = _distinct_rows(parts, len(self._code_of.texts))
        texts = zip(*map(self.texts, rows), strict=True)
        return self.codes(map(_concatenated, texts))[at]

    def tested(self, name: str, args: Sequence[Ints]) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
        """Returns whether `name(*args)` holds, row by row: TRUE, FALSE or UNDECIDED. `name` is one of TESTS."""
        rows, at = _distinct_rows(args, len(self._code_of.texts))
        outcomes = [_outcome(TESTS[name], row) for row in zip(*map(self.texts, rows), strict=True)]
        return np.array(outcomes, np.int8)[at]

    # ------------------------------------------------------------ forgetting

    @property
    def crowded(self) -> bool:
        """Whether there are so many more texts, or so much longer ones, than were kept last that it is time to `keep`
        those in use."""
        return len(self) > 2 * self._kept + 10_000 or self._code_of.size > 2 * self._kept_size + 16_000_000

    def keep(self, used: Iterable[Ints]) -> None:
        """Forgets all texts but those with a code in one of `used`. Those keep their codes; others get the free ones.

        So `used` has each code that anything still holds: in events, in the state of operators, in parameters. Who
        holds the text itself, as compiled conditions do, need not name it.
        """
        texts = self._code_of.texts
        kept = np.zeros(len(texts) + 1, np.bool_)  # the last is NULL's
        for codes in used:
            kept[codes] = True
        count = int(kept[:-1].nonzero()[0].max(initial=-1)) + 1
        self._code_of.forget((~kept[:-1]).nonzero()[0].tolist(), count)
        self._forget_derived()
        self._kept, self._kept_size = len(self), self._code_of.size

    def _forget_derived(self) -> None:
        self._numbers: dict[str, _Cache[Floats]] = {}
        self._derived: dict[str, _Cache[Ints]] = {}

    def _of(self, codes: Ints) -> Iterable[str]:
        return map(self._code_of.texts.__getitem__, codes.tolist())


class _Codes(dict[str | None, int]):
    """The codes of texts. One that is new gets a code that is free, or the next."""

    def __init__(self) -> None:
        super().__init__({None: NULL_TEXT})
        self.texts: list[str] = []
        self.size = 0
        """How many characters there are."""
        self._free: list[int] = []

    def __missing__(self, text: str) -> int:
        if self._free:
            code = self._free.pop()
            self.texts[code] = text
        else:
            code = len(self.texts)
            self.texts.append(text)
        self[text] = code
        self.size += len(text)
        return code

    def forget(self, codes: list[int], count: int) -> None:
        """Frees all codes but those in use, which are all below `count`."""
        free = set(self._free)
        for code in codes:
            if code not in free:
                del self[self.texts[code]]
                self.size -= len(self.texts[code])
                self.texts[code] = ""
        del self.texts[count:]
        self._free = [code for code in reversed(codes) if code < count]


class _Cache(Generic[C]):
    """A value for each code, computed when it is first asked for. The last place is that of NULL, whose code is -1."""

    def __init__(self, dtype: type, unknown: float, null: float) -> None:
        self._unknown, self._null = unknown, null
        self._values: C = np.array([null], dtype)  # type: ignore[assignment]  # of the type that `dtype` says

    def of(self, codes: Ints, size: int, compute: Callable[[Ints], Sequence[float] | Ints]) -> C:
        """Returns the values of codes, all below `size`."""
        if size >= len(self._values):
            values = np.full(2 * size + 2, self._unknown, self._values.dtype)
            values[: len(self._values) - 1] = self._values[:-1]
            values[-1] = self._null
            self._values = values  # type: ignore[assignment]  # of the same type
        found = self._values[codes]
        unknown = found == self._unknown
        if unknown.any():
            new = distinct(codes[unknown])
            self._values[new] = compute(new)
            found = self._values[codes]
        return found  # type: ignore[return-value]  # of the same type


def _finite(number: float) -> float:
    return number if math.isfinite(number) else math.nan


def _distinct_rows(columns: Sequence[Ints], size: int) -> tuple[list[Ints], Ints]:
    """Returns the distinct rows of columns of codes below `size`, and which of them each row is."""
    key, first, at = columns[0], *np.unique(columns[0], return_index=True, return_inverse=True)[1:]
    for column in columns[1:]:
        key = at * (size + 1) + column
        first, at = np.unique(key, return_index=True, return_inverse=True)[1:]
    return [column[first] for column in columns], at


def _concatenated(texts: tuple[str | None, ...]) -> str | None:
    known = [text for text in texts if text is not None]
    return "".join(known) if len(known) == len(texts) and sum(map(len, known)) <= MOST_TEXT else None


def _outcome(test: Callable[..., bool], args: tuple[str | None, ...]) -> int:
    if None in args:
        return UNDECIDED
    try:
        return TRUE if test(*args) else FALSE
    except (PatternError, PatternLimit):
        return UNDECIDED
