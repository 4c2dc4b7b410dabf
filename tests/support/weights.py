"""Makes the table of weights of words that comes with the package, from the frequencies of wordfreq, which are frozen:

python -m tests.support.weights    # needs wordfreq 3.1.1 and its msgpack, which nothing else does

A word weighs twenty times 7.8 minus its Zipf frequency, the decimal logarithm of its occurrences in 10^9 words, in the
language where it is most frequent. Words that weigh more than RAREST are left out, and weigh as unknown ones do: that
measures the same, and with them the table would be four times as long.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from xscl.algebra.near import words
from xscl.algebra.weights import GENERAL, write_weights

FULL = ("en", "de", "fr", "es", "it", "pt", "nl", "ru", "pl", "zh", "ja")
"""Languages with words up to a weight of RAREST; others have those up to OF_OTHERS, which are mostly function words."""

RAREST, OF_OTHERS = 96, 66

PAIRED = ("zh", "ja")
"""Languages whose words are pairs of characters (see `words`), also across the words that frequencies are known of."""

LEAST_PAIR = 1e-6  # minimum frequency of a pair across words

YEARS = range(1000, 2100)
"""Numbers of four digits, by the frequencies that wordfreq estimates. Other numbers are told from stories, and weigh as
words that the table does not have; of one digit, as what was counted."""

Buckets = Iterable[Iterable[str]]
"""The words of a language by hundredths of the negative decimal logarithm of their frequency."""


def frequencies(buckets: Buckets, *, paired: bool) -> dict[str, float]:
    """The frequencies of the words that `words` finds in those of a language. Words across two of these are as frequent
    as if each followed each."""
    found: defaultdict[str, float] = defaultdict(float)
    first: defaultdict[str, float] = defaultdict(float)
    last: defaultdict[str, float] = defaultdict(float)
    for hundredths, bucket in enumerate(buckets):
        frequency = 10 ** (-hundredths / 100)
        for text in bucket:
            for word in words(text):
                found[word] += frequency
            if paired and text.isalpha() and not text.isascii():
                first[text[0]] += frequency
                last[text[-1]] += frequency
    by_frequency = sorted(first.items(), key=lambda item: (-item[1], item[0]))
    for before, ending in last.items():
        for after, beginning in by_frequency:
            if ending * beginning < LEAST_PAIR:
                break
            for word in words(before + after):
                if len(word) == 2:
                    found[word] += ending * beginning
    return found


def weight(frequency: float) -> int:
    return max(1, round(20 * (7.8 - (9 + math.log10(frequency)))))


def weights(languages: Iterable[tuple[str, Buckets]], years: Iterable[tuple[str, float]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for language, buckets in languages:
        most = RAREST if language in FULL else OF_OTHERS
        for word, frequency in frequencies(buckets, paired=language in PAIRED).items():
            if (weighs := weight(frequency)) <= most:
                found[word] = min(weighs, found.get(word, weighs))
    for year, frequency in years:
        if (weighs := weight(frequency)) <= RAREST:
            found[year] = weighs
    return found


def _languages() -> Iterator[tuple[str, Buckets]]:
    from wordfreq import available_languages, get_frequency_list  # type: ignore[import-not-found]

    for language in sorted(available_languages("small")):
        yield language, get_frequency_list(language, "large" if language in FULL else "small")


def _years() -> Iterator[tuple[str, float]]:
    from wordfreq import word_frequency

    spaced = [language for language in FULL if language not in PAIRED]
    for year in map(str, YEARS):
        yield year, max(word_frequency(year, language) for language in spaced)


def main() -> None:
    made = write_weights(weights(_languages(), _years()))
    path = Path(__file__).parents[2] / "xscl" / "algebra" / f"{GENERAL}.weights"
    path.write_bytes(made)
    print(f"{path.name}: {len(made):,} bytes")


if __name__ == "__main__":
    main()
