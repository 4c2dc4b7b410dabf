"""The words of a text, as a set and as numbers; `near(x, y, threshold)`; and `similar(x, y, threshold)`.

Two texts are near if J, the number of common words divided by the number of distinct words of both, is at least the
threshold, and similar if weighted J is, in which words count by weight. `join_stage.near_candidates` finds candidates
of both by word numbers. A number has 63 bits: seven for the word's length, or for its weight, both descending, and 56
of a digest. So a text's ascending numbers list its longest words first, which are usually the rarest, or its heaviest,
in the same order for all texts, and weights are known without their table. Collisions count as one word in the search;
`near` and `similar` themselves compare words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from itertools import islice

from xscl.algebra.regex import CharSet, property_charset, union
from xscl.algebra.weights import DIGEST_BITS, WordWeights, chosen_weights, digest

MOST_WORDS = 256  # maximum number of words of a text that are used, from its beginning

MOST_MARKS = 30
"""Maximum number of consecutive combining characters, as in Unicode's Stream-Safe Text Format (UAX 15, 13): sorting
longer runs would take quadratic time."""

_JOINER = "\u034f"
"""The combining grapheme joiner, which that format inserts, and which is a mark itself."""

_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao; Myanmar; Khmer
    r"\u2e80-\u2fdf\u3005-\u3007\u3021-\u302d"  # Han
    r"\u3031-\u3035\u3038-\u303c\u3041-\u3096\u3099-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Kana
    r"\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f"
    r"\U000116d0-\U000116ff\U00016fe2-\U00016fe3\U00016ff0-\U00016ff6\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)
"""Content of a character class: letters, marks and digits of Han, Hiragana, Katakana, Thai, Lao, Khmer and Myanmar,
which put no spaces between words, by Unicode's Script_Extensions, except for accents that European scripts use."""

_ASCII, _LATIN = re.compile("[0-9a-z]+"), re.compile(r"[^\W_]+")

_SHORT = 2_000  # maximum length of a text that is split in one pass, which is faster

_BEHIND_LATIN = "\u0300"
"""The first mark. Below it, re's alphanumeric characters are letters and digits, after NFKC."""

_MOST_KNOWN = 4_096


class _Plainer(dict[int, str]):
    """A table for `str.translate` that blanks characters outside words, such as quotation marks, dashes and stars."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        plain = unicodedata.normalize("NFKC", char)
        found = "".join(" " if unicodedata.category(one)[0] in "PSZC" else one for one in plain)
        found = found if found.isascii() else char
        if len(self) < _MOST_KNOWN:
            self[code] = found
        return found


_plainer = _Plainer()


def words(text: str) -> frozenset[str]:
    """The set of the first MOST_WORDS words of a text, repetitions counted, in linear time.

    Words are the longest runs of letters, marks and digits (the categories L, M and Nd) after NFKC, case folding, and
    NFKC again. A run is cut where unspaced scripts begin or end; in them, each two consecutive characters are a word. A
    single character is a word.

    >>> sorted(words("The ﬁre, and THE Fire — 京都市"))
    ['and', 'fire', 'the', '京都', '都市']
    """
    if len(text) <= _SHORT and (found := _at_once(text)) is not None:
        return frozenset(found[:MOST_WORDS])
    return frozenset(islice(_words(text), MOST_WORDS))


_remembered = lru_cache(maxsize=4_096)(words)


def words_again(text: str) -> frozenset[str]:
    """Like `words`, cached unless the text is long: called when texts are joined, and again when two are compared."""
    return _remembered(text) if len(text) <= 4 * _MOST_REMEMBERED else words(text)


@lru_cache(maxsize=4_096)
def _spaced(text: str) -> str:
    found = _at_once(text) if len(text) <= _SHORT else None
    return f" {' '.join(_words(text) if found is None else found)} "


def spaced_words(text: str) -> str:
    """All words of a text in order, with a blank before and after each.

    >>> spaced_words("The storm: the AI-Act")
    ' the storm the ai act '
    """
    return _spaced(text) if len(text) <= 4 * _MOST_REMEMBERED else _spaced.__wrapped__(text)


def has_words(text: str, wanted: str) -> bool:
    """Whether a text has all words of another, which must have some.

    >>> has_words("An act on AI", "ai act"), has_words("Actors", "act")
    (True, False)
    """
    spaced, those = spaced_words(text), words_again(wanted)
    return bool(those) and all(f" {word} " in spaced for word in those)


def has_phrase(text: str, wanted: str) -> bool:
    """Whether a text has the words of another, which must have some, consecutively.

    >>> has_phrase("The EU AI Act", "ai act"), has_phrase("An act on AI", "ai act")
    (True, False)
    """
    phrase = spaced_words(wanted)
    return phrase != "  " and phrase in spaced_words(text)


def words_text(text: str) -> str:
    """The words of a text in code point order, separated by blanks.

    >>> words_text("Storm hits the coast - the storm")
    'coast hits storm the'
    """
    return " ".join(sorted(words(text)))


def _at_once(text: str) -> list[str] | None:
    if not text.isascii():
        text = text.translate(_plainer)
    if text.isascii():
        return _ASCII.findall(text.lower())
    if max(text) < _BEHIND_LATIN:  # so no blank here replaced a character that a mark follows
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        if max(folded, default="") < _BEHIND_LATIN:
            return _LATIN.findall(folded)
    return None


def _words(text: str) -> Iterator[str]:
    if text.isascii():
        yield from (found[0] for found in _ASCII.finditer(text.lower()))
        return
    patterns = _Patterns()
    stream_safe = patterns.marks.sub(r"\g<0>" + _JOINER, text)
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", stream_safe).casefold())
    for found in patterns.run.finditer(folded):
        run = found[0]
        if patterns.unspaced.search(run) is None:
            yield run
            continue
        for part in patterns.parts.finditer(run):
            word = part[0]
            if part[1] is None or len(word) == 1:
                yield word
            else:
                yield from (word[at : at + 2] for at in range(len(word) - 1))


@cache
class _Patterns:
    """`run` finds letters, marks and digits; `parts` its parts, `unspaced` ones as a group; `marks` too many marks.
    Compiled lazily, once, in a quarter of a second. Most English texts need none of them."""

    def __init__(self) -> None:
        chars = _class(union(property_charset(category) or () for category in ("L", "M", "Nd")))
        marks = union(property_charset(category) or () for category in ("M", "Lm"))  # only these are reordered
        codes = (code for first, last in marks for code in range(first, last + 1))
        combining = _class(tuple((code, code) for code in codes if is_combining(chr(code))))
        self.run = re.compile(f"[{chars}]+")
        self.unspaced = re.compile(f"[{_UNSPACED}]")
        self.parts = re.compile(f"([{_UNSPACED}]+)|[^{_UNSPACED}]+")
        self.marks = re.compile(f"[{combining}]{{{MOST_MARKS}}}(?=[{combining}])")


def is_combining(char: str) -> bool:
    """Whether normalisation reorders a character or its decomposition."""
    return unicodedata.combining(unicodedata.normalize("NFKD", char)[0]) > 0


def _class(chars: CharSet) -> str:
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in chars)


LEAST, LEAST_SIMILAR, MOST = Fraction(1, 2), Fraction(1, 20), Fraction(1)
"""Minimum thresholds of near() and of similar(), and the maximum of both."""

MANY_WORDS = "words"
"""Ends the chain of functions of a text that is joined by its words, with a `word_level` as literal. The value is that
of `encode_words`. No query can name it: a query's `words` has no literal."""

BY_WORDS = ("near", "similar")  # functions by which a join finds texts

_MOST_REMEMBERED = 1_000  # maximum length of texts whose comparison is cached


def near(text: str, other: str, threshold: str) -> bool:
    """Whether J of two texts is at least a threshold, a decimal number. A text without words is near to none.

    >>> near("Storm hits the coast", "The storm hits coast", "1"), near("a b c d", "a b c e", "0.6")
    (True, True)
    """
    return _is_part(overlap(text, other), threshold)


def similar(text: str, other: str, threshold: str) -> bool:
    """Whether weighted J of two texts is at least a threshold, a decimal number. One without words is similar to none.

    >>> similar("Storm hits the coast of Brittany", "Brittany: thousands flee from the storm", "0.2")
    True
    """
    return _is_part(weight_overlap(text, other), threshold)


def _is_part(overlap: tuple[int, int], threshold: str) -> bool:
    common, union = overlap
    wanted = _fraction(threshold)
    return common > 0 and common * wanted.denominator >= wanted.numerator * union


def overlap(text: str, other: str) -> tuple[int, int]:
    """Returns (number of common words, number of distinct words of both)."""
    is_short = len(text) <= _MOST_REMEMBERED and len(other) <= _MOST_REMEMBERED
    return _overlap(text, other) if is_short else _overlap.__wrapped__(text, other)


def weight_overlap(text: str, other: str) -> tuple[int, int]:
    """Returns (weight of the common words, weight of the distinct words of both)."""
    is_short = len(text) <= _MOST_REMEMBERED and len(other) <= _MOST_REMEMBERED
    overlap_of = _weight_overlap if is_short else _weight_overlap.__wrapped__
    return overlap_of(text, other, chosen_weights())


@lru_cache(maxsize=65_536)
def _overlap(text: str, other: str) -> tuple[int, int]:
    ours, theirs = words_again(text), words_again(other)
    common = len(ours & theirs)
    return common, len(ours) + len(theirs) - common


@lru_cache(maxsize=65_536)
def _weight_overlap(text: str, other: str, table: WordWeights) -> tuple[int, int]:
    common = sum(map(table.weight, words_again(text) & words_again(other)))
    of_short = len(text) <= _MOST_REMEMBERED and len(other) <= _MOST_REMEMBERED
    mass = _mass if of_short else _mass.__wrapped__
    return common, mass(text, table) + mass(other, table) - common


@lru_cache(maxsize=8_192)
def _mass(text: str, table: WordWeights) -> int:
    return sum(map(table.weight, words_again(text)))


_fraction = lru_cache(maxsize=1_024)(Fraction)

_LEVELS = ("05", "08", "12", "17", "25", "40", "60", "80")
"""Thresholds by which similar() joins texts, in hundredths: the recommended ones, and others a factor of 1.5 apart."""

_WEIGHED = "w"  # prefix of a level of similar()


def word_level(name: str, threshold: str) -> str:
    """The level at which one of BY_WORDS joins texts with a threshold, in three characters. It is rounded down, so that
    close thresholds share keys: near() to tenths, similar() to hundredths of _LEVELS behind a `w`.

    >>> word_level("near", "0.68"), word_level("near", "1"), word_level("similar", "0.15")
    ('0.6', '1.0', 'w12')
    """
    hundredths = _fraction(threshold) * 100
    if name == "similar":
        return _WEIGHED + max(level for level in _LEVELS if int(level) <= hundredths)
    tenths = hundredths // 10
    return f"{tenths // 10}.{tenths % 10}"


def selectivity(level: str) -> tuple[bool, str]:
    """Orders levels by how few texts they join: all of near() are above all of similar()."""
    return not is_weighed(level), level


def is_weighed(words: str) -> bool:
    """Whether a level, a key or an encoded text is that of similar()."""
    return words.startswith(_WEIGHED)


def level_hundredths(words: str) -> int:
    """The threshold with which a level, a key or an encoded text begins, in hundredths.

    >>> level_hundredths("w12"), level_hundredths("0.6")
    (12, 60)
    """
    return int(words[1:LEVEL]) if is_weighed(words) else 10 * int(words[0] + words[2])


DIGITS = 16  # hexadecimal digits of a number

LEVEL = 3  # characters of a level, with which keys begin

WEIGHED_HEAD = LEVEL + 3
"""Characters in front of the numbers of a text of similar(): the level and how many keys it has in numeric order, so
that SQL need not add weights. In front of those of near() is the level alone."""

HIGHEST = 127
"""The first seven bits of a number are this without the weight of its word, or without its length."""


def encode_words(text: str, level: str) -> str:
    """A text's words in R_doc: the level, for similar() the number of keys, and the ascending hexadecimal numbers of
    the words. "" if it has none.

    >>> encode_words("Storm, storm", "0.6") == encode_words("the storm", "0.6")[:-16]
    True
    >>> encode_words("the storm", "w12")[:6]
    'w12001'
    """
    numbers_of = _numbers if len(text) <= _MOST_REMEMBERED else _numbers.__wrapped__
    numbers = numbers_of(text, chosen_weights() if is_weighed(level) else None)
    if not numbers or not is_weighed(level):
        return numbers and level + numbers
    return f"{level}{_key_count(numbers, level_hundredths(level)):0{WEIGHED_HEAD - LEVEL}}{numbers}"


def _key_count(numbers: str, hundredths: int) -> int:
    """The number of `first_keys`, fast, given the ascending numbers."""
    weights = [HIGHEST - first for first in bytes.fromhex(numbers)[:: DIGITS // 2]]
    count, rest, least = len(weights), 0, hundredths * sum(weights)
    for weight in reversed(weights):
        rest += weight
        if rest * 100 >= least:
            break
        count -= 1
    return count


EXACTLY = "w00"
"""The level at which texts are joined that have one of several values in common: each value counts as a word."""

MOST_VALUES = 500  # maximum number of distinct values of a text that are used, from its beginning


def encode_values(values: Iterable[str]) -> str:
    """Encodes values for R_doc as `encode_words` does words: all of them are keys."""
    numbers = {as_digits(HIGHEST - 1 << DIGEST_BITS | digest(value)) for value in values}
    return f"{EXACTLY}{len(numbers):0{WEIGHED_HEAD - LEVEL}}{''.join(sorted(numbers))}" if numbers else ""


def tokens(text: str) -> Iterator[str]:
    """The words of a text, in order."""
    return iter(spaced_words(text).split())


def first_keys(words: str, places: Mapping[str, int] | None = None) -> list[str]:
    """The first words of an encoded text, each with the level: texts that it joins have one in common (see
    `join_stage.near_candidates`). Words with `places` come last, in the order of these."""
    numbers, hundredths, weight = decode_words(words), level_hundredths(words), _weight_in(words)
    if places:
        numbers.sort(key=lambda number: places.get(number, -1))
    total = rest = sum(map(weight, numbers))
    found: list[str] = []
    for number in numbers:
        if rest * 100 < hundredths * total:
            break
        found.append(words[:LEVEL] + number)
        rest -= weight(number)
    return found


def have_enough_in_common(one: str, other: str) -> bool:
    """Whether J of two encoded texts is at least their threshold. Number collisions may produce false positives."""
    ours, theirs, hundredths, weight = _set(one), _set(other), level_hundredths(one), _weight_in(one)
    common, both = sum(map(weight, ours & theirs)), sum(map(weight, ours)) + sum(map(weight, theirs))
    return common * (100 + hundredths) >= hundredths * both


def as_digits(number: int) -> str:
    return f"{number:0{DIGITS}x}"


def decode_words(words: str) -> list[str]:
    return [words[at : at + DIGITS] for at in range(head_length(words), len(words), DIGITS)]


def head_length(words: str) -> int:
    """The number of characters before the numbers of an encoded text."""
    return WEIGHED_HEAD if is_weighed(words) else LEVEL


def _weight_in(words: str) -> Callable[[str], int]:
    return _weight_of_number if is_weighed(words) else lambda number: 1


def _weight_of_number(number: str) -> int:
    return HIGHEST - int(number[:2], 16)


@lru_cache(maxsize=8_192)
def _set(words: str) -> frozenset[str]:
    return frozenset(decode_words(words))


@lru_cache(maxsize=8_192)
def _numbers(text: str, table: WordWeights | None) -> str:
    """The numbers of the words, by weight with a table, else by length."""
    if table is None:
        return "".join(sorted(map(_number, words_again(text))))
    number_of = _weighed_numbers(table)
    return "".join(sorted({*map(number_of, words_again(text))}))


@lru_cache(maxsize=65_536)
def _number(word: str) -> str:
    return as_digits(HIGHEST - min(len(word), HIGHEST) << DIGEST_BITS | digest(word))


@lru_cache(maxsize=4)
def _weighed_numbers(table: WordWeights) -> Callable[[str], str]:
    def number(word: str) -> str:
        return as_digits(HIGHEST - table.weight(word) << DIGEST_BITS | digest(word))

    return lru_cache(maxsize=65_536)(number)
