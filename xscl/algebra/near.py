"""The words of a text, as a set and as numbers, and near-equal texts: `near(x, y, threshold)`.

Two texts are near if J, the number of common words divided by the number of distinct words of both, is at least the
threshold; `join_stage.near_candidates` finds candidates by word numbers. A number has 63 bits: seven for the word's
length, descending, and 56 of a digest. So a text's ascending numbers list its words longest first, which are usually
the rarest, in the same order for all texts. Collisions count as one word in the search; `near` itself compares words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from hashlib import blake2b
from itertools import islice

from xscl.algebra.regex import CharSet, property_charset, union

MOST_WORDS = 256  # maximum number of words of a text that count, from its beginning

MOST_MARKS = 30
"""Maximum number of consecutive combining characters, as in Unicode's Stream-Safe Text Format (UAX 15, 13): sorting
more would take quadratic time."""

_JOINER = "\u034f"
"""The combining grapheme joiner, which that format inserts. It is a mark itself."""

_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao; Myanmar; Khmer
    r"\u2e80-\u2fdf\u3005-\u3007\u3021-\u302d"  # Han
    r"\u3031-\u3035\u3038-\u303c\u3041-\u3096\u3099-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Kana
    r"\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f"
    r"\U000116d0-\U000116ff\U00016fe2-\U00016fe3\U00016ff0-\U00016ff6\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)
"""In brackets, letters, marks and digits of Han, Hiragana, Katakana, Thai, Lao, Khmer and Myanmar, which put no space
between words: those with one of them in Unicode's Script_Extensions, except for accents that European scripts use."""

_ASCII, _LATIN = re.compile("[0-9a-z]+"), re.compile(r"[^\W_]+")

_SHORT = 2_000  # maximum length of a text that is split into words at once, which is faster than one by one

_BEHIND_LATIN = "\u0300"
"""The first of the marks. Before them, re's alphanumeric characters are letters and digits, once NFKC has replaced
superscripts and fractions."""

_MOST_KNOWN = 4_096


class _Plainer(dict[int, str]):
    """For `str.translate`: blanks for characters in no word, such as quotation marks, dashes and stars."""

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
    single character is a word itself.

    >>> sorted(words("The ﬁre, and THE Fire — 京都市"))
    ['and', 'fire', 'the', '京都', '都市']
    """
    if len(text) <= _SHORT and (found := _at_once(text)) is not None:
        return frozenset(found[:MOST_WORDS])
    return frozenset(islice(_words(text), MOST_WORDS))


_remembered = lru_cache(maxsize=4_096)(words)


def words_again(text: str) -> frozenset[str]:
    """`words`, cached unless the text is long: it is called when texts are joined, and again when two are compared."""
    return _remembered(text) if len(text) <= 4 * _MOST_REMEMBERED else words(text)


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
    if max(text) < _BEHIND_LATIN:  # so none of what is blank now was one character with a mark behind it
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
    Compiled once and lazily, in a quarter of a second. Most English texts do without."""

    def __init__(self) -> None:
        chars = _class(union(property_charset(category) or () for category in ("L", "M", "Nd")))
        marks = union(property_charset(category) or () for category in ("M", "Lm"))  # no others are reordered
        codes = (code for first, last in marks for code in range(first, last + 1))
        combining = _class(tuple((code, code) for code in codes if is_combining(chr(code))))
        self.run = re.compile(f"[{chars}]+")
        self.unspaced = re.compile(f"[{_UNSPACED}]")
        self.parts = re.compile(f"([{_UNSPACED}]+)|[^{_UNSPACED}]+")
        self.marks = re.compile(f"[{combining}]{{{MOST_MARKS}}}(?=[{combining}])")


def is_combining(char: str) -> bool:
    """Whether normalisation reorders a character: itself, or its decomposition."""
    return unicodedata.combining(unicodedata.normalize("NFKD", char)[0]) > 0


def _class(chars: CharSet) -> str:
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in chars)


LEAST, MOST = Fraction(1, 2), Fraction(1)  # minimum and maximum threshold

MANY_WORDS = "words"
"""Ends the chain of functions of a text that is joined by its words, with the threshold as literal. The value is that
of `encode_words`. No query can name it: a query's `words` has no literal."""

_MOST_REMEMBERED = 1_000  # maximum length of texts whose comparison is cached


def near(text: str, other: str, threshold: str) -> bool:
    """Whether J of two texts is at least a threshold, a decimal number. A text without words is near none.

    >>> near("Storm hits the coast", "The storm hits coast", "1"), near("a b c d", "a b c e", "0.6")
    (True, True)
    """
    common, union = overlap(text, other)
    wanted = _fraction(threshold)
    return common > 0 and common * wanted.denominator >= wanted.numerator * union


def overlap(text: str, other: str) -> tuple[int, int]:
    """(number of common words, number of distinct words of both)."""
    is_short = len(text) <= _MOST_REMEMBERED and len(other) <= _MOST_REMEMBERED
    return _overlap(text, other) if is_short else _overlap.__wrapped__(text, other)


@lru_cache(maxsize=65_536)
def _overlap(text: str, other: str) -> tuple[int, int]:
    ours, theirs = words_again(text), words_again(other)
    common = len(ours & theirs)
    return common, len(ours) + len(theirs) - common


_fraction = lru_cache(maxsize=1_024)(Fraction)


def join_threshold(threshold: str) -> str:
    """A threshold rounded down to tenths, by which texts are joined: similar thresholds share keys.

    >>> join_threshold("0.68"), join_threshold("1")
    ('0.6', '1.0')
    """
    tenths = _fraction(threshold) * 10 // 1
    return f"{tenths // 10}.{tenths % 10}"


DIGITS = 16  # hexadecimal digits of a number

THRESHOLD = 3  # characters of a threshold in tenths, such as 0.6 and 1.0

_LONGEST = 127


def encode_words(text: str, threshold: str) -> str:
    """A text's words in R_doc: the threshold, in tenths, and the ascending hexadecimal numbers of its words. "" if it
    has none.

    >>> encode_words("Storm, storm", "0.6") == encode_words("the storm", "0.6")[:-16]
    True
    """
    numbers = _numbers(text) if len(text) <= _MOST_REMEMBERED else _numbers.__wrapped__(text)
    return f"{threshold}{numbers}" if numbers else ""


def first_keys(words: str, places: Mapping[str, int] | None = None) -> list[str]:
    """The first words of an encoded text, each with the threshold: near texts have one in common (see
    `join_stage.near_candidates`). Words with `places` come last, in the order of these."""
    numbers, tenths = decode_words(words), _tenths(words)
    if places:
        numbers.sort(key=lambda number: places.get(number, -1))
    most = len(numbers) + (-tenths * len(numbers) // 10) + 1
    return [f"{words[:THRESHOLD]}{number}" for number in numbers[:most]]


def have_enough_in_common(one: str, other: str) -> bool:
    """Whether J of two encoded texts is at least their threshold. Number collisions may produce false positives."""
    ours, theirs, tenths = _set(one), _set(other), _tenths(one)
    return len(ours & theirs) * (10 + tenths) >= tenths * (len(ours) + len(theirs))


def as_digits(number: int) -> str:
    return f"{number:0{DIGITS}x}"


def decode_words(words: str) -> list[str]:
    return [words[at : at + DIGITS] for at in range(THRESHOLD, len(words), DIGITS)]


@lru_cache(maxsize=8_192)
def _set(words: str) -> frozenset[str]:
    return frozenset(decode_words(words))


def _tenths(words: str) -> int:
    return int(words[0] + words[2])


@lru_cache(maxsize=8_192)
def _numbers(text: str) -> str:
    return "".join(sorted(map(_number, words_again(text))))


@lru_cache(maxsize=65_536)
def _number(word: str) -> str:
    length = _LONGEST - min(len(word), _LONGEST)
    return f"{length:02x}{blake2b(word.encode('utf-8', 'surrogatepass'), digest_size=7).hexdigest()}"
